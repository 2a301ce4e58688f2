"""Tests what a KafkaSource offers, refuses and commits, on a real broker and without Spark."""

import json
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from checkpointing.identifiers import CheckpointId, JobName, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.operators.spec import arrow_schema
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.port import Lag, NoSuchPositionError, SourceDescription, SourceError, read_schema
from tests.kafka_broker import LOGIN, PASSWORD
from tests.scenarios.kafka.topics import TopicMaker, done, eventually

SOURCE = VertexId("orders")


def raw(servers, topics=(), **more):
    return KafkaSource(servers, topics, format="raw", **more)


def ask(source, split, position=None, rows=1_000):
    return source.poll(PollSource(SOURCE, SplitId(split), position, rows))


def offsets(piece):
    found = json.loads(piece.detail)
    return found["first"], found["end"]


def test_each_partition_is_a_split_and_its_offsets_are_offered_once(make_topic):
    """A slice begins where the last one ended. It has at most the requested rows, and an idle split offers none."""
    topic = make_topic(2)
    topic.write(["a", "b", "c"], 1)
    source = raw(topic.servers, topic.name)
    assert (f"{topic.name}-0", f"{topic.name}-1") == source.splits()
    assert None is ask(source, f"{topic.name}-0")
    first = ask(source, f"{topic.name}-1", rows=2)
    second = ask(source, f"{topic.name}-1", first.end)
    assert [(0, 2), (2, 3)] == [offsets(first), offsets(second)]
    assert None is ask(source, f"{topic.name}-1", second.end)
    topic.write(["d"], 1)
    assert (3, 4) == offsets(ask(source, f"{topic.name}-1", second.end))


def test_topics_are_found_by_a_pattern_and_odd_names_become_splits(make_topic):
    """The next tick finds a new topic. A topic whose name is no valid split name gets a split with an encoded name."""
    first = make_topic(1, name="_odd.names")
    source = raw(first.servers, pattern=r"_odd\.names-.*")
    (split,) = source.splits()
    assert f"t={first.name}-0" == split
    first.write(["a"])
    assert (0, 1) == offsets(ask(source, split))
    make_topic(2, name="_odd.names")
    assert 3 == len(source.splits())
    with pytest.raises(SourceError, match="no topic whose name matches 'none-of-these'"):
        raw(first.servers, pattern="none-of-these").splits()


def test_records_of_an_open_transaction_are_not_offered(make_topic):
    """The transaction may still be aborted. The marker of its commit also has an offset, but no row."""
    topic = make_topic()
    source = raw(topic.servers, topic.name)
    topic.write(["a"])
    with topic.transaction(["b", "c"], commit=True):
        topic.write(["d"])
        assert (0, 1) == offsets(ask(source, f"{topic.name}-0"))
        after = ask(source, f"{topic.name}-0").end
    assert (1, 5) == offsets(eventually(lambda: ask(source, f"{topic.name}-0", after)))


def test_a_bounded_partition_ends_where_it_ended_at_the_first_look(make_topic):
    """The position contains this end. So a later tick ends there too, whatever was written meanwhile."""
    topic = make_topic(2)
    empty, full = (SplitId(f"{topic.name}-{partition}") for partition in range(2))
    topic.write(["a", "b", "c"], 1)
    source = raw(topic.servers, topic.name, bounded=True)
    first = ask(source, full, rows=2)
    assert None is ask(source, empty)
    assert (True, False) == (source.has_ended(empty, None), source.has_ended(full, first.end))
    topic.write(["d"], 0)
    topic.write(["e"], 1)
    later = raw(topic.servers, topic.name, bounded=True)
    second = ask(later, full, first.end)
    assert (2, 3) == offsets(second)
    assert None is ask(later, full, second.end)
    assert later.has_ended(full, second.end)
    assert Lag(0, 0.0) == later.lag({full: second.end})[full]
    assert (3, 4) == offsets(ask(raw(topic.servers, topic.name), full, second.end))


