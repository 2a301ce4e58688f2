"""The table of changes is the same in any order and any micro-batches, and equals a plain computation."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.operators.applied_changes import (
    DELETES,
    HISTORY,
    SEQUENCE,
    AppliedChanges,
    NoSequenceError,
    RefusedChangeError,
)
from jobs.operators.changes import ADDING, changes_of
from jobs.operators.unsent_values import UNSENT
from jobs.state.merge import KEY_GROUP

ROWS = {"k": pl.Int64, "a": pl.Int64, "b": pl.String, SEQUENCE: pl.Int64, DELETES: pl.Boolean}
CHANGE = pl.Struct({name: ROWS[name] for name in (SEQUENCE, DELETES, "a", "b")})
STATE = {"k": pl.Int64, HISTORY: pl.List(CHANGE)}

values = st.none() | st.integers(0, 2)
changes = st.tuples(
    st.none() | st.integers(1, 3), values, st.sampled_from(["x", None]), st.integers(0, 9), st.booleans()
)


def function(*, history, ignored=(), tracked=None):
    """Return the function of these rows."""
    return AppliedChanges(("k",), ("a", "b"), "at", history, ignored=ignored, tracked=tracked)


def batch(rows):
    """Return a micro-batch."""
    return pl.DataFrame(rows, schema=ROWS, orient="row")


def _order(row):
    _, a, b, at, deletes = row
    return at, deletes, (a is not None, a or 0), (b is not None, b or "")


def one_by_one(rows, *, history, ignored=(), tracked=("a", "b")):
    """Return the table's rows, computed key by key in plain Python."""
    table = []
    for key in {row[0] for row in rows}:
        after, held = {}, None
        for _, a, b, at, deletes in sorted((row for row in rows if row[0] == key), key=_order):
            new = {"a": a, "b": b}
            for name in ignored:
                if new[name] is None and held is not None:
                    new[name] = held[name]
            held = after[at] = None if deletes else new
        versions = []
        for at, row in after.items():
            open_one = versions[-1] if versions and versions[-1][2] is None else None
            if open_one and row and all(open_one[0][name] == row[name] for name in tracked):
                open_one[0] = row
                continue
            if open_one:
                open_one[2] = at
            if row:
                versions.append([row, at, None])
        shown = [(key, *row.values(), began, end, end is None) for row, began, end in versions]
        table += shown if history else [row[:3] for row in shown if row[-1]]
    return Counter(table)


column_choices = st.sampled_from([(), ("a",), ("b",), ("a", "b")])


@pytest.mark.parametrize("history", [False, True])
@given(
    st.lists(changes, max_size=25),
    st.lists(st.integers(0, 25), max_size=4),
    column_choices,
    st.none() | column_choices,
)
def test_order_and_micro_batches_do_not_matter(history, rows, cuts, ignored, tracked):
    """After each micro-batch, the state and the changes put out up to then make the same table as the plain way."""
    apply = function(history=history, ignored=ignored, tracked=tracked)
    said = {"ignored": ignored, "tracked": ("a", "b") if tracked is None else tracked}
    state, folded, before = pl.DataFrame(schema=STATE), Counter(), {}
    for first, end in pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]):
        touched = batch(rows[first:end]).select("k").unique()
        own = state.join(touched, on="k", how="semi", nulls_equal=True)
        done = apply.process([batch(rows[first:end])], own)
        was = apply.results(own.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        for *row, kind in changes_of(was, done.output, apply.table_keys).rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.state])
        before = one_by_one(rows[:end], history=history, **said)
        shown = apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        assert before == Counter(shown.rows())
        assert before == Counter({row: times for row, times in folded.items() if times})


def table(*rows, history=True, **columns):
    """Return the table's rows after these changes, one in each micro-batch."""
    apply, state = function(history=history, **columns), pl.DataFrame(schema=STATE)
    for row in rows:
        state = apply.process([batch([row])], state).state
    return sorted(apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP).rows(), key=repr)


def test_a_late_change_splits_the_version_that_held_then():
    """The version from 1 ends at 3 instead of 5. The late one holds from 3 to 5."""
    first, last, late = (1, 1, "x", 1, False), (1, 2, "x", 5, False), (1, 9, "x", 3, False)
    assert [(1, 1, "x", 1, 3, False), (1, 2, "x", 5, None, True), (1, 9, "x", 3, 5, False)] == table(first, last, late)


