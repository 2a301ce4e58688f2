"""Rows by key in layers. After any changes, they are what a dict would hold."""

import struct

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.handles import KeyedFileKind
from checkpointing.key_groups import KeyGroupRange
from jobs.operators.changes import KIND
from jobs.operators.changes import changes_of as rows_of_changes
from jobs.operators.join import JoinFunction, JoinType
from jobs.operators.process import ForeignKeyError, require_own_keys
from jobs.state.key_joins import join_by_key, one_form
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, StateChange, apply_change, apply_delta, change_of, without_unchanged

COLUMNS = {KEY_GROUP: pl.Int32, "a": pl.String, "b": pl.Int64, "value": pl.Int64}
ONE, TWO = ["a"], ["a", "b"]


def rows_of(content, *, of=None):
    rows = [(group_of(key), *key, value) for key, value in content.items() if of is None or key in of]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def group_of(key):
    return (len(key[0] or "") + (key[1] or 0)) % 4


def content_of(rows):
    """Return rows as {(a, b): value}. Fail if a key occurs twice."""
    content = {(a, b): value for _, a, b, value in rows.rows()}
    assert len(content) == rows.height
    return content


def delta_of(changes):
    gone = pl.Series([value is None for value in changes.values()], dtype=pl.Boolean)
    return rows_of(changes).with_columns(gone.alias(DELETED))


def changes_of(keys):
    return st.dictionaries(keys, st.none() | st.integers(0, 99), max_size=6)


BY_ONE = st.tuples(st.none() | st.text("xy", max_size=3), st.just(0))
BY_TWO = st.tuples(st.none() | st.text("xy", max_size=2), st.none() | st.integers(0, 2))
STEPS = st.one_of(
    st.tuples(st.just(ONE), st.lists(st.tuples(changes_of(BY_ONE), st.booleans()), max_size=12)),
    st.tuples(st.just(TWO), st.lists(st.tuples(changes_of(BY_TWO), st.booleans()), max_size=12)),
)


@given(STEPS, st.sets(BY_ONE | BY_TWO, max_size=5))
def test_rows_are_what_a_dict_would_hold(steps, asked):
    """After each delta, or base of some key groups, all rows and those of any keys are the dict's."""
    keys, changes = steps
    rows, expected = KeyedRows.of(rows_of({})), {}
    for change, is_base in changes:
        if is_base:
            base = {key: value for key, value in change.items() if value is not None and group_of(key) < 2}
            expected = {key: value for key, value in expected.items() if group_of(key) >= 2} | base
            written = StateChange(KeyedFileKind.BASE, KeyGroupRange(first=0, last=1), delta_of(base))
            rows = apply_change(rows, written, keys)
        else:
            expected = {key: value for key, value in (expected | change).items() if value is not None}
            delta = delta_of(change)
            found = rows.find(pl.concat([delta, delta_of(dict.fromkeys(asked))]), keys)
            rows = apply_delta(found, delta, keys)
        assert expected == content_of(rows.frame())
        if keys == TWO:
            found = content_of(rows.find(rows_of(dict.fromkeys(asked)), keys).rows)
            assert {key: value for key, value in expected.items() if key in asked} == found
        heights = [layer.rows.height for layer in rows.layers]
        assert all(heights)
        assert sum(heights) <= 4 * len(expected) or len(heights) == 0


@pytest.mark.parametrize("keys", [ONE, TWO])
def test_many_small_changes_make_few_layers_and_copy_few_rows(keys):
    """In a thousand changes of ten rows, a row is copied about once per layer. At least half of the rows are live."""
    rows, copied, before = KeyedRows.of(rows_of({("", place): 0 for place in range(0)})), 0, set()
    for step in range(1000):
        change = {(f"k{(step * 7 + place) % 3000}", 0): step for place in range(10)}
        delta = delta_of(change)
        rows = apply_delta(rows.find(delta, keys), delta, keys)
        now = {id(layer.rows): layer for layer in rows.layers}
        copied += sum(layer.rows.height for name, layer in now.items() if name not in before)
        before, held = set(now), rows  # while `held` refers to objects, Python reuses no id of theirs
        assert len(held.layers) <= 12
    assert rows.frame().height == 3000
    assert sum(layer.rows.height for layer in rows.layers) <= 2 * 3000
    assert copied <= 12 * 10 * 1000


def test_rows_that_no_change_touches_are_not_copied():
    """The large layer of the base stays the same object. A null key is found like any other key."""
    base = KeyedRows.of(rows_of({(None if place == 3 else f"k{place}", 0): place for place in range(100)}))
    delta = delta_of({(None, 0): 7, ("k5", 0): None})
    found = base.find(delta, ONE)
    assert {(None, 0): 3, ("k5", 0): 5} == content_of(found.rows)
    after = apply_delta(found, delta, ONE)
    assert after.layers[0].rows is base.layers[0].rows
    assert 99 == after.frame().height
    assert 100 == base.frame().height
    assert {(None, 0): 7} == content_of(after.find(delta, ONE).rows)


