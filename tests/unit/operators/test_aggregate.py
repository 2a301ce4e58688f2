"""Compares aggregates with a naive model, for any division of the rows into micro-batches."""

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from jobs.operators.aggregate import KeyedAggregates, needed_columns, output_schema
from jobs.pipeline.aggregates import count, max_of, min_of, named_aggregates, sum_of
from jobs.pipeline.columns import InvalidPipelineError

KEYS = ("k",)
ALL = {
    "n": count(),
    "n_i": count("i"),
    "sum_i": sum_of("i"),
    "min_i": min_of("i"),
    "max_i": max_of("i"),
    "min_f": min_of("f"),
    "max_f": max_of("f"),
    "max_s": max_of("s"),
}
ROWS = {"k": pl.String, "i": pl.Int32, "f": pl.Float64, "s": pl.String}
STATE = pl.Schema(
    {"k": pl.String, "n": pl.Int64, "n_i": pl.Int64, "sum_i": pl.Int64, "min_i": pl.Int32, "max_i": pl.Int32}
    | {"min_f": pl.Float64, "max_f": pl.Float64, "max_s": pl.String}
)
BIG = 2**31 - 1
SCHEMA = StructType(
    [
        StructField("k", StringType()),
        StructField("i", IntegerType()),
        StructField("f", DoubleType()),
        StructField("d", DecimalType(10, 2)),
        StructField("s", StringType()),
    ]
)


def named(vertex, **columns):
    """Return these aggregates by `k` over rows of SCHEMA."""
    return named_aggregates(f"vertex {vertex}", KEYS, SCHEMA, columns)


def model(rows):
    """Compute every aggregate of ALL as SQL would. A NaN is greater than any number."""
    result = {}
    for key in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == key]
        ints = [row[1] for row in own if row[1] is not None]
        floats = sorted(
            (row[2] for row in own if row[2] is not None), key=lambda f: (math.isnan(f), 0 if math.isnan(f) else f)
        )
        texts = [row[3] for row in own if row[3] is not None]
        result[key] = (
            len(own),
            len(ints),
            sum(ints) if ints else None,
            min(ints, default=None),
            max(ints, default=None),
            str(floats[0]) if floats else None,
            str(floats[-1]) if floats else None,
            max(texts, default=None),
        )
    return result


def shown(frame):
    """Return a frame of aggregates in the form of `model`."""
    return {
        row[0]: (*row[1:6], *(None if value is None else str(value) for value in row[6:8]), row[8])
        for row in frame.select(list(STATE)).rows()
    }


ROW = st.tuples(
    st.sampled_from([None, "a", "b", "c"]),
    st.none() | st.integers(-BIG, BIG),
    st.none() | st.sampled_from([1.5, -2.0, math.nan, math.inf]),
    st.none() | st.sampled_from(["x", "y"]),
)


@settings(deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=5))
def test_aggregates_do_not_depend_on_the_micro_batches(batches):
    """Count, sum, min and max after any micro-batches equal the naive ones, with nulls and NaN."""
    function, state, seen = KeyedAggregates(KEYS, named("v", **ALL)), pl.DataFrame(schema=STATE), []
    for batch in batches:
        seen += batch
        rows = pl.DataFrame(batch, schema=ROWS, orient="row")
        touched = rows.select("k").unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        done = function.process([rows], before)
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.state.select(list(STATE))])
        assert {row[0] for row in batch} == set(shown(done.output))
    assert model(seen) == shown(state)


def test_types_are_those_of_spark():
    """A sum has the range of Spark's: bigint, double, decimal(p + 10, s). Min and max keep the type."""
    sums = {f"sum_{name}": sum_of(name) for name in "ifd"}
    schema = output_schema(KEYS, named("v", **sums, m=max_of("i"), n=count()), SCHEMA)
    expected = [StringType(), LongType(), DoubleType(), DecimalType(20, 2), IntegerType(), LongType()]
    assert expected == [field.dataType for field in schema.fields]


def test_a_sum_of_texts_is_refused():
    """The error names the aggregate and the column."""
    with pytest.raises(InvalidPipelineError, match="aggregate total: can't sum column s of type string"):
        named("v", total=sum_of("s"))


def test_only_needed_columns_are_exchanged():
    """Only the keys and the columns of the aggregates are exchanged."""
    assert ["k", "i"] == needed_columns(KEYS, named("v", a=sum_of("i"), b=max_of("i")), SCHEMA).names
