"""The model of tables of changes (SCD types 1 and 2). Changes of a few keys come in any order, in random micro-batches.

In some tables, a null in some or all columns keeps the value before. In others, only changes of some columns begin a
version.

Now and then a truncate empties the table: it deletes every key that has an older change. If deletions are forgotten,
the table is right as long as no change is later than declared. The functions are those that the product's tasks call.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, NamedTuple

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.operators.applied_changes import DELETES, HISTORY, SEQUENCE, UNSENT, AppliedChanges, RefusedChangeError
from jobs.operators.changes import ADDING, changes_of
from jobs.state.merge import KEY_GROUP
from spec.machines.judging import expect

APPLIED: Final = "applied-changes-add-up"
"""After each micro-batch, the table's changes so far, added and taken back, make the right table.

A plain computation over all changes that have come makes the expected table."""
FORGOTTEN: Final = "deletions-are-forgotten"
"""A state that forgets deletions has no deletion older than declared."""
SUPERSEDED: Final = "superseded-changes-are-forgotten"
"""Without history, a key's state has at most its newest change and its newest deletion.

For each column in which nulls are ignored, it also has the newest change with a value."""

_BATCHES: Final = 10
_VALUES: Final = {"v": pl.Int64(), "w": pl.Int64()}
_ROWS: Final = pl.Schema({"k": pl.Int64(), **_VALUES, SEQUENCE: pl.Int64(), DELETES: pl.Boolean()})
_CHANGE: Final = pl.Struct({name: _ROWS[name] for name in (SEQUENCE, DELETES, *_VALUES)})
_STATE: Final = pl.Schema({"k": pl.Int64(), HISTORY: pl.List(_CHANGE)})
_CHOICES: Final[tuple[tuple[str, ...], ...]] = ((), ("v",), ("w",), ("v", "w"))

Values = tuple[int | None, ...]
Change = tuple[int | None, Values, int, bool]
"""A change: key, values, place in the order, and whether the change deletes the key."""


def broken_by_applied_changes(seed: int) -> frozenset[str]:
    """Return the rules that a type of table breaks during some random micro-batches."""
    chance = Random(seed)  # noqa: S311 - a test's draw
    return frozenset(rule for history in (False, True) for rule in _broken(chance, history=history))


def _broken(chance: Random, *, history: bool) -> Iterator[str]:
    bound = chance.choice([None, 0, 1, 3])
    ignored, tracked = chance.choice(_CHOICES), chance.choice([None, *_CHOICES]) if history else None
    function = replace(AppliedChanges(("k",), tuple(_VALUES), "at", history), forget_deletes_after=bound)
    function = replace(function, ignored=ignored, tracked=tracked)
    state, come, folded = pl.DataFrame(schema=_STATE), list[Change](), Counter[tuple[Any, ...]]()
    emptied = list[int]()
    for _ in range(_BATCHES):
        drawn = [*_drawn(chance, _newest(come), bound)]
        rows = pl.DataFrame([(key, *values, *rest) for key, values, *rest in drawn], schema=_ROWS, orient="row")
        empties = bound is None and chance.random() < 0.15
        emptied += [chance.randint(0, 12)] if empties else []
        done = applied(function, state, rows, emptied, empties=empties)
        state = done.state
        come += drawn
        for *row, kind in done.changes.iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        table = _table_by(function, [*come, *deletions_by(emptied, come)])
        if {row: times for row, times in folded.items() if times} != Counter(table):
            yield APPLIED
        if not history and any(len(held) > (2 + len(ignored) if ignored else 1) for held in state[HISTORY]):
            yield SUPERSEDED
        if chance.random() < 0.5:
            state = function.remembered(state)
            if bound is not None and any(at < _newest(come) - bound for at in _deletions(state)):
                yield FORGOTTEN


class Applied(NamedTuple):
    """The state after a micro-batch, and the changes of the table's rows."""

    state: pl.DataFrame
    changes: pl.DataFrame


def applied(
    function: AppliedChanges, state: pl.DataFrame, rows: pl.DataFrame, emptied: Sequence[int], *, empties: bool
) -> Applied:
    """Apply these rows, and truncates at these places. If `empties`, one of the truncates is new."""
    group = pl.lit(0, pl.Int32).alias(KEY_GROUP)
    places = pl.DataFrame({SEQUENCE: emptied}, schema={SEQUENCE: pl.Int64}).unique()
    others = (state if empties else state.clear()).with_columns(group)
    every = function.emptied(rows.with_columns(group), others, places).drop(KEY_GROUP)
    touched = every.select("k").unique()
    before = state.join(touched, on="k", how="semi", nulls_equal=True)
    done = function.process([every], before)
    left = function.beyond_truncates(done.state.with_columns(group), places)
    was, shown = (function.results(each).drop(KEY_GROUP) for each in (before.with_columns(group), left))
    after = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), left.select(state.columns)])
    return Applied(after, changes_of(was, shown, function.table_keys))


