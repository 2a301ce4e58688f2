"""Decides what renamed columns change in a restored state or table, and which renames are refused (G2).

The columns of a file or table show whether a rename is due: the old name is there and the new one is missing. So a
rename that has happened has no further effect, and a rollback to a cut with the old name makes it due again. Entries
list the renames for one reason only: pipeline code from before a rename must not begin such a column empty.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from checkpointing.columns import columns_then
from checkpointing.graph import JobGraph, TableMode, Vertex
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind
from checkpointing.state_evolution import Change, ChangeKind


@dataclass(frozen=True, slots=True)
class ColumnRenames:
    """From new to old column names of one vertex: `now` from the pipeline, `of_cut` from the cut."""

    now: Mapping[str, str]
    of_cut: Mapping[str, str]


def column_renames(vertex: Vertex, restored: CheckpointRecord) -> ColumnRenames:
    """Return the renames of a vertex's columns: the pipeline's, and those that the restored cut's pipeline declared."""
    of_cut = (one for one in restored.renames if one.kind is RenameKind.COLUMN and one.vertex == vertex.id)
    return ColumnRenames(vertex.columns_renamed_from, {one.now: one.was for one in of_cut})


def renamed_columns(
    kind: ChangeKind,
    thing: str,
    now: Collection[str],
    then: Collection[str],
    renames: ColumnRenames,
    *,
    becomes: str = "",
) -> Iterator[Change]:
    """Yield the column renames that are due for a state or table with the columns `then`, and the refused renames.

    `becomes` says what a rename does, if it does not only keep the column's values.
    """
    due, becomes = columns_then(now, then, renames.now), becomes or "renamed, with its values"
    for new, old in due.items():
        yield Change(kind=kind, thing=thing, column=new, was=old, now=new, becomes=becomes)
    dropped = [name for name in then if name not in now and name not in due.values()]
    for new, old in renames.now.items():
        refused = ""
        if new in now and new in then and old in then:
            refused = (
                f"it has both columns already. Leave out the rename, and {new} keeps its own values while {old} is "
                f"dropped. Or take another name for what was {old}"
            )
        elif new in now and new not in then and old not in then and dropped:
            refused = (
                f"it has neither of them, and {dropped[0]} would be dropped. If {new} is {dropped[0]}, say that it was "
                f"renamed from {dropped[0]!r}. Leave out the rename if {new} is a new column"
            )
        if refused:
            yield Change(kind=kind, thing=thing, column=new, was=old, now=new, refused=refused)
    for old, new in columns_then(now, then, {was: now for now, was in renames.of_cut.items()}).items():
        if old not in renames.now and new not in now:
            refused = (
                f"the checkpoint's pipeline renamed {old} to {new}, and this one does not say that it renames it back: "
                f"{old} would begin empty. Run the version with {new}, or say that {old} was renamed from {new!r}. "
                "If it is another column, take another name"
            )
            yield Change(kind=kind, thing=thing, column=old, was=new, now=old, refused=refused)


def unrenamable(thing: str, now: Collection[str], then: Collection[str], renames: ColumnRenames) -> Iterator[Change]:
    """Yield the column renames that are due for an overwrite table with the columns `then`. All of them are refused."""
    for new, old in columns_then(now, then, renames.now).items():
        refused = (
            f"an overwrite table keeps its files, which have the name {old}, and its readers find columns by name. "
            f"Keep the name {old}. Or leave out the rename: then {new} is a new column beside {old}, and state of that "
            "name begins empty. Or write a table of another name, and leave this one behind with "
            "--allow-non-restored-state"
        )
        kind = ChangeKind.TABLE_SCHEMA
        yield Change(kind=kind, thing=thing, column=new, was=old, now=new, refused=refused)


# ------------------------------------------------------------------
# The renames that a pipeline declares with `renamed_from=`, and which of them are unclear (G2).


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

    The answer depends on no checkpoint. Renames of columns are checked elsewhere, where the columns are named.
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
