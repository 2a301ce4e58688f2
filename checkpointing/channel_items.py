"""The items of a channel, in order: segments, barriers, cancel markers, the end (Flink: `BufferOrEvent`)."""

from dataclasses import dataclass
from enum import Enum

from checkpointing.handles import FileHandle, KeyedFile, StagedFile
from checkpointing.identifiers import ChannelId, CheckpointId, SplitId, TableName, VertexId


@dataclass(frozen=True, slots=True)
class SourceSlice:
    """A segment that describes rows of one split between two positions. It holds no rows.

    `start` and `end` are positions as canonical JSON. Only the source can interpret them. `detail` is JSON for the
    source's reader. `bytes` is an estimate that is used for credit only. `rows` is the number of rows, or an estimate
    of it if `rows_estimated` is set. A source that reads another job's cuts (A10) says which `cut` the slice leads to,
    and whether its end is `at_cut`. Such a slice may have no rows. `offered_ms` is the clock when the source offered
    the slice. An event cannot have happened much later than that (N1).
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
    offered_ms: int = 0


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
    """Barrier n. The rows before it belong to epochs <= n. `created_ms` is the time of its trigger.

    It carries how far in event time its sender is (N1). Only the vertices that read a split know its rows' times. So a
    source sends no watermark before a split has ended. Then it sends the end of time. An `idle` sender is a split that
    had nothing to read, or a vertex whose channels are all idle. A split that `waits` for an earlier part of its source
    holds nobody back.
    """

    checkpoint: CheckpointId
    created_ms: int = 0
    alignment: AlignmentType = AlignmentType.ALIGNED
    alignment_timeout_ms: int | None = None
    watermark_ms: int = -(2**63)
    idle: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class CancelMarker:
    """Checkpoint n was cancelled upstream. No barrier n will come on this channel (`CancelCheckpointMarker`)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more rows come on this channel: the job is drained, or all its sources have ended (B4).

    Barriers may still follow (Flink: `EndOfData`).
    """


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """Nothing more comes on this channel (Flink: `EndOfPartitionEvent`).

    No run reaches it, because all tasks of a job finish together (C3).
    """


ChannelItem = Segment | Barrier | CancelMarker | EndOfData | EndOfChannel


# ------------------------------------------------------------------
# What a subtask hands over at a barrier: references to all files and positions that its part of the cut needs.


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """The current files of one upsert table in one subtask's range of key groups."""

    table: TableName
    files: tuple[KeyedFile, ...]


@dataclass(frozen=True, slots=True)
class ChannelState:
    """The segments in flight on a channel at an unaligned barrier, in order."""

    channel: ChannelId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSnapshot:
    """The snapshot of one subtask. Fields that do not apply to its kind of vertex are empty.

    `position` is a source's position (canonical JSON). A subtask that is `finished` has no row left: its split has
    ended, or its vertex has processed all input and emitted the rows that it held back (B4). `state` has the live state
    files, oldest first. `ranges` has the upsert tables' current files. `staged` has those files of append tables that
    belong to no checkpoint known to be complete. Nothing in the state is due before the event time `due_ms`. None:
    nothing in the state is ever due.
    """

    position: str | None = None
    finished: bool = False
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    in_flight: tuple[ChannelState, ...] = ()
    due_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """What the Spark tasks of one subtask measured during a micro-batch. Each task measures itself (E6).

    `task_ms`: the time from a task's first row to its report. `sync_ms`: the part of `task_ms` in which the task wrote
    files, and so took in no row. `rows`: the rows that it received. The numbers of several tasks are added.
    """

    task_ms: int = 0
    sync_ms: int = 0
    rows: int = 0

    def __add__(self, other: "TaskWork") -> "TaskWork":
        """Add the work of another task of the subtask."""
        return TaskWork(
            task_ms=self.task_ms + other.task_ms, sync_ms=self.sync_ms + other.sync_ms, rows=self.rows + other.rows
        )


NO_WORK = TaskWork()
"""The work of a subtask that received no row."""
