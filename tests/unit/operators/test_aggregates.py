"""Compares aggregates with a naive model, for any division of the rows into micro-batches."""

import math
import os
import random
import signal
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import ClassVar

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import tidemark
from jobs.operators.aggregate import KeyedAggregates, needed_columns, output_schema, state_schema
from jobs.operators.aggregate_functions import MeanOverflowError, SumOverflowError
from jobs.operators.keyed_vertices import aggregate_meanings
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import avg_of, count, max_of, min_of, named_aggregates, sum_of
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.pipeline import Pipeline
from jobs.sources.files.file_source import FileSource
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows, RowLayer
from jobs.state.merge import KEY_GROUP

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
    return named_aggregates(f"vertex {vertex}", KEYS, SCHEMA, columns)


def model(rows):
    """Compute every aggregate of ALL as SQL does. NaN is greater than any number."""
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


def test_a_new_key_has_a_mean_beside_keys_of_several_layers():
    """With Polars 2.1, the new key got a lasting null if the state of the other keys came from more than one layer."""
    rows = StructType().add("key", LongType()).add("value", LongType())
    function = KeyedAggregates(("key",), named_aggregates("test", ("key",), rows, {"mean": avg_of("value")}))
    types = empty_frame(arrow_schema(state_schema(("key",), function.aggregates, rows))).schema

    def partials(keys):
        groups = pl.Series([0] * len(keys), dtype=pl.Int32)
        return function.partials(pl.DataFrame({KEY_GROUP: groups, "key": keys, "value": keys}), types)

    old = [partials([1, 2, 3]), partials([4])]
    state = KeyedRows(old[0].clear(), tuple(map(RowLayer, old)))
    new = partials([1, 4, 5])
    merged = function.merged(new, state.find(new, ("key",)).rows)
    assert dict(function.results(merged).select("key", "mean").rows()) == {1: 1.0, 4: 4.0, 5: 5.0}


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
    assert ["k", "i"] == needed_columns(KEYS, named("v", a=sum_of("i"), b=max_of("i")), SCHEMA).names


# ------------------------------------------------------------------
# Aggregates do not depend on how rows are cut into micro-batches, and stay within their stated errors. The error for an
# impossible aggregate names it.