def test_latest_begins_at_the_end_of_the_first_poll(make_topic):
    """The source returns this end as a slice without records. Otherwise the next tick would begin at a later end."""
    topic = make_topic()
    topic.write(["old"])
    pin = ask(raw(topic.servers, topic.name, start="latest"), f"{topic.name}-0")
    assert (1, 1) == offsets(pin)
    topic.write(["new"])
    assert (1, 2) == offsets(ask(raw(topic.servers, topic.name, start="latest"), f"{topic.name}-0", pin.end))


@pytest.mark.parametrize("start", ["latest", "2026-01-31T12:00:00Z"])
def test_a_new_kafka_partition_is_read_from_its_start(make_topic, start):
    """Its records came after the job first listed the partitions, so `start` must not skip them.

    The source's state keeps this first list. The new partition may be polled first.
    """
    topic = make_topic(retention_ms="-1")
    source = raw(topic.servers, topic.name, start=start)
    assert (f"{topic.name}-0",) == source.splits()
    source.restore_state(None, None)
    topic.write(["old"], timestamp=1)
    state = source.snapshot_state()
    topic.add_partitions(2)
    topic.write(["new", "more"], 1, timestamp=1)
    next_tick = raw(topic.servers, topic.name, start=start)
    assert 2 == len(next_tick.splits())
    next_tick.restore_state(CheckpointId(1), state)
    assert (0, 2) == offsets(ask(next_tick, f"{topic.name}-1"))
    first = ask(next_tick, f"{topic.name}-0")
    assert first is None or (1, 1) == offsets(first)
    assert state == next_tick.snapshot_state()


def test_a_job_of_an_older_version_reads_new_partitions_from_their_start(make_topic):
    """The old checkpoints do not list partitions.

    If the job began at `latest`, all partitions that it found at first have positions.
    """
    topic = make_topic()
    source = raw(topic.servers, topic.name, start="latest")
    source.splits()
    source.restore_state(CheckpointId(4), None)
    topic.write(["new"])
    assert (0, 1) == offsets(ask(source, f"{topic.name}-0"))
    later = raw(topic.servers, topic.name, start="latest")
    later.restore_state(CheckpointId(5), source.snapshot_state())
    assert (0, 1) == offsets(ask(later, f"{topic.name}-0"))


def test_the_state_of_another_source_is_refused(make_topic):
    topic = make_topic()
    with pytest.raises(SourceError, match="no state of a KafkaSource: give the source an id of its own"):
        raw(topic.servers, topic.name).restore_state(CheckpointId(1), '{"offset": 1}')


def test_a_start_time_begins_at_the_first_record_that_is_not_older(make_topic):
    topic = make_topic(retention_ms="-1")
    topic.write(["a"], timestamp=1_000_000)
    topic.write(["b", "c"], timestamp=2_000_000)
    source = raw(topic.servers, topic.name, start=datetime.fromtimestamp(1_500, UTC))
    assert (1, 3) == offsets(ask(source, f"{topic.name}-0"))
    assert None is ask(raw(topic.servers, topic.name, start="2100-01-01T00:00:00Z"), f"{topic.name}-0")
    with pytest.raises(SourceError, match="cannot start at 'yesterday': write 'earliest', 'latest' or a moment"):
        raw(topic.servers, topic.name, start="yesterday")


def test_deleted_unread_records_are_an_error(make_topic):
    """The error names the Kafka partition, the lost offsets, and the command that goes on without them.

    Records that the job has read may be deleted.
    """
    topic = make_topic()
    topic.write(["a", "b", "c", "d"])
    source = raw(topic.servers, topic.name)
    read = ask(source, f"{topic.name}-0", rows=2)
    topic.delete_records(2)
    source.splits()
    assert (2, 4) == offsets(ask(source, f"{topic.name}-0", read.end))
    topic.delete_records(3)
    source.splits()
    with pytest.raises(
        SourceError, match=rf"{topic.name}-0 has lost .*: offsets 2 to 2 .*--split {topic.name}-0 --to e"
    ):
        ask(source, f"{topic.name}-0", read.end)


