"""Lets a source that was read alone go on as the first part of a source with parts (B4).

The cut names the splits of a source that was read alone as that source does: `berlin`. In a source with parts, the same
split is `1.berlin`. The invariant is: **the first part gets the names, and nothing else changes.** Each split keeps its
position, its rows in flight, and whether it has ended. A cut in which the source had parts already stays as it is.

No entry says whether a source had parts. The names of the splits tell it: without parts, none begins as a part does.
A first part that has such a split is refused (`jobs.sources.hybrid.Part`).
"""

from collections.abc import Mapping
from dataclasses import replace

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.graph import JobGraph
from checkpointing.identifiers import VertexId, split_id
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot

Parts = Mapping[VertexId, tuple[str, ...]]
"""What the names of the splits of each source begin with, part by part. Sources without parts may be missing."""


def parts_of(graph: JobGraph) -> Parts:
    """Return the parts of each source of a pipeline."""
    return {source.id: source.parts for source in graph.sources()}


def read_alone(record: CheckpointRecord, parts: Parts) -> tuple[VertexId, ...]:
    """Return the sources that have parts now, and that had none at the cut."""
    return tuple(
        was.vertex
        for was in record.vertices
        if was.splits and parts.get(was.vertex)
        if not any(split.startswith(parts[was.vertex]) for split in was.splits)
    )


def in_first_part(record: CheckpointRecord, parts: Parts) -> CheckpointRecord:
    """Return the cut with the splits of each source that was read alone under their names in its first part."""
    begins = {vertex: parts[vertex][0] for vertex in read_alone(record, parts)}
    if not begins:
        return record
    return record.model_copy(update={"vertices": tuple(_vertex(was, begins) for was in record.vertices)})


def _vertex(was: VertexRecord, begins: Mapping[VertexId, str]) -> VertexRecord:
    begin = begins.get(was.vertex, "")
    return was.model_copy(
        update={
            "splits": tuple(f"{begin}{split}" for split in was.splits),
            "subtasks": tuple(_snapshot(each, begins) for each in was.subtasks),
        }
    )


def _snapshot(snapshot: SubtaskSnapshot, begins: Mapping[VertexId, str]) -> SubtaskSnapshot:
    held = tuple(
        replace(each, segments=tuple(_segment(segment, begins) for segment in each.segments))
        for each in snapshot.in_flight
    )
    return replace(snapshot, in_flight=held)


def _segment(segment: Segment, begins: Mapping[VertexId, str]) -> Segment:
    if not isinstance(segment, SourceSlice):
        return segment
    return replace(segment, split=split_id(f"{begins.get(segment.source, '')}{segment.split}"))
