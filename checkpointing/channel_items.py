"""The items of a channel, in order: segments, barriers, cancel markers, the end (Flink: `BufferOrEvent`)."""

from dataclasses import dataclass
from enum import Enum

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, SplitId, VertexId


@dataclass(frozen=True, slots=True)
class SourceSlice:
    """A segment that describes rows of one split between two positions. It holds no rows.

    `start` and `end` are positions as canonical JSON. Only the source can interpret them. `detail` is JSON for the
    source's reader. `bytes` is an estimate that is used for credit only. `rows` is the number of rows,
    or an estimate of it if `rows_estimated` is set. A source that reads another job's cuts (A10) says which `cut` the
    slice leads to, and whether its end is `at_cut`. Such a slice may have no rows.
    """

    source: VertexId
    split: SplitId
    start: str
    end: str
    detail: str
    rows: int
    bytes: int
    rows_estimated: bool = False
    cut: str | None = None
    at_cut: bool = False


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment of files that a micro-batch of the upstream vertex wrote."""

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
    """How a barrier may pass a gate (Flink: `CheckpointOptions.AlignmentType`)."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    """Exactly once. The barrier is aligned, and turns unaligned after `Barrier.alignment_timeout_ms` if that is set."""
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"
    """A savepoint's barrier. It is always aligned, whatever the configuration says."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Barrier n. The rows before it belong to epochs <= n. `created_ms` is the time of its trigger."""

    checkpoint: CheckpointId
    created_ms: int = 0
    alignment: AlignmentType = AlignmentType.ALIGNED
    alignment_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CancelMarker:
    """Checkpoint n was cancelled upstream. No barrier n will come on this channel (`CancelCheckpointMarker`)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more rows come on this channel: the job is drained, or all its sources have ended (B4).

    Barriers may still come (Flink: `EndOfData`).
    """


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """Nothing more comes on this channel (Flink: `EndOfPartitionEvent`).

    No run reaches it: all tasks of a job finish together (B4).
    """


ChannelItem = Segment | Barrier | CancelMarker | EndOfData | EndOfChannel