def deletions_by(emptied: Iterable[int], changes: Iterable[Change]) -> Iterator[Change]:
    """Yield a deletion of each key at each of these places."""
    keys = {(change[0], len(change[1])) for change in changes}
    return ((key, (0,) * values, at, True) for at in emptied for key, values in keys)


def _newest(changes: Iterable[Change]) -> int:
    return max((at for _, _, at, _ in changes), default=0)


def _deletions(state: pl.DataFrame) -> Iterator[int]:
    """Yield the place of each deletion that is the newest change of its key."""
    for changes in state[HISTORY].to_list():
        newest = max(changes, key=lambda change: change[SEQUENCE])
        if newest[DELETES]:
            yield newest[SEQUENCE]


def _drawn(chance: Random, newest: int, bound: int | None) -> Iterator[Change]:
    """Yield changes in any order, or each at most `bound` older than the newest change of earlier micro-batches."""
    first, last = (0, 12) if bound is None else (max(newest - bound, 0), newest + 3)
    for _ in range(chance.randint(0, 4)):
        values = (chance.choice([None, 1, 2]), chance.choice([None, 1, 2]))
        yield chance.choice([None, 1, 2, 3]), values, chance.randint(first, last), chance.random() < 0.3


def _table_by(function: AppliedChanges, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table that the function's options ask for."""
    tracked = None if function.tracked is None else _places(function.tracked)
    yield from table_of(changes, history=function.history, ignored=_places(function.ignored), tracked=tracked)


def _places(names: Iterable[str]) -> tuple[int, ...]:
    return tuple([*_VALUES].index(name) for name in names)


def table_of(
    changes: Iterable[Change], *, history: bool, ignored: Sequence[int] = (), tracked: Sequence[int] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table. Of two changes at one place, a deletion wins, or else the greater values win.

    In a column in `ignored`, a null keeps the value before. So two changes at one place apply one after the other. A
    version begins where a column in `tracked` changes, and shows the newest values of the other columns.
    """
    known = [*changes]
    for key in {change[0] for change in known}:
        held = [*_folded((change for change in known if change[0] == key), ignored)]
        if not history:
            if held[-1][1] is not None:
                yield key, *held[-1][1]
            continue
        versions: list[tuple[int, Values | None]] = []
        was: Values | tuple[()] | None = ()
        for at, values in held:
            told = values if values is None or tracked is None else tuple(values[place] for place in tracked)
            if versions and told == was:
                versions[-1] = versions[-1][0], values
            else:
                versions.append((at, values))
            was = told
        for (at, values), (until, _) in zip(versions, [*versions[1:], (None, None)], strict=True):
            if values is not None:
                yield key, *values, at, until, until is None


def _folded(changes: Iterable[Change], ignored: Sequence[int]) -> Iterator[tuple[int, Values | None]]:
    """Yield each sequence number in order, with the key's values after it, or with None if the key is deleted."""
    held: dict[int, Values | None] = {}
    row: Values | None = None
    for _, values, at, gone in sorted(changes, key=_counts):
        before: Values = row or (None,) * len(values)
        row = (
            None
            if gone
            else tuple(
                before[place] if value is None and place in ignored else value for place, value in enumerate(values)
            )
        )
        held[at] = row
    yield from held.items()


def _counts(change: Change) -> tuple[int, bool, tuple[tuple[bool, int], ...]]:
    _, values, at, gone = change
    return at, gone, tuple((value is not None, value or 0) for value in values)


# ------------------------------------------------------------------
# The model of the changes of a database's table. The changes come in order, and some values of an update are not sent.
# The model plays a server: rows are inserted, change, get another key and are deleted, sometimes all at once. If an
# update does not change a row's large value, this value is not sent. Rule `applied-changes-add-up`: after each random
# micro-batch, the table equals that of a plain computation over all changes that the server made. The functions are
# those that the product's tasks call.


_BATCHES_OF_APPLYING_A_DATABASE: Final = 8
_VALUES_OF_APPLYING_A_DATABASE: Final = {"small": pl.Int64(), "large": pl.Int64()}
_ROWS_OF_APPLYING_A_DATABASE: Final = pl.Schema(
    {
        "k": pl.Int64(),
        **_VALUES_OF_APPLYING_A_DATABASE,
        SEQUENCE: pl.Int64(),
        DELETES: pl.Boolean(),
        UNSENT: pl.List(pl.String()),
    }
)
_STATE_OF_APPLYING_A_DATABASE: Final = pl.Schema(
    {
        "k": pl.Int64(),
        HISTORY: pl.List(pl.Struct({SEQUENCE: pl.Int64(), DELETES: pl.Boolean(), **_VALUES_OF_APPLYING_A_DATABASE})),
    }
)

_Row = tuple[int, int | None, int | None, int, bool, list[str] | None]


class _Server:
    """A server with one row for each key of a table. It keeps whole changes, and returns the rows that it sends."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._rows: dict[int, tuple[int, int]] = {}
        self._place = 0
        self.changes: list[Change] = []

    def empty(self) -> int:
        """Delete all rows at once. Return the place of this change, for which no row is sent."""
        self._place += 1
        self.changes += [(key, (0, 0), self._place, True) for key in self._rows]
        self._rows.clear()
        return self._place

    def change(self) -> Iterator[_Row]:
        """Make a change, and yield the rows that are sent."""
        self._place += 1
        key, values = self._chance.randint(1, 4), (self._chance.randint(1, 3), self._chance.randint(1, 3))
        match self._chance.choice(["set", "leave", "leave", "move", "delete"]):
            case "leave" if key in self._rows:
                small, large = values[0], self._rows[key][1]
                self._keep(key, (small, large))
                yield key, small, None, self._place, False, ["large"]
            case "move" if key in self._rows:
                yield self._deleted(key)
                other = self._chance.randint(5, 6)
                self._keep(other, values)
                yield other, *values, self._place, False, None
            case "delete" if key in self._rows:
                yield self._deleted(key)
            case _:
                self._keep(key, values)
                yield key, *values, self._place, False, None

    def _keep(self, key: int, values: tuple[int, int]) -> None:
        self._rows[key] = values
        self.changes.append((key, values, self._place, False))

    def _deleted(self, key: int) -> _Row:
        """Delete a row. The server sends only the row's key."""
        del self._rows[key]
        self.changes.append((key, (0, 0), self._place, True))
        return key, None, None, self._place, True, None


def broken_by_changes_of_a_database(seed: int) -> frozenset[str]:
    """Return the rules that a type of table breaks during some random micro-batches."""
    chance = Random(seed)  # noqa: S311 - a test's draw
    return frozenset(
        rule for history in (False, True) for rule in _broken_of_applying_a_database(chance, history=history)
    )


def _broken_of_applying_a_database(chance: Random, *, history: bool) -> Iterator[str]:
    function = AppliedChanges(("k",), tuple(_VALUES_OF_APPLYING_A_DATABASE), "_position", history, of_database=True)
    server, state = _Server(chance), pl.DataFrame(schema=_STATE_OF_APPLYING_A_DATABASE)
    for _ in range(_BATCHES_OF_APPLYING_A_DATABASE):
        sent, emptied = list[_Row](), list[int]()
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.1:
                emptied.append(server.empty())
            else:
                sent += server.change()
        chance.shuffle(sent)
        rows = pl.DataFrame(sent, schema=_ROWS_OF_APPLYING_A_DATABASE, orient="row")
        try:
            state = applied(function, state, rows, emptied, empties=bool(emptied)).state
        except RefusedChangeError:
            yield APPLIED
            return
        shown = function.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        if Counter(shown.rows()) != Counter(table_of(server.changes, history=history)):
            yield APPLIED
        if not history and chance.random() < 0.5:
            state = function.remembered(state)


_seed = st.integers(0, 9_999)
_few = settings(max_examples=settings.default.max_examples // 10)


@_few
@given(seed=_seed)
def test_applied_changes_add_up_to_the_table(seed):
    """Tables of types 1 and 2, from changes that come in any order. Deletions are forgotten if they may be."""
    for rule in sorted(broken_by_applied_changes(seed)):
        expect(holds=False, invariant=rule)


@_few
@given(seed=_seed)
def test_changes_of_a_database_add_up_to_the_table(seed):
    """Rows get another key, and some large values are not sent."""
    for rule in sorted(broken_by_changes_of_a_database(seed)):
        expect(holds=False, invariant=rule)
