"""The invariants of tables' columns: a table shows the columns of one committed cut, and no others (D6)."""

from collections.abc import Iterator, Mapping

from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord
from spec.history import CutWritten, DoorStarted, History, RowCommitted, TableChanged
from spec.reference.contents import files_of_table
from spec.rules import rule
from spec.rules.rollbacks import at_rest

Names = frozenset[str]


@rule("columns-of-cut")
def columns_of_cut(history: History) -> Iterator[str]:
    """Yield every table with other columns than its checkpoint's entry lists, or published columns that no entry lists.

    Other columns that no entry ever listed belong to other programs. They may exist or not.
    """
    rows: dict[CheckpointId, Mapping[TableName, Names]] = {}
    ours: dict[TableName, set[str]] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = _said(record)
                for table, names in rows[record.checkpoint].items():
                    ours.setdefault(table, set()).update(names)
            case TableChanged(checkpoint, publication) if publication.columns:
                table = publication.table
                early = {*_named(publication)} - ours.get(table, {*_named(publication)})
                if early:
                    yield f"{table} shows the columns {sorted(early)} of checkpoint {checkpoint}, and no row says them"
                yield from _others(rows.get(checkpoint), ours, checkpoint, table, event.columns)
            case CutWritten(checkpoint):
                for table, columns in event.columns:
                    yield from _others(rows.get(checkpoint), ours, checkpoint, table, columns)
            case _:
                pass


def _named(publication: Publication) -> Iterator[str]:
    return (column.name for column in publication.columns)


def _others(
    row: Mapping[TableName, Names] | None,
    ours: Mapping[TableName, set[str]],
    checkpoint: CheckpointId,
    table: TableName,
    shown: Names,
) -> Iterator[str]:
    due = row.get(table) if row is not None else None
    if due is not None and shown & ours[table] != due:
        have = sorted(shown & ours[table])
        yield f"{table} shows the columns {have} at checkpoint {checkpoint}, whose row says {sorted(due)}"


@rule("columns-follow")
def columns_follow(history: History) -> Iterator[str]:
    """Yield every entry whose columns do not follow from its parent's columns and its pipeline's declarations.

    An append or overwrite table has all columns of both. It lacks columns that the pipeline drops from an append table,
    and has renamed columns under their new names. The entry keeps the names of dropped columns, and no new column takes
    one of them. A table of another mode has the parent's columns as long as a file of the parent's cut is live, and
    otherwise the declared columns. A new column is valid from the parent on. A renamed column is valid from the same
    checkpoint on as under its old name. An entry that no tick wrote has its parent's columns.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    graphs: dict[Generation, JobGraph] = {}
    began: dict[Generation, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                if restored is not None:
                    rows.setdefault(restored.checkpoint, restored)
                    began[generation] = restored
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                parent, first = rows.get(record.parent), began.get(record.generation)
                if first is not None and first.checkpoint == record.parent and not at_rest(record):
                    parent = first  # under the names of the pipeline, which may have renamed it
                if at_rest(record):
                    if parent is not None and _said(parent) != _said(record):
                        yield f"{record.kind.value} {record.checkpoint} says other columns than {record.parent}"
                elif record.generation in graphs and (parent is not None or not record.parent):
                    yield from _undue(graphs[record.generation], record, parent)
            case _:
                pass


def _undue(graph: JobGraph, record: CheckpointRecord, parent: CheckpointRecord | None) -> Iterator[str]:
    before, now = _said(parent), _said(record)
    since, long = _since(record), _since(parent)
    for vertex in graph.operators():
        for table in vertex.tables:
            due = _due(vertex, table, record, parent)
            if due and now.get(table.name) != due:
                have = sorted(now.get(table.name, ()))
                yield f"row {record.checkpoint} says {have} of {table.name}, due are {sorted(due)}"
            if table.mode is TableMode.APPEND:
                yield from _badly_dropped(vertex, table, record, parent)
            for name in due - before.get(table.name, due):
                was = vertex.columns_renamed_from.get(name, name)
                if since.get((table.name, name)) != long.get((table.name, was), record.parent):
                    yield f"row {record.checkpoint}: column {name} of {table.name} counts since the wrong checkpoint"


def _since(record: CheckpointRecord | None) -> Mapping[tuple[TableName, str], CheckpointId]:
    columns = record.columns if record is not None else ()
    return {(each.table, column.name): column.after for each in columns for column in each.columns}


def _due(vertex: Vertex, table: Table, record: CheckpointRecord, parent: CheckpointRecord | None) -> Names:
    declared = frozenset(column.name for column in table.columns)
    was = _said(parent).get(table.name)
    if not declared or parent is None or was is None:
        return declared
    if table.mode is TableMode.OVERWRITE:
        return was | declared
    if table.mode is TableMode.APPEND:
        return (was - _called_now(vertex, was, declared) - {*table.drops}) | declared
    live = [
        files_of_table(table, each) for row in (record, parent) for each in row.vertices if each.vertex == vertex.id
    ]
    return was if len(live) == 2 and live[0] & live[1] else declared  # noqa: PLR2004 - of both rows


def _called_now(vertex: Vertex, was: Names, declared: Names) -> Names:
    """Return the old names of the columns that are renamed now."""
    return frozenset(
        old for new, old in vertex.columns_renamed_from.items() if new in declared - was and old in was - declared
    )


def _badly_dropped(
    vertex: Vertex, table: Table, record: CheckpointRecord, parent: CheckpointRecord | None
) -> Iterator[str]:
    """Yield each dropped column whose name the entry forgets, or whose name a new column takes."""
    was, now = _said(parent).get(table.name, frozenset()), _said(record).get(table.name, frozenset())
    renamed = _called_now(vertex, was, frozenset(column.name for column in table.columns))
    due = _dropped(parent).get(table.name, frozenset()) | (was - now - renamed)
    kept = _dropped(record).get(table.name, frozenset())
    if kept != due:
        yield f"row {record.checkpoint} says that {sorted(kept)} left {table.name}, and those were {sorted(due)}"
    for name in (now - was) & _dropped(parent).get(table.name, frozenset()):
        yield f"row {record.checkpoint}: column {name} of {table.name} has the name of a dropped one"


def _dropped(record: CheckpointRecord | None) -> Mapping[TableName, Names]:
    columns = record.columns if record is not None else ()
    return {each.table: frozenset(each.dropped) for each in columns}


def _said(record: CheckpointRecord | None) -> Mapping[TableName, Names]:
    columns = record.columns if record is not None else ()
    return {each.table: frozenset(column.name for column in each.columns) for each in columns}
