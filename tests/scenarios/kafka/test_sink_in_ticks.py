"""Tests whole ticks with Kafka sinks on Spark and a real broker: ticks are killed, stopped, refused and rolled back."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import polars as pl
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.outside_sinks.kafka import transaction
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.warehouse import Warehouse
from tests.kafka_broker import LOGIN, PASSWORD
from tests.scenarios.kafka.sink_job import ORDERS, PASSWORD_VARIABLE, SIZES, STOP_VARIABLE, crossing
from tests.scenarios.kafka.topics import ALL, done, read, read_by_spark, table_of
from tidemark.testing import TickFailedError, Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(590), pytest.mark.jars("kafka")]

JOB = "tests.scenarios.kafka.sink_job:build"
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
ONE_CORE = {"spark_cores": 1}
CHAINS = {
    "committing": ("after:AppendRow#2", f"before:PublishOutside:{ORDERS}", f"after:begin_transaction:{ORDERS}"),
    "appending": (
        f"after:produce_batch:{ORDERS}#2",
        f"before:commit_transaction:{ORDERS}",
        f"after:commit_transaction:{ORDERS}",
        f"after:RollForwardOutside:{ORDERS}",
    ),
    "upserting": (
        f"after:produce_batch:{SIZES}#2",
        f"before:commit_transaction:{SIZES}",
        f"after:commit_transaction:{SIZES}",
        f"after:RollForwardOutside:{SIZES}",
    ),
    "recording": (
        f"after:PublishOutside:{ORDERS}#2",
        f"before:send_offsets_to_transaction:{SIZES}",
        f"after:PublishOutside:{SIZES}",
        "before:RecordCut",
        "after:RecordCut",
    ),
}
"""Where ticks die, one after the other. Each tick first rolls forward what the tick before has left."""
ABORTED = {"appending": ORDERS, "upserting": SIZES}
"""For some chains, the table whose topic gets an aborted transaction."""


class Shop(Trial):
    """A trial of the pipeline. It knows the topic of each table."""

    def __init__(self, folder, topics, **told):
        super().__init__(JOB, folder)
        self.topics, self.orders = topics, 0
        self.data.mkdir(parents=True)
        servers = told.pop("servers", None) or next(iter(topics.values())).servers
        named = {table: topic.name for table, topic in topics.items()}
        (self.data / "kafka.json").write_text(json.dumps({"servers": servers, "topics": named} | told))
        for _ in range(3):
            self.order()

    def order(self, rows=15):
        ids = range(self.orders, self.orders + rows)
        self.deliver("orders/shop", pl.DataFrame({"id": ids, "customer": [f"c{n % (1 + n % 6)}" for n in ids]}))
        self.orders += rows

    def at(self):
        return Warehouse(self.warehouse, ProtocolPaths(JobName("shop")))

    def table(self, name):
        return self.cuts.latest().polars(name).collect().to_dicts()


@pytest.fixture
def shop(tmp_path, make_topic, spark):
    """Return a function that makes the trial with topics of two Kafka partitions."""

    def made(*tables, **told):
        topics = {table: make_topic(2, name=table.split("/")[1]) for table in tables or (ORDERS, SIZES)}
        return Shop(tmp_path / "shop", topics, **told)

    return made


def appended(records):
    assert all(int(key) == json.loads(value)["id"] for _, _, key, value in records)
    return Counter(json.loads(value)["id"] for _, _, _, value in records)


def sizes_of(shop):
    return {str(row["orders"]): row for row in shop.table(SIZES)}


def assert_exact(shop, spark):
    """Assert that readers of committed records see each order once, and the rows of the upsert table.

    All orders were read. Kafka's client and Spark see the same records.
    """
    for table, topic in shop.topics.items():
        records = read(topic)
        assert records == read_by_spark(spark, topic)
        if table == SIZES:
            assert any(value is None for *_, value in records), "no key has gone"
            assert sizes_of(shop) == table_of(records)
        else:
            assert [{"id": n} for n in range(shop.orders)] == [
                {"id": row["id"]} for row in sorted(shop.table(ORDERS), key=lambda row: row["id"])
            ]
            assert Counter(range(shop.orders)) == appended(records)


@pytest.mark.kill
@pytest.mark.parametrize("chain", CHAINS)
def test_ticks_that_die_at_any_moment_leave_each_row_once(shop, spark, chain):
    """Ticks get SIGKILL, also within a transaction and right after its commit. The last tick ends normally."""
    job = shop()
    for moment in CHAINS[chain]:
        job.kill(moment, **ONE_CORE)
        job.order()
    job.run(**ONE_CORE)
    assert_exact(job, spark)
    if chain in ABORTED:
        topic = job.topics[ABORTED[chain]]
        assert len(read(topic)) < len(read(topic, ALL)), "no transaction was aborted"


@pytest.mark.dear
def test_a_zombie_is_fenced_by_the_broker(shop, spark):
    """A tick is stopped (SIGSTOP) before it commits a transaction. It goes on after another tick has taken the job."""
    job = shop()
    folders = ["--data", str(job.data), "--warehouse", str(job.warehouse), "--set", "spark_cores=1"]
    environment = os.environ | {STOP_VARIABLE: f"before:commit_transaction:{ORDERS}"}
    with subprocess.Popen(
        [sys.executable, "-m", "tidemark", "run", JOB, *folders], env=environment, text=True, stderr=subprocess.PIPE
    ) as zombie:
        try:
            _, status = os.waitpid(zombie.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            job.run(take_over=True, **ONE_CORE)
            assert_exact(job, spark)
            zombie.send_signal(signal.SIGCONT)
            _, said = zombie.communicate(timeout=120)
        finally:
            zombie.kill()
    assert (job.data / "refused").read_text() in FENCED
    assert 0 != zombie.returncode
    assert "claimed by" in said
    assert_exact(job, spark)


@pytest.mark.dear
def test_a_right_that_is_revoked_stops_the_job_until_it_is_given_again(shop, spark, broker, monkeypatch):
    """The tick fails after its commit point and names topic and right. The next tick is refused. Nothing is lost."""
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    job = shop(servers=broker.login_servers, options=LOGIN)
    topic = job.topics[ORDERS]
    rule = (topic.name, ResourcePatternType.LITERAL, "User:reader", "*", AclOperation.WRITE, AclPermissionType.DENY)

    def revoke(name):
        if name == f"before:begin_transaction:{ORDERS}":
            done(topic.admin(), lambda admin: admin.create_acls([AclBinding(ResourceType.TOPIC, *rule)]))

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "Producer", crossing(revoke))
        said = f"not let this user write to topic {topic.name}: give"
        with pytest.raises(TickFailedError, match=f"{ORDERS} does not have checkpoint 1 yet, .*{said}") as one:
            job.run(**ONE_CORE)
    assert str(one.value).startswith("shop: an output table or its sink does not take what is to be published: ")
    with pytest.raises(
        TickRefusedError, match=f"sink of table {ORDERS}: .* not let this user write to topic {topic.name}"
    ):
        job.run(**ONE_CORE)
    assert [] == read(topic)
    done(topic.admin(), lambda admin: admin.delete_acls([AclBindingFilter(ResourceType.TOPIC, *rule)]))
    job.run(**ONE_CORE)
    assert_exact(job, spark)


@pytest.mark.dear
def test_topics_that_do_not_fit_are_refused_before_the_job_is_claimed(shop, spark, make_topic):
    """One topic does not exist. One of an upsert table has records of others. With other topics, all rows arrive."""
    job = shop()
    told = json.loads((job.data / "kafka.json").read_text())
    told["topics"][ORDERS] = "nowhere"
    (job.data / "kafka.json").write_text(json.dumps(told))
    with pytest.raises(TickRefusedError, match=f"sink of table {ORDERS}: .* has no topic nowhere: create the topic"):
        job.run(**ONE_CORE)
    used = make_topic(2, name="used")
    used.write(["other"], key="1")
    told["topics"] = {ORDERS: job.topics[ORDERS].name, SIZES: used.name}
    (job.data / "kafka.json").write_text(json.dumps(told))
    with pytest.raises(TickRefusedError, match=f"topic {used.name} has records, and this job has written none of them"):
        job.run(**ONE_CORE)
    assert not [*job.warehouse.rglob("*.parquet")]
    told["topics"][SIZES] = job.topics[SIZES].name
    (job.data / "kafka.json").write_text(json.dumps(told))
    job.run(**ONE_CORE)
    assert_exact(job, spark)


@pytest.mark.dear
def test_a_rollback_takes_the_topic_of_an_upsert_table_back(shop, spark):
    """Keys that came after the checkpoint get a record without value. The next tick goes on from the checkpoint."""
    job = shop(SIZES, retained=20)
    first = job.run(checkpoints=1, **ONE_CORE).checkpoint
    expected = sizes_of(job)
    job.run(**ONE_CORE)
    assert expected != table_of(read(job.topics[SIZES]))
    roll_back(job.at(), first, sinks=job._launched({}).plan.sinks)
    assert expected == sizes_of(job) == table_of(read(job.topics[SIZES]))
    job.run(**ONE_CORE)
    assert_exact(job, spark)
