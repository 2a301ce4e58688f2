"""Aggregates do not depend on how rows are cut, keep their stated errors, and are refused by name."""

import math
import os
import random
import signal
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import ClassVar

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import tidemark
from jobs.operators.aggregate import KeyedAggregates, state_schema
from jobs.operators.aggregate_functions import MeanOverflowError
from jobs.operators.keyed_vertices import aggregate_meanings
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import named_aggregates
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.pipeline import Pipeline
from jobs.sources.files.file_source import FileSource
from jobs.state.files import empty_frame

SCHEMA = StructType(
    [
        StructField("k", StringType()),
        StructField("v", DoubleType()),
        StructField("o", LongType()),
        StructField("s", StringType()),
        StructField("d", DecimalType(38, 0)),
        StructField("m", MapType(StringType(), StringType())),
        StructField("a", ArrayType(LongType())),
        StructField("_hash_of_o", LongType()),
    ]
)


def computed(columns, batches, rows=("k", "v", "o", "s")):
    """Return the results by key after these micro-batches of rows."""
    schema = StructType([SCHEMA[name] for name in rows])
    aggregates = named_aggregates("vertex x", ["k"], schema, columns)
    function = KeyedAggregates(("k",), aggregates)
    state = empty_frame(arrow_schema(state_schema(["k"], aggregates, schema)))
    shown = {}
    for batch in batches:
        frame = pl.DataFrame(batch, schema=empty_frame(arrow_schema(schema)).schema, orient="row")
        touched = frame.select("k").unique()
        done = function.process([frame], state.join(touched, on="k", how="semi", nulls_equal=True))
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.state])
        shown |= {row["k"]: row for row in done.output.to_dicts()}
    return shown


ROW = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.none() | st.sampled_from([1.5, -2.0, 0.0, 7.25, math.nan]),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from(["x", "y", "ü"]),
)
EXACT = {
    "avg": tidemark.avg_of("v"),
    "first": tidemark.first_of("s", order_by=["o", "v"]),
    "last": tidemark.last_of("s", order_by="o", ignore_nulls=True),
    "least": tidemark.min_by("s", "v"),
    "most": tidemark.max_by("v", "o"),
    "all": tidemark.collect_list("v"),
    "set": tidemark.collect_set("v"),
    "distinct": tidemark.count_distinct("s"),
    "median": tidemark.approx_percentile("v", 0.5),
}


@settings(deadline=None, max_examples=6)
@given(st.lists(st.lists(ROW, min_size=1, max_size=8), min_size=2, max_size=4))
def test_results_do_not_depend_on_the_micro_batches_or_on_the_order_of_rows(batches):
    """One micro-batch of all rows, backwards, gives the same results."""
    whole = [row for batch in batches for row in batch][::-1]
    assert str(sorted(computed(EXACT, batches).items(), key=str)) == str(
        sorted(computed(EXACT, [whole]).items(), key=str)
    )


def test_a_small_variance_around_a_large_mean_keeps_its_digits():
    """The sum of squares of such values has no digit left for the variance, in one or in many micro-batches."""
    rows = [("a", 1e9 + n % 3, n, None) for n in range(300)]
    cuts = [[rows], [rows[n : n + 7] for n in range(0, 300, 7)], [[row] for row in rows[:30]]]
    for batches in cuts:
        (found,) = computed({"var": tidemark.var_of("v", population=True)}, batches).values()
        assert math.isclose(found["var"], 2 / 3, rel_tol=1e-6)


@pytest.mark.parametrize("percentage", [0.0, 0.01, 0.5, 0.95, 1.0])
def test_a_percentile_is_within_its_relative_error(percentage):
    """The values span fourteen orders of magnitude, negative ones and zero included."""
    chance = random.Random(7)  # noqa: S311 - test data
    values = [chance.choice([-1, 0, 1, 1]) * 10 ** chance.uniform(-6, 8) for _ in range(2000)]
    batches = [[("a", value, 0, None) for value in values[n::4]] for n in range(4)]
    (found,) = computed({"p": tidemark.approx_percentile("v", percentage, relative_error=0.02)}, batches).values()
    exact = sorted(values)[max(math.ceil(percentage * len(values)), 1) - 1]
    assert math.isclose(found["p"], exact, rel_tol=0.0201)


