"""The code inside a task, without Spark: its report, copies of state, imports and error messages."""

import errno
import gc
import subprocess
import sys
import types

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from checkpointing.channel_items import RangeFiles, TaskWork
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, TableName, table_name, vertex_id
from checkpointing.key_groups import range_of
from jobs.operators.aggregate import Aggregate
from jobs.operators.aggregate_functions import Count
from jobs.operators.exchange import BLOCK, BLOCK_BYTES_MAX, SUBTASK, TAG, WAKING, Splitter, take_apart
from jobs.operators.execute import MicroBatchError, is_not_staged, reason_of
from jobs.operators.keyed_vertices import aggregate_spec, enrich_spec
from jobs.operators.python_workers import freeze_imports
from jobs.operators.reports import TaskReport, report_batch, report_from
from jobs.operators.spec import InvalidSpecError, StagedTable, StatelessSpec
from jobs.sinks.staged_files import StagedFileError
from jobs.state.files import FrameSchemaError, conform
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP
from jobs.state.worker_copy import Copy, WorkerCopies
from jobs.user_code import sentence_of

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


def test_a_report_survives_its_transport():
    """No field is lost in JSON."""
    file = FileHandle("a/b.parquet", 3, 100, 77, '{"numRecords":3}')
    keyed = KeyedFile(file, KeyedFileKind.DELTA, 0, 63, Version(Generation(2), 9))
    ranges = (RangeFiles(TableName("s/u"), (keyed,)),)
    work = TaskWork(task_ms=7, sync_ms=2, rows=9)
    report = TaskReport(1, (file,), ((TableName("s/t"), file),), (keyed,), ranges, ended=("a/a.parquet",), work=work)
    (batch,) = report_batch(report)
    assert report == report_from(batch.column("report")[0].as_py())


@pytest.mark.parametrize("module", ["jobs.operators.keyed_task", "jobs.operators.stateless_task"])
def test_a_task_imports_nothing_heavy(module):
    """Every Python worker pays for each import. Besides, delta-rs panics in forked processes."""
    heavy = ("deltalake", "pydantic", "great_expectations", "pandas", "dagster")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()


COLUMNS = pl.Schema({"x": pl.Int64})


def frame(*values):
    return KeyedRows.of(pl.DataFrame({"x": list(values)}, schema=COLUMNS))


def test_a_copy_serves_its_own_files_and_later_ones():
    """An outdated copy can be used with the newer files. A copy of other files cannot be used."""
    copies, name = WorkerCopies(), ("w", "t", 0, 9)
    kept = Copy(("a", "b"), frame(1))
    copies.keep(name, kept)
    assert kept == copies.find(name, ["a", "b"], COLUMNS)
    assert kept == copies.find(name, ["a", "b", "c"], COLUMNS)
    assert [None, None, None] == [copies.find(name, paths, COLUMNS) for paths in (["a"], ["a", "c"], ["x", "a", "b"])]
    assert None is copies.find(("w", "t", 10, 19), ["a", "b"], COLUMNS)


def test_a_copy_with_other_columns_is_not_used():
    """A worker that outlives a change of the state's schema loads the state again (D6)."""
    copies, name = WorkerCopies(), ("w", "t", 0, 9)
    copies.keep(name, Copy(("a",), frame(1)))
    assert None is copies.find(name, ["a"], pl.Schema({"x": pl.Float64}))
    assert None is copies.find(name, ["a"], pl.Schema({"x": pl.Int64, "y": pl.Int64}))


def test_copies_are_bounded_and_the_least_recently_used_one_is_dropped():
    """The bound is in bytes over all ranges. A copy above the bound is not kept at all."""
    copies = WorkerCopies(bytes_max=20)
    for number in range(2):
        copies.keep(("w", "t", number, number), Copy(("a",), frame(number)))
    copies.find(("w", "t", 0, 0), ["a"], COLUMNS)
    copies.keep(("w", "t", 2, 2), Copy(("a",), frame(2)))
    copies.keep(("w", "t", 3, 3), Copy(("a",), frame(*range(10))))
    assert [True, False, True, False] == [copies.find(("w", "t", i, i), ["a"], COLUMNS) is not None for i in range(4)]


def sent(tag, *rows, parallelism=2, schema=SCHEMA):
    names = [KEY_GROUP, *schema.names]
    kinds = pa.schema([(KEY_GROUP, pa.int32()), *schema])
    batches = [pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True))], schema=kinds) for row in rows]
    return list(Splitter(tag=tag, schema=schema, parallelism=parallelism, max_parallelism=8).run(batches))


def for_subtask(batches, subtask):
    return [batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in batches]


def test_rows_are_separated_by_input_in_their_declared_types():
    """Each input's frame has its own rows, with key groups first. An input without rows has an empty frame."""
    frames = take_apart([*sent(0, (3, "a", 1)), *sent(2, (4, None, 2))], [SCHEMA, SCHEMA, SCHEMA]).frames
    assert [[(3, "a", 1)], [], [(4, None, 2)]] == [part.rows() for part in frames]
    assert 1 == len({tuple(part.schema.items()) for part in frames})


