"""Windows of event time: which windows a row belongs to, and aggregates that are emitted as windows close (N2).

A window is [start, end). It closes when the watermark reaches its last millisecond. Until then, and for the lateness
after that, the window takes rows. A row is late if all windows to which it belongs have passed their lateness by the
watermark of the last barrier. A late row goes to the output `LATE`, with how late it is, and changes no window.

If a session has passed its lateness, another row of the epoch may still widen it. So its rows are held until the
barrier. So the order of rows inside an epoch does not decide which rows are late.
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
"""The column of a session's state with rows that are late unless another row of the epoch widens the session."""
_MICROSECONDS: Final = 1_000
FAR_MS: Final = 2**62
"""A bound for watermarks. With it, the difference to a row's time always fits into 64 bits."""
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
    """Rows without an event time reached an operator that needs it. The message names the column and ways out."""

    def __init__(self, column: str, rows: int) -> None:
        super().__init__(
            f"{rows} rows have no time in column {column}, which operators in time need: give them one with "
            "with_column before event_time, or give such rows a table, as in event_time(..., misfits='quarantine/rows')"
        )


class LateRowError(Exception):
    """A late row reached an operator that accepts none.

    The message has the row's time, how late it is, and ways out.
    """

    def __init__(self, column: str, late: pl.DataFrame) -> None:
        first, by_ms = late.select(pl.col(column).cast(pl.String), LATE_BY).row(0)  # Python knows no year before 1
        super().__init__(
            f"{late.height} rows are late. The first one has {column}={first}, {by_ms} ms "
            "behind the watermark, which has passed its windows. Give late rows a table, as in late='late/rows', or "
            "declare a longer delay or lateness"
        )


@dataclass(frozen=True, slots=True)
class LateRows:
    """What happens to late rows: they go to a named output with these `columns`, or fail the micro-batch (`fails`)."""

    columns: tuple[str, ...]
    time: TimeColumn
    fails: bool

    @property
    def time_ms(self) -> pl.Expr:
        """The event time of a row in ms. A time between two milliseconds is rounded down."""
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
        """Return late rows in the form of their output. Raise LateRowError if late rows are an error."""
        if late.is_empty():
            return {}
        by_ms = pl.lit(min(watermark_ms, FAR_MS)) - self.time_ms
        said = late.select(*self.columns, by_ms.alias(LATE_BY))
        if self.fails:
            raise LateRowError(self.time.name, said)
        return {LATE: said}