def test_the_mean_of_decimals_is_exact_and_rounded_half_up():
    """It holds for sums of 34 digits too. Python computes the same with a hundred digits."""
    chance = random.Random(5)  # noqa: S311 - test data
    for count in (1, 2, 3, 7, 8, 11):
        values = [Decimal(chance.randint(-(10**33), 10**33)) for _ in range(count)]
        batches = [[("a", None, None, None, value)] for value in values]
        (found,) = computed({"mean": tidemark.avg_of("d")}, batches, ("k", "v", "o", "s", "d")).values()
        with localcontext(prec=100):
            exact = (sum(values) / count).quantize(Decimal("0.0001"), ROUND_HALF_UP)
        assert found["mean"] == exact
    rows = [("a", None, None, None, Decimal(10**37))]
    with pytest.raises(MeanOverflowError, match="the mean of d, or its sum, does not fit"):
        computed({"mean": tidemark.avg_of("d")}, [rows], ("k", "v", "o", "s", "d"))


def test_an_approximate_count_is_exact_below_its_size_and_near_above():
    """The hashes stand for distinct values. Four standard errors are 12.5 %."""
    chance = random.Random(3)  # noqa: S311 - test data
    hashes = [chance.randrange(-(2**63), 2**63) for _ in range(20_000)]
    for count in (0, 1, 1023, 20_000):
        rows = [("a", None, None, None, one) for one in hashes[:count] * 2] or [("a", None, None, None, None)]
        batches = [rows[::2], rows[1::2]] if count > 1 else [rows]
        columns = {"n": tidemark.approx_count_distinct("o")}
        (found,) = computed(columns, batches, ("k", "v", "o", "s", "_hash_of_o")).values()
        assert found["n"] == count if count < 1024 else math.isclose(found["n"], count, rel_tol=0.125)


@dataclass(frozen=True)
class Product:
    """An aggregate of a user's own: the product of a column."""

    column: str
    name: str = "product"
    accumulator: ClassVar[DataType] = DoubleType()
    returns: ClassVar[DataType] = DoubleType()

    @property
    def columns(self):
        """The column."""
        return (self.column,)

    def init(self):
        """The product of no factors."""
        return pl.lit(1.0)

    def add(self):
        """Multiply."""
        return pl.col(self.column).product()

    def merge(self, one, other):
        """Multiply both."""
        return one * other

    def result(self, accumulator):
        """The product."""
        return accumulator


def test_an_own_aggregate_is_kept_over_micro_batches():
    """It gets what the protocol promises, and its meaning is recorded."""
    product = tidemark.aggregate_of(Product("v"))
    batches = [[("a", 2.0, 0, None), ("a", 3.0, 0, None)], [("a", 7.0, 0, None)]]
    assert computed({"p": product}, batches) == {"a": {"k": "a", "p": 42.0}}
    (meaning,) = aggregate_meanings(named_aggregates("vertex x", ["k"], SCHEMA, {"p": product}), SCHEMA)
    assert str(meaning) == "product(v double)"


class NotAggregating(Product):
    """Its `add` gives a value for each row."""

    def add(self):
        """Return the column itself."""
        return pl.col(self.column)


class OfTexts(Product):
    """Its `add` multiplies what may be texts."""

    def add(self):
        """Multiply each value."""
        return (pl.col(self.column) * 2.0).product()


class OtherFields(Product):
    """Its accumulator has other fields than the declared ones."""

    accumulator: ClassVar[DataType] = StructType().add("factor", DoubleType())

    def add(self):
        """Name the field otherwise."""
        return pl.struct(factors=pl.col(self.column).product())


