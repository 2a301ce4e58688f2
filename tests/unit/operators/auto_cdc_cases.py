"""Runs the cases of Spark's AUTO CDC on the functions that the product's tasks call: tables of changes.

The functions are in `jobs`: what an operator computes is no decision of the protocol, so the core has no such function.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Final

import polars as pl

from jobs.operators.applied_changes import CURRENT, DELETES, HISTORY, SEQUENCE, AppliedChanges
from jobs.state.merge import KEY_GROUP

Case = Mapping[str, Any]
Change = Sequence[Any]

_KINDS: Final = {"scd1": False, "scd2": True}
_ORDERS_MAX: Final = 24
"""How many orders of a case's changes are tried, with one change in each micro-batch."""


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend belongs to the cases of AUTO CDC."""
    return _KINDS.keys() == {*legend.get("kinds", ())}


def run_case(_legend: Mapping[str, Any], case: Case) -> list[str]:
    """Run one case. Return the expectations that do not hold."""
    return list(_problems(case))


def _problems(case: Case) -> Iterator[str]:
    expected = {entry["after"]: entry["table"] for entry in case["expect"]}
    table, batch = _Table(case), list[Change]()
    for index, event in enumerate(case["events"]):
        if event[0] != "batch":
            batch.append(event)
        if event[0] == "batch" or index in expected:
            table.take(batch)
            batch = []
        if index in expected and table.rows() != _counted(expected[index]):
            yield f"after {index}: expected {sorted(expected[index], key=repr)}, got {sorted(table.rows(), key=repr)}"
    last = _counted(case["expect"][-1]["table"])
    for order in _orders([event for event in case["events"] if event[0] != "batch"]):
        alone = _Table(case)
        for change in order:
            alone.take([change])
        if alone.rows() != last:
            yield f"in the order {[*order]}: expected {sorted(last, key=repr)}, got {sorted(alone.rows(), key=repr)}"
            return


def _orders(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield some orders of the changes: the original order, its reverse, and others.

    Each run yields the same orders.
    """
    for place, order in enumerate(permutations(changes)):
        if place == _ORDERS_MAX:
            break
        yield order
        yield order[::-1]


def _counted(rows: Sequence[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in rows)


class _Table:
    """A table of changes and its state."""

    def __init__(self, case: Case) -> None:
        given = case["given"]
        self._columns: list[str] = given.get("columns", ["name"])
        values = [event[2] for event in case["events"] if event[0] == "upsert"]
        kinds = {name: _kind(row[place] for row in values) for place, name in enumerate(self._columns)}
        self._rows = pl.Schema({"id": pl.Int64(), **kinds, SEQUENCE: pl.Int64(), DELETES: pl.Boolean()})
        tracked = given.get("tracked")
        self._function = AppliedChanges(
            ("id",),
            tuple(self._columns),
            "version",
            _KINDS[case["kind"]],
            ignored=tuple(given.get("ignored", ())),
            tracked=None if tracked is None else tuple(tracked),
        )
        change = pl.Struct({name: self._rows[name] for name in (SEQUENCE, DELETES, *self._columns)})
        self._state = pl.DataFrame(schema={"id": pl.Int64(), HISTORY: pl.List(change)})

    def take(self, changes: Sequence[Change]) -> None:
        """Take changes as one micro-batch."""
        rows = [
            (key, *rest[0], rest[1], False) if word == "upsert" else (key, *(None for _ in self._columns), *rest, True)
            for word, key, *rest in changes
        ]
        frame = pl.DataFrame(rows, schema=self._rows, orient="row")
        done = self._function.process([frame], self._state.join(frame, on="id", how="semi"))
        self._state = pl.concat([self._state.join(frame, on="id", how="anti"), done.state])

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Return the rows as Spark shows them, without `current`."""
        shown = self._function.results(self._state.with_columns(pl.lit(0).alias(KEY_GROUP)))
        return Counter(shown.drop(KEY_GROUP, CURRENT, strict=False).rows())


def _kind(values: Iterable[Any]) -> pl.DataType:
    """Return the type of a column with these values."""
    return pl.Int64() if any(isinstance(value, int) for value in values) else pl.String()
