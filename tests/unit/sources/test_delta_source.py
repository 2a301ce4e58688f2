"""Tests polling of real Delta tables, written by delta-rs, without Spark."""

import json
import os
import shutil
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.delta.delta_reader import DeltaPosition
from jobs.sources.delta.delta_source import SPLIT, DeltaSource
from jobs.sources.port import Lag, NoSuchPositionError, SourceError
from jobs.sources.position_words import Place, seek
from tests.unit.sources.delta_tables import append, delta, ids, poll, rows, slices

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(tmp_path):
    return tmp_path / "orders"


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_the_snapshot_comes_first_then_each_later_version(table, rows_max):
    """This holds for slices of any size: each row comes once, in order, with dense ordinals."""
    append(table, 1, 2, 3)
    append(table, 4)
    source = DeltaSource(table)
    read = list(slices(source, rows_max))
    append(table, 5, 6)
    append(table, 7)
    read += slices(source, rows_max, read[-1].end)
    expected = [(n, n + 1, 1 if n < 4 else n // 6 + 2) for n in range(7)]
    assert expected == rows(source, read, "id", "version")


def test_any_position_gives_the_same_rows_again(table):
    """Another object replays from each position, after more commits. The slices are the same as far as they went."""
    append(table, 1, 2, 3)
    source = DeltaSource(table)
    positions = [piece.end for piece in slices(source, 1)]
    append(table, 4, 5)
    for number, position in enumerate(positions, start=1):
        other = DeltaSource(table)
        assert list(range(number + 1, 6)) == ids(other, slices(other, 2, position))


def test_positions_are_named_in_words(table):
    """Files and rows count from 1. After a whole version comes the next one."""
    append(table, 1, 2, 3)
    source = DeltaSource(table)
    first, second = slices(source, 2)
    assert "table at version 0, file 1, row 3" == str(DeltaPosition.parse(first.end))
    assert "version 1" == source.named(SPLIT, second.end) == str(DeltaPosition.parse(second.end))
    append(table, 4, 5)
    assert "version 1, file 1, row 2" == str(DeltaPosition.parse(poll(source, second.end, 1).end))


def test_a_reset_names_versions(table):
    """The words are those of messages. They lead to the version's rows, and ordinals go on."""
    for n in range(1, 5):
        append(table, n)
    source = DeltaSource(table)
    end = poll(source, rows_max=2).end

    def moved(words: str) -> str | None:
        return seek(source, Place(VertexId("orders"), SPLIT, end), words)

    assert [(2, 4)] == rows(source, slices(source, 100, moved("version 3")), "id")
    assert poll(source, moved("end")) is None
    assert moved("start") is None
    for words in ("version 5", "version -1", "3", "orders:3"):
        with pytest.raises(NoSuchPositionError, match="write 'start', 'end' or 'version N', with N from 0 to 4"):
            moved(words)


def test_files_that_optimize_or_a_newer_version_removed_are_still_read(table):
    """The rows of a snapshot's or version's files stay the same, and none comes twice."""
    for n in range(1, 5):
        append(table, n)
    source = DeltaSource(table)
    first = poll(source, rows_max=2)
    append(table, 5)
    append(table, 6)
    delta(table).optimize.compact()
    append(table, 7)
    assert [1, 2, 3, 4, 5, 6, 7] == ids(source, [first, *slices(source, 2, first.end)])
    anew = DeltaSource(table)
    assert list(range(1, 8)) == sorted(ids(anew, slices(anew)))


def test_a_vacuumed_file_is_named_with_the_way_out(table):
    """Its rows exist nowhere any more. Nothing is skipped silently."""
    for n in range(1, 4):
        append(table, n)
    source = DeltaSource(table)
    first = poll(source, rows_max=1)
    delta(table).optimize.compact()
    delta(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceError, match=r"is gone, before its rows of version 2 .*--to 'version 3'"):
        poll(source, first.end)


def test_missing_log_entries_are_named_with_the_way_out(table):
    """Log retention removed entries that the source had not read."""
    append(table, 1)
    source = DeltaSource(table)
    first = poll(source)
    for n in range(2, 6):
        append(table, n)
    delta(table).create_checkpoint()
    for version in range(4):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceError, match=r"no entries of versions 1 to 3 .*--to 'version 4'"):
        poll(source, first.end)


def test_a_snapshot_whose_log_entries_are_gone_is_refused(table):
    """The entries of the snapshot's version were removed while the source read it."""
    append(table, 1)
    append(table, 2)
    first = poll(DeltaSource(table), rows_max=1)
    append(table, 3)
    delta(table).create_checkpoint()
    for version in range(2):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceError, match=r"whole table had at version 1 can no longer be told.*--to 'version 2'"):
        poll(DeltaSource(table), first.end)


