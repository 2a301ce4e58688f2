"""What a subtask hands over at a barrier: references to everything that its part of the cut needs."""

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
    """Segments in flight on a channel at an unaligned barrier, in order."""

    channel: ChannelId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSnapshot:
    """The snapshot of one subtask; what does not apply to its kind of vertex is empty.

    `position` is a source's position (canonical JSON); `state` the live state files, oldest first;
    `ranges` the upsert tables' current files; `staged` the append tables' files that no completed
    checkpoint known to this subtask has published.
    """

    position: str | None = None
    finished: bool = False
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    in_flight: tuple[ChannelState, ...] = ()
