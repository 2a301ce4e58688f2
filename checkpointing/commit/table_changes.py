"""Says how an upsert or state table changes when a checkpoint is published.

An entry names every live file of such a table. There may be many, and most were live at the parent's cut too. So a
publication names the files that changed since that cut, and the version at which the table showed the cut. If the table
is still at that version, nothing else is looked at. The invariant: with or without these changes, the table's active
files become exactly the publication's files.
"""

from collections.abc import Collection
from dataclasses import replace
from operator import attrgetter
from typing import Final

from checkpointing.commit.live_files import each_changed, is_split, lists_of
from checkpointing.commit.recovery import publications
from checkpointing.graph import JobGraph, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from checkpointing.messages import FileChanges, Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind

_PATH: Final = attrgetter("path")


def with_changes(
    graph: JobGraph, record: CheckpointRecord, parent: CheckpointRecord | None, renamed: Collection[TableName]
) -> tuple[Publication, ...]:
    """Return the publications of an entry. Those that can be compared with the parent's cut say what changed since.

    A table can be compared if the parent published it and no two subtasks share one of its files, at both cuts. They
    may share files after a change of parallelism. A table in `renamed` shows the parent's cut under its old name.
    """
    if parent is None or parent.kind is not RowKind.CHECKPOINT:
        return publications(record)
    now, before = ({vertex.vertex: vertex for vertex in each.vertices} for each in (record, parent))
    shown = {each.table: each.files for each in parent.tables if each.table not in renamed}
    says = {each.table: each for each in record.tables}
    changes: dict[TableName, FileChanges] = {}
    for vertex in (each for each in graph.operators() if each.id in before):
        for table in (each for each in vertex.tables if each.mode is not TableMode.APPEND and each.name in shown):
            said = says.get(table.name)
            lists, were = lists_of(table, now[vertex.id]), lists_of(table, before[vertex.id])
            if said is not None and is_split(said.files, lists) and is_split(shown[table.name], were):
                changes[table.name] = FileChanges(said.parent_version, *each_changed(lists, were))
    return tuple(replace(each, changes=changes.get(each.table)) for each in publications(record))


def changes_at(
    publication: Publication, version: int, active: set[str] | frozenset[str]
) -> tuple[list[FileHandle], set[str] | frozenset[str]]:
    """Return the files that an upsert or state table lacks at this version, and the paths that must leave it."""
    said = publication.changes
    if said is not None and said.version == version and _explains(said, active, len(publication.files)):
        return [*said.new], {*map(_PATH, said.gone)}
    new = [file for file in publication.files if file.path not in active]  # a large table has many, so this does little
    return new, active.difference(map(_PATH, publication.files))


def _explains(said: FileChanges, active: set[str] | frozenset[str], files: int) -> bool:
    """Return True if the table shows the files that leave it, none of the new ones, and has the right number then."""
    fits = len(active) - len(said.gone) + len(said.new) == files
    return fits and active.issuperset(map(_PATH, said.gone)) and active.isdisjoint(map(_PATH, said.new))
