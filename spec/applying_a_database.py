"""The model of the changes of a database's table: they come in order, and some values of an update are not sent.

A server is played: rows come, change, get another key and go, now and then all of them at once. An update may leave its
large value alone, which is then not sent. Rule `applied-changes-add-up`: after each random micro-batch, the table is
the one that a plain computation makes of all changes as the server knows them. The functions are those that the
product's tasks call.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

import polars as pl

from jobs.operators.applied_changes import DELETES, HISTORY, SEQUENCE, AppliedChanges, RefusedChangeError
from jobs.operators.unsent_values import UNSENT
from jobs.state.merge import KEY_GROUP
from spec.applying import APPLIED, Change, applied, table_of

_BATCHES: Final = 8
_VALUES: Final = {"small": pl.Int64(), "large": pl.Int64()}
_ROWS: Final = pl.Schema(
    {
        "k": pl.Int64(),
        **_VALUES,
        SEQUENCE: pl.Int64(),
        DELETES: pl.Boolean(),
        UNSENT: pl.List(pl.String()),
    }
)
_STATE: Final = pl.Schema(
    {"k": pl.Int64(), HISTORY: pl.List(pl.Struct({SEQUENCE: pl.Int64(), DELETES: pl.Boolean(), **_VALUES}))}
)

_Row = tuple[int, int | None, int | None, int, bool, list[str] | None]


class _Server:
    """The rows of a table by key, and its changes: as they are, and as they are sent."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._rows: dict[int, tuple[int, int]] = {}
        self._place = 0
        self.changes: list[Change] = []

    def empty(self) -> int:
        """Delete all rows at once. Return the place of this change, which no row tells."""
        self._place += 1
        self.changes += [(key, (0, 0), self._place, True) for key in self._rows]
        self._rows.clear()
        return self._place

    def change(self) -> Iterator[_Row]:
        """Make a change, and yield its rows as they are sent."""
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
        """Delete a row. The server sends its key alone."""
        del self._rows[key]
        self.changes.append((key, (0, 0), self._place, True))
        return key, None, None, self._place, True, None


def broken_by_changes_of_a_database(seed: int) -> frozenset[str]:
    """Return the rules that a type of table breaks after one of some random micro-batches."""
    chance = Random(seed)  # noqa: S311 - a test's draw
    return frozenset(rule for history in (False, True) for rule in _broken(chance, history=history))


def _broken(chance: Random, *, history: bool) -> Iterator[str]:
    function = AppliedChanges(("k",), tuple(_VALUES), "_position", history, of_database=True)
    server, state = _Server(chance), pl.DataFrame(schema=_STATE)
    for _ in range(_BATCHES):
        sent, emptied = list[_Row](), list[int]()
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.1:  # noqa: PLR2004 - now and then the table is emptied
                emptied.append(server.empty())
            else:
                sent += server.change()
        chance.shuffle(sent)
        rows = pl.DataFrame(sent, schema=_ROWS, orient="row")
        try:
            state = applied(function, state, rows, emptied, empties=bool(emptied)).state
        except RefusedChangeError:
            yield APPLIED
            return
        shown = function.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        if Counter(shown.rows()) != Counter(table_of(server.changes, history=history)):
            yield APPLIED
        if not history and chance.random() < 0.5:  # noqa: PLR2004 - the whole range is written now and then
            state = function.remembered(state)
