"""A task derives columns itself: copies of columns, and the kinds of a changelog's rows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

from checkpointing.identifiers import VertexId
from jobs.operators.applied_changes import DELETES, SEQUENCE
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.derived_scans import ChangesScan, CopiedColumn, CopyingScan
from jobs.operators.spec import TaskSteps, TextSteps
from jobs.pipeline import Pipeline
from jobs.pipeline.applied_changes import apply_changes
from jobs.pipeline.planning import plan
from jobs.sources.files.file_source import FileSource
from jobs.storage.parquet import FileScan


def scan(folder, **columns):
    """Return the scan of a file with these columns."""
    table = pa.table(columns)
    pq.write_table(table, folder / "f.parquet")
    size = (folder / "f.parquet").stat().st_size
    return FileScan(root=str(folder), name="f.parquet", first=0, end=table.num_rows, bytes=size)


def rows_of(scanned, **columns):
    """Return the scanned rows with these columns."""
    return [row for batch in scanned.batches(pa.schema(columns)) for row in batch.to_pylist()]


def test_a_copy_has_the_values_of_its_column_under_another_name(tmp_path):
    """A null stays null, or becomes what is to stand instead. Without a column all values are that."""
    file = scan(tmp_path, k=[1, 2, 3], gone=[True, None, False])
    copies = (CopiedColumn("d", "gone", instead=False), CopiedColumn("raw", "gone"), CopiedColumn("no", None, False))
    copying = CopyingScan(scan=file, copies=copies, read=pa.schema([("gone", pa.bool_())]))
    found = rows_of(copying, no=pa.bool_(), d=pa.bool_(), k=pa.int64(), raw=pa.bool_())
    assert [
        {"no": False, "d": True, "k": 1, "raw": True},
        {"no": False, "d": False, "k": 2, "raw": None},
        {"no": False, "d": False, "k": 3, "raw": False},
    ] == found
    assert [{"k": 1, "gone": True, "d": True}] == rows_of(copying, k=pa.int64(), gone=pa.bool_(), d=pa.bool_())[:1]
    assert (3, True) == (copying.rows, copying.may_repeat)


def test_a_changelogs_rows_are_inserts_and_deletes_or_only_those_that_are_added(tmp_path):
    """Both rows of an update count. A row without a kind is added."""
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
        ("gone", CopiedColumn(DELETES, "gone", instead=False)),
        ("`gone`", CopiedColumn(DELETES, "gone", instead=False)),
        (None, CopiedColumn(DELETES, None, instead=False)),
        ("`true`", CopiedColumn(DELETES, "true", instead=False)),
        ("true", None),
        ("GONE", None),
        ("word", None),
        ("a.b", None),
        ("`a.b`", CopiedColumn(DELETES, "a.b", instead=False)),
        ("gone or k = 1", None),
    ],
)
def test_plain_conditions_of_changes_need_no_step_of_spark(tmp_path, deletes, copied):
    """The name of a boolean column is one. Words of SQL and other expressions are left to Spark."""
    pipeline = Pipeline("plain", parallelism=1)
    changes = pipeline.source("changes", FileSource(tmp_path, ROWS))
    apply_changes(changes, "newest", keys=["k"], sequence_by="seq", columns=["word"], apply_as_deletes=deletes)
    chain = plan(pipeline).vertices[VertexId("newest")].inputs[0].chain
    if copied is None:
        assert isinstance(chain, TextSteps)
    else:
        assert isinstance(chain, TaskSteps)
        assert (copied, CopiedColumn(SEQUENCE, "seq")) == chain.copies
