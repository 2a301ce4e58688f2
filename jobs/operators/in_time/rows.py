"""Functions in time that emit rows: first rows of a key, top rows, and aggregates over preceding rows (N6).

The first row of a key within a time, and aggregates over preceding rows, are computed at barriers, over all rows of the
epoch together. Top rows are emitted at once, because they depend only on the rows. So no result depends on how rows
were split into micro-batches. A row is late if its time is not after the watermark of the last barrier. It goes to the
output `LATE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from jobs.operators.aggregate import KeyedAggregates
from jobs.operators.changes import TIMES, kept
from jobs.operators.in_time.windows import DUE, NUMBER, LateRows, with_numbers
from jobs.operators.process import Find, Processed
from jobs.operators.top_rows import ROWS, TopRows
from jobs.state.files import empty_frame
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

BEFORE: Final = "_rows_before"
"""The state column with rows that were emitted and that aggregates of later rows may still include."""
WAITING: Final = "_rows_waiting"
"""The state column with rows that the watermark has not passed yet."""
ROW: Final = "_row"
"""The number of a row among the rows of a call. It is the key of the aggregates for that row."""
_OTHER: Final = "\0other"
_NEW: Final = "\0new"
_MICROSECONDS: Final = 1_000

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


# ------------------------------------------------------------------
# The first row of each key within a time.


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Emits a row unless a row of its key was emitted whose time is less than `within_ms` before or after.

    Among the rows of an epoch, the earliest goes first. Of rows with the same time, the least by the other columns goes
    first. The state has a row for each time of a key: either a row of this epoch, which is always due, or the time of
    an emitted row, until the watermark is `within_ms` after that time.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    late: LateRows
    within_ms: int
    watermark_ms: int = BEFORE_TIME
    fires_ms: int = END_OF_TIME
    due: str = DUE

    @property
    def rows_by(self) -> tuple[str, ...]:
        """The columns that distinguish the rows of one key."""
        return (self.late.time.name,)

    @property
    def state_version(self) -> int:
        """The version of the state's columns. State of another version is not read."""
        return 1

    def at(self, watermark_ms: int, fires_ms: int) -> "FirstRows":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets the keys that are due by `fires_ms`.
        """
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Keep the rows until the barrier, except those too close in time to an emitted row."""
        rows, said = self.late.taken_from(inputs[0], self.watermark_ms)
        found = find(rows.select(self.keys).unique(), self.keys)
        now = pl.lit(BEFORE_TIME, dtype=pl.Int64).alias(DUE)
        own = rows.with_columns(now).select(found.columns).cast({name: types[name] for name in self.columns})
        held = self._one_of_each_time(pl.concat([found.filter(self._is_held), own]))
        shown = found.filter(~self._is_held)
        return Processed(
            pl.concat([shown, self._apart_from(shown, held)]), rows.clear().select(*self.keys, *self.columns), said
        )

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Emit the first rows of the epoch. Drop the times of emitted rows to which no later row can be too close.

        When event time has ended, no time is dropped, because a later tick may read on.
        """
        time, held = self.late.time.name, state.filter(self._is_held)
        again = held.select(self.keys).is_duplicated()
        in_turn = with_numbers(held.filter(again), self.keys).sort(NUMBER, time)
        times = in_turn[time].dt.epoch("us").to_numpy()
        spaced = pl.Series(_spaced(in_turn[NUMBER].to_numpy(), times, self.within_ms * _MICROSECONDS))
        first = pl.concat([held.filter(~again), in_turn.filter(spaced).select(held.columns)])
        others = [pl.lit(None, state.schema[name]).alias(name) for name in self.columns if name != time]
        shown = first.with_columns((self.late.time_ms + self.within_ms).alias(DUE), *others).select(state.columns)
        known = pl.concat([state.filter(~self._is_held), shown])
        if self.fires_ms != END_OF_TIME:
            known = known.filter(pl.col(DUE) > self.fires_ms)
        return Processed(known, first.select(*self.keys, *self.columns))

    @property
    def _is_held(self) -> pl.Expr:
        return pl.col(DUE) == BEFORE_TIME

    def _one_of_each_time(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return one row for each time of a key: the least row by the other columns."""
        again, by = rows.select(self.keys).is_duplicated(), [*self.keys, self.late.time.name]
        several = rows.filter(again)
        if not several.select(by).is_duplicated().any():
            return rows
        rest = [name for name in self.columns if name != self.late.time.name]
        ordered = several.sort(rest) if rest else several
        return pl.concat([rows.filter(~again), ordered.unique(subset=by, keep="first", maintain_order=True)])

    def _apart_from(self, shown: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that are far enough in time from all emitted rows."""
        if shown.is_empty() or held.is_empty():
            return held
        time = self.late.time.name
        near = join_by_key(
            held.select(*self.keys, time), shown.select(*self.keys, pl.col(time).alias(_OTHER)), self.keys, "inner"
        )
        doubles = near.filter((pl.col(time) - pl.col(_OTHER)).abs() < pl.duration(milliseconds=self.within_ms))
        return join_by_key(held, doubles.select(*self.keys, time).unique(), [*self.keys, time], "anti")


def _spaced(keys: Numbers, times: Numbers, least: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows are chosen, if each chosen row is at least `least` after the previous chosen row of its key.

    The rows are ordered by their keys' numbers, then by time. Each step chooses one row of every key.
    """
    chosen = np.zeros(len(keys), dtype=np.bool_)
    if not len(keys):
        return chosen
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    ends = np.append(starts[1:], len(keys))
    while len(starts):
        chosen[starts] = True
        starts = _first_from(times, times[starts] + least, starts, ends)
        goes_on = starts < ends
        starts, ends = starts[goes_on], ends[goes_on]
    return chosen


def _first_from(times: Numbers, least: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Return the first index in each part of `times` whose time is not below `least`, or else the part's end.

    Each part has its own `low`, `high` and `least`. It begins at the index `low` and ends before the index `high`. Its
    times ascend.
    """
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        below = open_ & (times[np.minimum(middle, len(times) - 1)] < least)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


# ------------------------------------------------------------------
# The top rows of each key, until no row of the key has come for a time.


@dataclass(frozen=True, slots=True)
class TopRowsInTime:
    """Emits the changes of the first rows of each key, and drops a key that has had no row for `within_ms`.

    A key is dropped at the barrier whose watermark is `within_ms` after the latest time of all its rows, not only of
    the first rows. Its first rows are not taken back.
    """

    top: TopRows
    late: LateRows
    within_ms: int
    watermark_ms: int = BEFORE_TIME
    fires_ms: int = END_OF_TIME
    due: str = DUE
    takes_back: bool = True

    @property
    def table_keys(self) -> tuple[str, ...]:
        """The key columns of the first rows, if there are any."""
        return self.top.table_keys

    def at(self, watermark_ms: int, fires_ms: int) -> "TopRowsInTime":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets the keys that are due by `fires_ms`.
        """
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Emit the changes of the first rows. Each row keeps its key alive. A late row only goes to the late output."""
        rows, said = self.late.taken_from(inputs[0], self.watermark_ms)
        done = self.top.process([rows], state.drop(DUE))
        keys, over = list(self.top.keys), (self.late.time_ms + self.within_ms).alias(DUE)
        both = pl.concat([state.select(*keys, DUE), rows.select(*keys, over)], how="vertical_relaxed")
        held = join_by_key(done.state, both.group_by(keys).agg(pl.col(DUE).max()), keys, "left")
        return Processed(held.select(state.columns), done.output, said)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Drop these keys from the state. When event time has ended, no key is dropped: a later tick may read on."""
        left = state if self.fires_ms == END_OF_TIME else state.clear()
        none = state.clear().drop(DUE)
        no_rows = kept(none, ROWS, [*self.top.keys, *self.top.columns]).drop(TIMES)
        return Processed(left, self.top.process([no_rows], none).output)


# ------------------------------------------------------------------
# Aggregates over each row and the rows before it (SQL: `OVER (PARTITION BY ... ORDER BY time ...)`).


@dataclass(frozen=True, slots=True)
class OverRows:
    """Emits each row when the watermark has passed it, with aggregates over this row and preceding rows of its key.

    The aggregates are over the last `rows_max` rows (SQL: ROWS), or over the rows of the last `within_ms` and of the
    same time (SQL: RANGE). Rows with the same time follow in ascending order of their other columns. `held` are the
    columns of the aggregates' accumulators, after `ROW`.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    shown: tuple[str, ...]
    late: LateRows
    aggregates: KeyedAggregates
    held: pa.Schema
    rows_max: int | None
    within_ms: int | None
    watermark_ms: int = BEFORE_TIME
    fires_ms: int = END_OF_TIME
    due: str = DUE

    @property
    def state_version(self) -> int:
        """The version of the state's columns. State of another version is not read."""
        return 1

    def at(self, watermark_ms: int, fires_ms: int) -> "OverRows":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets the keys that are due by `fires_ms`.
        """
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Keep the rows until the watermark has passed them."""
        rows, said = self.late.taken_from(inputs[0], self.watermark_ms)
        waiting = pl.concat(
            [self._rows_in(state, WAITING), rows.select(*self.keys, *self.columns)], how="vertical_relaxed"
        )
        return Processed(self._state(self._rows_in(state, BEFORE), waiting, state), self._output(rows.clear()), said)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Emit the rows that the watermark has passed. Keep those that aggregates of later rows may still include."""
        before, waiting = self._rows_in(state, BEFORE), self._rows_in(state, WAITING)
        passed = self.late.time_ms <= self.fires_ms
        both = pl.concat(
            [
                before.with_columns(pl.lit(value=False).alias(_NEW)),
                waiting.filter(passed).with_columns(pl.lit(value=True).alias(_NEW)),
            ]
        )
        rest = [name for name in self.columns if name != self.late.time.name]
        in_turn = with_numbers(both, self.keys).sort(NUMBER, self.late.time.name, *rest)
        needed = in_turn.filter(self._is_needed).select(*self.keys, *self.columns)
        return Processed(self._state(needed, waiting.filter(~passed), state), self._output(in_turn))

    @property
    def _is_needed(self) -> pl.Expr:
        if self.rows_max is not None:
            return pl.int_range(pl.len()).reverse().over(NUMBER) < self.rows_max - 1
        last_ms = self.late.time_ms.max().over(NUMBER) if self.fires_ms == END_OF_TIME else pl.lit(self.fires_ms)
        return self.late.time_ms + (self.within_ms or 0) > last_ms

    def _rows_in(self, state: pl.DataFrame, column: str) -> pl.DataFrame:
        """Return the rows in a list column of the state."""
        some = state.filter(pl.col(column).list.len() > 0).select(*self.keys, column).explode(column)
        return some.unnest(column).select(*self.keys, *self.columns)

    def _state(self, before: pl.DataFrame, waiting: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """Return the state with these rows.

        A key is due when its first waiting row can be emitted, or without waiting rows when none of its rows is needed
        any more.
        """
        time_ms, within_ms = self.late.time_ms, self.within_ms
        over_ms = pl.lit(None, pl.Int64) if within_ms is None else time_ms.max() + within_ms
        lists = [
            rows.group_by(self.keys).agg(pl.struct(self.columns).alias(name), of_key.alias(beside))
            for rows, name, of_key, beside in (
                (before, BEFORE, over_ms, "\0over"),
                (waiting, WAITING, time_ms.min(), "\0first"),
            )
        ]
        every = pl.concat([one.select(self.keys) for one in lists]).unique()
        for one in lists:
            every = join_by_key(every, one, self.keys, "left")
        return every.with_columns(pl.coalesce("\0first", "\0over").alias(DUE)).select(state.columns).cast(state.schema)

    def _output(self, in_turn: pl.DataFrame) -> pl.DataFrame:
        """Return the new rows among these, with their aggregates. The rows are ordered by their keys' numbers."""
        rows = in_turn.with_row_index(ROW).with_columns(
            pl.col(ROW).cast(pl.Int64), pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP)
        )
        types = empty_frame(self.held).schema
        of_one = self.aggregates.partials(rows, types).sort(ROW)
        if rows.is_empty():
            shown = self.aggregates.results(of_one).drop(KEY_GROUP)
            return join_by_key(rows, shown, [ROW], "inner").select(*self.keys, *self.shown, *self._names)
        new = np.flatnonzero(rows[_NEW].to_numpy())
        begins, ends = self._frames(rows, new)
        found = self._merged(of_one, new, begins, ends)
        shown = self.aggregates.results(found).drop(KEY_GROUP)
        return join_by_key(rows.filter(_NEW), shown, [ROW], "inner").select(*self.keys, *self.shown, *self._names)

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.aggregates.aggregates]

    def _frames(self, rows: pl.DataFrame, new: Numbers) -> tuple[Numbers, Numbers]:
        """Return for each new row the places where the rows of its aggregates begin and end."""
        numbers = rows[NUMBER].to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        key = np.searchsorted(starts, new, side="right") - 1
        low, high = starts[key], np.append(starts[1:], len(numbers))[key]
        if self.rows_max is not None:
            return np.maximum(low, new - self.rows_max + 1), new + 1
        times = rows[self.late.time.name].dt.epoch("us").to_numpy()
        back = (self.within_ms or 0) * _MICROSECONDS
        return _first_from(times, times[new] - back, low, new), _first_from(times, times[new] + 1, new, high)

    def _merged(self, of_one: pl.DataFrame, new: Numbers, begins: Numbers, ends: Numbers) -> pl.DataFrame:
        """Return for each new row the aggregates over the rows from `begins` to `ends`.

        An aggregate over n rows is merged from aggregates over 1, 2, 4, ... rows: one for each binary digit 1 of n. All
        aggregates over the same number of rows are merged at once.
        """
        lengths, at, found = ends - begins, begins.copy(), None
        parts, length = of_one, 1
        while (lengths >= length).any():
            here = (lengths & length) > 0
            if here.any():
                chosen = (
                    parts.join(pl.DataFrame({ROW: at[here], _OTHER: new[here]}), on=ROW).drop(ROW).rename({_OTHER: ROW})
                )
                found = chosen if found is None else self._joined(found, chosen.select(found.columns))
                at = np.where(here, at + length, at)
            following = parts.with_columns(pl.col(ROW) - length)
            inside = self._within_frames(begins, ends, 2 * length, of_one.height)
            left = parts.filter(pl.Series(inside[parts[ROW].to_numpy()]))
            parts = self.aggregates.merged(following.join(left.select(ROW), on=ROW, how="semi"), left).sort(ROW)
            length *= 2
        return of_one.clear() if found is None else found

    def _joined(self, found: pl.DataFrame, further: pl.DataFrame) -> pl.DataFrame:
        merged = self.aggregates.merged(further, found).select(found.columns)
        return pl.concat([found.join(further.select(ROW), on=ROW, how="anti"), merged])

    @staticmethod
    def _within_frames(
        begins: Numbers, ends: Numbers, length: int, height: int
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return where a part of this length begins that lies within the rows of some new row's aggregates."""
        fits = ends - begins >= length
        changes = np.zeros(height + 1, dtype=np.int64)
        np.add.at(changes, begins[fits], 1)
        np.add.at(changes, ends[fits] - length + 1, -1)
        return np.cumsum(changes[:-1]) > 0


def first_state(function: FirstRows, rows: StructType) -> StructType:
    """Return the columns of the state over rows of this schema, without the keys."""
    return StructType([*(rows[name] for name in function.columns), StructField(DUE, LongType())])


def over_state(function: OverRows, rows: StructType) -> StructType:
    """Return the columns of the state over rows of this schema, without the keys."""
    held = ArrayType(StructType([rows[name] for name in function.columns]))
    return StructType([StructField(BEFORE, held), StructField(WAITING, held), StructField(DUE, LongType())])
