"""The model of tables of changes (SCD types 1 and 2): changes of a few keys come in any order, in random micro-batches.

Rule `applied-changes-add-up`: after each micro-batch, the table's changes up to it, added and taken back, are the table
that a plain computation makes of all changes that have come. The functions are those that the product's tasks call.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import polars as pl

from jobs.operators.applied_changes import DELETES, HISTORY, SEQUENCE, AppliedChanges
from jobs.operators.changes import ADDING, changes_of
from jobs.state.merge import KEY_GROUP

APPLIED: Final = "applied-changes-add-up"

_BATCHES: Final = 10
_ROWS: Final = pl.Schema({"k": pl.Int64(), "v": pl.Int64(), SEQUENCE: pl.Int64(), DELETES: pl.Boolean()})
_CHANGE: Final = pl.Struct({name: _ROWS[name] for name in (SEQUENCE, DELETES, "v")})
_STATE: Final = pl.Schema({"k": pl.Int64(), HISTORY: pl.List(_CHANGE)})

Change = tuple[int, int, int, bool]
"""(key, value, place in the order, whether it deletes the key)."""


def applied_changes_add_up(seed: int) -> bool:
    """Return whether both types of table are right after each of some random micro-batches."""
    return all(_adds_up(Random(seed), history=history) for history in (False, True))  # noqa: S311 - a test's draw


def _adds_up(chance: Random, *, history: bool) -> bool:
    function = AppliedChanges(("k",), ("v",), "at", history)
    state, come, folded = pl.DataFrame(schema=_STATE), list[Change](), Counter[tuple[Any, ...]]()
    for _ in range(_BATCHES):
        drawn = [*_drawn(chance)]
        rows = pl.DataFrame(drawn, schema=_ROWS, orient="row")
        touched = rows.select("k").unique()
        before = state.join(touched, on="k", how="semi")
        done = function.process([rows], before)
        was = function.results(before.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        state = pl.concat([state.join(touched, on="k", how="anti"), done.state])
        come += drawn
        for *row, kind in changes_of(was, done.output, function.table_keys).iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        if {row: times for row, times in folded.items() if times} != Counter(_plain(come, history=history)):
            return False
    return True


def _drawn(chance: Random) -> Iterator[Change]:
    for _ in range(chance.randint(0, 4)):
        yield chance.randint(1, 3), chance.randint(1, 2), chance.randint(0, 12), chance.random() < 0.3  # noqa: PLR2004


def _plain(changes: Iterable[Change], *, history: bool) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table. Of two changes with one place a deletion counts, or else the greater value."""
    known = [*changes]
    for key in {change[0] for change in known}:
        by_place = {at: (gone, value) for _, value, at, gone in sorted(known, key=_counts) if _ == key}
        held = [(at, None if gone else value) for at, (gone, value) in sorted(by_place.items())]
        if not history:
            if held[-1][1] is not None:
                yield key, held[-1][1]
            continue
        begun = [each for place, each in enumerate(held) if place == 0 or held[place - 1][1] != each[1]]
        for (at, value), (until, _) in zip(begun, [*begun[1:], (None, None)], strict=True):
            if value is not None:
                yield key, value, at, until, until is None


def _counts(change: Change) -> tuple[int, bool, int]:
    _, value, at, gone = change
    return at, gone, value
