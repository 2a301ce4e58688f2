"""Tasks that read all files keep the rows of their own subtasks. An exchange would deliver the same rows."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, LongType, StringType, StructType, TimestampType

from checkpointing.identifiers import VertexId
from checkpointing.key_groups import range_of
from jobs.operators.applied_changes import DELETES, SEQUENCE
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.derived_scans import AddingScan, ChangesScan, NewColumn
from jobs.operators.exchange import SUBTASK, Splitter, arrived, take_apart, with_key_group
from jobs.operators.expressions import Call, Column, Constant
from jobs.operators.in_time.measured_times import MicroBatchId, ObservedTimes, TimesOfInput, take_measured
from jobs.operators.inputs import scanned_input
from jobs.operators.key_hash import key_groups, saying_groups
from jobs.operators.scan.scanned import KeyedScan
from jobs.operators.spec import TaskSteps, TextSteps
from jobs.pipeline import Pipeline
from jobs.pipeline.applied_changes import apply_changes
from jobs.pipeline.planning import plan
from jobs.sources.delta.delta_source import SPLIT, DeltaSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.sources.slice_reading import ScanOfScan
from jobs.state.merge import KEY_GROUP
from jobs.storage.parquet import FileScan
from tests.unit.sources.test_delta_source import FEED, append, delta, poll, slices
from tidemark import count

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
KEYS = 500
GROUPS = 40


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return scans of two files with more keys than key groups. Some keys are null."""
    root = tmp_path_factory.mktemp("files")
    for number in range(2):
        keys = [None if key % 50 == number else key for key in range(KEYS)]
        pq.write_table(pa.table([keys, [f"{number} {key}" for key in keys]], schema=SCHEMA), root / f"{number}.parquet")
    return tuple(
        FileScan(root=str(root), name=f"{number}.parquet", first=number, end=KEYS, bytes=1) for number in range(2)
    )


