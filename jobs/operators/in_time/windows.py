"""Windows of event time: to which of them a row belongs, and aggregates that are put out as windows close (N2).

A window is [start, end). It closes when the watermark reaches its last millisecond. Until then, and for the lateness
after it, rows are added to it. A row is late if all windows that it belongs to have passed their lateness by the
watermark of the last barrier. It goes to the output `LATE`, with how late it is, and counts nowhere else.

A session that has passed its lateness may still be widened by another row of the epoch. Its rows are held until the
barrier, so what is late does not depend on the order of rows inside an epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import gcd
from typing import Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from jobs.operators.aggregate import KeyedAggregates, output_schema, state_schema
from jobs.operators.changes import changes_of
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.process import Find, Processed
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

START: Final = "window_start"
END: Final = "window_end"
LATE: Final = "late"
"""The named output with the late rows."""
LATE_BY: Final = "late_by_ms"
"""The column of a late row that says how far the watermark was behind the row's time."""
DUE: Final = "_due_ms"
HELD: Final = "_late_rows"
"""The column of a session's state with rows that are late, unless another row of the epoch widens the session."""
_MICROSECONDS: Final = 1_000
FAR_MS: Final = 2**62
"""No time differs from a time by so much, so that the difference always fits."""
_PANE: Final = "\0pane"
_TIME: Final = "\0time"
_ENDS: Final = "\0ends"
_SLOT: Final = "\0slot"
_START: Final = "\0start"
_END: Final = "\0end"
_PLACE: Final = "\0place"
NUMBER: Final = "\0number"
"""The column that `with_numbers` adds."""


class NoTimeError(Exception):
    """Rows without an event time came to an operator that needs it. The message names the column and the way out."""

    def __init__(self, column: str, rows: int) -> None:
        super().__init__(
            f"{rows} rows have no time in column {column}, which operators in time need: give them one with "
            "with_column before event_time, or give such rows a table, as in event_time(..., misfits='quarantine/rows')"
        )


class LateRowError(Exception):
    """A row came late to an operator that takes none. The message has the row, by how much, and the ways out."""

    def __init__(self, column: str, late: pl.DataFrame) -> None:
        first, by_ms = late.select(pl.col(column).cast(pl.String), LATE_BY).row(0)  # Python knows no year before 1
        super().__init__(
            f"{late.height} rows are late. The first one has {column}={first}, {by_ms} ms "
            "behind the watermark, which has passed its windows. Give late rows a table, as in late='late/rows', or "
            "declare a longer delay or lateness"
        )


@dataclass(frozen=True, slots=True)
class LateRows:
    """What becomes of late rows: they go to a named output with these `columns`, or it `fails` at one."""

    columns: tuple[str, ...]
    time: TimeColumn
    fails: bool

    @property
    def time_ms(self) -> pl.Expr:
        """The event time of a row in ms. A time between two milliseconds counts as the earlier one."""
        return _ms(self.time.name) - self.time.before_ms

    def require_times(self, rows: pl.DataFrame) -> None:
        """Raise NoTimeError if a row has no time."""
        without = rows[self.time.name].null_count()
        if without:
            raise NoTimeError(self.time.name, without)

    def taken_from(self, rows: pl.DataFrame, watermark_ms: int) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
        """Return the rows with a time after the watermark, and the named outputs. Raises NoTimeError, LateRowError."""
        self.require_times(rows)
        is_late = self.time_ms <= watermark_ms
        return rows.filter(~is_late), self.said(rows.filter(is_late), watermark_ms)

    def said(self, late: pl.DataFrame, watermark_ms: int) -> dict[str, pl.DataFrame]:
        """Return late rows as their output has them. Raise LateRowError if they are an error."""
        if late.is_empty():
            return {}
        by_ms = pl.lit(min(watermark_ms, FAR_MS)) - self.time_ms
        said = late.select(*self.columns, by_ms.alias(LATE_BY))
        if self.fails:
            raise LateRowError(self.time.name, said)
        return {LATE: said}


