"""Which overwrite tables a pipeline may have. The error names the column or the step, when the pipeline is built."""

import pytest
from pyspark.sql.types import BooleanType, DoubleType, TimestampType

from checkpointing.graph import TableMode
from jobs.pipeline import InvalidPipelineError, Pipeline, count
from jobs.pipeline.planning import plan
from jobs.pipeline.top import top
from jobs.quality.expectation import Expectation
from jobs.sources.hybrid import SequenceSource

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})


def numbers(pipeline=None):
    """Return a source of split, n, key, value, _split, _position."""
    return (pipeline or Pipeline("example")).source("numbers", SequenceSource({"a": 10}))


@pytest.mark.parametrize(
    ("version", "by", "message"),
    [
        ("day", [], "version of table silver/newest: there is no column 'day'"),
        ("real", [], "column 'real' is a double, and only whole numbers, dates, timestamps and texts can be versions"),
        ("good", [], "column 'good' is a boolean"),
        ("n", ["key", "n"], "column 'n' is in partition_by too, so each partition has one version"),
        ("n", ["at"], "partition_by of table silver/newest: column 'at' is a timestamp"),
        ("n", "key", "partition_by is the text 'key'"),
    ],
)
def test_a_version_has_a_type_with_one_order(version, by, message):
    """NaN of a double has no place in an order that all engines share."""
    rows = numbers().with_column("real", "1.5", DoubleType()).with_column("good", "true", BooleanType())
    rows = rows.with_column("at", "timestamp_seconds(n)", TimestampType())
    with pytest.raises(InvalidPipelineError) as excinfo:
        rows.overwrite("silver/newest", version=version, partition_by=by, id="newest")
    assert message in str(excinfo.value)


def test_rows_that_replace_others_are_refused():
    """The table would show the replaced rows too. Rows that are taken back are refused as in any append-only step."""
    updates = numbers().key_by("key").aggregate("counts", rows=count())
    kept = updates.table("gold/kept")
    for stream in (updates, kept.select("key", "rows")):
        with pytest.raises(InvalidPipelineError, match=r"updates of the aggregate 'counts'.*with upsert"):
            stream.overwrite("silver/newest", version="rows", id="newest")
    first = top(numbers().key_by("key"), "first", n=1, order_by="n")
    with pytest.raises(InvalidPipelineError, match=r"updates of the top 'first'.*overwrite the table from the rows"):
        first.overwrite("silver/newest", version="n", id="newest")


def test_a_stream_goes_on_after_an_overwrite_table():
    """It can be described, judged and checked, and all later steps get all rows. A union can be overwritten too."""
    pipeline = Pipeline("example")
    rows = numbers(pipeline)
    both = rows.union(rows.with_column("n", "n + 1", rows.schema["n"].dataType), id="both")
    table = both.overwrite("silver/newest", version="n", partition_by=["key"], id="newest").describe_table("the newest")
    good = table.expect(NOT_NULL).check_rows(NOT_NULL, quarantine="quarantine/newest")
    good.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    planned = plan(pipeline)
    vertex = planned.graph.vertex("newest")
    newest, quarantine = vertex.tables
    assert (TableMode.OVERWRITE, ("n",), ("key",), True) == (
        newest.mode,
        newest.keys,
        newest.partitioned_by,
        newest.judged,
    )
    assert TableMode.APPEND is quarantine.mode
    assert planned.vertices["newest"].spec.emits
    with pytest.raises(InvalidPipelineError, match="two vertices have the id 'newest'"):
        both.overwrite("silver/other", version="n", id="newest")
    with pytest.raises(InvalidPipelineError, match=r"table silver/newest is written by vertex newest already"):
        both.overwrite("silver/newest", version="n", id="other")


def test_what_an_overwrite_table_lacks_is_no_argument():
    """Nobody can think that an outside sink follows it, or that a key is looked at."""
    for given in ("sink", "keys"):
        with pytest.raises(TypeError, match=given):
            numbers().overwrite("silver/newest", version="n", id="newest", **{given: None})