def test_rows_that_arrive_in_another_width_get_their_declared_type():
    """Spark may deliver a smaller type than the declared one."""
    rows = pa.record_batch({"_key_group": pa.array([3], pa.int32()), "k": ["a"], "n": pa.array([1], pa.int8())})
    blocks = Splitter(tag=0, schema=SCHEMA, parallelism=1, max_parallelism=8).run([rows])
    assert [(3, "a", 1)] == take_apart(blocks, [SCHEMA]).frames[0].rows()


def test_each_subtask_gets_the_rows_of_its_key_groups_in_their_order():
    """Of three subtasks over eight key groups, the first owns 0 to 2, the next 3 to 5, the last 6 and 7 (E3)."""
    rows = [(group, str(number), number) for number, group in enumerate([7, 2, 3, 0, 5, 6, 2, 3])]
    blocks = sent(0, *rows, parallelism=3)
    found = [take_apart(for_subtask(blocks, subtask), [SCHEMA]).frames[0].rows() for subtask in range(3)]
    owned = [range_of(subtask=subtask, parallelism=3, max_parallelism=8) for subtask in range(3)]
    assert [[row for row in rows if own.first <= row[0] <= own.last] for own in owned] == found


def test_rows_that_only_wake_a_subtask_are_no_input():
    waking = pa.record_batch({SUBTASK: [0], TAG: [WAKING], BLOCK: pa.nulls(1, pa.binary())})
    assert 0 == take_apart([waking], [SCHEMA]).rows


def test_a_block_has_a_bounded_size():
    """A row above the bound gets its own block. No row is lost, even if the sizes of rows differ much."""
    rows = [(0, "x" * size, size) for size in (*[100] * 3_000, BLOCK_BYTES_MAX + 1, *[2_000] * 200)]
    batches = sent(0, *rows, parallelism=1)
    sizes = [len(block) for batch in batches for block in batch.column(BLOCK).to_pylist()]
    assert rows == take_apart(batches, [SCHEMA]).frames[0].rows()
    head = 1_024
    assert 1 == sum(size > BLOCK_BYTES_MAX + head for size in sizes) or max(sizes) < BLOCK_BYTES_MAX + 3 * head
    assert len(sizes) < 3 * sum(sizes) / BLOCK_BYTES_MAX


def test_a_function_that_leaves_a_column_out_is_refused():
    """The error names the operator, the column, and the declared columns."""
    with pytest.raises(FrameSchemaError, match=r"operator sums: the output of its function lacks \['n'\]"):
        conform(pl.DataFrame({"key": ["a"]}), SCHEMA, "sums", "output")


def test_a_function_that_returns_another_type_is_refused():
    """A value that cannot become the declared type is an error, not a null."""
    with pytest.raises(FrameSchemaError, match="does not fit the declared types"):
        conform(pl.DataFrame({"key": ["a"], "n": ["many"]}), SCHEMA, "sums", "output")


def test_columns_of_a_function_are_put_in_order():
    """Tidemark puts the columns into order, and gives them their declared types."""
    rows = pl.DataFrame({"n": pl.Series([1], dtype=pl.Int8), "more": [1], "key": ["a"]})
    assert {"key": pl.String, "n": pl.Int64} == dict(conform(rows, SCHEMA, "sums", "state").schema)


PYTHON = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "x.py", line 1, in <module>
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 2, in run
jobs.state.files.StateFileError: operator op: file x is missing; restore from an older checkpoint
"""


def test_the_last_line_of_a_python_error_is_shown():
    """A user reads the task's message, not the stack."""
    expected = "StateFileError: operator op: file x is missing; restore from an older checkpoint"
    assert expected == sentence_of(reason_of(RuntimeError(PYTHON)))
    assert f"micro-batch 3 of vertex silver failed: {expected}" == str(MicroBatchError("silver", 3, expected))


def test_the_first_line_of_a_spark_error_is_shown():
    """Spark's own messages begin with the problem."""
    assert "[CANNOT_CAST] no" == sentence_of(reason_of(RuntimeError("[CANNOT_CAST] no\n== SQL ==\n")))