def test_a_late_change_does_not_bring_a_deleted_key_back():
    """The deletion at 5 stays known. With history the late version ends there."""
    deleted, late = (1, None, None, 5, True), (1, 7, "x", 3, False)
    assert table(deleted, late, history=False) == []
    assert [(1, 7, "x", 3, 5, False)] == table(deleted, late)


def test_a_change_that_changes_nothing_begins_no_version_and_is_remembered():
    """Only a change between the two shows that the second one began a version of its own."""
    one, alike, between = (1, 1, "x", 1, False), (1, 1, "x", 3, False), (1, 2, "x", 2, False)
    assert [(1, 1, "x", 1, None, True)] == table(one, alike)
    assert [(1, 1, "x", 1, 2, False), (1, 1, "x", 3, None, True), (1, 2, "x", 2, 3, False)] == table(
        one, alike, between
    )


def test_a_null_that_is_ignored_keeps_the_value_before_whenever_that_comes():
    """The late change at 2 is older than the null at 3, so the null keeps its value. A null elsewhere is a value."""
    first, null, late = (1, 1, "x", 1, False), (1, None, None, 3, False), (1, 7, None, 2, False)
    assert [(1, 1, None)] == table(first, null, history=False, ignored=("a",))
    assert [(1, 7, None)] == table(first, null, late, history=False, ignored=("a",))
    assert [(1, 1, "x", 1, 2, False), (1, 7, "x", 2, None, True)] == table(first, null, late, ignored=("a", "b"))


def test_a_null_keeps_no_value_from_before_a_deletion():
    """The deletion comes last, and lies between the value and the null."""
    value, null, deleted = (1, 1, "x", 1, False), (1, None, "y", 5, False), (1, None, None, 3, True)
    assert [(1, None, "y")] == table(value, null, deleted, history=False, ignored=("a", "b"))
    assert [(1, None, "y", 5, None, True), (1, 1, "x", 1, 3, False)] == table(value, null, deleted, ignored=("a", "b"))[
        ::-1
    ]


def test_a_column_without_history_shows_its_newest_value_in_the_version_that_holds():
    """A late change of the other column splits the version. Each part then shows its own newest value."""
    first, second, late = (1, 1, "x", 1, False), (1, 1, "y", 5, False), (1, 2, "z", 3, False)
    assert [(1, 1, "y", 1, None, True)] == table(first, second, tracked=("a",))
    assert [(1, 1, "x", 1, 3, False), (1, 1, "y", 5, None, True), (1, 2, "z", 3, 5, False)] == table(
        first, second, late, tracked=("a",)
    )


def test_state_without_history_holds_few_changes_of_a_key_however_many_come():
    """They are the newest one, the newest deletion, and the newest one with a value for each column."""
    apply, state = function(history=False, ignored=("a", "b")), pl.DataFrame(schema=STATE)
    for n in range(40):
        rows = [(1, None if n % 3 else n, None if n % 5 else "x", n, n == 7)]
        state = apply.process([batch(rows)], state).state
    assert [{7, 35, 39}] == [{change[SEQUENCE] for change in held} for held in state[HISTORY]]


def test_a_change_without_a_place_is_refused_by_name():
    """AUTO CDC does not take a null in the sequence either."""
    with pytest.raises(NoSequenceError, match="the change of k=1 has no value in at"):
        function(history=True).process([batch([(1, 1, "x", None, False)])], pl.DataFrame(schema=STATE))


@pytest.mark.parametrize("history", [False, True])
@given(st.permutations([(1, 1, "x", 1, False), (1, 1, "x", 3, True), (1, 2, "x", 3, False), (2, 5, "x", 7, True)]))
def test_the_new_row_of_an_update_counts_and_the_old_one_gives_way(history, rows):
    """An update's rows have one place. In whatever order they come, an old row whose key is gone deletes it."""
    apply, state = (
        AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True),
        pl.DataFrame(schema=STATE),
    )
    for row in rows:
        own = state.filter(k=row[0])
        done = apply.process([of_database([row])], own)
        state = pl.concat([state.filter(pl.col("k") != row[0]), done.state])
    shown = apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
    wanted = [(1, 1, "x", 1, 3, False), (1, 2, "x", 3, None, True)] if history else [(1, 2, "x")]
    assert wanted == sorted(shown.rows())


def of_database(rows, unsent=None):
    """Return changes of a database's table, with the columns that were not sent by their place in the order."""
    told = [(unsent or {}).get(row[3]) for row in rows]
    return batch(rows).with_columns(pl.Series(UNSENT, told, dtype=pl.List(pl.String)))


