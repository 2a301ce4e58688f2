"""What travels on a channel, in order: segments, barriers, cancel markers, the end (Flink: `BufferOrEvent`)."""

from dataclasses import dataclass
from enum import Enum

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, SplitId, VertexId


@dataclass(frozen=True, slots=True)
class SourceSlice:
    """A lazy segment: rows of one split between two positions. Describes rows, holds none.

    `start` and `end` are positions as canonical JSON text, meaningful to the source alone; `detail`
    is what its reader needs, JSON text too. `bytes` is an estimate, used for credit only.
    """

    source: VertexId
    split: SplitId
    start: str
    end: str
    detail: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A materialised segment: files that a micro-batch of the upstream vertex wrote."""

    files: tuple[FileHandle, ...]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


Segment = SourceSlice | StagedSegment


class AlignmentType(Enum):
    """How a barrier may pass (Flink: `CheckpointOptions.AlignmentType`)."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    """Exactly once, aligned; turns unaligned after `Barrier.alignment_timeout_ms` if that is set."""
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"
    """A savepoint: aligned whatever the configuration, never turned."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Barrier n: the records before it belong to epochs <= n. `created_ms` is its trigger's time."""

    checkpoint: CheckpointId
    created_ms: int = 0
    alignment: AlignmentType = AlignmentType.ALIGNED
    alignment_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CancelMarker:
    """Checkpoint n is cancelled upstream; no barrier n will come on this channel (`CancelCheckpointMarker`)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No rows follow on this channel, barriers may: the job is drained (Flink: `EndOfData` with `StopMode.DRAIN`)."""


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """Nothing follows on this channel (Flink: `EndOfPartitionEvent`). No run reaches it yet: it waits for B4."""


ChannelItem = Segment | Barrier | CancelMarker | EndOfData | EndOfChannel
