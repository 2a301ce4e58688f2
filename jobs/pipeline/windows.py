"""Declares windows of event time, and the vertex that aggregates them (N2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pyspark.sql.types import TimestampNTZType

from jobs.operators.aggregate import KeyedAggregates
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.windows import (
    DUE,
    END,
    LATE,
    LATE_BY,
    START,
    LateRows,
    PeriodicWindows,
    SessionWindows,
    WindowedAggregates,
    Windows,
    late_rows,
    windowed_output,
    windowed_state,
)
from jobs.pipeline.aggregates import AggregateColumn, named_aggregates
from jobs.pipeline.columns import FAIL, InvalidPipelineError, duration, require_late, require_unique, time_zone
from jobs.pipeline.processing import Rows, process_vertex
from jobs.pipeline.vertices import Input, ProcessVertex

WINDOWS_MAX: Final = 1_000
_DAY_MS: Final = 86_400_000
_MONDAY_MS: Final = 4 * _DAY_MS
"""The first Monday after 1970 began, which was a Thursday."""
By = Literal["event time", "clock"]
EVENT_TIME: Final = "event time"
CLOCK: Final = "clock"


@dataclass(frozen=True, slots=True)
class Window:
    """Windows of event time, as `tumbling`, `hopping`, `cumulative` and `session` return them."""

    windows: PeriodicWindows | SessionWindows
    by_clock: bool = False

    def of(self, where: str, time: TimeColumn) -> Windows:
        """Return the windows of rows with this time. Raises InvalidPipelineError if they need a time zone."""
        zone = self.windows.zone if isinstance(self.windows, PeriodicWindows) else "UTC"
        if isinstance(time.kind, TimestampNTZType) and zone != "UTC":
            raise InvalidPipelineError(
                f"{where}: column {time.name} has no time zone, and the windows have {zone}: make it a timestamp"
            )
        return self.windows


def tumbling(size: str, *, offset: str = "0s", tz: str = "UTC", by: By = EVENT_TIME) -> Window:
    """Return windows of this size, one after the other: `tumbling("1h")`, `tumbling("1d", tz="Europe/Berlin")`.

    They begin at midnight of the time zone, plus the offset. Windows of "1w" begin on Mondays. All others are counted
    from 1970-01-01, as in Spark and Flink, so windows of "7d" begin on Thursdays. In a zone with summer time, one day
    of the year has 23 hours, and another one 25 hours. With by="clock" all rows of an epoch have the time at which the
    epoch began, and a window closes at the first barrier after its end. Raises InvalidPipelineError.
    """
    return Window(_periodic("tumbling", size, size, offset, tz), _by_clock("tumbling", by))


def hopping(size: str, every: str, *, offset: str = "0s", tz: str = "UTC", by: By = EVENT_TIME) -> Window:
    """Return windows of this size, with a new one beginning at each interval `every`: `hopping("1h", every="5m")`.

    A row belongs to every window that includes its time, in this example to twelve. Otherwise the windows are like
    those of `tumbling`. Raises InvalidPipelineError.
    """
    return Window(_periodic("hopping", size, every, offset, tz), _by_clock("hopping", by))


def cumulative(size: str, every: str, *, offset: str = "0s", tz: str = "UTC", by: By = EVENT_TIME) -> Window:
    """Return windows that begin together, with one ending at each interval `every`: `cumulative("1d", every="1h")`.

    The first window has one hour, the next one two hours, and the last one the whole day. Raises InvalidPipelineError.
    """
    windows = _periodic("cumulative", size, every, offset, tz)
    if windows.size_ms % windows.step_ms:
        raise InvalidPipelineError(f"cumulative: the size {size} must be a multiple of every={every}")
    return Window(replace(windows, cumulative=True), _by_clock("cumulative", by))


def session(gap: str, *, by: By = EVENT_TIME) -> Window:
    """Return windows that go on as long as rows follow within the gap: `session("30m")`.

    A session ends `gap` after its last row. It closes when the watermark has passed its end. Raises
    InvalidPipelineError.
    """
    gap_ms = duration("session: gap", gap)
    if gap_ms <= 0:
        raise InvalidPipelineError(f"session: the gap {gap} must be more than 0")
    return Window(SessionWindows(gap_ms), _by_clock("session", by))


def _by_clock(kind: str, by: str) -> bool:
    if by not in (EVENT_TIME, CLOCK):
        raise InvalidPipelineError(f"{kind}: by is {by!r}; write {EVENT_TIME!r} or {CLOCK!r}")
    return by == CLOCK


def _periodic(kind: str, size: str, every: str, offset: str, tz: str) -> PeriodicWindows:
    size_ms, every_ms = duration(f"{kind}: size", size), duration(f"{kind}: every", every)
    offset_ms = duration(f"{kind}: offset", offset)
    if not 0 < every_ms <= size_ms:
        at_most = f", and every {every} at most as long" if every != size else ""
        raise InvalidPipelineError(f"{kind}: the size {size} must be more than 0{at_most}")
    if offset_ms >= every_ms:
        raise InvalidPipelineError(
            f"{kind}: the offset {offset} must be shorter than {every}, the time between windows"
        )
    if size_ms // every_ms > WINDOWS_MAX:
        raise InvalidPipelineError(
            f"{kind}: each row would belong to {size_ms // every_ms} windows of {size}, and {WINDOWS_MAX} are the "
            "most: let them begin less often"
        )
    begins = size if kind == "cumulative" else every
    monday_ms = _MONDAY_MS if begins.strip().endswith("w") else 0
    return PeriodicWindows(size_ms, every_ms, (offset_ms + monday_ms) % duration(kind, begins), time_zone(kind, tz))


@dataclass(frozen=True, slots=True)
class Emission:
    """Which windows are emitted, and when. Late rows go to a named output, or fail the micro-batch (`fails`)."""

    windows: Windows
    time: TimeColumn
    by_clock: bool
    updating: bool
    lateness_ms: int
    fails: bool

    @property
    def is_append_only(self) -> bool:
        """Whether each window is emitted only once."""
        return not self.updating and not self.lateness_ms


def emission(
    where: str, windows: Windows, time: TimeColumn, *, by_clock: bool, emit: str, lateness: str, late: str | None
) -> Emission:
    """Return when windows are emitted. Raises InvalidPipelineError."""
    lateness_ms = duration(f"{where}: lateness", lateness)
    if by_clock and (late is not None or lateness_ms):
        raise InvalidPipelineError(f"{where}: no row is late by the clock: leave out late= and lateness=")
    if not by_clock:
        require_late(where, where.removeprefix("vertex "), late)
    if emit not in ("final", "updating"):
        raise InvalidPipelineError(f'{where}: emit is {emit!r}; write "final" or "updating"')
    return Emission(windows, time, by_clock, emit == "updating", lateness_ms, late in (FAIL, None))


def window_vertex(
    reads: Input,
    name: str,
    emits: Emission,
    columns: Mapping[str, AggregateColumn],
    late_columns: Sequence[str],
    renamed_from: str | None,
) -> ProcessVertex:
    """Return the vertex that aggregates windows. Raises InvalidNameError, InvalidPipelineError."""
    where, keys = f"vertex {name}", (*reads.keys, START, END)
    require_unique(where, [*reads.schema.names, DUE, LATE_BY])
    function = WindowedAggregates(
        windows=emits.windows,
        aggregates=KeyedAggregates(keys, named_aggregates(where, keys, reads.schema, columns)),
        late=LateRows(tuple(late_columns), emits.time, emits.fails),
        lateness_ms=emits.lateness_ms,
        updating=emits.updating,
        by_clock=emits.by_clock,
    )
    rows = Rows(
        windowed_state(function, reads.schema),
        windowed_output(function, reads.schema),
        {column: one.renamed_from for column, one in columns.items() if one.renamed_from is not None},
        {} if emits.fails else {LATE: late_rows(late_columns, reads.schema)},
    )
    return process_vertex((reads,), name, function, rows, renamed_from)
