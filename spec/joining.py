"""The model of joins over changes: random rows of both sides come and go, and the join puts out changes.

Rule `joins-add-up`: after each micro-batch, the changes up to it, added and taken back, are the batch join of the rows
of both sides. The function is the one that the product's tasks call. The batch is plain Python.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import polars as pl
from pyspark.sql.types import LongType, StructType

from jobs.operators.changes import ADDING, DELETE, INSERT, KIND
from jobs.operators.join import JoinFunction, JoinType, join_state_schema
from jobs.operators.spec import arrow_schema
from jobs.state.files import empty_frame

JOINS: Final = "joins-add-up"

_BATCHES: Final = 10
_LEFT: Final = StructType().add("k", LongType()).add("v", LongType())
_RIGHT: Final = StructType().add("k", LongType()).add("w", LongType())

Row = tuple[int | None, int]
Table = Counter[tuple[Any, ...]]


def joins_add_up(seed: int) -> bool:
    """Return whether each type of join is right after each of some random micro-batches."""
    return all(_adds_up(Random(seed), how) for how in JoinType)  # noqa: S311 - a test's draw


def _adds_up(chance: Random, how: JoinType) -> bool:
    function = JoinFunction(("k",), ("k",), ("v",), ("w",), how)
    state = empty_frame(arrow_schema(join_state_schema(_LEFT, _RIGHT, ("k",), ("k",))))
    live: tuple[list[Row], list[Row]] = ([], [])
    folded: Table = Counter()
    for _ in range(_BATCHES):
        frames = [_frame(list(_drawn(chance, rows)), name) for rows, name in zip(live, ("v", "w"), strict=True)]
        touched = pl.concat([frame.select("k") for frame in frames]).unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        rest = state.join(touched, on="k", how="anti", nulls_equal=True)
        done = function.process(frames, before)
        state = pl.concat([rest, done.state.cast(state.schema)])
        for *row, kind in done.output.iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        if {row: times for row, times in folded.items() if times} != dict(_batch(*live, how)):
            return False
    return True


def _frame(rows: list[tuple[int | None, int, str]], name: str) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"k": pl.Int64(), name: pl.Int64(), KIND: pl.String()}, orient="row")


def _drawn(chance: Random, live: list[Row]) -> Iterator[tuple[int | None, int, str]]:
    """Yield changes of one side: new rows, equal ones too, and rows that are taken back."""
    for _ in range(chance.randint(0, 4)):
        if live and chance.random() < 0.5:  # noqa: PLR2004 - about as many rows come as go
            yield (*live.pop(chance.randrange(len(live))), DELETE)
        else:
            live.append((chance.choice([None, 1, 2, 3]), chance.randint(1, 2)))
            yield (*live[-1], INSERT)


def _batch(left: list[Row], right: list[Row], how: JoinType) -> Table:
    """Return the batch join, in which a null matches nothing."""
    pairs = [(one[0], one[1], other[1]) for one in left for other in right if one[0] == other[0] is not None]
    matched = {pair[0] for pair in pairs}
    alone: list[tuple[Any, ...]] = []
    if how.has_left_alone:
        return Counter(row for row in left if (row[0] in matched) == (how is JoinType.SEMI))
    if how in (JoinType.LEFT, JoinType.FULL):
        alone += [(key, value, None) for key, value in left if key not in matched]
    if how in (JoinType.RIGHT, JoinType.FULL):
        alone += [(key, None, value) for key, value in right if key not in matched]
    return Counter([*pairs, *alone])
