"""The newest row of each key, in any micro-batches, is the result of all changes applied one by one."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.operators.newest import NewestRows, TruncatedError

CHANGES = {
    "_kind": pl.String,
    "id": pl.Int64,
    "a": pl.Int64,
    "b": pl.String,
    "_lsn": pl.Int64,
    "_position": pl.Int64,
    "_unchanged": pl.List(pl.String),
}
STATE = {name: CHANGES[name] for name in ("id", "a", "b", "_lsn", "_position", "_unchanged")} | {
    "_is_deleted": pl.Boolean
}
NEWEST = NewestRows(("id",), ("a", "b"), ignores_truncates=False)


@st.composite
def changes(draw):
    """Return changes that a server can send, in any batches. It updates or deletes only existing rows."""
    rows, there = [], set()
    for position in range(draw(st.integers(1, 25))):
        key = draw(st.integers(1, 3))
        kinds = ["update_after", "delete"] if key in there else ["insert"]
        kind = draw(st.sampled_from(kinds))
        unsent = kind == "update_after" and draw(st.booleans())
        (there.discard if kind == "delete" else there.add)(key)
        a, b = (
            (None, None)
            if kind == "delete"
            else (draw(st.integers(0, 9)), None if unsent else draw(st.sampled_from("xyz")))
        )
        rows.append((kind, key, a, b, position, position, ["b"] if unsent else None))
    return rows, draw(st.lists(st.integers(1, len(rows)), max_size=4))


def one_by_one(rows):
    """Return the newest rows, computed change by change."""
    state = {}
    for kind, key, a, b, lsn, position, unsent in rows:
        kept = state[key][1] if unsent else b
        state[key] = (a, kept, lsn, position, None, kind == "delete")
    return {(key, *values) for key, values in state.items()}


@given(changes())
def test_micro_batches_do_not_change_the_newest_rows(drawn):
    """Values that were not sent come from the same batch or from the state. Deleted keys are marked."""
    rows, cuts = drawn
    state = pl.DataFrame(schema=STATE)
    bounds = [0, *sorted(set(cuts)), len(rows)]
    for first, end in pairwise(bounds):
        batch = pl.DataFrame(rows[first:end], schema=CHANGES, orient="row").sample(fraction=1, shuffle=True, seed=1)
        touched = batch.select("id").unique()
        done = NEWEST.process([batch], state.join(touched, on="id", how="semi"))
        state = pl.concat([state.join(touched, on="id", how="anti"), done.state.select(list(STATE))])
    assert one_by_one(rows) == set(state.iter_rows())


def test_a_row_read_twice_does_not_replace_a_newer_one():
    """In at-least-once mode, rows may come twice."""
    older = pl.DataFrame([("insert", 1, 1, "x", 5, 3, None)], schema=CHANGES, orient="row")
    newer = pl.DataFrame([(1, 2, "y", 6, 4, None, False)], schema=STATE, orient="row")
    assert newer.equals(NEWEST.process([older], newer).state)


def test_an_unknown_value_stays_marked_as_unknown():
    """The key was changed, or the changes began without a snapshot. The row names the column until a value comes."""
    update = pl.DataFrame([("update_after", 1, 1, None, 5, 3, ["b"])], schema=CHANGES, orient="row")
    state = NEWEST.process([update], pl.DataFrame(schema=STATE)).state
    assert [["b"]] == state["_unchanged"].to_list()
    again = update.with_columns(_position=pl.lit(4, pl.Int64))
    assert [["b"]] == NEWEST.process([again], state).state["_unchanged"].to_list()


def test_a_truncate_is_an_error_unless_it_is_ignored():
    """It names no key, so the table would be wrong."""
    truncate = pl.DataFrame([("truncate", None, None, None, 5, 3, None)], schema=CHANGES, orient="row")
    with pytest.raises(TruncatedError, match='truncates="ignore"'):
        NEWEST.process([truncate], pl.DataFrame(schema=STATE))
    ignoring = NewestRows(("id",), ("a", "b"), ignores_truncates=True)
    assert ignoring.process([truncate], pl.DataFrame(schema=STATE)).state.is_empty()
