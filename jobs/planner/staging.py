"""Lets several readers of one source see the same rows, by writing the rows to files once.

A source's slices are lazy, so each reader would run its own query. If a source has several readers, a new vertex
runs the steps that all of them begin with, and writes the rows to files for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from checkpointing.identifiers import VertexId, vertex_id
from jobs.pipeline.vertices import Declared, Input, SourceVertex, StagedVertex, Step, inputs_of

SUFFIX = "_staged"


def stage_shared_sources(vertices: Sequence[Declared]) -> tuple[Declared, ...]:
    """Return the vertices with a staging vertex `<source>_staged` after each source of several readers."""
    staged = {
        vertex.id: _staging_vertex(vertex, readers)
        for vertex in vertices
        if isinstance(vertex, SourceVertex) and len(readers := list(_readers(vertices, vertex.id))) > 1
    }
    return tuple(after for vertex in vertices for after in _rewired(vertex, staged))


def _readers(vertices: Sequence[Declared], source: VertexId) -> Iterator[Input]:
    return (reads for vertex in vertices for reads in inputs_of(vertex) if reads.origin == source)


def _staging_vertex(source: SourceVertex, readers: Sequence[Input]) -> StagedVertex:
    shared = _common(readers)
    rows = shared[-1].schema if shared else source.rows
    before = None if source.renamed_from is None else vertex_id(f"{source.renamed_from}{SUFFIX}")
    inputs = (Input(source.id, shared, rows),)
    return StagedVertex(vertex_id(f"{source.id}{SUFFIX}"), inputs, rows, renamed_from=before)


def _common(readers: Sequence[Input]) -> tuple[Step, ...]:
    """Return the steps that all readers begin with."""
    shared = []
    for steps in zip(*(reads.steps for reads in readers), strict=False):
        if any(step is not steps[0] for step in steps):
            break
        shared.append(steps[0])
    return tuple(shared)


def _rewired(vertex: Declared, staged: dict[VertexId, StagedVertex]) -> Iterator[Declared]:
    if isinstance(vertex, SourceVertex):
        yield vertex
        if vertex.id in staged:
            yield staged[vertex.id]
    else:
        yield replace(vertex, inputs=tuple(_reading(reads, staged.get(reads.origin)) for reads in vertex.inputs))


def _reading(reads: Input, staging: StagedVertex | None) -> Input:
    if staging is None:
        return reads
    return replace(reads, origin=staging.id, steps=reads.steps[len(staging.inputs[0].steps) :])
