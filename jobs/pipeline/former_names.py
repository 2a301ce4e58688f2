"""What vertices and tables were called before, as a pipeline says it with `renamed_from=` (G2)."""

from checkpointing.identifiers import TableName, VertexId, table_name, vertex_id
from jobs.pipeline.failures import InvalidPipelineError


def former_id(renamed_from: str | None) -> VertexId | None:
    """Return the id that a vertex had before, None if it was not renamed; raise InvalidNameError for no such id."""
    return None if renamed_from is None else vertex_id(renamed_from)


def former_table(renamed_from: str | None) -> TableName | None:
    """Return the name that a table had before, None if it was not renamed; raise InvalidNameError for no such name."""
    return None if renamed_from is None else table_name(renamed_from)


def require_id_of_its_own(where: str, id: str | None, id_renamed_from: str | None) -> None:  # noqa: A002 - its name
    """Raise InvalidPipelineError if `id_renamed_from` is said of a vertex that got its id elsewhere."""
    if id is None and id_renamed_from is not None:
        raise InvalidPipelineError(
            f"{where}: id_renamed_from={id_renamed_from!r} belongs to id=, and there is none; say renamed_from= where "
            "the vertex that writes it gets its id"
        )