ALL_TYPES = StructType(
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
    """Return a dict from each key to its results after these micro-batches of rows."""
    schema = StructType([ALL_TYPES[name] for name in rows])
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


ROW_OF_ALL_TYPES = st.tuples(
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
@given(st.lists(st.lists(ROW_OF_ALL_TYPES, min_size=1, max_size=8), min_size=2, max_size=4))
def test_results_do_not_depend_on_the_micro_batches_or_on_the_order_of_rows(batches):
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
    """This holds for sums of 34 digits, too. Python computes the expected mean with a hundred digits."""
    chance = random.Random(5)  # noqa: S311 - test data
    for many in (1, 2, 3, 7, 8, 11):
        values = [Decimal(chance.randint(-(10**33), 10**33)) for _ in range(many)]
        batches = [[("a", None, None, None, value)] for value in values]
        (found,) = computed({"mean": tidemark.avg_of("d")}, batches, ("k", "v", "o", "s", "d")).values()
        with localcontext(prec=100):
            exact = (sum(values) / many).quantize(Decimal("0.0001"), ROUND_HALF_UP)
        assert found["mean"] == exact
    rows = [("a", None, None, None, Decimal(10**37))]
    with pytest.raises(MeanOverflowError, match="the mean of d, or its sum, does not fit"):
        computed({"mean": tidemark.avg_of("d")}, [rows], ("k", "v", "o", "s", "d"))


def test_an_approximate_count_is_exact_below_its_size_and_near_above():
    """Random hashes stand for distinct values. Four standard errors are 12.5 %."""
    chance = random.Random(3)  # noqa: S311 - test data
    hashes = [chance.randrange(-(2**63), 2**63) for _ in range(20_000)]
    for many in (0, 1, 1023, 20_000):
        rows = [("a", None, None, None, one) for one in hashes[:many] * 2] or [("a", None, None, None, None)]
        batches = [rows[::2], rows[1::2]] if many > 1 else [rows]
        columns = {"n": tidemark.approx_count_distinct("o")}
        (found,) = computed(columns, batches, ("k", "v", "o", "s", "_hash_of_o")).values()
        assert found["n"] == many if many < 1024 else math.isclose(found["n"], many, rel_tol=0.125)


@dataclass(frozen=True)
class Product:
    """An aggregate of a user's own: the product of a column."""

    column: str
    name: str = "product"
    accumulator: ClassVar[DataType] = DoubleType()
    returns: ClassVar[DataType] = DoubleType()

    @property
    def columns(self):
        return (self.column,)

    def init(self):
        return pl.lit(1.0)

    def add(self):
        return pl.col(self.column).product()

    def merge(self, one, other):
        return one * other

    def result(self, accumulator):
        return accumulator


def test_an_own_aggregate_is_kept_over_micro_batches():
    """A user's aggregate gets what the `AggregateFunction` protocol promises, and its meaning is recorded."""
    product = tidemark.aggregate_of(Product("v"))
    batches = [[("a", 2.0, 0, None), ("a", 3.0, 0, None)], [("a", 7.0, 0, None)]]
    assert computed({"p": product}, batches) == {"a": {"k": "a", "p": 42.0}}
    (meaning,) = aggregate_meanings(
        named_aggregates("vertex x", ["k"], ALL_TYPES, {"p": product}),
        ALL_TYPES,
    )
    assert str(meaning) == "product(v double)"


class NotAggregating(Product):
    """An aggregate whose `add` returns a value for each row."""

    def add(self):
        return pl.col(self.column)


class OfTexts(Product):
    """An aggregate whose `add` multiplies values that may be texts."""

    def add(self):
        return (pl.col(self.column) * 2.0).product()


class OtherFields(Product):
    """An aggregate whose accumulator has other fields than declared."""

    accumulator: ClassVar[DataType] = StructType().add("factor", DoubleType())

    def add(self):
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
    schema = StructType([field for field in ALL_TYPES.fields if not field.name.startswith("_")])
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
    """Polars' threads do not exist in a forked process. A declaration that used them would wait for ever."""
    pl.DataFrame({"k": range(1000)}).lazy().group_by(pl.col("k") % 7).agg(pl.len()).collect()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        schema = StructType([*ALL_TYPES.fields, StructField("_hash_of_v", LongType())])
        found = named_aggregates("vertex x", ["k"], schema, EVERY)
        os._exit(0 if len(found) == len(EVERY) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# ------------------------------------------------------------------
# Compares sums with Python's exact numbers. Sums are equal to these numbers, or fail with an error that names the sum.
# They never wrap around.


HUNDRED_DIGITS = Context(prec=100)
LONG = 2**63


def summing(kind, aggregate=sum_of):
    rows = StructType([StructField("k", StringType()), StructField("v", kind)])
    aggregates = named_aggregates("vertex totals", ["k"], rows, {"total": aggregate("v")})
    frames = (empty_frame(arrow_schema(each)) for each in (rows, state_schema(["k"], aggregates, rows)))
    return KeyedAggregates(("k",), aggregates), *frames


def summed(kind, batches, aggregate=sum_of):
    """Return the totals after these micro-batches of (key, value)."""
    function, rows, state = summing(kind, aggregate)
    for batch in batches:
        arrived = pl.DataFrame(batch, schema=rows.schema, orient="row")
        touched = arrived.select("k").unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        done = function.process([arrived], before).state
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.cast(dict(state.schema))])
    return dict(state.rows())


def exactly(batches, fits):
    """Return the exact totals, or None if the rows of a micro-batch or a total after it do not fit."""
    totals = {}
    for batch in batches:
        for key in {key for key, _ in batch}:
            values = [value for own, value in batch if own == key and value is not None]
            partial = added(values)
            total = added([one for one in (totals.get(key), partial) if one is not None])
            if not all(one is None or fits(one) for one in (partial, total)):
                return None
            totals[key] = total
    return totals


def added(values):
    """Return the exact sum of whole numbers or decimals, or None if there are no numbers."""
    result = None
    for value in values:
        result = (
            value
            if result is None
            else HUNDRED_DIGITS.add(result, value)
            if isinstance(value, Decimal)
            else result + value
        )
    return result


def agree(kind, batches, fits):
    """Compare the sums with the exact sums. If an exact sum does not fit its type, an error must be raised."""
    expected = exactly(batches, fits)
    if expected is None:
        with pytest.raises(
            SumOverflowError, match=r"column total: the sum of v for the key \((a|b|None)\) does not fit"
        ):
            summed(kind, batches)
    else:
        assert expected == summed(kind, batches)


def batches_of(values):
    rows = st.tuples(st.sampled_from(["a", "b", None]), st.none() | values)
    return st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4)


