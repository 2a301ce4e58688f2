"""Computes which parts of an operator's state files are valid at a cut, from handles and key groups alone.

A file is written for a range of key groups. A later base replaces older files in its key groups. After a change of
parallelism a file's range may be wider than the subtask's. So one or more slices of a file's range are valid. Of the
rows of a key in these slices, the newest one is valid. A reader needs to know nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind
from checkpointing.identifiers import JobName, VertexId
from checkpointing.job.restoring import in_flight
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class StateSlice:
    """The rows of one file that are still valid: the rows of the key groups first..last, both included.

    If two slices hold a key, the slice with the greater `age_rank` is newer. `whole` means that the file has no other
    rows.
    """

    file: FileHandle
    kind: KeyedFileKind
    first: int
    last: int
    age_rank: int
    whole: bool


def state_slices(record: CheckpointRecord, operator: VertexId) -> tuple[StateSlice, ...]:
    """Return the slices of an operator's state that are valid at a checkpoint, oldest first (D3, D4).

    The broadcast state of an operator has a name of its own (`broadcast_of`). Its files are valid as a whole.
    """
    shared = _broadcast_files(record, operator)
    if shared:
        return tuple(
            StateSlice(each.file, each.kind, each.first_key_group, each.last_key_group, 0, whole=True)
            for each in shared
        )
    subtasks = next((vertex.subtasks for vertex in record.vertices if vertex.vertex == operator), ())
    if not subtasks:
        return ()
    owned = key_group_ranges(parallelism=len(subtasks), max_parallelism=record.max_parallelism)
    every = [each for own, subtask in zip(owned, subtasks, strict=True) for each in slices_of(own, subtask.state)]
    return tuple(sorted(every, key=lambda each: (each.age_rank, each.first)))


def _broadcast_files(record: CheckpointRecord, name: VertexId) -> tuple[KeyedFile, ...]:
    """Return the files of the broadcast state of this name. All subtasks hold the same files (D1)."""
    table = table_of_state(JobName(record.job), name)
    ranges = (entry for vertex in record.vertices for snapshot in vertex.subtasks for entry in snapshot.ranges)
    return next((entry.files for entry in ranges if entry.table == table), ())


def slices_of(own: KeyGroupRange, files: Sequence[KeyedFile]) -> Iterator[StateSlice]:
    """Yield the valid slices of a subtask's files in its own range, newest first. `files` has the oldest file first."""
    left: tuple[KeyGroupRange, ...] = (own,)
    for age_rank in range(len(files) - 1, -1, -1):
        keyed = files[age_rank]
        written = keyed.key_groups
        for part in left:
            common = part.intersection(written)
            if common is not None:
                yield StateSlice(keyed.file, keyed.kind, common.first, common.last, age_rank, common == written)
        if keyed.kind is KeyedFileKind.BASE:
            left = tuple(rest for part in left for rest in without(part, written))


def without(part: KeyGroupRange, taken: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Yield what is left of a range, in order: nothing, one range, or a range on either side."""
    if taken.last < part.first or part.last < taken.first:
        yield part
        return
    if part.first < taken.first:
        yield KeyGroupRange(first=part.first, last=taken.first - 1)
    if taken.last < part.last:
        yield KeyGroupRange(first=taken.last + 1, last=part.last)


def files_of(slices: Iterable[StateSlice]) -> tuple[FileHandle, ...]:
    """Return the files of these slices, each once, in order."""
    return tuple(dict.fromkeys(each.file for each in slices))


def rows_on_their_way(record: CheckpointRecord, operator: VertexId) -> int:
    """Return how many rows were in flight to the operator in an unaligned checkpoint (C5)."""
    return sum(segment.rows for channel, segment in in_flight(record) if channel.edge.downstream == operator)