WORKERS_DISK_IS_FULL = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "/lib/jobs/sinks/staged_files.py", line 132, in _place
    file.write(content)
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/jobs/operators/stateless_task.py", line 60, in run
    handle = self.writer.write(self.table, rows)
{kind}: can't write staged file bronze/a/_data/1/a-1-x.parquet: No space left on device
"""


@pytest.mark.parametrize(
    ("error", "not_staged"),
    [
        (RuntimeError(WORKERS_DISK_IS_FULL.format(kind="jobs.sinks.staged_files.StagedFileError")), True),
        (StagedFileError("can't write staged file: No space left on device"), True),
        (RuntimeError("Job aborted\njava.io.IOException: No space left on device\n\tat java.base/x"), True),
        (RuntimeError(WORKERS_DISK_IS_FULL.format(kind="OSError")), False),
        (RuntimeError(WORKERS_DISK_IS_FULL.format(kind="mine.StagedFileError")), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (
            RuntimeError(f"{WORKERS_DISK_IS_FULL.format(kind='ValueError')}java.io.IOException: Disk quota exceeded"),
            False,
        ),
        (ValueError("java.io.IOException is what I say"), False),
    ],
)
def test_only_the_type_of_an_error_says_that_files_could_not_be_written(error, not_staged):
    """The message of a user's error may say that a disk is full. Such an error fails the job like any other."""
    assert not_staged is is_not_staged(error)
    failed = MicroBatchError.of("silver", 3, error)
    assert not_staged is failed.not_staged
    assert str(failed).startswith(
        f"micro-batch 3 of vertex silver {'could not be written' if not_staged else 'failed'}: "
    )


@pytest.mark.parametrize("said", ["Permission denied", "Input/output error"])
def test_every_reason_why_a_file_could_not_be_written_is_named(said):
    """Missing permissions have their own message. For other reasons, the message quotes the system."""
    text = WORKERS_DISK_IS_FULL.format(kind="jobs.sinks.staged_files.StagedFileError").replace(
        "No space left on device", said
    )
    sentence = sentence_of(reason_of(RuntimeError(text)))
    assert ("the system forbids this user" in sentence) or (said in sentence)
    assert is_not_staged(RuntimeError(text))


# ------------------------------------------------------------------
# Tests that objects are frozen once for each set of imported modules.


def test_objects_are_frozen_again_only_after_a_new_import(monkeypatch):
    """Objects that a task makes later are still collected as garbage."""
    try:
        freeze_imports()
        frozen = gc.get_freeze_count()
        made = [[number] for number in range(1_000)]
        freeze_imports()
        assert 0 < gc.get_freeze_count() <= frozen  # a frozen object may be freed meanwhile
        monkeypatch.setitem(sys.modules, "a_module_of_this_test", types.ModuleType("a_module_of_this_test"))
        freeze_imports()
        assert gc.get_freeze_count() > frozen + 500
        assert len(made) == 1_000
    finally:
        gc.unfreeze()


# ------------------------------------------------------------------
# Specifications that no job can run are refused when they are made.


VERTEX = vertex_id("gold")


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


ROWS = schema(k=StringType(), j=StringType(), v=IntegerType())
TOTALS = schema(k=StringType(), n=LongType())


def counts(**changes):
    """Return a changed specification of a count by `k`."""
    fields = {
        "vertex": VERTEX,
        "rows": ROWS,
        "keys": ("k",),
        "aggregates": (Aggregate("n", Count()),),
        "parallelism": 2,
        "max_parallelism": 128,
    }
    return aggregate_spec(**fields | changes)


def table(columns, mode=TableMode.UPSERT, keys=("k",)):
    return StagedTable(table_name("gold/t"), mode, columns, keys)


def test_a_count_into_an_upsert_table_of_its_key_fits():
    """A specification that fits is accepted."""
    assert ("k",) == counts(table=table(TOTALS)).keys


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"parallelism": 0}, "vertex gold: parallelism 0 must lie in 1..128", id="no subtask"),
        pytest.param({"parallelism": 129}, "parallelism 129 must lie in", id="more subtasks than key groups"),
        pytest.param({"table": table(ROWS)}, "give the table the schema of its rows", id="other columns"),
        pytest.param({"table": table(TOTALS, keys=("n",))}, "lack .'k'.; rows of one table key", id="key of the table"),
        pytest.param({"rows": schema(k=MapType(StringType(), StringType()))}, "map_entries", id="a map"),
    ],
)
def test_a_keyed_vertex_that_cannot_run_is_refused(changes, message):
    """The error names the vertex, what does not fit, and the way out."""
    with pytest.raises(InvalidSpecError, match=message):
        counts(**changes)


def test_keys_of_two_types_are_refused():
    """Spark hashes an int and a bigint to different key groups, so equal keys would not meet."""
    with pytest.raises(InvalidSpecError, match=r"input 0 are \['int'\], those of input 1 \['bigint'\]; cast them"):
        enrich_spec(
            vertex=VERTEX,
            left=schema(k=IntegerType()),
            right=schema(k=LongType(), temp=LongType()),
            keys=("k",),
            right_keys=("k",),
            columns=("temp",),
            parallelism=1,
            max_parallelism=128,
        )


def test_a_quarantine_without_its_column_is_refused():
    """A quarantine table has the rows' columns and `_failed`."""
    with pytest.raises(InvalidSpecError, match="_failed"):
        StatelessSpec(vertex=VERTEX, schema=ROWS, quarantine=table(ROWS, TableMode.APPEND, ()))