@given(max_parallelism=st.integers(1, 40), data=st.data())
def test_each_row_belongs_to_the_subtask_to_which_an_exchange_brings_it(scans, max_parallelism, data):
    """They come in the order of the files, whether one task runs all subtasks or each subtask has its own."""
    parallelism = data.draw(st.integers(1, max_parallelism))
    splitter = Splitter(tag=0, schema=SCHEMA, parallelism=parallelism, max_parallelism=max_parallelism)
    scan = KeyedScan(shares=(scans[:1], scans[1:]), keys=("key",), max_parallelism=max_parallelism, splitter=splitter)
    blocks = [*scan.run([pa.record_batch([[0, 1]], ["share"])])]
    together = scan.by_subtask(range(parallelism))
    for subtask in range(parallelism):
        of_exchange = [batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in blocks]
        expected = take_apart(of_exchange, [SCHEMA]).frames[0]
        for rows in (together, scan.by_subtask([subtask])):
            assert expected.equals(arrived({0: rows[subtask]}, [SCHEMA]).frames[0])
    assert 2 * KEYS - 1 == sum(rows.num_rows for parts in together.values() for rows in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedScan(ScanOfScan):
    """Records whose rows are read."""

    read: list[int]
    subtask: int

    def batches(self, schema):
        """Record the read, and yield the rows."""
        self.read.append(self.subtask)
        yield from self.scan.batches(schema)


@given(readers=st.integers(2, 8), writers=st.integers(2, 8), data=st.data())
def test_a_task_reads_no_file_that_says_it_has_none_of_its_rows(tmp_path_factory, readers, writers, data):
    """Each row arrives once. Its file may be written by other keys or in another type, and its key may be new."""
    key_type = data.draw(st.sampled_from([pa.int64(), pa.int32()]))
    by = data.draw(st.sampled_from(["key", "text"]))
    keys = [*range(data.draw(st.integers(1, 99)))]
    rows = pa.table({"key": pa.array(keys, key_type), "text": [str(key) for key in keys], "new": keys[::-1]})
    replaced = data.draw(st.sampled_from(["key", "text"]))
    derived = NewColumn(replaced, {"key": Column("new"), "text": Constant("t", pa.string())}[replaced])
    owners = pc.divide(pc.multiply(key_groups([rows.column(by).combine_chunks()], GROUPS), writers), GROUPS)
    folder, scans, read = tmp_path_factory.mktemp("said"), [], []
    for writer in {*owners.to_pylist()}:
        own = rows.filter(pc.equal(owners, writer))
        pq.write_table(own.replace_schema_metadata(saying_groups(own, [by], GROUPS)), folder / f"{writer}.parquet")
        file = FileScan(root=str(folder), name=f"{writer}.parquet", first=0, end=own.num_rows, bytes=1, staged=True)
        watched = WatchedScan(scan=file, read=read, subtask=writer)
        scans.append(AddingScan(scan=watched, added=(derived,), read=pa.schema([("new", pa.int64())])))
    splitter = Splitter(tag=0, schema=SCHEMA, parallelism=readers, max_parallelism=GROUPS)
    keyed = KeyedScan(shares=(tuple(scans),), keys=("key",), max_parallelism=GROUPS, splitter=splitter)
    together, arriving = keyed.by_subtask(range(readers)), []
    for subtask in range(readers):
        read.clear()
        alone = pa.Table.from_batches(keyed.by_subtask([subtask])[subtask], with_key_group(SCHEMA))
        assert alone.equals(pa.Table.from_batches(together[subtask], alone.schema))
        if (key_type, by, replaced, readers) == (pa.int64(), "key", "text", writers):
            assert [subtask] * (alone.num_rows > 0) == read
        own = range_of(subtask=subtask, parallelism=readers, max_parallelism=GROUPS)
        assert all(own.first <= group <= own.last for group in alone[KEY_GROUP].to_pylist())
        arriving += alone["key"].to_pylist()
    assert keys == sorted(arriving)


# ------------------------------------------------------------------
# Columns that a task derives itself: copies of columns, and the kinds of a changelog's rows.


def scan(folder, **columns):
    table = pa.table(columns)
    pq.write_table(table, folder / "f.parquet")
    size = (folder / "f.parquet").stat().st_size
    return FileScan(root=str(folder), name="f.parquet", first=0, end=table.num_rows, bytes=size)


def rows_of(scanned, **columns):
    return [row for batch in scanned.batches(pa.schema(columns)) for row in batch.to_pylist()]


NO = Constant(False, pa.bool_())
GONE = Call("coalesce", (Column("gone"), NO))


def test_a_copy_has_the_values_of_its_column_under_another_name(tmp_path):
    """A null stays null, or is replaced by a given value. If no column is copied, all rows get that value."""
    file = scan(tmp_path, k=[1, 2, 3], gone=[True, None, False])
    added = (NewColumn("d", GONE), NewColumn("raw", Column("gone")), NewColumn("no", NO))
    copying = AddingScan(scan=file, added=added, read=pa.schema([("gone", pa.bool_())]))
    found = rows_of(copying, no=pa.bool_(), d=pa.bool_(), k=pa.int64(), raw=pa.bool_())
    assert [
        {"no": False, "d": True, "k": 1, "raw": True},
        {"no": False, "d": False, "k": 2, "raw": None},
        {"no": False, "d": False, "k": 3, "raw": False},
    ] == found
    assert [{"k": 1, "gone": True, "d": True}] == rows_of(copying, k=pa.int64(), gone=pa.bool_(), d=pa.bool_())[:1]
    assert (3, True) == (copying.rows, copying.may_repeat)


def test_a_changelogs_rows_are_inserts_and_deletes_or_only_those_that_are_added(tmp_path):
    """Both rows of an update are read. A row without a kind counts as added."""
    kinds = [INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER, None]
    changes = ChangesScan(scan=scan(tmp_path, k=[1, 2, 3, 4, 5], **{KIND: kinds}))
    asked = rows_of(changes, **{"k": pa.int64(), KIND: pa.string()})
    assert [(1, INSERT), (2, DELETE), (3, DELETE), (4, INSERT), (5, INSERT)] == [(row["k"], row[KIND]) for row in asked]
    assert [{"k": 1}, {"k": 4}, {"k": 5}] == rows_of(changes, k=pa.int64())


def test_all_rows_of_a_file_without_kinds_are_added(tmp_path):
    """An append-only stream writes no kinds."""
    changes = ChangesScan(scan=scan(tmp_path, k=[1, 2]))
    assert [INSERT, INSERT] == [row[KIND] for row in rows_of(changes, **{"k": pa.int64(), KIND: pa.string()})]
    assert [{"k": 1}, {"k": 2}] == rows_of(changes, k=pa.int64())


ROWS = StructType().add("k", LongType()).add("seq", LongType()).add("gone", BooleanType()).add("word", StringType())
ROWS = ROWS.add("true", BooleanType()).add("false", BooleanType()).add("a.b", BooleanType())


@pytest.mark.parametrize(
    ("deletes", "copied"),
    [
        ("gone", GONE),
        ("`gone`", GONE),
        (None, NO),
        ("`true`", Call("coalesce", (Column("true"), NO))),
        ("true", None),
        ("GONE", None),
        ("word", None),
        ("a.b", None),
        ("`a.b`", Call("coalesce", (Column("a.b"), NO))),
        ("gone or k + 1 = 2", None),
    ],
)
def test_plain_conditions_of_changes_need_no_step_of_spark(tmp_path, deletes, copied):
    """The name of a boolean column is a plain condition. Words of SQL and other expressions are left to Spark."""
    pipeline = Pipeline("plain", parallelism=1)
    changes = pipeline.source("changes", FileSource(tmp_path, ROWS))
    apply_changes(changes, "newest", keys=["k"], sequence_by="seq", columns=["word"], apply_as_deletes=deletes)
    chain = plan(pipeline).vertices[VertexId("newest")].inputs[0].chain
    if copied is None:
        assert isinstance(chain, TextSteps)
    else:
        assert isinstance(chain, TaskSteps)
        assert (NewColumn(DELETES, copied), NewColumn(SEQUENCE, Column("seq"))) == chain.added


@pytest.mark.parametrize(
    ("steps", "greatest_ms"),
    [
        (lambda rows: rows.select("k", "at"), 3),
        (lambda rows: rows.drop("word", "_split", "_position"), 3),
        (lambda rows: rows.rename({"at": "seen"}).drop("word"), 3),
        (lambda rows: rows.with_column("word", "coalesce(word, 'none')", StringType()), 3),
        (lambda rows: rows.with_column("at", "at + interval 1 hour", TimestampType()), None),
        (lambda rows: rows.with_column("at", "coalesce(at, at)", TimestampType()), None),
    ],
)
def test_tasks_measure_the_times_behind_steps_that_they_take_themselves(tmp_path, steps, greatest_ms):
    """If a Spark step makes the time column, Spark measures the times."""
    source = DeltaSource(tmp_path / "rows", start=0)
    at = pa.array([1_000, 2_000, 3_000], pa.timestamp("us", tz="UTC"))
    write_deltalake(str(tmp_path / "rows"), pa.table({"k": [1, 2, 3], "at": at, "word": ["a", "b", None]}))
    pipeline = Pipeline("timed", parallelism=1)
    rows = steps(pipeline.source("rows", source))
    timed = rows.event_time("seen" if "seen" in rows.schema.names else "at", delay="1s")
    timed.key_by("k").aggregate("sums", n=count()).table("gold/sums")
    of = MicroBatchId("sums", 1, 1)
    reads = plan(pipeline).vertices[VertexId("sums")].inputs[0]
    found = scanned_input(reads, list(slices(source, 100)), tmp_path, TimesOfInput(of, 0, ObservedTimes()))
    assert (found is None) == (greatest_ms is None)
    if found is not None:
        batches = [batch for scan in found.scans for batch in scan.batches(pa.schema([("k", pa.int64())]))]
        assert list(range(1, greatest_ms + 1)) == [row["k"] for batch in batches for row in batch.to_pylist()]
        assert take_measured(of) == ((0, SPLIT, greatest_ms),)


# ------------------------------------------------------------------
# Tests the files of Delta tables that tasks read themselves, and those that they leave to Spark.


@pytest.fixture
def table(tmp_path):
    return tmp_path / "orders"


def scanned(source: DeltaSource, pieces):
    """Return the rows that tasks read of slices, or None if Spark must read them."""
    scans = source.scans(tuple(pieces))
    schema = pa.schema([("_position", pa.int64()), ("id", pa.int64()), ("word", pa.string()), ("_split", pa.string())])
    return scans and [
        tuple(row.values()) for scan in scans for batch in scan.batches(schema) for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_tasks_read_the_files_of_slices(table, rows_max):
    """Tasks find the rows of the slices at their positions. If a file lacks a column, its rows have null there."""
    write_deltalake(str(table), pa.table({"id": pa.array([1, 2], pa.int64())}))
    delta(table).alter.add_columns([Field("word", PrimitiveType("string"))])
    append(table, 3)
    append(table, 4, 5, 6)
    source = DeltaSource(table, start=0)
    pieces = list(slices(source, rows_max))
    expected = [(number - 1, number, f"w{number}" if number > 2 else None, SPLIT) for number in range(1, 7)]
    assert expected == [row for piece in pieces for row in scanned(source, [piece])]
    assert expected == scanned(source, pieces)


def test_rows_that_tasks_cannot_read_are_left_to_spark(tmp_path):
    """A change feed has columns that are in no file, and so has a partitioned table."""
    append(tmp_path / "feed", 1, 2, configuration=FEED)
    append(tmp_path / "parts", 1, 2, partition_by=["word"])
    for source in (DeltaSource(tmp_path / "feed", changes=True), DeltaSource(tmp_path / "parts")):
        assert scanned(source, slices(source)) is None
    appends = DeltaSource(tmp_path / "feed")
    assert 2 == len(scanned(appends, slices(appends)))


def test_a_vacuumed_file_is_named_before_tasks_read(table):
    append(table, 1)
    source = DeltaSource(table)
    piece = poll(source)
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(SourceError, match="parquet"):
        source.scans([piece])