_longs = st.integers(-LONG, LONG - 1) | st.integers(-9, 9) | st.sampled_from([LONG - 1, -LONG, LONG // 2, -LONG // 2])


@settings(deadline=None)
@given(batches_of(_longs))
def test_sums_of_bigints_are_exact_or_refused(batches):
    """Values near both ends of the type are divided into micro-batches in any way."""
    agree(LongType(), batches, lambda total: -LONG <= total < LONG)


@settings(deadline=None)
@given(st.sampled_from([(5, 2), (18, 0), (28, 3), (37, 5), (38, 0), (38, 10), (38, 38)]), st.data())
def test_sums_of_decimals_are_exact_or_refused(kind, data):
    """Some sums of 38 digits overflow the 128 bits of a decimal and come back."""
    precision, scale = kind
    most = 10**precision - 1
    unscaled = st.integers(-most, most) | st.sampled_from([most, -most, most // 2, 1, 0])
    batches = data.draw(batches_of(unscaled.map(lambda each: Decimal(each).scaleb(-scale, HUNDRED_DIGITS))))
    room = 10 ** min(38, precision + 10)
    agree(DecimalType(precision, scale), batches, lambda total: abs(int(total.scaleb(scale, HUNDRED_DIGITS))) < room)


@pytest.mark.parametrize("rows", [2, 3, 7, 40])
def test_a_sum_that_wraps_around_to_a_plausible_number_is_refused(rows):
    """A sum of many greatest decimals overflows 128 bits once or several times.

    A check of the sign would miss some overflows.
    """
    most = Decimal("9" * 38)
    with pytest.raises(SumOverflowError, match="cast v to double"):
        summed(DecimalType(38, 0), [[("a", most)] * rows])


@pytest.mark.parametrize(
    ("kind", "value", "rows", "says"),
    [
        (LongType(), LONG - 1, 2, r"does not fit bigint; cast v to decimal\(38,0\) before the aggregate: its state"),
        (
            DecimalType(38, 2),
            Decimal("9" * 36),
            2,
            r"does not fit decimal\(38,2\); cast v to double before .* another name",
        ),
        (DecimalType(28, 2), Decimal("9" * 26), 12, None),
    ],
)
def test_the_error_names_the_type_and_a_wider_one(kind, value, rows, says):
    """This holds for a sum within one micro-batch and over several.

    The ten additional digits of a decimal's sum are enough for ten thousand million rows.
    """
    for batches in ([[("a", value)] * rows], [[("a", value)]] * rows):
        if says is None:
            assert {"a": value * rows} == summed(kind, batches)
        else:
            with pytest.raises(SumOverflowError, match=says):
                summed(kind, batches)


def test_small_types_are_added_up_in_the_type_of_their_sum():
    """More than a hundred tinyints of 127 are added."""
    assert {"a": 127 * 300} == summed(ByteType(), [[("a", 127)] * 150] * 2)


def test_nulls_are_ignored_in_every_type():
    """The sum of only nulls is null, whatever comes before or after."""
    for kind, one in ((LongType(), 1), (DecimalType(5, 2), Decimal("1.00")), (DoubleType(), 1.0)):
        assert {"a": None} == summed(kind, [[("a", None)], [("a", None)]])
        assert {"a": one} == summed(kind, [[("a", None)], [("a", one)], [("a", None)]])


@settings(deadline=None)
@given(batches_of(st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1.5, -2.0, 1e308, -1e308])))
def test_doubles_are_never_refused_and_follow_ieee_754(batches):
    """Too large a sum is infinite. NaN, or infinities of both signs, give NaN. Other sums are right up to rounding."""
    found = summed(DoubleType(), batches)
    for key in {key for batch in batches for key, _ in batch}:
        values = [value for batch in batches for own, value in batch if own == key and value is not None]
        if not values:
            assert found[key] is None
        elif any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
            assert math.isnan(found[key])
        elif any(map(math.isinf, values)):
            assert found[key] in values
        elif sum(map(abs, values)) < 1e308:
            assert math.isclose(math.fsum(values), found[key], rel_tol=1e-9, abs_tol=1e-12 * sum(map(abs, values)))


def test_floats_are_added_up_as_doubles():
    """Spark does the same. So the sum may exceed the range of a float."""
    assert math.isclose(3.0e38 * 4, summed(FloatType(), [[("a", 3.0e38)] * 2] * 2)["a"], rel_tol=1e-6)


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([[("a", Decimal(10**34))]], id="mean"),
        pytest.param([[("a", Decimal(10**38 - 1)), ("a", Decimal(10**38 - 1))]], id="sum of a micro-batch"),
        pytest.param(
            [[("a", Decimal(10**34 - 1)), ("b", Decimal(6 * 10**33))], [("a", Decimal(10**38 - 1))]], id="sum"
        ),
    ],
)
def test_a_mean_that_does_not_fit_is_refused_in_tidemarks_words(batches):
    """Spark's mean of decimal(38,0) has the type decimal(38,4), and fails too."""
    says = r"column total: the mean of v, or its sum, does not fit decimal\(38,4\); cast v to double or to a decimal"
    with pytest.raises(MeanOverflowError, match=says):
        summed(DecimalType(38, 0), batches, avg_of)
    assert summed(DecimalType(38, 0), [[("a", Decimal(10**34 - 1))]], avg_of)["a"]
