"""Tests polling of real Delta tables, written by delta-rs, without Spark."""

import json
import os
import shutil
import string
import struct
import time
import zlib
from base64 import b85encode
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_reader import DeltaPosition, DeltaSlice
from jobs.sources.delta.delta_source import SPLIT, DeltaSource, _footer
from jobs.sources.port import Lag, NoSuchPositionError, SourceError
from jobs.sources.position_words import Place, seek
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in
from jobs.warehouse.log_entries import broken_entry
from tests.object_store import KEY, SECRET
from tests.unit.sources.delta_tables import append, delta, ids, poll, rows, slices

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(tmp_path):
    return tmp_path / "orders"


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_the_snapshot_comes_first_then_each_later_version(table, rows_max):
    """With slices of any size, each row comes once, in order, with ordinals without gaps."""
    append(table, 1, 2, 3)
    append(table, 4)
    source = DeltaSource(table)
    read = list(slices(source, rows_max))
    append(table, 5, 6)
    append(table, 7)
    read += slices(source, rows_max, read[-1].end)
    expected = [(n, n + 1, 1 if n < 4 else n // 6 + 2) for n in range(7)]
    assert expected == rows(source, read, "id", "version")


def test_bounds_with_other_ends_of_lines_are_read(table):
    """U+2028 and U+0085 end a line only for Python. Delta's log has these characters unescaped."""
    write_deltalake(table, pa.table({"id": ["a\u2028b", "c\u0085d"]}))
    assert "\u2028" in (table / "_delta_log" / f"{0:020}.json").read_text(encoding="utf-8")
    source = DeltaSource(table)
    assert ["a\u2028b", "c\u0085d"] == ids(source, slices(source, 10))
    assert broken_entry(place_in(table, "")) is None


def test_any_position_gives_the_same_rows_again(table):
    """After more commits, another object replays from each position. It returns all rows after that position."""
    append(table, 1, 2, 3)
    source = DeltaSource(table)
    positions = [piece.end for piece in slices(source, 1)]
    append(table, 4, 5)
    for number, position in enumerate(positions, start=1):
        other = DeltaSource(table)
        assert list(range(number + 1, 6)) == ids(other, slices(other, 2, position))


def test_positions_are_named_in_words(table):
    """Files and rows are counted from 1. A position after all rows of a version names the next version."""
    append(table, 1, 2, 3)
    source = DeltaSource(table)
    first, second = slices(source, 2)
    assert "table at version 0, file 1, row 3" == str(DeltaPosition.parse(first.end))
    assert "version 1" == source.named(SPLIT, second.end) == str(DeltaPosition.parse(second.end))
    append(table, 4, 5)
    assert "version 1, file 1, row 2" == str(DeltaPosition.parse(poll(source, second.end, 1).end))


def test_a_reset_names_versions(table):
    """The words are those that messages use. They lead to the version's rows, and the ordinals continue."""
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
    """The rows of the files of a snapshot or version stay the same, and no row comes twice."""
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
    """The rows of a vacuumed file no longer exist. The source does not skip them silently."""
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
    """A source of appended rows refuses deletes, updates and overwrites, or skips them on request."""
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
    return row[3], row[2], row[0]


def test_changes_are_the_rows_of_the_feed(table):
    """The snapshot comes as inserts. Then come updates (before and after), deletes, and appended rows as inserts."""
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
    """An overwrite writes no files of the feed. The removed rows come first, and then the new rows."""
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
    """A recreated table has another id. It may have fewer versions, as many, or more."""
    append(table, 1)
    append(table, 2)
    source = DeltaSource(table)
    end = poll(source).end
    shutil.rmtree(table)
    for n in range(1, 5):
        append(table, n)
        with pytest.raises(SourceError, match=r"another table than the one that was read.*--to start"):
            poll(source, end)


MARKED = {3, 4, 7, 11, 18, 29}
_RFC_1924, _Z85 = (
    f"0123456789{letters}{signs}".encode()
    for letters, signs in (
        (string.ascii_uppercase + string.ascii_lowercase, "!#$%&()*+-;<=>?@^_`{|}~"),
        (string.ascii_lowercase + string.ascii_uppercase, ".-:+=^!/*?&<>()[]{}@%$#"),
    )
)


def vector(table, kind):
    """Return the log's description of a deletion vector: inline, or in a file with an absolute address."""
    bits = struct.pack("<IIHHI6H", 12346, 1, 0, len(MARKED) - 1, 16, *sorted(MARKED))
    content = struct.pack("<IQI", 1681511377, 1, 0) + bits
    said = {"storageType": kind, "sizeInBytes": len(content), "cardinality": len(MARKED)}
    if kind == "i":
        return said | {"pathOrInlineDv": b85encode(content).translate(bytes.maketrans(_RFC_1924, _Z85)).decode()}
    framed = b"\1" + struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    (table / "vectors.bin").write_bytes(framed)
    return said | {"pathOrInlineDv": (table / "vectors.bin").as_uri(), "offset": 1}


def mark(table, version, kind="i"):
    """Give all files that a version added a deletion vector in the log's entry."""

    def change(action):
        if "add" in action:
            action["add"]["deletionVector"] = vector(table, kind)

    rewrite(table, version, "deletionVectors", change)


def rewrite(table, version, feature, change):
    """Change the actions of a log entry, and add a feature to the table."""
    entry = place_in(table, f"_delta_log/{version:020}.json")
    actions = [json.loads(line) for line in entry.read().decode().splitlines()]
    actions = [action for action in actions if "protocol" not in action]
    for action in actions:
        change(action)
    features = {"readerFeatures": [feature], "writerFeatures": [feature]}
    actions.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})
    entry.replace("".join(json.dumps(action) + "\n" for action in actions).encode())


