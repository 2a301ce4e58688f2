"""Lists the files that an entry of `checkpoints` names.

These files must exist as long as the entry does, and a copy of the entry includes them.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.channel_items import StagedSegment, SubtaskSnapshot
from checkpointing.handles import FileHandle
from checkpointing.metadata.record import CheckpointRecord


def handles_of(record: CheckpointRecord) -> Iterator[FileHandle]:
    """Yield every file that the entry names: state, ranges, staged, in flight, of tables, successors of erased files.

    Some come twice.
    """
    for vertex in record.vertices:
        for snapshot in vertex.subtasks:
            yield from handles_of_snapshot(snapshot)
    for table in record.tables:
        yield from (*table.adds, *table.files, *(each.into for each in table.compactions))
    yield from (each.into for each in record.erased if each.into is not None)


def handles_to_restore(record: CheckpointRecord) -> Iterator[FileHandle]:
    """Yield the files that a tick needs to begin from the entry: state, ranges, in flight. Some files come twice."""
    for vertex in record.vertices:
        for snapshot in vertex.subtasks:
            yield from handles_of_snapshot(replace(snapshot, staged=()))


def files_of(record: CheckpointRecord) -> frozenset[str]:
    """Return the warehouse-relative paths of all files that the entry names, and of the manifests that hold them."""
    return frozenset(file.path for file in handles_of(record)).union(record.held_in)


def handles_of_snapshot(snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
    """Yield the files that a subtask's snapshot names."""
    yield from (keyed.file for keyed in snapshot.state)
    yield from (keyed.file for ranges in snapshot.ranges for keyed in ranges.files)
    yield from (staged.file for staged in snapshot.staged)
    for held in snapshot.in_flight:
        for segment in held.segments:
            if isinstance(segment, StagedSegment):
                yield from segment.files
