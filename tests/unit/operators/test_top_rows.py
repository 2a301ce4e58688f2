"""The task of top rows: what it writes when rows come that are not among the first ones."""

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFileKind
from jobs.operators.keyed_task import InputLayout
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_output, top_state
from jobs.state.backend import CompactionPolicy
from tests.unit.operators.test_end_of_input import Bench

ROWS = StructType().add("k", StringType()).add("n", LongType())


@pytest.fixture
def least(tmp_path):
    """Return the vertex that keeps the row with the least number of each key in an upsert table."""
    function = TopRows(("k",), ("n",), (Order("n", descending=False),), 1, None, changelog=False)
    state, output = (arrow_schema(each) for each in (top_state(ROWS, ["k"]), top_output(ROWS, ["k"], None)))
    rows = (InputLayout(schema=arrow_schema(ROWS), keys=("k",)),)
    policy = CompactionPolicy(ratio=100.0)
    bench = Bench(str(tmp_path), function, rows, state, output, TableMode.UPSERT, policy=policy)
    bench.run([("a", 5), ("b", 5)])
    return bench


def test_rows_that_are_not_among_the_first_write_nothing(least):
    """Neither state nor table. Most rows of a long stream are of that kind."""
    assert [("a", 5), ("b", 5)] == least.read(file.file for file in least.table_files)
    report = least.run([("a", 6), ("b", 7), ("b", 5)])
    assert ((), ()) == (report.state, report.ranges)


def test_only_keys_whose_first_row_changes_are_written(least):
    """A delta of one key, whose row the table replaces."""
    report = least.run([("a", 6), ("b", 4), ("c", 9)])
    (delta,) = report.state
    assert KeyedFileKind.DELTA is delta.kind
    assert ["b", "c"] == sorted(pq.read_table(f"{least.root}/{delta.file.path}").column("k").to_pylist())
    assert [("a", 5), ("b", 4), ("c", 9)] == least.read(file.file for file in least.table_files)