def test_mode_id_finds_columns_by_field_ids(table):
    """A file may have any column names. If it lacks a column's id, the column is null.

    A file without ids is refused.
    """
    append(table, 1, 2)

    def change(action):
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                physical = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
                field["metadata"] = physical
            schema["fields"].append(
                {"name": "later", "type": "string", "nullable": True}
                | {"metadata": {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "old"}}
            )
            action["metaData"] |= {"schemaString": json.dumps(schema)}
            action["metaData"]["configuration"] = {
                "delta.columnMapping.mode": "id",
                "delta.columnMapping.maxColumnId": "9",
            }
        if "add" in action:
            path = table / action["add"]["path"]
            ids = [pa.field(name, kind, metadata={"PARQUET:field_id": number}) for name, kind, number in columns]
            pq.write_table(pa.table([["x", "y"], [7, 8], ["old", "old"]], pa.schema(ids)), path)
            action["add"]["size"] = path.stat().st_size

    columns = [("word", pa.string(), "2"), ("number", pa.int64(), "1"), ("old", pa.string(), "5")]
    rewrite(table, 0, "columnMapping", change)
    source = DeltaSource(table)
    assert ["id", "word", "later"] == source.schema().names
    (scan,) = source.scans(list(slices(source)))
    (batch,) = scan.batches(pa.schema([("id", pa.int64()), ("word", pa.string()), ("later", pa.string())]))
    assert [(7, "x", None), (8, "y", None)] == [tuple(row.values()) for row in batch.to_pylist()]
    (path,) = table.glob("*.parquet")
    pq.write_table(pa.table({"id": [7, 8], "word": ["x", "y"]}), path)
    again = DeltaSource(table)
    _footer.cache_clear()
    with pytest.raises(SourceError, match="has no field ids"):
        again.scans(list(slices(again)))


def test_a_version_that_marks_rows_is_refused(table):
    """Only the log's entry shows that such a version deletes rows."""
    append(table, 1)
    append(table, 2)
    mark(table, 1)
    source = DeltaSource(table, start=1)
    with pytest.raises(SourceError, match=r"deletes or changes rows .* by changes=True, .* --to 'version 2'"):
        poll(source)