REFUSED = {
    "a text has no mean": (tidemark.avg_of("s"), "aggregate x: can't take the mean of column s of type string"),
    "a text has no variance": (tidemark.var_of("s"), "can't take the deviation of column s"),
    "a text has no percentile": (tidemark.approx_percentile("s", 0.5), "can't take a percentile of column s"),
    "no position": (tidemark.first_of("s"), "they have no column '_position'; keep it, or name"),
    "no such column": (tidemark.min_by("s", "nope"), "there is no column 'nope'; the rows have k, v"),
    "no order": (tidemark.max_by("s", "a"), "column a of type array<bigint> has no order"),
    "no sorted lists": (tidemark.collect_list("a"), "collect_list can't sort column a of type array<bigint>"),
    "no least array": (tidemark.min_of("a"), "min_of can't sort column a of type array<bigint>; take one of its parts"),
    "no greatest array": (tidemark.max_of("a"), "max_of can't sort column a of type array<bigint>"),
    "no hash": (tidemark.approx_count_distinct("m"), "column m holds a map, which has no hash"),
    "not aggregating": (
        tidemark.aggregate_of(NotAggregating("v")),
        r"aggregate x: function product cannot be computed over \(v\)",
    ),
    "of texts": (
        tidemark.aggregate_of(OfTexts("s")),
        r"aggregate x: function product cannot be computed over \(s\): arithmetic on dtypes str and",
    ),
    "other fields": (tidemark.aggregate_of(OtherFields("v")), r"\(v\): add gives Struct.*factors.* is declared"),
    "no aggregate": (Product("v"), r"aggregate x is .*; name an aggregate such as count\(\)"),
    "no protocol": (
        lambda: tidemark.aggregate_of(object()),
        "<object object at .*> is no AggregateFunction: it lacks name, columns",
    ),
    "percentage": (lambda: tidemark.approx_percentile("v", 95), "the percentage is 95, it must lie in 0..1"),
    "error": (lambda: tidemark.approx_percentile("v", 0.5, relative_error=0), "relative_error is 0, it must lie in"),
}


@pytest.mark.parametrize(("column", "said"), REFUSED.values(), ids=list(REFUSED))
def test_an_aggregate_that_cannot_be_computed_is_refused_where_it_is_declared(tmp_path, column, said):
    """One sentence names the vertex or the aggregate, the column and its type."""
    schema = StructType([field for field in SCHEMA.fields if not field.name.startswith("_")])
    rows = Pipeline("p").source("rows", FileSource(tmp_path, schema)).drop("_split", "_position")
    with pytest.raises(InvalidPipelineError, match=said):
        rows.key_by("k").aggregate("vertex", x=column() if callable(column) else column)


EVERY = {
    "rows": tidemark.count(),
    "values": tidemark.count("v"),
    "total": tidemark.sum_of("v"),
    "exact": tidemark.sum_of("d"),
    "least": tidemark.min_of("v"),
    "most": tidemark.max_of("s"),
    "mean": tidemark.avg_of("v"),
    "exact_mean": tidemark.avg_of("d"),
    "spread": tidemark.var_of("v"),
    "deviation": tidemark.stddev_of("o", population=True),
    "cheapest": tidemark.min_by("s", "v"),
    "dearest": tidemark.max_by("s", "v"),
    "first": tidemark.first_of("s", order_by=["o"]),
    "last": tidemark.last_of("s", order_by=["o"], ignore_nulls=True),
    "listed": tidemark.collect_list("s"),
    "set": tidemark.collect_set("v"),
    "distinct": tidemark.count_distinct("d"),
    "about": tidemark.approx_count_distinct("o"),
    "median": tidemark.approx_percentile("v", 0.5),
    "own": tidemark.aggregate_of(Product("v")),
}


def test_a_forked_process_can_declare_every_aggregate():
    """Polars' threads do not survive a fork, so a declaration that used them would wait for ever."""
    pl.DataFrame({"k": range(1000)}).lazy().group_by(pl.col("k") % 7).agg(pl.len()).collect()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        schema = StructType([*SCHEMA.fields, StructField("_hash_of_v", LongType())])
        found = named_aggregates("vertex x", ["k"], schema, EVERY)
        os._exit(0 if len(found) == len(EVERY) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
