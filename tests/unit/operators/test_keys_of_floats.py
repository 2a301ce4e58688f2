"""Keys of floats are equal as in Spark SQL, also where Polars merges two columns in order: NaN is NaN, 0.0 is -0.0."""

import struct

import polars as pl
import pytest

from jobs.operators.changes import KIND, changes_of
from jobs.operators.join import JoinFunction, JoinType
from jobs.state.key_joins import join_by_key, one_form
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, change_of, without_unchanged

NAN, OTHER_NAN = float("nan"), struct.unpack("<d", bytes.fromhex("010000000000f0ff"))[0]
EQUAL = [(NAN, NAN), (NAN, OTHER_NAN), (OTHER_NAN, NAN), (0.0, -0.0), (-0.0, 0.0)]


@pytest.fixture(params=[pl.Float64, pl.Float32])
def of(request):
    """Return what makes a frame of one key and one value."""

    def made(key, value):
        return pl.DataFrame({"k": pl.Series([key], dtype=request.param), "v": [value]})

    return made


@pytest.mark.parametrize(("one", "other"), EQUAL)
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_equal_keys_meet(of, one, other, how):
    """A key alone is in order, and so Polars merges."""
    joined = join_by_key(of(one, 1), of(other, 2).rename({"v": "w"}), ["k"], how)
    assert {"inner": [(1, 2)], "left": [(1, 2)], "semi": [(1,)], "anti": []}[how] == joined.drop("k").rows()


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_a_later_row_replaces_the_state_of_an_equal_key(of, one, other):
    """State, changes and unchanged rows are found by the equality that groups the rows."""
    before = of(one, 1).with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP)).select(KEY_GROUP, "k", "v")
    touched, after = before.with_columns(of(other, 1)["k"]).select(KEY_GROUP, "k"), of(other, 2)
    delta = change_of(before, after, touched, ["k"])
    assert [(2, False)] == delta.select("v", DELETED).rows()
    assert without_unchanged(delta.with_columns(pl.lit(1, pl.Int64).alias("v")), before, ["k"]).is_empty()
    assert [("-U", 1), ("+U", 2)] == changes_of(of(one, 1), after, ["k"]).select(KIND, "v").rows()
    assert [1] == KeyedRows.of(before).find(touched, ["k"]).rows["v"].to_list()


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_a_join_finds_the_row_of_an_equal_key(of, one, other):
    """A right row that comes later meets the left row that is kept."""
    function = JoinFunction(("k",), ("k",), ("v",), ("w",), JoinType.INNER)
    kind = of(one, 1).schema["k"]
    kept = {
        side: pl.List(pl.Struct({name: pl.Int64, "_times": pl.Int64}))
        for side, name in (("_left", "v"), ("_right", "w"))
    }
    nothing = pl.DataFrame(schema={"k": kind} | kept)
    left, right = of(one, 1), of(other, 2).rename({"v": "w"})
    first = function.process([left, right.clear()], nothing)
    second = function.process([left.clear(), right], first.state)
    assert [(1, 2, "+I")] == second.output.drop("k").rows()
    assert 1 == second.state.height


def test_keys_get_one_form(of):
    """Which zero or NaN a key shows does not depend on the row that comes first. Other columns stay as they are."""
    forms = [str(one_form(of(key, 1), ["k"])["k"][0]) for key in (-0.0, 0.0, OTHER_NAN, None, 1.5)]
    assert ["0.0", "0.0", "nan", "None", "1.5"] == forms
    assert "-0.0" == str(one_form(of(-0.0, 1), ["v"])["k"][0])


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        (pl.Struct({"of": pl.Float64, "by": pl.Int64}), lambda value: {"of": value, "by": 1}),
        (pl.List(pl.Float32), lambda value: [value, None]),
        (pl.List(pl.Struct({"of": pl.Float64})), lambda value: [None, {"of": value}]),
        (pl.Struct({"of": pl.List(pl.Float64)}), lambda value: {"of": [value]}),
    ],
)
def test_floats_inside_of_keys_get_one_form_too(kind, inside):
    """Spark SQL groups structs and arrays by the values in them. What is null stays null."""
    values = [inside(-0.0), inside(OTHER_NAN), inside(1.5), inside(None), None]
    rows = one_form(pl.DataFrame({"k": pl.Series(values, dtype=kind)}), ["k"])
    assert [str(inside(value)) for value in (0.0, NAN, 1.5, None)] + ["None"] == [
        str(each) for each in rows["k"].to_list()
    ]
    assert kind == rows.schema["k"]
    assert "7ff8000000000000" == _bits_of(rows["k"].to_list()[1])


def _bits_of(value):
    """Return the bits of the only float inside of a value."""
    parts = value.values() if isinstance(value, dict) else value
    return next(
        struct.pack(">d", each).hex() if isinstance(each, float) else _bits_of(each)
        for each in parts
        if each is not None and not isinstance(each, int)
    )