@pytest.mark.parametrize(("where", "kind"), [("folder", "i"), ("folder", "p"), ("store", "i")])
def test_rows_that_a_deletion_vector_marks_are_not_read(where, kind, request):
    """The slices count only unmarked rows. The files are in a folder or a store, in folders with odd names."""
    place = request.getfixturevalue("table" if where == "folder" else "url")
    word = [WORDS[n // 30] for n in range(120)]
    write_deltalake(str(place), pa.table({"id": pa.array(range(120), pa.int64()), "word": word}), partition_by=["word"])
    mark(place, 0, kind)
    source = DeltaSource(place)
    assert 4 * 24 == source.lag({})[SPLIT].rows
    pieces = list(slices(source, 7))
    parts = [part for piece in pieces for part in DeltaSlice.parse(piece.detail).ranges]
    assert 4 * 24 == sum(piece.rows for piece in pieces)
    assert list(range(0, 4 * 24, 7)) == [source.rows_between(SPLIT, None, piece.start) for piece in pieces]
    read = [(part.path, part.first + row) for part in parts for row in np.flatnonzero(source._kept(part))]
    assert 4 * 24 == len(set(read))
    assert {row for _, row in read} == set(range(30)) - MARKED


def test_the_source_begins_with_a_version_or_a_time(table):
    """In both cases, the source begins without a snapshot, and reads the rows that the version added."""
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
    """A slice without rows records the position. So rows that come before the next tick are not skipped."""
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
    """Values may have odd characters. The log's paths are decoded once, and then name the real folders."""
    values = ["a b", "c%d", "e/f", "ü=?", None]
    one = pa.table({"id": pa.array(range(5), pa.int64()), "word": values})
    write_deltalake(str(table), one, partition_by=["word"])
    source = DeltaSource(table)
    read = list(slices(source))
    write_deltalake(str(table), one, mode="append")
    read += slices(source, 100, read[-1].end)
    assert sorted([*values[:4], ""] * 2) == sorted(word or "" for _, word in rows(source, read, "word"))


def test_a_folder_that_is_no_table_is_named(table):
    with pytest.raises(SourceError, match="is not a Delta table: write it first"):
        DeltaSource(table).schema()


def test_a_position_of_another_source_is_refused(table):
    append(table, 1)
    with pytest.raises(SourceError, match="not a position of a Delta source"):
        poll(DeltaSource(table), "150")
    with pytest.raises(SourceError, match="one split 'table'"):
        DeltaSource(table).poll(PollSource(VertexId("orders"), "other", None, 1))


# ------------------------------------------------------------------
# Columns of a Delta table are added, dropped and renamed while a source follows the table.


@pytest.fixture
def test_columns_that_come_later_follow_the_contract(table):
    """If the source declares no schema, the next tick has the new columns.

    With a schema they are refused or ignored.
    """
    append(table, 1)
    declared = StructType().add("id", LongType()).add("word", StringType())
    sources = {
        "next": DeltaSource(table),
        "fail": DeltaSource(table, schema=declared),
        "ignore": DeltaSource(table, schema=declared, new_columns="ignore"),
    }
    ends = {name: list(slices(source))[-1].end for name, source in sources.items()}
    delta(table).alter.add_columns([Field("price", PrimitiveType("double"))])
    more = pa.table({"id": pa.array([2], pa.int64()), "word": ["w"], "price": [1.5]})
    write_deltalake(str(table), more, mode="append")
    with pytest.raises(SourceError, match=r"new columns, added since this tick began: 'price'. Run the tick again"):
        poll(sources["next"], ends["next"])
    with pytest.raises(SourceError, match=r"does not have: 'price'. Add them"):
        poll(sources["fail"], ends["fail"])
    assert [2] == ids(sources["ignore"], slices(sources["ignore"], 100, ends["ignore"]))
    anew = DeltaSource(table)
    assert ["id", "word", "price"] == anew.schema().names
    assert [2] == ids(anew, slices(anew, 100, ends["next"]))


def renamed(table: Path) -> None:
    """Rename column `word` to `text` as a Tidemark job does: new files replace the old ones."""
    entry = table / "_delta_log" / f"{delta(table).version() + 1:020}.json"
    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    (first,) = (line["metaData"] for line in map(json.loads, lines) if "metaData" in line)
    said = first | {"schemaString": first["schemaString"].replace('"word"', '"text"')}
    actions = [{"metaData": said}]
    for path in delta(table).file_uris():
        new = table / f"new-{Path(path).name}"
        pq.write_table(pq.read_table(path).rename_columns(["id", "text"]), new)
        add = {"path": new.name, "partitionValues": {}, "size": new.stat().st_size, "modificationTime": 1}
        gone = {"path": Path(path).name, "deletionTimestamp": 1}
        actions += [{"remove": gone | {"dataChange": False}}, {"add": add | {"dataChange": False}}]
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_rows_from_before_a_rename_are_not_read_as_null(table):
    """A source that has read all rows before the rename goes on. Another one is refused, or leaves the values out."""
    append(table, 1)
    (first,) = slices(DeltaSource(table))
    append(table, 2)
    (second,) = slices(DeltaSource(table), position=first.end)
    delta(table).optimize.compact()
    renamed(table)
    rows_then = pa.table({"id": pa.array([3], pa.int64()), "text": ["w3"]})
    write_deltalake(str(table), rows_then, mode="append")
    assert ["id", "text"] == DeltaSource(table).schema().names
    behind = r"version 1 has columns that the table no longer has: 'word'. They were renamed or dropped before"
    declared = DeltaSource(table, schema=StructType().add("id", LongType()).add("text", StringType()))
    for source in (DeltaSource(table), declared):
        with pytest.raises(SourceError, match=behind):
            poll(source, first.end)
    assert [3] == ids(DeltaSource(table), slices(DeltaSource(table), position=second.end))
    ignoring = DeltaSource(table, schema=declared.schema(), new_columns="ignore")
    assert [2, 3] == ids(ignoring, slices(ignoring, position=first.end))
    whole = DeltaSource(table)
    assert [(1, "w1"), (2, "w2"), (3, "w3")] == sorted(row[1:] for row in rows(whole, slices(whole), "id", "text"))


def test_a_column_of_another_type_or_name_is_refused(table):
    append(table, 1)
    with pytest.raises(SourceError, match=r"column 'id' is bigint, but is read as string"):
        poll(DeltaSource(table, schema=StructType().add("id", StringType()), new_columns="ignore"))
    with pytest.raises(SourceError, match=r"has no column 'nr'"):
        poll(DeltaSource(table, schema=StructType().add("nr", StringType()), new_columns="ignore"))
    with pytest.raises(SourceError, match="adds a column '_split' itself"):
        DeltaSource(table, schema=StructType().add("_split", StringType())).schema()


# ------------------------------------------------------------------
# Tests that a Delta source reads a table in an object store, on a real S3 server. delta-rs writes the table.


SCHEMA = StructType().add("id", LongType())
WORDS = ("a b", "c%2Fd", "ü=", "plain")


@pytest.fixture
def url(store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}/orders")


@pytest.fixture
def impatient(monkeypatch):
    """Let the client retry no request."""
    from jobs.storage import objects

    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    yield
    objects._client_of.cache_clear()


def append_in_store(url, *ids, **options):
    words = [WORDS[n % len(WORDS)] for n in ids]
    write_deltalake(str(url), pa.table({"id": pa.array(ids, pa.int64()), "word": words}), mode="append", **options)


def read(source, rows_max, position=None):
    found = []
    while (piece := poll(source, position, rows_max)) is not None:
        found += [(part.path, part.first, part.end, part.change) for part in DeltaSlice.parse(piece.detail).ranges]
        position = piece.end
    return found, position


def count(found):
    return sum(end - first for _, first, end, _ in found)


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_snapshot_comes_first_then_appended_rows(url, partitioned):
    """This also holds from another object's position, and for partition values that a URL must quote."""
    by = {"partition_by": ["word"]} if partitioned else {}
    append_in_store(url, 1, 2, 3, 4, **by)
    append_in_store(url, 5, 6, **by)
    source = DeltaSource(str(url))
    assert (SPLIT,) == source.splits()
    first, end = read(source, 2)
    assert 6 == count(first)
    append_in_store(url, 7, **by)
    assert 1 == source.lag({SPLIT: end})[SPLIT].rows
    assert 1 == count(read(DeltaSource(url), 2, end)[0])
    assert [1, 7] == [count(read(source, 3, at)[0]) for at in (end, source.seek(SPLIT, end, "version 0"))]
    for part in DeltaSlice.parse(poll(DeltaSource(url)).detail).ranges:
        assert () == source._like(part).conversions  # its footer was read


def test_the_change_data_feed_is_read(url):
    """Updates and deletes write files of the feed. For a table without a feed, an error names the table."""
    append_in_store(url, 1, 2, 3)
    with pytest.raises(SourceError, match=f"{url} has no change data feed"):
        poll(DeltaSource(url, changes=True))
    fed = url / "fed"
    append_in_store(fed, 1, 2, 3, configuration={"delta.enableChangeDataFeed": "true"})
    source = DeltaSource(fed, changes=True)
    assert ["id", "word", "_change_type", "_commit_version"] == source.schema().names
    _, end = read(source, 100)
    DeltaTable(str(fed)).update(updates={"word": "'new'"}, predicate="id = 1")
    DeltaTable(str(fed)).delete("id = 2")
    assert 2 + 1 == count(read(source, 1, end)[0])


def test_an_idle_poll_costs_two_requests(url, store_server):
    """One request looks at the newest log entry, and one looks for the next entry."""
    append_in_store(url, 1)
    source = DeltaSource(url)
    _, end = read(source, 10)
    before = store_server.requests()
    assert poll(source, end) is None
    assert {"HEAD": 2} == store_server.requests() - before


def test_a_file_that_is_gone_is_named(url):
    """The poll fails before any row is read, and says how to go on. The lag needs no file."""
    append_in_store(url, 1)
    append_in_store(url, 2)
    source = DeltaSource(url, start=0)
    (path, *_), _ = read(source, 10)[0]
    place_in(url, path).delete()
    with pytest.raises(SourceError, match=rf"{url}/{path} is gone, before its rows of version 0.*--to 'version 1'"):
        poll(source)
    assert 2 == source.lag({})[SPLIT].rows


def test_a_table_that_was_made_anew_is_another_one(url):
    """The newest log entry has changed, so the source reads the table's id again."""
    append_in_store(url, 1)
    source = DeltaSource(url)
    _, end = read(source, 10)
    for each in list(place_in(url, "").entries(deep=True)):
        place_in(url, each.name).delete()
    append_in_store(url, 2)
    with pytest.raises(SourceError, match="is another table than the one that was read"):
        poll(source, end)


def sources(url):
    """Return a source of each kind. The columns of both are declared."""
    return DeltaSource(url, schema=SCHEMA), CutSource(url, "shop", "silver/orders", schema=SCHEMA)


def refused(source):
    """Return the error of a tick before its claim. Assert that polls fail, too, and that no message has a secret."""
    with pytest.raises(SourceError) as first:
        source.splits()
    with pytest.raises(SourceError) as polled:
        poll(source)
    with pytest.raises(SourceError):
        source.lag({})
    said = str(first.value)
    assert "\n" not in said
    assert not {KEY, SECRET} & set(said.replace("/", " ").split())
    assert KEY not in said + str(polled.value)
    assert SECRET not in said + str(polled.value)
    return said


@pytest.mark.usefixtures("impatient")
def test_a_store_that_cannot_be_used_is_named(url, monkeypatch):
    """One sentence with the way out names a missing table, job or bucket, or a server that does not answer."""
    table, cuts = sources(url)
    assert refused(table) == f"{url} is not a Delta table: write it first, or correct the source's path"
    assert refused(cuts) == f"shop has never run in {url}: run it first, or correct the source's warehouse or job"
    for source in sources(StoreUrl("s3://nowhere/orders")):
        assert refused(source).endswith("because the bucket does not exist: make it, or name another one")
    with pytest.raises(SourceError, match="the bucket does not exist"):
        DeltaSource("s3://nowhere/orders").schema()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for source in sources(url / "other"):
        said = refused(source)
        assert said.endswith("because the store cannot be reached: check AWS_ENDPOINT_URL and the network")
    with pytest.raises(SourceError, match="a URL cannot begin with s3a://: write s3://"):
        DeltaSource("s3a://lake/in")


@pytest.mark.usefixtures("impatient")
def test_a_wrong_key_is_named(url, store_server):
    append_in_store(url, 1)
    source = DeltaSource(url, schema=SCHEMA, new_columns="ignore")
    _, end = read(source, 10)
    _accept(store_server, "0")
    try:
        for each in sources(url):
            assert "because the store does not accept the credentials: set AWS_ACCESS_KEY_ID" in refused(each)
        with pytest.raises(SourceError, match="because the store forbids it: give"):  # a HEAD has no other answer
            poll(source, end)
    finally:
        _accept(store_server, "inf")
    assert poll(source, end) is None


def _accept(server, requests):
    url, headers = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urlopen(Request(url, requests.encode(), headers)).close()  # noqa: S310 - the server of this test
