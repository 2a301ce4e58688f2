"""Rows by key in layers: whatever the changes, they are what a dict would hold."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.handles import KeyedFileKind
from checkpointing.key_groups import KeyGroupRange
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, StateChange, apply_change, apply_delta

COLUMNS = {KEY_GROUP: pl.Int32, "a": pl.String, "b": pl.Int64, "value": pl.Int64}
ONE, TWO = ["a"], ["a", "b"]


def rows_of(content, *, of=None):
    """Return {(a, b): value} as rows, or those of `content` that have the keys of `of`."""
    rows = [(group_of(key), *key, value) for key, value in content.items() if of is None or key in of]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def group_of(key):
    """Return a key group of 0 to 3."""
    return (len(key[0] or "") + (key[1] or 0)) % 4


def content_of(rows):
    """Return rows as {(a, b): value}. Fail if a key is there twice."""
    content = {(a, b): value for _, a, b, value in rows.rows()}
    assert len(content) == rows.height
    return content


def delta_of(changes):
    """Return {key: value, or None for a key that goes} as a delta."""
    gone = pl.Series([value is None for value in changes.values()], dtype=pl.Boolean)
    return rows_of(changes).with_columns(gone.alias(DELETED))


def changes_of(keys):
    """Return a strategy for changes of these keys."""
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
    """A thousand changes of ten rows: a row is copied about as often as there are layers, and half of them count."""
    rows, copied, before = KeyedRows.of(rows_of({("", place): 0 for place in range(0)})), 0, set()
    for step in range(1000):
        change = {(f"k{(step * 7 + place) % 3000}", 0): step for place in range(10)}
        delta = delta_of(change)
        rows = apply_delta(rows.find(delta, keys), delta, keys)
        now = {id(layer.rows): layer for layer in rows.layers}
        copied += sum(layer.rows.height for name, layer in now.items() if name not in before)
        before, held = set(now), rows  # `held` keeps the ids from being given again
        assert len(held.layers) <= 12
    assert rows.frame().height == 3000
    assert sum(layer.rows.height for layer in rows.layers) <= 2 * 3000
    assert copied <= 12 * 10 * 1000


def test_rows_that_no_change_touches_are_not_copied():
    """The large layer of the base stays the same object. A null key is found as any other."""
    base = KeyedRows.of(rows_of({(None if place == 3 else f"k{place}", 0): place for place in range(100)}))
    delta = delta_of({(None, 0): 7, ("k5", 0): None})
    found = base.find(delta, ONE)
    assert {(None, 0): 3, ("k5", 0): 5} == content_of(found.rows)
    after = apply_delta(found, delta, ONE)
    assert after.layers[0].rows is base.layers[0].rows
    assert 99 == after.frame().height
    assert 100 == base.frame().height
    assert {(None, 0): 7} == content_of(after.find(delta, ONE).rows)
