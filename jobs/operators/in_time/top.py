"""The first rows of each key and window, or of each key until a time that its rows name (N6).

The operator emits them once, when the watermark has reached the end of the window or that time. So the output is
append-only, and the state keeps only what has not closed yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from pyspark.sql.types import LongType, StructField, StructType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from jobs.operators.changes import TIMES
from jobs.operators.in_time.windows import DUE, END, START, LateRows, PeriodicWindows
from jobs.operators.process import Find, Processed
from jobs.operators.top_rows import ROWS, TopRows, top_output, top_state
from jobs.state.merge import KEY_GROUP

_MICROSECONDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ClosedTopRows:
    """Keeps the first rows of each key and window until it closes. Without `windows`, the time of `late` closes them.

    `first` says which rows are first. Its keys are those of the vertex and `bounds`. With windows, `bounds` are start
    and end. Without windows, `bounds` is the column with the time until which rows take part. So rows of a key with
    different such times are ranked separately. `late` says what happens to rows that come after that time.
    `watermark_ms` is the watermark of the last barrier.
    """

    keys: tuple[str, ...]
    first: TopRows
    windows: PeriodicWindows | None
    late: LateRows
    watermark_ms: int = BEFORE_TIME
    due: str = DUE

    @property
    def rows_by(self) -> tuple[str, ...]:
        """The columns that distinguish the state's rows of one key."""
        return (START, END) if self.windows is not None else (self.late.time.name,)

    @property
    def meaning(self) -> str:
        """When rows are emitted, as a text that stays the same in later versions of Tidemark."""
        return "until" if self.windows is None else self.windows.meaning

    def at(self, watermark_ms: int, fires_ms: int) -> "ClosedTopRows":
        """Return the function for the rows after a barrier with this watermark."""
        del fires_ms
        return replace(self, watermark_ms=watermark_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Keep the rows that are among the first. Emit late rows to their output."""
        self.late.require_times(inputs[0])
        rows, late = self._open(inputs[0], types)
        on = [*self.keys, *self.rows_by]
        state = find(rows.select(on).unique(), on)
        held = self._first.held(rows, state).with_columns(self._closes_ms.alias(DUE))
        said = self.late.said(late, self.watermark_ms)
        return Processed(held.select(state.columns).cast(state.schema), self._shown(state.clear()), said)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Emit the first rows of what has closed, and drop them from the state."""
        return Processed(state.clear(), self._shown(state))

    @property
    def _first(self) -> TopRows:
        return replace(self.first, keys=(KEY_GROUP, *self.first.keys))

    @property
    def _closes_ms(self) -> pl.Expr:
        """The last ms of a window, or the ms until which rows take part."""
        of = self.late.time_ms if self.windows is None else pl.col(END).dt.epoch("us").floordiv(_MICROSECONDS) - 1
        return of.cast(pl.Int64)

    def _open(self, rows: pl.DataFrame, types: pl.Schema) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows that take part, once for each of their windows, and the late rows."""
        if self.windows is None:
            is_late = self.late.time_ms <= self.watermark_ms
            return rows.filter(~is_late), rows.filter(is_late)
        time = (pl.col(self.late.time.name) - pl.duration(milliseconds=self.late.time.before_ms)).cast(types[START])
        open_ms = self.watermark_ms + 1 if BEFORE_TIME < self.watermark_ms < END_OF_TIME else self.watermark_ms
        return self.windows.spread(rows, time, open_ms)

    def _shown(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the first rows of this state. Each row is repeated as often as it arrived."""
        found = self._first.shown_of(state)
        return found[np.repeat(np.arange(found.height), found[TIMES].to_numpy())].drop(KEY_GROUP, TIMES)


def closed_top_state(function: ClosedTopRows, rows: StructType) -> StructType:
    """Return the columns of the state over rows of this schema, without the keys of the vertex."""
    held = top_state(_bounded(function, rows), function.first.keys)
    return StructType([*(held[name] for name in (*function.rows_by, ROWS)), StructField(DUE, LongType())])


def closed_top_output(function: ClosedTopRows, rows: StructType) -> StructType:
    """Return the columns of the emitted rows: keys, bounds and the other columns, then place and number."""
    first = function.first
    return top_output(_bounded(function, rows), first.keys, first.number, first.place)


def _bounded(function: ClosedTopRows, rows: StructType) -> StructType:
    if function.windows is None:
        return rows
    return StructType([*rows.fields, *(StructField(name, function.late.time.kind) for name in (START, END))])
