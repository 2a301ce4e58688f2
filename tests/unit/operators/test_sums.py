"""Compares sums with Python's exact numbers. They are equal or refused by name, and never wrap around."""

import math
from decimal import Context, Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ByteType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from jobs.operators.aggregate import KeyedAggregates, state_schema
from jobs.operators.aggregate_functions import MeanOverflowError, SumOverflowError
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import avg_of, named_aggregates, sum_of
from jobs.state.files import empty_frame

EXACT = Context(prec=100)
LONG = 2**63


def summing(kind, aggregate=sum_of):
    """Return the function of an aggregate over a column of this type, with the empty frames of its rows and state."""
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
    """Return the exact sum of whole numbers or decimals. It is None without numbers."""
    result = None
    for value in values:
        result = value if result is None else EXACT.add(result, value) if isinstance(value, Decimal) else result + value
    return result


def agree(kind, batches, fits):
    """Compare the sums with the exact ones. If these do not fit, the sums must be refused."""
    expected = exactly(batches, fits)
    if expected is None:
        with pytest.raises(
            SumOverflowError, match=r"column total: the sum of v for the key \((a|b|None)\) does not fit"
        ):
            summed(kind, batches)
    else:
        assert expected == summed(kind, batches)


def batches_of(values):
    """Return micro-batches of (key, value)."""
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
    batches = data.draw(batches_of(unscaled.map(lambda each: Decimal(each).scaleb(-scale, EXACT))))
    room = 10 ** min(38, precision + 10)
    agree(DecimalType(precision, scale), batches, lambda total: abs(int(total.scaleb(scale, EXACT))) < room)


@pytest.mark.parametrize("rows", [2, 3, 7, 40])
def test_a_sum_that_wraps_around_to_a_plausible_number_is_refused(rows):
    """Many of the greatest decimals wrap 128 bits around, once or more often. A check of the sign would miss some."""
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
    """This holds within one micro-batch and over several.

    A decimal's ten more digits suffice for ten thousand million rows.
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
    """Spark does the same. The range of a float does not limit the sum."""
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