class Windows(Protocol):
    """Finds the windows to which rows belong."""

    @property
    def meaning(self) -> str:
        """A description of the windows, as a text that stays the same in later versions of Tidemark."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether a later row can widen a window. Then only the next barrier decides whether a row is late."""
        ...

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows in the form that `assigned` takes, and the rows that are late whatever other rows come.

        A row is late in this sense if its last window has an end in ms that is not after `open_ms`, and no other row
        can widen that window.
        """
        ...

    def assigned(self, rows: pl.DataFrame, to: "Assignment") -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the windows that the rows touch, before and after the rows are added.

        Both results are rows of the state, with key groups.
        """
        ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """Adds rows to their windows. `types` are the types of the state, and `find` looks up rows of the state.

    A window takes no rows if its end in ms is not after `open_ms`. Only a wider session may. `columns` are the columns
    of late rows.
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
        """Return one row for each window. Its rows are merged in pairs, until only one is left."""
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

    `cumulative` windows begin every `size_ms`, and of these with the same start, one ends every `step_ms` until the
    size is reached. A window has all rows whose local time lies in it. If the local time of a bound occurs twice, a
    window begins with the first occurrence and ends with the second. If summer time skips the local time of a bound,
    the bound is the moment of the change.
    """

    size_ms: int
    step_ms: int
    offset_ms: int
    zone: str
    cumulative: bool = False

    @property
    def meaning(self) -> str:
        """The kind of the windows, their sizes in ms, and their zone."""
        kind = "cumulative" if self.cumulative else "hopping" if self.step_ms != self.size_ms else "tumbling"
        return f"{kind} {self.size_ms} ms every {self.step_ms} ms from {self.offset_ms} ms {self.zone}"

    @property
    def may_grow(self) -> bool:
        """No row widens such a window."""
        return False

    @property
    def _pane_us(self) -> int:
        """The length of a pane in microseconds. All rows of a pane belong to the same windows."""
        return gcd(self.size_ms, self.step_ms) * _MICROSECONDS

    def _with_panes(self, rows: pl.DataFrame) -> pl.DataFrame:
        kind = rows.schema[_TIME]
        local = pl.col(_TIME)
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None and self.zone != "UTC":
            local = local.dt.convert_time_zone(self.zone).dt.replace_time_zone(None)
        micros = local.dt.epoch("us")
        return rows.with_columns((micros - (micros - self.offset_ms * _MICROSECONDS) % self._pane_us).alias(_PANE))

    def of_panes(self, panes: pl.Series, kind: pl.DataType) -> pl.DataFrame:
        """Return a row for each window of these panes: the pane, start and end, and the end in ms."""
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

        With `ends`, the result is right after the last moment whose local time is before the given one. So a window has
        all rows of such local times.
        """
        if not isinstance(kind, pl.Datetime) or kind.time_zone is None:
            return pl.Series(pl.from_arrow(pa.array(local_us, pa.timestamp("us"))), dtype=kind)
        local = pa.array(local_us - 1 if ends else local_us, pa.timestamp("us"))
        twice, never = ("latest", "earliest") if ends else ("earliest", "latest")
        there = pc.assume_timezone(local, self.zone, ambiguous=twice, nonexistent=never)
        moments = pl.Series(pl.from_arrow(there.cast(pa.timestamp("us", tz="UTC")))).cast(kind)
        return moments + timedelta(microseconds=1) if ends else moments

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows with their panes, and the late rows."""
        timed = self._with_panes(rows)
        windows = self.of_panes(timed[_PANE].unique(), rows.schema[_TIME])
        over = windows.group_by(_PANE).agg(pl.col(_ENDS).max()).filter(pl.col(_ENDS) <= open_ms)[_PANE]
        if over.is_empty():
            return timed, rows.clear()
        is_late = pl.col(_PANE).is_in(over.implode())
        return timed.filter(~is_late), timed.filter(is_late).drop(_PANE)

    def spread(self, rows: pl.DataFrame, time: pl.Expr, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return each row once for each of its open windows, with the bounds, and the rows without an open window."""
        timed = self._with_panes(rows.with_columns(time.alias(_TIME)))
        windows = self.of_panes(timed[_PANE].unique(), timed.schema[_TIME])
        is_open = pl.col(_ENDS) > open_ms
        late = timed.join(windows.filter(is_open), on=_PANE, how="anti").select(rows.columns)
        return timed.join(windows.filter(is_open), on=_PANE).select(*rows.columns, START, END), late

    def assigned(self, rows: pl.DataFrame, to: Assignment) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Aggregate the rows of each pane, and add the result to the pane's open windows."""
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
    """Windows from a row to `gap_ms` after the last row that follows within this gap. Windows that touch are merged."""

    gap_ms: int

    @property
    def meaning(self) -> str:
        """The kind of the windows, and their gap in ms."""
        return f"session {self.gap_ms} ms"

    @property
    def may_grow(self) -> bool:
        """A row can widen a session."""
        return True

    def apart(self, rows: pl.DataFrame, open_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return all rows, because another row may still widen the session of each of them."""
        del open_ms
        return rows, rows.clear()

    def assigned(self, rows: pl.DataFrame, to: Assignment) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Form sessions of the rows, and merge these with the sessions of the same keys that they touch.

        A session that has passed its lateness keeps its rows. If no other row widens the session, these rows are late.
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
        """Return the windows of each key, with those that touch merged into one."""
        keys = list(to.aggregates.keys)
        in_turn = with_numbers(spans, to.keys).sort(NUMBER, START, END)
        reach = pl.col(END).cum_max().shift(1).over(NUMBER)
        slots = in_turn.with_columns(((pl.col(START) > reach) | reach.is_null()).cum_sum().alias(_SLOT))
        wide = slots.with_columns(pl.col(START).min().over(_SLOT), pl.col(END).max().over(_SLOT))
        merged = to.merged(wide.drop(_SLOT, NUMBER, HELD))
        waiting = wide.filter(pl.col(HELD).is_not_null() & (_ms(END) <= to.open_ms))
        return join_by_key(merged, waiting.group_by(keys).agg(pl.col(HELD).explode()), keys, "left")


def with_numbers(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows with a number for their key. So rows can be sorted by keys of any type."""
    numbers = rows.select(keys).unique().with_row_index(NUMBER).with_columns(pl.col(NUMBER).cast(pl.Int64))
    return join_by_key(rows, numbers, keys, "left")


# ------------------------------------------------------------------
# The keyed function.


@dataclass(frozen=True, slots=True)
class WindowedAggregates:
    """The keyed function of aggregates by key and window. The window's start and end are the last two keys.

    A window is emitted when it has closed, and again when late rows change it. With `updating`, a window is emitted as
    soon as it has a row. `late` says what happens to late rows. `watermark_ms` is the watermark of the last barrier. If
    windows are `by_clock`, all rows of an epoch have the time at which the epoch began.
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
        """Whether a window may be emitted more than once."""
        return self.updating or self.lateness_ms > 0

    @property
    def table_keys(self) -> tuple[str, ...]:
        """The key columns of a window."""
        return self.aggregates.keys

    def at(self, watermark_ms: int, fires_ms: int) -> "WindowedAggregates":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets what is due by `fires_ms`.
        """
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Add the rows to their windows. Emit late rows, and windows that were emitted before and have changed."""
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
        """Emit the windows that have closed. Drop the windows whose lateness has passed by `fires_ms`.

        Rows in sessions that no other row has widened are late.
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
        """The greatest end, in ms, of a window that takes no more rows."""
        return self.watermark_ms + 1 - self.lateness_ms if self.watermark_ms > BEFORE_TIME else BEFORE_TIME

    def _due(self, last_ms: pl.Expr) -> pl.Expr:
        """Return when a window is due next, from its last ms: when it closes, or when its lateness has passed."""
        if self.updating:
            return last_ms + self.lateness_ms
        return pl.when(last_ms > self.watermark_ms).then(last_ms).otherwise(last_ms + self.lateness_ms)

    def _shown_changes(self, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        """Return the changes of the emitted windows: of all if `updating`, else of those that have closed."""
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
    """Return the columns of an emitted window."""
    keys = function.aggregates.keys[:-2]
    shown = output_schema(keys, function.aggregates.aggregates, rows).fields
    bounds = (StructField(name, function.late.time.kind) for name in (START, END))
    return StructType([*shown[: len(keys)], *bounds, *shown[len(keys) :]])


def late_rows(columns: Sequence[str], rows: StructType) -> StructType:
    """Return the columns of late rows."""
    return StructType([*[rows[name] for name in columns], StructField(LATE_BY, LongType())])


def _ms(column: str) -> pl.Expr:
    """Return a time in ms. A time between two milliseconds is rounded down."""
    return pl.col(column).dt.epoch("us").floordiv(_MICROSECONDS)
