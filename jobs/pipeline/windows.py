"""The windows of event time that a user names: `tumbling`, `hopping` and `cumulative` (N2)."""

from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql.types import TimestampNTZType

from jobs.operators.measured_times import TimeColumn
from jobs.operators.windows import END, START, WindowBound
from jobs.pipeline.columns import InvalidPipelineError
from jobs.settings import duration_ms


@dataclass(frozen=True, slots=True)
class Window:
    """Windows that begin every `size_ms`, at `offset_ms` after midnight in the time zone. They touch, without overlap.

    In a zone with summer time, a day has 23 hours once a year, and 25 hours once.
    """

    size_ms: int
    offset_ms: int = 0
    zone: str = "UTC"

    def bounds(self, time: TimeColumn) -> tuple[WindowBound, WindowBound]:
        """Return the columns with the start and the end of a row's window. Raises InvalidPipelineError."""
        if isinstance(time.kind, TimestampNTZType) and self.zone != "UTC":
            raise InvalidPipelineError(
                f"window: column {time.name} has no time zone, and the windows have {self.zone}: make it a timestamp"
            )
        start = WindowBound(START, time.name, self.size_ms, self.offset_ms, self.zone, 0)
        return start, replace(start, name=END, after_ms=self.size_ms)


def tumbling(size: str, *, offset: str | None = None, tz: str = "UTC") -> Window:
    """Return windows of this size, one after the other: `tumbling("1h")`, `tumbling("1d", tz="Europe/Berlin")`.

    They begin at midnight of the time zone, plus the offset. Raises InvalidPipelineError.
    """
    size_ms = _ms("tumbling: size", size)
    offset_ms = 0 if offset is None else _ms("tumbling: offset", offset)
    if size_ms <= 0 or offset_ms >= size_ms:
        raise InvalidPipelineError(f"tumbling: the size {size} must be more than 0, and more than the offset")
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidPipelineError(
            f"tumbling: there is no time zone {tz!r}: write one such as Europe/Berlin"
        ) from error
    return Window(size_ms, offset_ms, tz)


def _ms(where: str, duration: str) -> int:
    try:
        return duration_ms(duration)
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from None