def test_a_log_that_lost_its_newest_entries_is_refused(table):
    """The table was restored from an older backup, so it lacks rows that the source has read."""
    append(table, 1)
    append(table, 2)
    source = DeltaSource(table)
    end = poll(source).end
    (table / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(SourceError, match=r"versions up to 1 were read, and the log ends at 0"):
        poll(DeltaSource(table), end)


@pytest.mark.parametrize("change", ["delete", "update", "overwrite"])
def test_a_version_that_changes_rows_is_refused_or_skipped(table, change):
    """A source of appended rows refuses a delete, an update and an overwrite, or skips them on request."""
    append(table, 1, 2)
    source = DeltaSource(table)
    end = poll(source).end
    match change:
        case "delete":
            delta(table).delete("id = 1")
        case "update":
            delta(table).update(updates={"id": "id + 10"}, predicate="id = 1")
        case _:
            append(table, 9)
            rows_ = pa.table({"id": pa.array([7], pa.int64()), "word": ["w"]})
            write_deltalake(str(table), rows_, mode="overwrite")
    append(table, 3)
    refused = 2 if change == "overwrite" else 1
    with pytest.raises(SourceError, match=rf"version {refused} .* deletes or changes .*--to 'version {refused + 1}'"):
        list(slices(source, 1, end))
    skipping = DeltaSource(table, skip_change_commits=True)
    assert ([9, 3] if change == "overwrite" else [3]) == ids(skipping, slices(skipping, 100, end))


def in_feed(row):
    """Sort rows by version, because delta-rs writes the rows of one version in any order."""
    return row[3], row[2], row[0]


def test_changes_are_the_rows_of_the_feed(table):
    """The snapshot comes as inserts. Then come updates before and after, deletes, and appended rows as inserts."""
    append(table, 1, 2, configuration=FEED)
    source = DeltaSource(table, changes=True)
    first = poll(source)
    append(table, 3)
    delta(table).update(updates={"word": "'new'"}, predicate="id = 2")
    delta(table).optimize.compact()
    delta(table).delete("id = 1")
    read = [first, *slices(source, 2, first.end)]
    assert [
        (1, "w1", "insert", 0),
        (2, "w2", "insert", 0),
        (3, "w3", "insert", 1),
        (2, "new", "update_postimage", 2),
        (2, "w2", "update_preimage", 2),
        (1, "w1", "delete", 4),
    ] == sorted((row[1:] for row in rows(source, read, "id", "word", "change", "version")), key=in_feed)
    assert [*range(6)] == [row[0] for row in rows(source, read)]
    assert ["id", "word", "_change_type", "_commit_version"] == source.schema().names


def test_removed_files_without_a_feed_are_deletes(table):
    """An overwrite writes no feed of its own. The removed rows come first, then the new ones."""
    append(table, 1, 2, configuration=FEED)
    source = DeltaSource(table, changes=True)
    end = poll(source).end
    write_deltalake(str(table), pa.table({"id": pa.array([7], pa.int64()), "word": ["w7"]}), mode="overwrite")
    found = rows(source, slices(source, 100, end), "id", "change")
    assert {(1, "delete"), (2, "delete"), (7, "insert")} == {row[1:] for row in found}
    assert "insert" == found[-1][2]


def test_changes_of_a_table_without_a_feed_are_refused(table):
    """The message says how to get a feed."""
    append(table, 1)
    with pytest.raises(SourceError, match=r"no change data feed: ALTER TABLE"):
        poll(DeltaSource(table, changes=True))


def test_a_recreated_table_is_refused(table):
    """It has another id, with fewer versions, as many or more."""
    append(table, 1)
    append(table, 2)
    source = DeltaSource(table)
    end = poll(source).end
    shutil.rmtree(table)
    for n in range(1, 5):
        append(table, n)
        with pytest.raises(SourceError, match=r"another table than the one that was read.*--to start"):
            poll(source, end)


def test_a_deletion_vector_is_refused(table):
    """The log's entry alone shows it. delta-rs writes no deletion vectors."""
    append(table, 1)
    append(table, 2)
    entry = table / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    for line in lines:
        if "add" in line:
            line["add"]["deletionVector"] = vector
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = DeltaSource(table, start=1)
    with pytest.raises(SourceError, match="deletes or changes rows"):
        poll(source)


def test_the_source_begins_with_a_version_or_a_time(table):
    """Both begin without a snapshot, and read the version's own rows."""
    for n in range(1, 4):
        append(table, n)
    times = [datetime.fromtimestamp(entry["timestamp"] / 1_000, UTC) for entry in delta(table).history()]
    for start in (1, 3, 4):
        source = DeltaSource(table, start=start)
        if start == 4:
            with pytest.raises(SourceError, match="no version 4 to begin with: its newest is 2"):
                poll(source)
        else:
            assert list(range(start + 1, 4)) == ids(source, slices(source))
    early = DeltaSource(table, start=times[-1].replace(year=2000))
    assert [1, 2, 3] == ids(early, slices(early))
    late = DeltaSource(table, start="2999-01-01T00:00:00+00:00")
    assert poll(late) is None


def test_latest_begins_at_the_end_of_the_table_at_the_first_poll(table):
    """A slice without rows keeps the place. So rows that come before the next tick are not skipped."""
    append(table, 1)
    source = DeltaSource(table, start="latest")
    first = poll(source)
    assert (True, [], "version 1") == (first.rows_estimated, rows(source, [first]), source.named(SPLIT, first.end))
    append(table, 2)
    anew = DeltaSource(table, start="latest")
    assert poll(anew, first.end, 100) is not None
    assert [2] == ids(anew, slices(anew, 100, first.end))


def test_lag_is_rows_and_seconds(table):
    """The lag is the unread rows, and the age of the oldest version among them."""
    append(table, 1, 2)
    source = DeltaSource(table)
    end = poll(source).end
    assert {SPLIT: Lag(0, 0.0)} == source.lag({SPLIT: end})
    append(table, 3)
    append(table, 4, 5)
    entry = table / "_delta_log" / f"{1:020}.json"
    os.utime(entry, (time.time() - 60, time.time() - 60))
    lag = source.lag({SPLIT: end})[SPLIT]
    assert (3, True) == (lag.rows, 60 <= lag.seconds < 120)
    assert 5 == source.lag({})[SPLIT].rows
    assert ("delta", str(table)) == (source.described().kind, source.described().place)
    assert 3 == source.rows_between(SPLIT, end, poll(source, end).end)


def test_partition_columns_come_from_the_log(table):
    """Values may be odd. The log's paths are decoded once, and then name the real folders."""
    values = ["a b", "c%d", "e/f", "ü=?", None]
    one = pa.table({"id": pa.array(range(5), pa.int64()), "word": values})
    write_deltalake(str(table), one, partition_by=["word"])
    source = DeltaSource(table)
    read = list(slices(source))
    write_deltalake(str(table), one, mode="append")
    read += slices(source, 100, read[-1].end)
    assert sorted([*values[:4], ""] * 2) == sorted(word or "" for _, word in rows(source, read, "word"))


def test_a_folder_that_is_no_table_is_named(table):
    """The test has a folder without a log, and no folder at all."""
    with pytest.raises(SourceError, match="is not a Delta table: write it first"):
        DeltaSource(table).schema()


def test_a_position_of_another_source_is_refused(table):
    """A position of another split is refused too."""
    append(table, 1)
    with pytest.raises(SourceError, match="not a position of a Delta source"):
        poll(DeltaSource(table), "150")
    with pytest.raises(SourceError, match="one split 'table'"):
        DeltaSource(table).poll(PollSource(VertexId("orders"), "other", None, 1))