class Windows(Protocol):
    """Tells which windows rows belong to."""

    @property
    def meaning(self) -> str:
        """What the windows are, in words that no later version writes otherwise."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether a later row may widen a window, so that a row is late only if it still is at the next barrier."""
        ...

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows as `assigned` takes them, and those that are late whatever else comes.

        A row is if its last window has an end in ms that is not after `open_ms`, and no other row may widen it.
        """
        ...

    def assigned(self, rows: pl.DataFrame, to: "Assignment") -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the windows that the rows touch, before and after them: rows of the state with key groups."""
        ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """How rows are added to their windows. `types` are those of the state, and `find` looks rows of it up.

    A window with an end in ms that is not after `open_ms` takes no row by itself. `columns` are those of late rows.
    """

    aggregates: KeyedAggregates
    types: pl.Schema
    find: Find
    open_ms: int
    columns: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the rows."""
        return self.aggregates.keys[:-2]

    def merged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return one row for each window, merged from all its rows: two by two, until one is left."""
        keys = list(self.aggregates.keys)
        left = rows.with_columns(pl.int_range(pl.len()).over(keys).alias(_PLACE))
        while left[_PLACE].max() or 0:
            numbered = left.with_columns((pl.col(_PLACE) // 2).alias(_SLOT))
            two = replace(self.aggregates, keys=(*keys, _SLOT))
            of_first, of_second = (
                self._in_types(numbered.filter(pl.col(_PLACE) % 2 == which).drop(_PLACE)) for which in (0, 1)
            )
            both = two.merged(of_second, of_first)
            alone = of_first.join(of_second, on=[*keys, _SLOT], how="anti", nulls_equal=True)
            left = pl.concat([both.select(of_first.columns), alone]).rename({_SLOT: _PLACE})
        return left.drop(_PLACE)

    def _in_types(self, partials: pl.DataFrame) -> pl.DataFrame:
        return partials.with_columns(pl.col(one.name).cast(self.types[one.name]) for one in self.aggregates.aggregates)


# ------------------------------------------------------------------
# Windows at fixed times: tumbling, hopping and cumulative.


@dataclass(frozen=True, slots=True)
class PeriodicWindows:
    """Windows of `size_ms`. One begins every `step_ms`, at `offset_ms` after midnight of the zone's local time.

    `cumulative` ones begin every `size_ms`, and one ends every `step_ms` until the size is reached. A window has all
    rows whose local time lies in it. If such a time comes twice, it begins with the first and ends with the second. A
    local time that summer time skips is the moment of the change.
    """

    size_ms: int
    step_ms: int
    offset_ms: int
    zone: str
    cumulative: bool = False

    @property
    def meaning(self) -> str:
        """Their sizes in ms, and their zone."""
        kind = "cumulative" if self.cumulative else "hopping" if self.step_ms != self.size_ms else "tumbling"
        return f"{kind} {self.size_ms} ms every {self.step_ms} ms from {self.offset_ms} ms {self.zone}"

    @property
    def may_grow(self) -> bool:
        """They do not."""
        return False

    @property
    def _pane_us(self) -> int:
        """All rows of a pane belong to the same windows."""
        return gcd(self.size_ms, self.step_ms) * _MICROSECONDS

    def _with_panes(self, rows: pl.DataFrame) -> pl.DataFrame:
        kind = rows.schema[_TIME]
        local = pl.col(_TIME)
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None and self.zone != "UTC":
            local = local.dt.convert_time_zone(self.zone).dt.replace_time_zone(None)
        micros = local.dt.epoch("us")
        return rows.with_columns((micros - (micros - self.offset_ms * _MICROSECONDS) % self._pane_us).alias(_PANE))

    def of_panes(self, panes: pl.Series, kind: pl.DataType) -> pl.DataFrame:
        """Return the windows of these panes, a row for each: the pane, start and end, and the end in ms."""
        places, size, step = panes.to_numpy(), self.size_ms * _MICROSECONDS, self.step_ms * _MICROSECONDS
        since = np.mod(places - self.offset_ms * _MICROSECONDS, size if self.cumulative else step)
        parts = []
        for turn in range(-(-size // step)):
            if self.cumulative:
                starts, ends = places - since, places - since + (turn + 1) * step
            else:
                starts = places - since - turn * step
                ends = starts + size
            parts.append((places, starts, ends))
        pane, start, end = (np.concatenate(each) for each in zip(*parts, strict=True))
        inside = end > pane
        bounds = self._moments(start[inside], kind), self._moments(end[inside], kind, ends=True)
        found = pl.DataFrame([pl.Series(_PANE, pane[inside]), *map(pl.Series, (START, END), bounds)])
        return found.with_columns(_ms(END).alias(_ENDS))

    def _moments(
        self, local_us: "np.ndarray[tuple[int], np.dtype[np.int64]]", kind: pl.DataType, *, ends: bool = False
    ) -> pl.Series:
        """Return local times as moments, in the type of the event time.

        A window `ends` right after the last moment with a local time before its end. So it has all rows of such times.
        """
        if not isinstance(kind, pl.Datetime) or kind.time_zone is None:
            return pl.Series(pl.from_arrow(pa.array(local_us, pa.timestamp("us"))), dtype=kind)
        local = pa.array(local_us - 1 if ends else local_us, pa.timestamp("us"))
        twice, never = ("latest", "earliest") if ends else ("earliest", "latest")
        there = pc.assume_timezone(local, self.zone, ambiguous=twice, nonexistent=never)
        moments = pl.Series(pl.from_arrow(there.cast(pa.timestamp("us", tz="UTC")))).cast(kind)
        return moments + timedelta(microseconds=1) if ends else moments

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows with their panes, and the late ones."""
        timed = self._with_panes(rows)
        windows = self.of_panes(timed[_PANE].unique(), rows.schema[_TIME])
        over = windows.group_by(_PANE).agg(pl.col(_ENDS).max()).filter(pl.col(_ENDS) <= open_ms)[_PANE]
        if over.is_empty():
            return timed, rows.clear()
        is_late = pl.col(_PANE).is_in(over.implode())
        return timed.filter(~is_late), timed.filter(is_late).drop(_PANE)

    def spread(self, rows: pl.DataFrame, time: pl.Expr, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows once for each of their windows that is open, with its bounds, and those that have none."""
        timed = self._with_panes(rows.with_columns(time.alias(_TIME)))
        windows = self.of_panes(timed[_PANE].unique(), timed.schema[_TIME])
        is_open = pl.col(_ENDS) > open_ms
        late = timed.join(windows.filter(is_open), on=_PANE, how="anti").select(rows.columns)
        return timed.join(windows.filter(is_open), on=_PANE).select(*rows.columns, START, END), late

    def assigned(self, rows: pl.DataFrame, to: Assignment) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Aggregate the rows of each pane, and add that to the windows of the pane that are open."""
        by_pane = replace(to.aggregates, keys=(*to.keys, _PANE)).partials(rows, to.types)
        windows = self.of_panes(by_pane[_PANE].unique(), rows.schema[_TIME]).filter(pl.col(_ENDS) > to.open_ms)
        touched = by_pane.join(windows, on=_PANE).drop(_PANE, _ENDS)
        if self.step_ms < self.size_ms:  # a window has several panes
            touched = to.merged(touched)
        before = to.find(touched, to.aggregates.keys)
        return before, to.aggregates.merged(touched, before)


# ------------------------------------------------------------------
# Sessions: windows that end when no row has come for a gap.


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows from a row to `gap_ms` after the last one that follows within the gap. Windows that touch merge."""

    gap_ms: int

    @property
    def meaning(self) -> str:
        """Their gap in ms."""
        return f"session {self.gap_ms} ms"

    @property
    def may_grow(self) -> bool:
        """They do."""
        return True

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return all rows: another one may widen the session of each."""
        del open_ms
        return rows, rows.clear()

    def assigned(self, rows: pl.DataFrame, to: Assignment) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Make sessions of the rows, and merge them with those of their keys that they touch.

        A session that has passed its lateness keeps its rows: if no other one widens it, they are late.
        """
        gap, bounds = pl.duration(milliseconds=self.gap_ms), {_START: START, _END: END}
        in_turn = with_numbers(rows, to.keys).sort(NUMBER, _TIME)
        begins = (pl.col(_TIME).diff() > gap) | (pl.col(NUMBER).diff() != 0)
        spans = in_turn.with_columns(begins.fill_null(value=True).cum_sum().alias(_SLOT)).with_columns(
            pl.col(_TIME).min().over(_SLOT).cast(to.types[START]).alias(_START),
            (pl.col(_TIME).max().over(_SLOT) + gap).cast(to.types[END]).alias(_END),
        )
        by_span = [*to.keys, *bounds]
        late = spans.filter(_ms(_TIME) + self.gap_ms <= to.open_ms)
        held = late.group_by(by_span).agg(pl.struct(to.columns).alias(HELD)).cast({HELD: to.types[HELD]})
        own = replace(to.aggregates, keys=tuple(by_span)).partials(spans, to.types)
        own = join_by_key(own, held, by_span, "left").rename(bounds)
        found = to.find(own.select(to.keys).unique(), to.keys)
        both = pl.concat([found.select(own.columns), own.cast(found.select(own.columns).schema)])
        return found, self._touching(both, to)

    def _touching(self, spans: pl.DataFrame, to: Assignment) -> pl.DataFrame:
        """Return the windows with those merged that touch, key by key."""
        keys = list(to.aggregates.keys)
        in_turn = with_numbers(spans, to.keys).sort(NUMBER, START, END)
        reach = pl.col(END).cum_max().shift(1).over(NUMBER)
        slots = in_turn.with_columns(((pl.col(START) > reach) | reach.is_null()).cum_sum().alias(_SLOT))
        wide = slots.with_columns(pl.col(START).min().over(_SLOT), pl.col(END).max().over(_SLOT))
        merged = to.merged(wide.drop(_SLOT, NUMBER, HELD))
        waiting = wide.filter(pl.col(HELD).is_not_null() & (_ms(END) <= to.open_ms))
        return join_by_key(merged, waiting.group_by(keys).agg(pl.col(HELD).explode()), keys, "left")


def with_numbers(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows with a number for their key. Keys of any type can be in order so."""
    numbers = rows.select(keys).unique().with_row_index(NUMBER).with_columns(pl.col(NUMBER).cast(pl.Int64))
    return join_by_key(rows, numbers, keys, "left")


# ------------------------------------------------------------------
# The keyed function.


@dataclass(frozen=True, slots=True)
class WindowedAggregates:
    """The keyed function of aggregates by key and window. The window's start and end are the last two keys.

    A window is put out once it has closed, and again when late rows change it. If it is `updating`, it is put out as
    soon as it has a row. `late` says what becomes of late rows. `watermark_ms` is
    that of the last barrier. If windows are `by_clock`, all rows of an epoch have the time at which it began.
    """

    windows: Windows
    aggregates: KeyedAggregates
    late: LateRows
    lateness_ms: int = 0
    updating: bool = False
    by_clock: bool = False
    watermark_ms: int = BEFORE_TIME
    fires_ms: int = END_OF_TIME
    due: str = DUE
    rows_by: tuple[str, ...] = (START, END)

    @property
    def takes_back(self) -> bool:
        """Whether a window may be put out more than once."""
        return self.updating or self.lateness_ms > 0

    @property
    def table_keys(self) -> tuple[str, ...]:
        """The columns that tell windows apart."""
        return self.aggregates.keys

    def at(self, watermark_ms: int, fires_ms: int) -> "WindowedAggregates":
        """Return the function as it is after a barrier with this watermark, and fires up to another one."""
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Add the rows to their windows. Put out late rows, and windows that are shown already and have changed."""
        if self.by_clock:
            time = pl.from_epoch(pl.lit(self.watermark_ms + 1), "ms").cast(types[START])
        else:
            self.late.require_times(inputs[0])
            time = pl.col(self.late.time.name) - pl.duration(milliseconds=self.late.time.before_ms)
        rows, late = self.windows.apart(inputs[0].with_columns(time.alias(_TIME)), self._open_ms)
        to = Assignment(self.aggregates, types, find, self._open_ms, self.late.columns)
        before, after = self.windows.assigned(rows, to)
        held = after.with_columns(self._due(_ms(END) - 1).alias(DUE))
        return Processed(held, self._shown_changes(before, held), self.late.said(late, self.watermark_ms))

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Put out the windows that have closed. Forget those whose lateness has passed by the time that is due.

        Rows that no window has taken are late.
        """
        late = None
        if self.windows.may_grow:
            late = state.filter(pl.col(HELD).is_not_null())[HELD].explode().struct.unnest()
            state = state.filter(pl.col(HELD).is_null())
        closed = state.clear() if self.updating else state.filter(pl.col(DUE) == _ms(END) - 1)
        kept = state.clear()
        if self.lateness_ms:
            kept = state.filter(_ms(END) - 1 + self.lateness_ms > self.fires_ms)
            kept = kept.with_columns((_ms(END) - 1 + self.lateness_ms).alias(DUE))
        output = self._results(closed)
        if self.takes_back:
            output = changes_of(self._results(state.clear()), output, self.table_keys)
        return Processed(kept, output, {} if late is None else self.late.said(late, self.watermark_ms))

    @property
    def _open_ms(self) -> int:
        """The greatest end of a window, in ms, that takes no row any more."""
        return self.watermark_ms + 1 - self.lateness_ms if self.watermark_ms > BEFORE_TIME else BEFORE_TIME

    def _due(self, last_ms: pl.Expr) -> pl.Expr:
        """Return when a window is due next, by its last ms: when it closes, or when its lateness has passed."""
        if self.updating:
            return last_ms + self.lateness_ms
        return pl.when(last_ms > self.watermark_ms).then(last_ms).otherwise(last_ms + self.lateness_ms)

    def _shown_changes(self, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        """Return the changes of the windows that are shown: all if it is updating, else those that have closed."""
        if not self.takes_back:
            return self._results(after.clear())
        was, now = (self._results(rows.filter(self._is_shown)) for rows in (before, after))
        return changes_of(was, now, self.table_keys)

    @property
    def _is_shown(self) -> pl.Expr:
        counts = pl.col(HELD).is_null() if self.windows.may_grow else pl.lit(value=True)
        return counts if self.updating else counts & (_ms(END) - 1 <= self.watermark_ms)

    def _results(self, state: pl.DataFrame) -> pl.DataFrame:
        return self.aggregates.results(state).drop(KEY_GROUP)


def windowed_state(function: WindowedAggregates, rows: StructType) -> StructType:
    """Return the columns of the state over rows of this schema, without the keys of the vertex."""
    keys = function.aggregates.keys[:-2]
    held = state_schema(keys, function.aggregates.aggregates, rows).fields[len(keys) :]
    bounds = (StructField(name, function.late.time.kind) for name in (START, END))
    late = ArrayType(StructType([rows[name] for name in function.late.columns]))
    waits = [StructField(HELD, late)] if function.windows.may_grow else []
    return StructType([*bounds, *held, *waits, StructField(DUE, LongType())])


def windowed_output(function: WindowedAggregates, rows: StructType) -> StructType:
    """Return the columns of a window that is put out."""
    keys = function.aggregates.keys[:-2]
    shown = output_schema(keys, function.aggregates.aggregates, rows).fields
    bounds = (StructField(name, function.late.time.kind) for name in (START, END))
    return StructType([*shown[: len(keys)], *bounds, *shown[len(keys) :]])


def late_rows(columns: Sequence[str], rows: StructType) -> StructType:
    """Return the columns of late rows."""
    return StructType([*[rows[name] for name in columns], StructField(LATE_BY, LongType())])


def _ms(column: str) -> pl.Expr:
    """Return a time in ms. A time between two milliseconds counts as the earlier one."""
    return pl.col(column).dt.epoch("us").floordiv(_MICROSECONDS)
