"""Compares two states of an upsert table: what a sink must write, and which keys it must delete."""

import math

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.warehouse.outside_publishing import difference

KEYS = ("a", "b")
VALUES = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from([0.5, math.nan]),
    st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
)
TABLES = st.dictionaries(st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["x", "y"])), VALUES, max_size=6)
SCHEMA = {"v": pl.Int64, "b": pl.String, "f": pl.Float64, "a": pl.Int64, "l": pl.List(pl.Int64)}


def frame(table):
    """Return the rows of a table; None if it has none, and so no file."""
    rows = [{"a": a, "b": b, "v": v, "f": f, "l": held} for (a, b), (v, f, held) in table.items()]
    return pl.DataFrame(rows, schema=SCHEMA) if rows else None


def told(value):
    """Return a value that is equal to itself, as text."""
    return repr(value)


@given(now=TABLES, was=TABLES)
def test_a_sink_that_writes_the_difference_has_the_table(now, was):
    """Exactly the rows that differ are written, and exactly the keys that are gone are deleted. Nulls may be keys."""
    found = difference(frame(now), frame(was), KEYS)
    gone = [tuple(row[key] for key in KEYS) for row in found.deleted.to_pylist()]
    written = {(row["a"], row["b"]): (row["v"], row["f"], row["l"]) for row in found.rows.to_pylist()}
    assert sorted(map(told, was.keys() - now.keys())) == sorted(map(told, gone))
    differs = {key: row for key, row in now.items() if key not in was or told(was[key]) != told(row)}
    assert sorted(map(told, differs.items())) == sorted(map(told, written.items()))


def test_rows_with_another_column_have_changed():
    """The table got a column, or a column a wider type. A key that is gone is found nevertheless."""
    now = pl.DataFrame({"a": [1, 2], "v": [1, 2]})
    for was in (pl.DataFrame({"a": [1, 3]}), now.cast(pl.Int32).with_columns(a=pl.Series([1, 3], dtype=pl.Int32))):
        found = difference(now, was, ("a",))
        assert ([1, 2], [3]) == (found.rows["a"].to_pylist(), found.deleted["a"].to_pylist())
