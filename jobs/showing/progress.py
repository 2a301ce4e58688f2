"""Adds up the progress events of a running tick. Arithmetic only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One completed checkpoint as the summary shows it.

    `took_ms` is the duration of its epoch in this tick: from the end of the epoch before, or from when the tick began
    to read, until its tables were published. None for a checkpoint that this tick only published.
    """

    checkpoint: CheckpointId
    rows: int
    took_ms: int | None
    alignment_ms: int
    bytes_held: int
    bytes_out: int
    versions: Mapping[TableName, int]
    notes: tuple[str, ...] = ()


def checkpoint_line(
    record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int], took_ms: int | None
) -> CheckpointLine:
    """Return a completed checkpoint's line."""
    life = record.statistics
    return CheckpointLine(
        checkpoint=record.checkpoint,
        rows=life.rows,
        took_ms=took_ms,
        alignment_ms=max((vertex.alignment_ms for vertex in life.vertices), default=0),
        bytes_held=sum(vertex.bytes_held for vertex in life.vertices),
        bytes_out=sum(vertex.bytes_out for vertex in life.vertices),
        versions=dict(versions),
        notes=notes,
    )


@dataclass(slots=True)
class Tally:
    """A tick so far. `rows_ahead` is how many rows the sources had when it began, None if that is unknown."""

    rows_ahead: int | None = None
    rows_read: int = 0
    rows_committed: int = 0
    micro_batches: int = 0
    lines: list[CheckpointLine] = field(default_factory=list)
    never_found: list[VertexId] = field(default_factory=list)
    """Sources that have found no file, in this tick or before."""

    @property
    def rows_open(self) -> int:
        """Rows that were read and that no completed checkpoint covers: the present epoch so far."""
        return max(self.rows_read - self.rows_committed, 0)

    def read(self, rows: int) -> None:
        """Add rows that a source sent. If they are more than announced, new rows have arrived."""
        self.rows_read += rows
        if self.rows_ahead is not None:
            self.rows_ahead = max(self.rows_ahead, self.rows_read)

    def completed(self, line: CheckpointLine) -> None:
        """Add a completed checkpoint."""
        self.lines.append(line)
        self.rows_committed += line.rows

    def restarted(self) -> None:
        """Subtract the rows that no completed checkpoint covers: the next attempt reads them again."""
        self.rows_read = min(self.rows_read, self.rows_committed)

    def rolled_forward(self, line: CheckpointLine) -> None:
        """Add a checkpoint that an older tick had committed. This tick reads none of its rows."""
        self.lines.append(line)