def test_a_recreated_topic_is_an_error(make_topic):
    """The new topic's offsets begin anew, so the same offset would name another record."""
    topic = make_topic()
    topic.write(["a", "b"])
    source = raw(topic.servers, topic.name)
    read = ask(source, f"{topic.name}-0", rows=1)
    topic.delete()
    gone = raw(topic.servers, topic.name)
    with pytest.raises(SourceError, match=rf"partition {topic.name}-0 is gone, and the job has read it up to offset 1"):
        ask(gone, f"{topic.name}-0", read.end)
    make_again(topic)
    topic.write(["x", "y", "z"])
    with pytest.raises(SourceError, match=rf"topic {topic.name} was deleted and made again: it had the id") as raised:
        ask(raw(topic.servers, topic.name), f"{topic.name}-0", read.end)
    assert str(raised.value).endswith("without --split, the command moves all of them")


def make_again(topic):
    TopicMaker(topic.servers).made(topic.name, 1, {})


def test_an_end_that_moved_back_is_an_error(make_topic):
    """The cluster lost records that the tables hold. Their offsets will name other records."""
    topic = make_topic()
    topic.write(["a"])
    source = raw(topic.servers, topic.name)
    piece = ask(source, f"{topic.name}-0")
    beyond = piece.end.replace('"offset":1', '"offset":9')
    with pytest.raises(SourceError, match=r"ends at offset 1, and the job has read it up to offset 9.*--to latest"):
        ask(source, f"{topic.name}-0", beyond)


def test_a_plain_consumer_sees_the_committed_offsets(make_topic):
    """They are the offsets of the newest completed checkpoint. A notification of an older one changes nothing."""
    topic = make_topic(2)
    topic.write(["a", "b", "c"], 0)
    source = raw(topic.servers, topic.name)
    source.belongs_to(JobName("shop"), SOURCE)
    one, two = ask(source, f"{topic.name}-0", rows=1), ask(source, f"{topic.name}-0", rows=3)
    assert {0: -1001, 1: -1001} == topic.committed("tidemark-shop-orders", 2)
    source.notify_checkpoint_complete(CheckpointId(2), {SplitId(f"{topic.name}-0"): two.end})
    source.notify_checkpoint_complete(CheckpointId(1), {SplitId(f"{topic.name}-0"): one.end})
    assert {0: 3, 1: -1001} == topic.committed("tidemark-shop-orders", 2)
    silent = raw(topic.servers, topic.name, commit=False, group="mine")
    silent.notify_checkpoint_complete(CheckpointId(2), {SplitId(f"{topic.name}-0"): two.end})
    assert {0: -1001, 1: -1001} == topic.committed("mine", 2)


def test_positions_are_written_and_read_as_words(make_topic):
    """`tidemark reset --to` accepts these words, and plans and messages show them."""
    topic = make_topic(retention_ms="-1")
    topic.write(["a"], timestamp=1_000_000)
    topic.write(["b", "c"], timestamp=2_000_000)
    topic.delete_records(1)
    source, split = raw(topic.servers, topic.name), SplitId(f"{topic.name}-0")
    words = ("earliest", "latest", "end", "2", "1970-01-01T00:20:00Z")
    found = [json.loads(source.seek(split, None, each))["offset"] for each in words]
    assert [1, 3, 3, 2, 1] == found
    assert f"{topic.name}-0, offset 3" == source.named(split, source.seek(split, None, "end"))
    for wrong in ("0", "4", "newest"):
        with pytest.raises(
            NoSuchPositionError, match="write 'start', 'end', 'earliest', 'latest', an offset from 1 to 3"
        ):
            source.seek(split, None, wrong)
    assert SourceDescription("kafka", f"{topic.servers}, {topic.name}") == source.described()


