"""Says what the vertex whose direct output a stream is may still do: write a table, or have its table described."""

from checkpointing.graph import TableMode
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.vertices import Declared, KeyedVertex, OutputTable, SourceVertex, StagedVertex


def with_table(vertex: Declared | None, where: str) -> tuple[StagedVertex | KeyedVertex, OutputTable]:
    """Return the vertex and its table. Raise InvalidPipelineError, whose message begins with `where`, without one."""
    if vertex is None or isinstance(vertex, SourceVertex) or vertex.table is None:
        raise InvalidPipelineError(f"{where}; write it right after table(...)")
    return vertex, vertex.table


def with_append_table(vertex: Declared, steps: int, output: str | None) -> tuple[StagedVertex | KeyedVertex, str]:
    """Return a vertex that writes an append table or a quarantine, and the table's name.

    The stream has so many steps after the vertex: `check_rows` adds one. Raises InvalidPipelineError without a table,
    and for an upsert table.
    """
    way_out = "change_columns: write it right after table(...) or check_rows(...)"
    if isinstance(vertex, SourceVertex) or output is not None:
        raise InvalidPipelineError(way_out)
    check = vertex.check if isinstance(vertex, StagedVertex) else None
    if steps > (1 if check is not None else 0) or (vertex.table is None and check is None):
        raise InvalidPipelineError(way_out)
    if vertex.table is not None and vertex.table.mode is not TableMode.APPEND:
        raise InvalidPipelineError(
            f"change_columns: {vertex.table.name} is no append table. The columns of an upsert table follow the "
            "pipeline anyway: give the old name of a column where it is named, as in count(renamed_from=...). Those of "
            "an overwrite table stay"
        )
    return vertex, vertex.table.name if vertex.table is not None else check.quarantine if check is not None else ""


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
