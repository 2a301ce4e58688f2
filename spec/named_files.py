"""Lists the files that an entry needs, without the core's own list of them. A judge of deletions must not share it."""

from checkpointing.channel_items import StagedSegment
from checkpointing.metadata.record import CheckpointRecord


def named_files(record: CheckpointRecord) -> frozenset[str]:
    """Return the paths of state, ranges, staged files and files in flight, of files new in its tables, of manifests."""
    found = {file.path for table in record.tables for file in table.adds + table.files}
    found |= {each.into.path for table in record.tables for each in table.compactions}
    for subtask in (subtask for vertex in record.vertices for subtask in vertex.subtasks):
        found |= {keyed.file.path for keyed in subtask.state}
        found |= {keyed.file.path for own in subtask.ranges for keyed in own.files}
        found |= {staged.file.path for staged in subtask.staged}
        segments = (segment for held in subtask.in_flight for segment in held.segments)
        found |= {file.path for each in segments if isinstance(each, StagedSegment) for file in each.files}
    return frozenset(found).union(record.held_in)