def test_the_lag_is_in_offsets_and_seconds(make_topic):
    """The seconds are the age of the oldest unread record. A source that was closed still answers."""
    topic = make_topic(2)
    topic.write(["a", "b", "c"], timestamp=round(time.time() * 1000) - 60_000)
    source, split = raw(topic.servers, topic.name), SplitId(f"{topic.name}-0")
    lag = source.lag({})
    assert (3, Lag(0, 0.0)) == (lag[split].rows, lag[f"{topic.name}-1"])
    assert 59 < lag[split].seconds < 90
    source.close()
    end = source.seek(split, None, "end")
    source.close()
    assert Lag(0, 0.0) == source.lag({split: end})[split]
    assert Lag(None) == raw(topic.servers, topic.name, start="latest").lag({})[split]
    begun = ask(source, split, rows=1).end
    topic.delete_records(2)
    assert Lag(None) == source.lag({split: begun})[split], "a poll says what is lost"


def test_a_wrong_address_is_reported_within_seconds():
    """The message says what to correct, and comes before the claim. A tick waits for the server only once."""
    source, began = raw("127.0.0.1:9", "orders"), time.monotonic()
    for ask in (lambda: source.lag({}), source.splits):
        with pytest.raises(SourceError, match=r"Kafka at 127\.0\.0\.1:9 does not answer: start the broker, or corr"):
            ask()
        source.close()
    assert time.monotonic() - began < 8


def test_an_unknown_topic_is_named(broker):
    with pytest.raises(SourceError, match="has no topic ordres: create the topic, or correct its name"):
        raw(broker.servers, "ordres").splits()


def test_a_log_in_takes_its_password_from_the_environment(make_topic, broker, monkeypatch):
    topic = make_topic()
    topic.write(["a"])
    source = raw(broker.login_servers, topic.name, options=LOGIN, secrets={"sasl.password": "ORDERS_PASSWORD"})
    with pytest.raises(SourceError, match=r"no variable 'ORDERS_PASSWORD', which is to hold 'sasl\.password'"):
        source.splits()
    monkeypatch.setenv("ORDERS_PASSWORD", PASSWORD)
    assert (f"{topic.name}-0",) == source.splits()
    wrong = raw(broker.login_servers, topic.name, options=LOGIN, secrets=lambda: {"sasl.password": "not-this-one"})
    with pytest.raises(SourceError, match="refused the log-in") as caught:
        wrong.splits()
    assert "not-this-one" not in str(caught.value)


def test_missing_rights_are_named(make_topic, broker):
    topic = make_topic()
    rule = AclBinding(
        ResourceType.TOPIC,
        topic.name,
        ResourcePatternType.LITERAL,
        "User:reader",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    done(topic.admin(), lambda admin: admin.create_acls([rule]))
    source = raw(broker.login_servers, topic.name, options=LOGIN, secrets=lambda: {"sasl.password": PASSWORD})
    with pytest.raises(
        SourceError, match=rf"does not let this user read topic {topic.name}: give it DESCRIBE and READ"
    ):
        source.splits()


def test_what_a_job_would_lose_of_debeziums_events_is_an_error(make_topic):
    """A column is not declared, or the place of a truncate is not known. The messages say what to do."""
    event = {"before": None, "after": None, "op": "t"}
    event |= {
        "source": {"connector": "mysql", "db": "bank", "table": "giro", "file": "bin.000001", "pos": 7, "ts_ms": 1}
    }

    def read(topic, **given):
        source = KafkaSource(topic.servers, topic.name, format="debezium-json", schema="id int", **given)
        schema = arrow_schema(read_schema(source))
        for scan in source.scans([ask(source, f"{topic.name}-0")]):
            for batch in scan.batches(schema):
                yield from batch.select(["_kind", "_table", "_position", "id"]).to_pylist()

    one, several = make_topic(), make_topic(2)
    one.write([json.dumps(event), json.dumps(event | {"op": "c", "after": {"id": 1, "note": "new"}})])
    with pytest.raises(SourceError, match=r"bank.giro has a column 'note' at mysql bin.000001:7, which schema= lacks"):
        list(read(one))
    assert [("truncate", "bank.giro", 1, None), ("insert", "bank.giro", 3, 1)] == [
        tuple(row.values()) for row in read(one, columns="ignore")
    ]
    several.write([json.dumps(event)])
    with pytest.raises(SourceError, match=rf"topic {several.name} has 2 partitions.*skipped.operations=t"):
        list(read(several))
