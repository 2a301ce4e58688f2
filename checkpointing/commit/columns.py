"""Decides which columns each table has at a cut (D6).

The columns are decided when the entry is composed, and shown when it is published. Publishing changes a table's columns
in the same Delta commit as its files. So nobody sees a column of an epoch that was not committed, and a rollback brings
the old columns back.

An append or overwrite table keeps every column that it ever had, because its files stay as they were written. An upsert
or state table has the columns that the pipeline declares, but only when no file from before the change is left.
Otherwise a file might have a column that the table lacks, or a dropped column might come back with old values. The
subtasks write their ranges again the first time that their vertex runs. So the columns change with the first checkpoint
after that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from checkpointing.columns import TableColumn, TableColumns, columns_then
from checkpointing.commit.live_files import live_files
from checkpointing.evolution import Change, ChangeKind, with_hints
from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.renamed_columns import column_renames, renamed_columns, unrenamable
from checkpointing.state_evolution import is_wider, parsed, shown
from checkpointing.state_meaning import PROCESS

Columns = tuple[TableColumn, ...]


def columns_of(record: CheckpointRecord | None) -> Mapping[TableName, Columns]:
    """Return the columns of each table at an entry's cut. Tables whose columns the entry does not list are left out."""
    return {each.table: each.columns for each in record.columns} if record is not None else {}


def columns_at(
    graph: JobGraph, vertices: Mapping[VertexId, VertexRecord], parent: CheckpointRecord | None
) -> tuple[TableColumns, ...]:
    """Return the columns of every table of the graph at the cut of these vertices, which continues from `parent`."""
    return tuple(
        TableColumns(table.name, _now(table, vertices[vertex.id], parent, vertex.columns_renamed_from))
        for vertex in graph.operators()
        for table in vertex.tables
        if table.columns
    )


def _now(table: Table, vertex: VertexRecord, parent: CheckpointRecord | None, renamed: Mapping[str, str]) -> Columns:
    was = columns_of(parent).get(table.name)
    if parent is None or was is None:
        return table.columns
    declared = _dated(table.columns, was, parent.checkpoint, renamed)
    if table.mode.keeps_files:
        return (*was, *(column for column in declared if column.name not in {each.name for each in was}))
    return was if declared == was or _is_from_before(table, vertex, parent) else declared


def _dated(declared: Columns, was: Columns, parent: CheckpointId, renamed: Mapping[str, str]) -> Columns:
    """Return the declared columns with the checkpoint since which each counts.

    A known column keeps its checkpoint, also if it is renamed. A new one counts since the parent. `renamed` are old
    names by the new ones.
    """
    known = {column.name: column.after for column in was}
    then = columns_then([column.name for column in declared], known, renamed)
    return tuple(replace(column, after=known.get(then.get(column.name, column.name), parent)) for column in declared)


def _is_from_before(table: Table, vertex: VertexRecord, parent: CheckpointRecord) -> bool:
    """Return whether a file of the parent's cut is still live. It has the columns of that cut."""
    before = next((each for each in parent.vertices if each.vertex == vertex.vertex), None)
    return before is not None and not set(live_files(table, vertex)).isdisjoint(live_files(table, before))


def leaving(was: Columns | None, now: Columns | None) -> tuple[str, ...]:
    """Return the names of our columns that a table loses from one cut to another. None: the cut lists no columns."""
    if was is None or now is None:
        return ()
    names = {column.name for column in now}
    return tuple(column.name for column in was if column.name not in names)


def leaving_back(
    shown: Columns | None, then: Columns | None, pending: CheckpointRecord | None, table: TableName
) -> tuple[str, ...]:
    """Return the names of our columns that a table loses by a rollback from `shown` to `then`.

    The rollback may leave a committed entry behind that is not published yet. The table may then still have the columns
    that this `pending` entry would take away. A suspended process may also publish it until the rollback is in. So the
    table loses those of both. One that it does not have changes nothing.
    """
    if then is None:
        return ()
    names = {column.name for column in then}
    waiting = pending.tables if pending is not None else ()
    still = (name for each in waiting if each.table == table for name in each.leaving if name not in names)
    return tuple(dict.fromkeys((*leaving(shown, then), *still)))


def differ(was: Columns | None, now: Columns | None) -> bool:
    """Return whether names or types differ between two cuts. A cut that lists no columns changes none."""
    if was is None or now is None:
        return False
    return {(column.name, column.type) for column in was} != {(column.name, column.type) for column in now}


def table_changes(graph: JobGraph, restored: CheckpointRecord) -> tuple[Change, ...]:
    """Return how the columns of output tables change from a restored cut to what the graph declares.

    An append or overwrite table keeps its files, so its columns keep their types. The files of an upsert table are
    written anew, so its columns may become wider. `state_evolution` judges a state's columns, together with its vertex.
    """
    before = columns_of(restored)
    return tuple(
        change
        for vertex in graph.vertices
        for table in vertex.tables
        if table.mode is not TableMode.STATE and table.name in before
        for change in with_hints([*_changes(vertex, table, before[table.name], restored)], _hint(vertex, table))
    )


def _hint(vertex: Vertex, table: Table) -> Callable[[str, str], str | None]:
    """Return a function that says what a user writes to rename a column, given its old and new name.

    It returns None if there is no such hint.

    The state of an aggregate has the same columns with their meaning, so the hint is given there.
    """
    may_be = table.mode is TableMode.UPSERT and all(one.function == PROCESS for one in vertex.meanings)
    return lambda old, new: f"columns_renamed_from={{{new!r}: {old!r}}}" if may_be else None


def _changes(vertex: Vertex, table: Table, was: Columns, restored: CheckpointRecord) -> Iterator[Change]:
    old, names = {column.name: column for column in was}, [column.name for column in table.columns]
    kind, thing, renames = ChangeKind.TABLE_SCHEMA, f"table {table.name}", column_renames(vertex, restored)
    if table.mode.keeps_files:
        yield from unrenamable(thing, names, old, renames)
    else:
        yield from renamed_columns(kind, thing, names, old, renames)
    then, make = columns_then(names, old, renames.now), partial(Change, kind=kind, thing=thing)
    for column in table.columns:
        known, now = old.pop(then.get(column.name, column.name), None), _shown(column)
        if known is None:
            since = f"holds only what comes after checkpoint {restored.checkpoint}"
            yield make(column=column.name, was=None, now=now, becomes=since)
        elif known.type != column.type:
            wider = table.mode is TableMode.UPSERT and is_wider(parsed(known.type), parsed(column.type))
            refused = "" if wider else f"change it back to {_shown(known)}, or give the column another name"
            yield make(column=column.name, was=_shown(known), now=now, becomes="widened", refused=refused)
    for gone in old.values():
        if table.mode.keeps_files:
            stays = "stays, null in new rows"
            yield make(column=gone.name, was=_shown(gone), now="no longer written", becomes=stays)
        else:
            yield make(column=gone.name, was=_shown(gone), now=None, becomes="dropped")


def _shown(column: TableColumn) -> str:
    return shown(parsed(column.type))
