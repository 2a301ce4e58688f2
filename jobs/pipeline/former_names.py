"""Checks the former names of vertices, tables and columns, given with `renamed_from=` (G2)."""

from collections.abc import Collection, Mapping

from checkpointing.identifiers import TableName, VertexId, column_name, table_name, vertex_id
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


def former_columns(
    where: str, keys: Collection[str], columns: Collection[str], renamed: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the old names of renamed columns by the new ones; `columns` are the vertex's columns besides its `keys`.

    Raises InvalidNameError for an invalid name, and InvalidPipelineError for a rename that can mean nothing.
    """
    for new, old in renamed.items():
        said = f"{where}: column {new} is renamed from {column_name(old)!r}"
        require_no_key(said, keys, new)
        if new not in columns:
            raise InvalidPipelineError(f"{said}, and there is no column {new!r}; there are {', '.join(columns)}")
        if new == old:
            raise InvalidPipelineError(f"{said}, which is its own name; leave the rename out")
        if old in renamed:
            raise InvalidPipelineError(
                f"{said}, and {old} is renamed from {renamed[old]!r}: columns cannot pass on their names at once. "
                "Take a name that is free, or rename one of them first, and the other one after the next checkpoint"
            )
        if old in keys or old in columns:
            raise InvalidPipelineError(
                f"{said}, and there still is a column {old}: leave the rename out if {new} is a new one, or take "
                f"another name for {old}"
            )
        twin = next((other for other, before in renamed.items() if before == old and other != new), None)
        if twin is not None:
            raise InvalidPipelineError(f"{said}, and {twin} too; only one of them can have been it")
    return dict(renamed)


def require_no_key(said: str, keys: Collection[str], renamed: str) -> None:
    """Raise InvalidPipelineError if a renamed column is a key; `said` names it and its old name."""
    if renamed in keys:
        raise InvalidPipelineError(
            f"{said}, and it is a key, which keeps its name: key the rows as before, and rename the column where you "
            "read it. Or begin without state under another id"
        )
