"""Says what the vertex whose direct output a stream is may still do: write a table, or have its table described."""

from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.vertices import Declared, KeyedVertex, OutputTable, SourceVertex, StagedVertex


def with_table(vertex: Declared | None, where: str) -> tuple[StagedVertex | KeyedVertex, OutputTable]:
    """Return the vertex and its table. Raise InvalidPipelineError, whose message begins with `where`, without one."""
    if vertex is None or isinstance(vertex, SourceVertex) or vertex.table is None:
        raise InvalidPipelineError(f"{where}; write it right after table(...)")
    return vertex, vertex.table


def unkept_keyed_vertex(vertex: Declared | None) -> KeyedVertex | None:
    """Return the vertex if it is keyed and writes no table yet."""
    if vertex is None or isinstance(vertex, SourceVertex | StagedVertex) or vertex.table is not None:
        return None
    return vertex


def unkept_union(vertex: Declared | None) -> StagedVertex | None:
    """Return the vertex if it is a union and writes no table yet."""
    if isinstance(vertex, StagedVertex) and len(vertex.inputs) > 1 and vertex.table is None:
        return vertex
    return None
