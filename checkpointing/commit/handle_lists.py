"""Goes through the lists of keyed files in an entry: each subtask's state, and each of its ranges of upserts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from checkpointing.handles import KeyedFile
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot

Forms = Mapping[VertexId, Sequence[SubtaskSnapshot | None]]
"""Per vertex, the stored form of each subtask that needs no other one, and None for each of the others."""


class HandleList(NamedTuple):
    """Names one list of files in an entry: a subtask's state (`part` 0), or its n-th range of upserts (`part` n)."""

    vertex: VertexId
    subtask: int
    part: int


def count_files(snapshot: SubtaskSnapshot) -> int:
    """Return how many keyed files a subtask has."""
    there = len(snapshot.state)
    return there + sum(len(ranges.files) for ranges in snapshot.ranges) if snapshot.ranges else there


def beside(vertex: VertexRecord, forms: Forms) -> Iterator[tuple[SubtaskSnapshot, SubtaskSnapshot | None]]:
    """Yield each subtask of a vertex with its form, or with None."""
    return zip(vertex.subtasks, chain(forms.get(vertex.vertex, ()), repeat(None)), strict=False)


def lists_in(record: CheckpointRecord, without: Forms) -> Iterator[tuple[HandleList, tuple[KeyedFile, ...]]]:
    """Yield the lists of an entry that are not empty, but those of some subtasks."""
    for vertex in record.vertices:
        for subtask, (snapshot, bare) in enumerate(beside(vertex, without)):
            if bare is None:
                for part, files in enumerate(_files_of(snapshot)):
                    if files:
                        yield HandleList(vertex.vertex, subtask, part), files


def _files_of(snapshot: SubtaskSnapshot) -> Iterator[tuple[KeyedFile, ...]]:
    yield snapshot.state
    for ranges in snapshot.ranges:
        yield ranges.files


def places_in(entry: CheckpointRecord) -> Iterator[HandleList]:
    """Yield the names of all lists of an entry, also of empty ones."""
    for vertex in entry.vertices:
        for subtask, snapshot in enumerate(vertex.subtasks):
            for part in range(len(snapshot.ranges) + 1):
                yield HandleList(vertex.vertex, subtask, part)
