"""Specifications that no job can run are refused when they are made."""

import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators.aggregate import Aggregate
from jobs.operators.aggregate_functions import Count
from jobs.operators.keyed_vertices import aggregate_spec, enrich_spec
from jobs.operators.spec import InvalidSpecError, StagedTable, StatelessSpec

VERTEX = vertex_id("gold")


def schema(**columns):
    """Return a schema with these columns."""
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
    """Return an output table."""
    return StagedTable(table_name("gold/t"), mode, columns, keys)


def test_a_count_into_an_upsert_table_of_its_key_fits():
    """This is a plain case, and it is accepted."""
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
    """The error names the vertex, the misfit and the way out."""
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
