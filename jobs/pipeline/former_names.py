"""Checks the former names of vertices and tables, given with `renamed_from=` (G2)."""

from checkpointing.identifiers import TableName, VertexId, table_name, vertex_id
from jobs.pipeline.failures import InvalidPipelineError


def former_id(renamed_from: str | None) -> VertexId | None:
    """Return the former id of a vertex, None if it was not renamed; raise InvalidNameError for an invalid id."""
    return None if renamed_from is None else vertex_id(renamed_from)


def former_table(renamed_from: str | None) -> TableName | None:
    """Return the former name of a table, None if it was not renamed; raise InvalidNameError for an invalid name."""
    return None if renamed_from is None else table_name(renamed_from)


def require_id_of_its_own(where: str, id: str | None, id_renamed_from: str | None) -> None:  # noqa: A002 - its name
    """Raise InvalidPipelineError if `id_renamed_from` is given where the vertex does not get its id."""
    if id is None and id_renamed_from is not None:
        raise InvalidPipelineError(
            f"{where}: id_renamed_from={id_renamed_from!r} belongs to id=, and there is none; say renamed_from= where "
            "the vertex that writes it gets its id"
        )
