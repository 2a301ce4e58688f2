"""The renames that a pipeline declares with `renamed_from=`, and which of them are unclear (G2)."""

from checkpointing.graph import JobGraph, TableMode
from checkpointing.metadata.record import Rename, RenameKind


def declared_renames(graph: JobGraph) -> tuple[Rename, ...]:
    """Return the renames that a pipeline declares. A state table's rename follows from its vertex's."""
    vertices = (
        Rename(kind=RenameKind.VERTEX, was=vertex.renamed_from, now=vertex.id)
        for vertex in graph.vertices
        if vertex.renamed_from is not None
    )
    tables = (
        Rename(kind=RenameKind.TABLE, was=table.renamed_from, now=table.name)
        for table in graph.tables()
        if table.renamed_from is not None and table.mode is not TableMode.STATE
    )
    columns = (
        Rename(kind=RenameKind.COLUMN, was=was, now=now, vertex=vertex.id)
        for vertex in graph.vertices
        for now, was in vertex.columns_renamed_from.items()
    )
    return (*vertices, *tables, *columns)


def unclear_rename(graph: JobGraph) -> str | None:
    """Return why one of the declared renames of vertices and tables is unclear, or None.

    This depends on no checkpoint. A column's rename is checked where the column is named.
    """
    names = {
        RenameKind.VERTEX: {str(vertex.id) for vertex in graph.vertices},
        RenameKind.TABLE: {str(table.name) for table in graph.tables()},
    }
    declared = [rename for rename in declared_renames(graph) if rename.kind in names]
    for rename in declared:
        kind, was, now = rename.kind.value, rename.was, rename.now
        if was == now:
            return f"{kind} {now}: renamed_from={was!r} is its own name; leave it out"
        twin = next((one for one in declared if one.was == was and one.kind is rename.kind and one != rename), None)
        if twin is not None:
            return (
                f"{kind} {now} and {kind} {twin.now} are both renamed_from={was!r}; only one of them can have been it"
            )
        moves_on = any(one.now == was and one.kind is rename.kind for one in declared)
        if was in names[rename.kind] and not moves_on:
            return (
                f"{kind} {now} is renamed_from={was!r}, and the pipeline still has a {kind} {was}: leave renamed_from= "
                f"out if {now} is a new one, or say with renamed_from= which one {was} was before"
            )
    return None
