"""The model of top rows: random rows come and go, and the first rows of each key are put out as changes.

Rule `top-rows-add-up`: after each micro-batch, the changes up to it, added and taken back, are the first rows of the
rows so far, and so is the table that keeps them by upsert. The functions are those that the product's tasks call. The
first rows are plain Python's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import polars as pl
from pyspark.sql.types import LongType, StructType

from jobs.operators.changes import ADDING, DELETE, INSERT, KIND, added, deleted_keys
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.state.files import empty_frame

TOP_ROWS: Final = "top-rows-add-up"

_BATCHES: Final = 10
_ROWS: Final = StructType().add("k", LongType()).add("v", LongType()).add("w", LongType())

Row = tuple[int | None, int | None, int]
Shown = tuple[Any, ...]


def top_rows_add_up(seed: int) -> bool:
    """Return whether first rows of append-only streams and of changelogs are right after each random micro-batch."""
    return all(
        _adds_up(Random(seed), function)  # noqa: S311 - a test's draw
        for changelog in (False, True)
        for function in _functions(seed, changelog=changelog)
    )


def _functions(seed: int, *, changelog: bool) -> Iterator[TopRows]:
    order = (Order("v", descending=seed % 2 == 1),)
    yield TopRows(("k",), ("v", "w"), order, 1, None, changelog)
    yield TopRows(("k",), ("v", "w"), order, 2 + seed % 2, None, changelog)
    yield TopRows(("k",), ("v", "w"), (*order, Order("w", descending=True)), 1 + seed % 3, "place", changelog)


def _adds_up(chance: Random, function: TopRows) -> bool:
    state = empty_frame(arrow_schema(top_state(_ROWS, ("k",))))
    live: list[Row] = []
    folded: Counter[Shown] = Counter()
    table: dict[Shown, Shown] = {}
    for _ in range(_BATCHES):
        frame = _frame(list(_drawn(chance, live, goes=function.changelog)), changelog=function.changelog)
        touched = frame.select("k").unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        rest = state.join(touched, on="k", how="anti", nulls_equal=True)
        done = function.process([frame], before)
        state = pl.concat([rest, done.state.cast(state.schema)])
        for *row, kind in done.output.iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        wanted = Counter(_first(live, function))
        if {row: times for row, times in folded.items() if times} != dict(wanted):
            return False
        if function.table_keys and not _is_kept(table, done.output, function.table_keys, wanted):
            return False
    return True


def _is_kept(table: dict[Shown, Shown], changes: pl.DataFrame, keys: Sequence[str], wanted: Counter[Shown]) -> bool:
    """Return whether an upsert table is right after these changes, which it takes."""
    for key in deleted_keys(changes, keys).iter_rows():
        table.pop(key, None)
    rows = added(changes)
    table.update(zip(rows.select(keys).iter_rows(), rows.iter_rows(), strict=True))
    return Counter(table.values()) == wanted


def _frame(rows: list[tuple[int | None, int | None, int, str]], *, changelog: bool) -> pl.DataFrame:
    schema = {"k": pl.Int64(), "v": pl.Int64(), "w": pl.Int64(), KIND: pl.String()}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame if changelog else frame.drop(KIND)


def _drawn(chance: Random, live: list[Row], *, goes: bool) -> Iterator[tuple[int | None, int | None, int, str]]:
    """Yield changes: new rows, equal ones too, and rows that are taken back."""
    for _ in range(chance.randint(0, 5)):
        if goes and live and chance.random() < 0.5:  # noqa: PLR2004 - about as many rows come as go
            yield (*live.pop(chance.randrange(len(live))), DELETE)
        else:
            live.append((chance.choice([None, 1, 2]), chance.choice([None, 1, 2, 3]), chance.randint(1, 2)))
            yield (*live[-1], INSERT)


def _first(rows: list[Row], function: TopRows) -> Iterator[Shown]:
    """Yield the first rows of each key, as they are put out."""
    for key in {row[0] for row in rows}:
        of_key = sorted((row for row in rows if row[0] == key), key=lambda row: _rank(row, function.order))
        for place, row in enumerate(of_key[: function.n], start=1):
            yield row if function.number is None else (*row, place)


def _rank(row: Row, order: Sequence[Order]) -> tuple[tuple[bool, int], ...]:
    """Return what puts a row in its place: the columns of the order, then all columns. Null is the least."""
    values = {"v": row[1], "w": row[2]}
    ordered = [(values[by.column], by.descending) for by in order] + [(value, False) for value in values.values()]
    return tuple(
        ((value is None) == falls, 0 if value is None else -value if falls else value) for value, falls in ordered
    )