# ------------------------------------------------------------------
# Float keys are equal as in Spark SQL, also where Polars merges two sorted columns: NaN equals NaN, and 0.0 equals
# -0.0.


NAN, OTHER_NAN = float("nan"), struct.unpack("<d", bytes.fromhex("010000000000f0ff"))[0]
EQUAL = [(NAN, NAN), (NAN, OTHER_NAN), (OTHER_NAN, NAN), (0.0, -0.0), (-0.0, 0.0)]


@pytest.fixture(params=[pl.Float64, pl.Float32])
def of(request):
    """Return a function that makes a frame of one key and one value."""

    def made(key, value):
        return pl.DataFrame({"k": pl.Series([key], dtype=request.param), "v": [value]})

    return made


@pytest.mark.parametrize(("one", "other"), EQUAL)
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_equal_keys_meet(of, one, other, how):
    """A single key is sorted, so Polars merges the columns."""
    joined = join_by_key(of(one, 1), of(other, 2).rename({"v": "w"}), ["k"], how)
    assert {"inner": [(1, 2)], "left": [(1, 2)], "semi": [(1,)], "anti": []}[how] == joined.drop("k").rows()


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_a_later_row_replaces_the_state_of_an_equal_key(of, one, other):
    """State, changes and unchanged rows are found by the same equality by which rows are grouped."""
    before = of(one, 1).with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP)).select(KEY_GROUP, "k", "v")
    touched, after = before.with_columns(of(other, 1)["k"]).select(KEY_GROUP, "k"), of(other, 2)
    delta = change_of(before, after, touched, ["k"])
    assert [(2, False)] == delta.select("v", DELETED).rows()
    assert without_unchanged(delta.with_columns(pl.lit(1, pl.Int64).alias("v")), before, ["k"]).is_empty()
    assert [("-U", 1), ("+U", 2)] == rows_of_changes(of(one, 1), after, ["k"]).select(KIND, "v").rows()
    assert [1] == KeyedRows.of(before).find(touched, ["k"]).rows["v"].to_list()


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_a_join_finds_the_row_of_an_equal_key(of, one, other):
    """A right row that comes later finds the left row in the state."""
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
    """All zeros get one form, and all NaN. So a key does not depend on the row that comes first.

    Other columns do not change.
    """
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
    """Spark SQL groups structs and arrays by the values in them. Nulls stay null."""
    values = [inside(-0.0), inside(OTHER_NAN), inside(1.5), inside(None), None]
    rows = one_form(pl.DataFrame({"k": pl.Series(values, dtype=kind)}), ["k"])
    assert [str(inside(value)) for value in (0.0, NAN, 1.5, None)] + ["None"] == [
        str(each) for each in rows["k"].to_list()
    ]
    assert kind == rows.schema["k"]
    assert "7ff8000000000000" == _bits_of(rows["k"].to_list()[1])


def _bits_of(value):
    parts = value.values() if isinstance(value, dict) else value
    return next(
        struct.pack(">d", each).hex() if isinstance(each, float) else _bits_of(each)
        for each in parts
        if each is not None and not isinstance(each, int)
    )


# ------------------------------------------------------------------
# Output rows of an upsert table must have keys of their own subtask.


OWN = pl.DataFrame({"region": ["north", None, "south"], "day": [1, 2, 3], "_key_group": [5, 6, 7]})


def test_rows_under_keys_of_the_input_pass():
    """Any number of rows in any order is accepted, also with a null key, and also no rows."""
    output = pl.DataFrame({"n": [1, 2, 3], "day": [2, 1, 2], "region": [None, "north", None]})
    require_own_keys("sums", "gold/sums", ("region", "day"), output, OWN)
    require_own_keys("sums", "gold/sums", ("region", "day"), output.clear(), OWN)


@pytest.mark.parametrize(
    ("region", "day", "named"), [("all", 1, "region=all, day=1"), ("north", 2, "region=north, day=2")]
)
def test_a_row_under_another_key_is_refused_by_name(region, day, named):
    """All key columns are compared together. The error names vertex, table, key and the way out."""
    output = pl.DataFrame({"region": ["north", region], "day": [1, day], "n": [1, 2]})
    with pytest.raises(ForeignKeyError) as refused:
        require_own_keys("sums", "gold/sums", ("region", "day"), output, OWN)
    said = str(refused.value)
    assert said.startswith(f"vertex sums: its function emitted a row with the key {named}, and no row with that key")
    assert "upsert table gold/sums" in said
    assert "key the stream by the table's keys" in said