CHANGED = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from(["set", "leave", "leave", "delete"]), values, values), max_size=12
)


@pytest.mark.parametrize("history", [False, True])
@given(CHANGED, st.lists(st.integers(0, 12), max_size=3))
def test_values_that_were_not_sent_are_those_of_the_change_before(history, drawn, cuts):
    """The table is that of changes of which all values were sent, however they are cut into micro-batches."""
    rows, sent, unsent, known = [], [], {}, {}
    for at, (key, wanted, one, other) in enumerate(drawn):
        text = None if other is None else "xyz"[other]
        what = "set" if wanted == "leave" and key not in known else wanted
        values_now = {"set": (one, text), "leave": (known.get(key, (None,))[0], text), "delete": (None, None)}[what]
        rows.append((key, None if what == "leave" else values_now[0], values_now[1], at, what == "delete"))
        sent.append((key, *values_now, at, what == "delete"))
        unsent |= {at: ["a"]} if what == "leave" else {}
        known = known | {key: values_now} if what != "delete" else {k: v for k, v in known.items() if k != key}
    apply = AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True)
    shown = []
    for given_rows, lacking in ((rows, unsent), (sent, {})):
        state = pl.DataFrame(schema=STATE)
        for first, last in pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})):
            some = of_database(given_rows[first:last], lacking)
            own = state.join(some.select("k").unique(), on="k", how="semi")
            rest = state.join(some.select("k").unique(), on="k", how="anti")
            state = apply.remembered(pl.concat([rest, apply.process([some], own).state]))
        shown.append(sorted(state.rows()))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("before", [[], [(1, 1, "x", 1, False), (1, None, None, 2, True)]], ids=["none", "deleted"])
@pytest.mark.parametrize("history", [False, True])
def test_a_value_that_no_earlier_change_has_is_refused(history, before):
    """It names the column and the key."""
    apply = AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True)
    rows = of_database([*before, (1, None, "y", 3, False)], {3: ["a"]})
    with pytest.raises(RefusedChangeError, match="in column a, and no earlier change of k=1 has it"):
        apply.process([rows], pl.DataFrame(schema=STATE))


def state_of(places, kind=pl.Int64):
    """Return the state of keys by the place of their newest change, and whether it deletes."""
    change = pl.Struct({SEQUENCE: kind, DELETES: pl.Boolean, "a": pl.Int64, "b": pl.String})
    rows = [(key, [{SEQUENCE: at, DELETES: gone, "a": 1, "b": "x"}]) for key, (at, gone) in places.items()]
    return pl.DataFrame(rows, schema={"k": pl.Int64, HISTORY: pl.List(change)}, orient="row")


@pytest.mark.parametrize(
    ("kind", "places", "distance"),
    [
        (pl.Int8, [-128, 0, 100], 101),
        (pl.Int64, [-(2**63), 2**63 - 101, 2**63 - 1], 101),
        (pl.Date, [date(1, 1, 1), date(2026, 1, 1), date(2026, 1, 31)], timedelta(days=30)),
        (
            pl.Datetime("us", "UTC"),
            [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 7, 14)],
            timedelta(days=7),
        ),
    ],
)
@pytest.mark.parametrize("history", [False, True])
def test_deletions_are_forgotten_by_the_newest_change(kind, places, distance, history):
    """Of any type. A key whose newest change deletes nothing stays, however old, and so does a younger deletion."""
    first, second, newest = places
    state = state_of({1: (first, True), 2: (first, False), 3: (second, True), 4: (newest, True)}, kind)
    apply = AppliedChanges(("k",), ("a", "b"), "at", history, forget_deletes_after=distance)
    assert [2, 3, 4] == apply.remembered(state)["k"].to_list()
    assert apply.remembered(state.clear()).is_empty()
    assert state.equals(function(history=history).remembered(state))


def test_nothing_is_forgotten_before_the_first_date():
    """The horizon would be before the year 1."""
    state = state_of({1: (date(1, 1, 1), True), 2: (date(1, 1, 5), True)}, pl.Date)
    apply = AppliedChanges(("k",), ("a", "b"), "at", False, forget_deletes_after=timedelta(days=30))
    assert state.equals(apply.remembered(state))


def test_changes_of_a_database_forget_deletions_at_once():
    """They come in order."""
    state = state_of({1: (1, True), 2: (2, False)})
    assert [2] == AppliedChanges(("k",), ("a", "b"), "at", True, of_database=True).remembered(state)["k"].to_list()
