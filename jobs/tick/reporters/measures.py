"""The numbers that an event reports, with names and units. Prometheus and OpenTelemetry get the same numbers.

`docs/guides/observe.md` shows this table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, assert_never

from checkpointing.graph import TableMode
from checkpointing.messages import TickOutcome
from jobs.tick.reporters.events import (
    CheckpointFailed,
    CheckpointPublished,
    Event,
    ReportedTable,
    ReportedVertex,
    TickEnded,
)

SECONDS: Final = "s"
BYTES: Final = "By"
ONE: Final = ""
"""Units as OpenTelemetry writes them (UCUM). A count has no unit: Prometheus would call unit 1 a ratio."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of which only the newest value is of interest. `labels` are its labels besides the name of the job."""

    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a gauge. `of` has the values of the gauge's labels."""

    gauge: str
    value: float
    of: tuple[str, ...] = ()


_TABLE: Final = ("table",)
_VERTEX: Final = ("vertex",)

GAUGES: Final[Mapping[str, Gauge]] = MappingProxyType(
    {
        gauge.name: gauge
        for gauge in (
            Gauge("checkpoint.id", ONE, "The newest completed checkpoint."),
            Gauge("checkpoint.completed_timestamp", SECONDS, "When the newest checkpoint was committed."),
            Gauge("checkpoint.duration", SECONDS, "From the trigger of the newest checkpoint to its commit."),
            Gauge("checkpoint.rows", ONE, "The rows that the sources sent in the newest checkpoint's epoch."),
            Gauge("checkpoint.unmet_expectations", ONE, "The expectations that the newest checkpoint does not meet."),
            Gauge("job.finished", ONE, "1 if the job has read the end of all its sources, else 0."),
            Gauge("tick.completed_checkpoints", ONE, "The checkpoints that this tick has completed."),
            Gauge("tick.failed_checkpoints", ONE, "The checkpoints of this tick that failed or were declined."),
            Gauge("tick.ended_timestamp", SECONDS, "When the tick ended."),
            Gauge("tick.duration", SECONDS, "How long the ended tick took."),
            Gauge("tick.restarts", ONE, "How often the ended tick restarted its job."),
            Gauge("tick.outcome", ONE, "1 for the outcome of the ended tick, 0 for the others.", ("outcome",)),
            Gauge("table.version", ONE, "The Delta version of the table at the newest checkpoint.", _TABLE),
            Gauge("table.rows_added", ONE, "The rows that the newest checkpoint adds to an append table.", _TABLE),
            Gauge("table.rows", ONE, "All rows of an upsert or overwrite table.", _TABLE),
            Gauge("table.complete_until_timestamp", SECONDS, "Until when in event time a table is complete.", _TABLE),
            Gauge("table.event_time_lag", SECONDS, "From there to the commit of the newest checkpoint.", _TABLE),
            Gauge("vertex.rows_in", ONE, "The rows that the vertex read in the epoch.", _VERTEX),
            Gauge("vertex.rows_out", ONE, "The rows that the vertex wrote in the epoch.", _VERTEX),
            Gauge("vertex.busy", SECONDS, "How long the vertex worked in the epoch.", _VERTEX),
            Gauge("vertex.alignment", SECONDS, "From the first barrier to the last one.", _VERTEX),
            Gauge("vertex.held", BYTES, "What waited behind the barriers.", _VERTEX),
            Gauge("vertex.watermark_timestamp", SECONDS, "The watermark of the vertex.", _VERTEX),
            Gauge("vertex.late_rows", ONE, "The late rows of the epoch.", _VERTEX),
        )
    }
)


@dataclass(slots=True)
class Measures:
    """Turns the events of one tick into numbers."""

    _completed: int = field(default=0)
    _failed: int = field(default=0)

    def of(self, event: Event) -> Iterator[Measured]:
        """Yield the numbers that an event changes."""
        match event:
            case CheckpointPublished():
                self._completed += 1
                yield Measured("tick.completed_checkpoints", self._completed)
                yield Measured("tick.failed_checkpoints", self._failed)
                yield from _checkpoint(event)
            case CheckpointFailed():
                self._failed += 1
                yield Measured("tick.failed_checkpoints", self._failed)
            case TickEnded():
                yield Measured("tick.completed_checkpoints", event.completed)
                yield Measured("tick.failed_checkpoints", event.failed)
                yield Measured("tick.ended_timestamp", event.at_ms / 1000)
                yield Measured("tick.duration", event.duration_ms / 1000)
                yield Measured("tick.restarts", event.restarts)
                for outcome in TickOutcome:
                    yield Measured("tick.outcome", int(outcome.value == event.outcome), (outcome.value,))
            case _:
                assert_never(event)


def _checkpoint(event: CheckpointPublished) -> Iterator[Measured]:
    yield Measured("checkpoint.id", event.checkpoint)
    yield Measured("checkpoint.completed_timestamp", event.committed_ms / 1000)
    yield Measured("checkpoint.duration", (event.committed_ms - event.triggered_ms) / 1000)
    yield Measured("checkpoint.rows", event.rows)
    unmet = sum(not each.success for suite in event.suites for each in suite.expectations)
    yield Measured("checkpoint.unmet_expectations", unmet)
    yield Measured("job.finished", int(event.finished))
    for table in event.tables:
        yield from _table(table, event.committed_ms)
    for vertex in event.vertices:
        yield from _vertex(vertex)


def _table(table: ReportedTable, committed_ms: int) -> Iterator[Measured]:
    of = (table.name,)
    if table.version is not None:
        yield Measured("table.version", table.version, of)
    match table.mode:
        case TableMode.APPEND:
            yield Measured("table.rows_added", table.rows, of)
        case TableMode.UPSERT | TableMode.OVERWRITE:
            yield Measured("table.rows", table.rows, of)
        case TableMode.STATE:
            pass
        case _:
            assert_never(table.mode)
    if table.complete_until_ms is not None:
        yield Measured("table.complete_until_timestamp", table.complete_until_ms / 1000, of)
        yield Measured("table.event_time_lag", (committed_ms - table.complete_until_ms) / 1000, of)


def _vertex(vertex: ReportedVertex) -> Iterator[Measured]:
    of = (vertex.name,)
    yield Measured("vertex.rows_in", vertex.rows_in, of)
    yield Measured("vertex.rows_out", vertex.rows_out, of)
    yield Measured("vertex.busy", vertex.busy_ms / 1000, of)
    yield Measured("vertex.alignment", vertex.alignment_ms / 1000, of)
    yield Measured("vertex.held", vertex.bytes_held, of)
    if vertex.watermark_ms is not None:
        yield Measured("vertex.watermark_timestamp", vertex.watermark_ms / 1000, of)
    if vertex.late_rows is not None:
        yield Measured("vertex.late_rows", vertex.late_rows, of)
