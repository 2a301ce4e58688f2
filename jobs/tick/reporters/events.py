"""The events that reporters get: checkpoints that completed or failed, and how the tick ended.

An event has only numbers and names that are also in the checkpoint's entry. Times are ms since the epoch, in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.completeness import complete_until_ms, late_rows
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexRecord, VertexStatistics
from jobs.operators.in_time.windows import LATE
from jobs.quality.verdict import Verdict, verdicts_in
from jobs.sources.position_words import positions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTable:
    """An output table at a checkpoint. `version` is the table's Delta version there, or None if it has none yet."""

    name: str
    vertex: str
    mode: TableMode
    version: int | None
    rows: int
    """For an append table, the rows that the checkpoint adds. For any other table, all rows of its files."""
    bytes: int
    """The bytes of the same files."""
    complete_until_ms: int | None = None
    """The event time up to which the table has all rows. None: it tracks no event time, or is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedVertex:
    """A source or an operator in the epoch that the checkpoint ends."""

    name: str
    rows_in: int
    rows_out: int
    bytes_out: int
    micro_batches: int
    busy_ms: int
    first_barrier_ms: int | None
    """When the first barrier reached the vertex. None: the vertex has no inputs."""
    aligned_ms: int
    acknowledged_ms: int
    bytes_held: int
    watermark_ms: int | None = None
    """The vertex's watermark. None: the vertex keeps no event time, has no rows yet, or its inputs have ended."""
    late_rows: int | None = None
    """The number of late rows. None: the vertex has no table of late rows."""

    @property
    def alignment_ms(self) -> int:
        """The time from the first barrier to the last."""
        return 0 if self.first_barrier_ms is None else max(0, self.aligned_ms - self.first_barrier_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """A checkpoint is complete, and every table shows it. `positions` say where each split of each source stands."""

    job: str
    warehouse: str
    generation: int
    checkpoint: int
    parent: int
    triggered_ms: int
    committed_ms: int
    rows: int
    """Rows that the sources sent in the epoch."""
    finished: bool
    """The job has read the end of all its sources."""
    tables: tuple[ReportedTable, ...]
    vertices: tuple[ReportedVertex, ...]
    positions: Mapping[tuple[str, str], str | None]
    suites: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint failed or was declined. Its rows belong to the next one, and no reader sees any of its changes."""

    job: str
    warehouse: str
    generation: int
    checkpoint: int
    reason: str
    message: str
    at_ms: int
    suites: tuple[Verdict, ...] = ()
    """The verdicts of the suites that were judged before the checkpoint failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickEnded:
    """A tick has ended. `outcome` is a value of `TickOutcome`. `reason` and `message` say why the tick failed."""

    job: str
    warehouse: str
    generation: int
    outcome: str
    reason: str
    message: str
    at_ms: int
    duration_ms: int
    completed: int
    failed: int
    restarts: int


Event = CheckpointPublished | CheckpointFailed | TickEnded


def completed_event(
    graph: JobGraph, warehouse: str, record: CheckpointRecord, versions: Mapping[TableName, int]
) -> CheckpointPublished:
    """Return the event of a completed checkpoint, from its entry and the Delta version of each table."""
    writers = {str(table.name): str(vertex.id) for vertex in graph.vertices for table in vertex.tables}
    late = {str(vertex): rows for vertex, rows in late_rows(record, LATE).items()}
    times = {str(vertex.vertex): vertex for vertex in record.vertices}
    return CheckpointPublished(
        job=record.job,
        warehouse=warehouse,
        generation=record.generation,
        checkpoint=record.checkpoint,
        parent=record.parent,
        triggered_ms=record.statistics.triggered_ms,
        committed_ms=record.statistics.committed_ms,
        rows=record.statistics.rows,
        finished=record.finished,
        tables=tuple(_table(record, each, writers, versions) for each in record.tables),
        vertices=tuple(
            _vertex(each, times.get(str(each.vertex)), late.get(str(each.vertex)))
            for each in record.statistics.vertices
        ),
        positions={(str(source), str(split)): at for (source, split), at in positions_of(record).items()},
        suites=verdicts_in(record.statistics.verdicts),
    )


def _table(
    record: CheckpointRecord, table: TableRecord, writers: Mapping[str, str], versions: Mapping[TableName, int]
) -> ReportedTable:
    until_ms = complete_until_ms(record, table.table)
    files = table.adds if table.mode is TableMode.APPEND else table.files
    return ReportedTable(
        name=table.table,
        vertex=writers.get(table.table, ""),
        mode=table.mode,
        version=versions.get(table.table),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        complete_until_ms=None if until_ms == END_OF_TIME else until_ms,
    )


def _vertex(measured: VertexStatistics, cut: VertexRecord | None, late: int | None) -> ReportedVertex:
    time = None if cut is None else cut.time
    known = time is not None and time.watermark_ms not in (BEFORE_TIME, END_OF_TIME)
    return ReportedVertex(
        name=measured.vertex,
        rows_in=measured.rows_in,
        rows_out=measured.rows_out,
        bytes_out=measured.bytes_out,
        micro_batches=measured.micro_batches,
        busy_ms=measured.busy_ms,
        first_barrier_ms=min((each.at_ms for each in measured.barriers), default=None),
        aligned_ms=measured.aligned_ms,
        acknowledged_ms=measured.acknowledged_ms,
        bytes_held=measured.bytes_held,
        watermark_ms=time.watermark_ms if known and time is not None else None,
        late_rows=late,
    )
