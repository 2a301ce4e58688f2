"""What a subtask hands over at a barrier: references to all files and positions that its part of the cut needs."""

from dataclasses import dataclass

from checkpointing.channel_items import Segment
from checkpointing.handles import KeyedFile, StagedFile
from checkpointing.identifiers import ChannelId, TableName


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
    ended, or its vertex has processed all input and emitted what it held back (B4). `state` has the live state files,
    oldest first. `ranges` has the upsert tables' current files. `staged` has the append tables' files that are in no
    checkpoint known to be complete.
    """

    position: str | None = None
    finished: bool = False
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    in_flight: tuple[ChannelState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """What the Spark tasks of one subtask measured during a micro-batch, each inside itself (E6).

    `task_ms`: from a task's first row to its report. `sync_ms`: the part of it in which the task wrote files, and so
    took in no row. `rows`: the rows that it received. The numbers of several tasks are added.
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
