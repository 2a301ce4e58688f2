"""Decides which columns each table has at a cut (D6).

The columns are decided when the entry is composed, and the table shows them when the entry is published. Publishing
changes a table's columns in the same Delta commit as its files. So nobody sees a column of an epoch that was not
committed, and a rollback brings the old columns back.

An append or overwrite table keeps its columns, because its files stay as they were written (`appended_columns`). An
upsert or state table gets the columns that the pipeline declares as soon as no file from before the change is left.
Before that, a file might have a column that the table does not have, or a dropped column might come back with old
values. The subtasks write their ranges again the first time that their vertex runs. So the columns change with the
first checkpoint after that.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import eq
from typing import Final

from checkpointing.columns import TableColumn, TableColumns, columns_then, in_another_order, renamed_between
from checkpointing.commit.live_files import live_files
from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.renamed_columns import column_renames, renamed_columns, unrenamable
from checkpointing.state_evolution import (
    NOT_WRITTEN,
    Change,
    ChangeKind,
    is_wider,
    parsed,
    reads_narrower,
    shown,
    with_hints,
)
from checkpointing.state_meaning import BROADCAST, PROCESS

# ------------------------------------------------------------------
# Decides how the columns of an append table change (D6, G2).
#
# An append table keeps its files, so it keeps its columns, unless the pipeline declares that a column is dropped or
# renamed.
#
# A dropped column leaves the table's schema. The files keep the column, and no reader sees it, because readers find
# columns by name. The entry keeps the name. If a new column took this name, the old values would come back. So this is
# refused.
#
# A renamed column needs its files to be written again, because no column mapping translates names (ADR 11). Publishing
# the checkpoint writes them again, in the same Delta commit. The invariant: no file that the table shows has values
# under the old name alone, even if other writers commit before the publication.
#
# New columns come last, and the other columns keep their places, because other programs can insert rows by position.


def appended_columns(table: Table, was: TableColumns, parent: CheckpointId, renamed: Mapping[str, str]) -> TableColumns:
    """Return the columns of an append table at the next cut. `renamed` maps new names to old names.

    A new column has values since the parent. A renamed column has values since its old name had them.
    """
    before = {column.name: column for column in was.columns}
    then = columns_then([column.name for column in table.columns], before, renamed)
    now = {old: new for new, old in then.items()}
    declared = {column.name: column for column in table.columns}
    gone = dropped_now(table, was)
    kept = [_kept(column, now, declared) for column in was.columns if column.name not in gone]
    known = {column.name for column in kept}
    columns = [*kept, *(replace(column, after=parent) for column in table.columns if column.name not in known)]
    if table.in_order:
        places = {name: place for place, name in enumerate(declared)}
        columns.sort(key=lambda column: places.get(column.name, len(places)))
    return TableColumns(table.name, tuple(columns), (*was.dropped, *gone))


def _kept(column: TableColumn, now: Mapping[str, str], declared: Mapping[str, TableColumn]) -> TableColumn:
    """Return a column of the last cut with its present name and type."""
    name = now.get(column.name, column.name)
    kind = declared[name].type if name in declared else column.type
    if name == column.name:
        return replace(column, type=kind)
    first = column.first or column.name
    return TableColumn(name, kind, column.after, "" if first == name else first)


def dropped_now(table: Table, was: TableColumns) -> tuple[str, ...]:
    """Return the columns that the pipeline drops and the table still has."""
    declared = {column.name for column in table.columns}
    return tuple(each.name for each in was.columns if each.name in table.drops and each.name not in declared)


def held_in_files(name: str, was: TableColumns) -> bool:
    """Return whether files may hold values of a dropped column of this name. As in Spark, case does not matter."""
    return is_one_of(name, was.dropped) and name not in {column.name for column in was.columns}


def is_one_of(name: str, names: Collection[str]) -> bool:
    """Return whether `name` is one of the names. As in Spark, case does not matter."""
    return name.casefold() in {each.casefold() for each in names}


def unknown_drop(table: Table, was: TableColumns) -> tuple[str, str] | None:
    """Return a dropped column that the table never had, and the column that the pipeline may mean instead.

    None: there is no such drop. If there is no such column, the drop cannot be a mistake, and the result is None too.
    """
    declared = {column.name for column in table.columns}
    stay = [each.name for each in was.columns if each.name not in declared and each.name not in table.drops]
    names = {each.name for each in was.columns}
    unknown = [name for name in table.drops if name not in names and not is_one_of(name, was.dropped)]
    return (unknown[0], stay[0]) if unknown and stay else None


Columns = tuple[TableColumn, ...]
Pairs = tuple[tuple[str, str], ...]
"""Pairs of a column's new and old name."""


def columns_of(record: CheckpointRecord | None) -> Mapping[TableName, Columns]:
    """Return the columns of each table at an entry's cut. Tables whose columns the entry does not list are left out."""
    return {name: each.columns for name, each in listed(record).items()}


def listed(record: CheckpointRecord | None) -> Mapping[TableName, TableColumns]:
    """Return the columns that an entry lists for each table, with the names of dropped columns."""
    return {each.table: each for each in record.columns} if record is not None else {}


def columns_at(
    graph: JobGraph, vertices: Mapping[VertexId, VertexRecord], parent: CheckpointRecord | None
) -> tuple[TableColumns, ...]:
    """Return the columns of every table in the graph at the cut of these vertices. The cut continues from `parent`."""
    return tuple(
        _now(table, vertices[vertex.id], parent, vertex.columns_renamed_from)
        for vertex in graph.operators()
        for table in vertex.tables
        if table.columns
    )


def _now(
    table: Table, vertex: VertexRecord, parent: CheckpointRecord | None, renamed: Mapping[str, str]
) -> TableColumns:
    was = listed(parent).get(table.name)
    if parent is None or was is None:
        return TableColumns(table.name, table.columns)
    if table.mode.keeps_files:
        return appended_columns(table, was, parent.checkpoint, renamed if table.mode is TableMode.APPEND else {})
    declared = _dated(table.columns, was.columns, parent.checkpoint, renamed)
    stays = differ(was.columns, declared) and _is_from_before(table, vertex, parent)
    return was if stays else TableColumns(table.name, declared)


def _dated(declared: Columns, was: Columns, parent: CheckpointId, renamed: Mapping[str, str]) -> Columns:
    """Return the declared columns, each with the checkpoint since which it has values.

    A known column keeps its checkpoint, even if it is renamed. A new column has values since the parent. `renamed` has
    old names by new names.
    """
    known = {column.name: column.after for column in was}
    then = columns_then([column.name for column in declared], known, renamed)
    return tuple(replace(column, after=known.get(then.get(column.name, column.name), parent)) for column in declared)


def _is_from_before(table: Table, vertex: VertexRecord, parent: CheckpointRecord) -> bool:
    """Return whether a file of the parent's cut is still live. Such a file has the columns of that cut."""
    before = next((each for each in parent.vertices if each.vertex == vertex.vertex), None)
    return before is not None and not set(live_files(table, vertex)).isdisjoint(live_files(table, before))


def leaving(was: Columns | None, now: Columns | None) -> tuple[str, ...]:
    """Return the names of the job's columns that a table loses from `was` to `now`. None: that cut lists no columns."""
    if was is None or now is None:
        return ()
    names = {column.name for column in now}
    return tuple(column.name for column in was if column.name not in names)


def leaving_back(
    shown: Columns | None, then: Columns | None, pending: CheckpointRecord | None, table: TableName
) -> tuple[str, ...]:
    """Return the names of the job's columns that a table loses by a rollback from `shown` to `then`.

    The rollback can abandon a committed entry that is not published yet. The table may then still have the columns that
    this `pending` entry would drop. A suspended process may also publish the entry until the rollback is in. So the
    table loses the columns that either of the two drops. Dropping a column that the table does not have changes
    nothing.
    """
    if then is None:
        return ()
    names = {column.name for column in then}
    waiting = pending.tables if pending is not None else ()
    still = (name for each in waiting if each.table == table for name in each.leaving if name not in names)
    return tuple(dict.fromkeys((*leaving(shown, then), *still)))


def renamed_back(
    shown: Columns | None, then: Columns | None, pending: CheckpointRecord | None, table: TableName
) -> tuple[tuple[str, str], ...]:
    """Return the columns of an append table to which a rollback gives back the names of `then`: new and old name.

    The rollback can abandon a committed entry that renames columns too (`leaving_back`).
    """
    waiting = columns_of(pending).get(table, ())
    pairs = (*renamed_between(shown or (), then or ()), *renamed_between(waiting, then or ()))
    return tuple(dict.fromkeys(pairs))


def gone_since(then: Columns, listed_now: TableColumns | None) -> Columns:
    """Return the columns of `then` that the newest entry does not have, under any name.

    Return none if that entry does not have the table, since nobody knows the columns then.
    """
    if listed_now is None:
        return ()
    stay = {column.identity for column in listed_now.columns}
    return tuple(column for column in then if column.identity not in stay)


def unclear_back(
    shown: Columns,
    then: Columns,
    renamed: Collection[tuple[str, str]],
    listed_now: TableColumns | None,
    held: Collection[str] = (),
) -> str | None:
    """Return why a rollback to the columns `then` is refused, or None.

    The rollback is refused if nobody knows which name a column has in files of other writers. It renames columns in
    these files too: `renamed` has the new and old names (`renamed_back`). `listed_now` are the columns in the newest
    entry, or None if that entry does not have the table. `held` has the names of all columns in files of other writers.
    They matter only if a column is `gone_since`: on an abandoned line the column may have got another name, which no
    entry records.
    """
    names = {column.name for column in shown}
    reused = next((pair for pair in renamed if names.issuperset(pair)), None)
    if reused is not None:
        return f"column {reused[0]} was renamed to {reused[1]}, and another column has its name since"
    if listed_now is None:
        return None
    now, dropped = {column.name: column for column in listed_now.columns}, listed_now.dropped
    gone = gone_since(then, listed_now)
    known = {*(column.name for column in then), *(old for _, old in renamed)}
    several = dropped if len(dropped) > 1 else ()
    elsewhere = sorted(name for name in held if not is_one_of(name, known) or is_one_of(name, several))
    for column in then:
        same, (first, _) = now.get(column.name), column.identity
        if same is not None and same.identity[0] != first:
            return f"column {column.name} was another column then, which began as {first}"
        if column not in gone:
            continue
        if dropped and (same is not None or not is_one_of(column.name, dropped)):
            return f"column {column.name} may have had another name when it was dropped ({', '.join(dropped)})"
        # an entry records the name under which a column was dropped, so it is not a name that the table shows now
        others = [each for each in elsewhere if each not in names] if dropped else elsewhere
        if others:
            return f"column {column.name} may have another name there ({', '.join(others)})"
    return None


def due_renames_of_columns(graph: JobGraph, restored: CheckpointRecord | None) -> Mapping[TableName, Pairs]:
    """Return, for each append table, the columns that the next checkpoint renames: new and old name."""
    before = columns_of(restored)
    return {
        table.name: pairs
        for vertex in graph.vertices
        for table in vertex.tables
        if table.mode is TableMode.APPEND and table.name in before
        for names in ([column.name for column in table.columns],)
        for was in ([column.name for column in before[table.name]],)
        if (pairs := tuple(columns_then(names, was, vertex.columns_renamed_from).items()))
    }


def differ(was: Columns | None, now: Columns | None) -> bool:
    """Return whether names or types differ between two cuts. They do not if one cut lists no columns."""
    if was is None or now is None:
        return False
    return {(column.name, column.type) for column in was} != {(column.name, column.type) for column in now}


def _reordered(
    table: Table, was: TableColumns, restored: CheckpointRecord, renamed: Mapping[str, str], make: Callable[..., Change]
) -> Iterator[Change]:
    """Yield the change of the order of an append table's columns, if there is one."""
    now = appended_columns(table, was, restored.checkpoint, renamed).columns
    if in_another_order(was.columns, now):
        before, after = (", ".join(column.name for column in columns) for columns in (was.columns, now))
        yield make(column="order", was=before, now=after, becomes="reordered")


def _refused_by_sink(table: Table, then: Mapping[str, str], make: Callable[..., Change]) -> Iterator[Change]:
    """Yield each rename in a table with an outside sink, as refused.

    Nobody renames the columns of the sink's target.
    """
    for new, old in then.items() if table.outside else ():
        refused = (
            f"the target of the table's sink has the name {old}. Keep this name, or take the sink away, rename the "
            "column in the target yourself, and give the table its sink back after the next checkpoint"
        )
        yield make(column=new, was=old, now=new, refused=refused)


_REWRITTEN: Final = "renamed, with its values. The table's files are written again once"
_FITTING: Final = {TableMode.APPEND: reads_narrower, TableMode.UPSERT: is_wider}
"""Decides for each kind of table which wider types a column may get. Columns of other tables keep their types."""
_READ_WIDER: Final = "widened. The files keep the narrower type, and readers convert it"
_UNSEEN: Final = "dropped. Readers no longer see it, and its name cannot be used again in this table"


def table_changes(graph: JobGraph, restored: CheckpointRecord) -> tuple[Change, ...]:
    """Return how the columns of output tables change from a restored cut to what the graph declares.

    An append table keeps its files, so its columns may become wider only as far as readers convert old values. An
    overwrite table's columns keep their types. The files of an upsert table are written again. `state_evolution`
    decides about a state's columns, together with its vertex.
    """
    before = listed(restored)
    return tuple(
        change
        for vertex in graph.vertices
        for table in vertex.tables
        if table.mode is not TableMode.STATE and table.name in before
        for change in with_hints([*_changes(vertex, table, before[table.name], restored)], _hint(vertex, table))
    )


def _hint(vertex: Vertex, table: Table) -> Callable[[str, str], str | None]:
    """Return a function of a column's old and new name. It returns what a user writes to rename the column.

    The function returns None if there is no such hint.

    The state of an aggregate has the same columns, and their meanings. So the hint comes with the state's changes.
    """
    may_be = table.mode is not TableMode.OVERWRITE and all(
        one.function in (PROCESS, BROADCAST) for one in vertex.meanings
    )
    of_vertex = bool(vertex.meanings) or table.mode is TableMode.UPSERT

    def hint(old: str, new: str) -> str | None:
        said = f"{{{new!r}: {old!r}}}"
        named = f"columns_renamed_from={said}" if of_vertex else f"change_columns(renamed_from={said})"
        return named if may_be else None

    return hint


def _changes(vertex: Vertex, table: Table, was: TableColumns, restored: CheckpointRecord) -> Iterator[Change]:
    old, names = {column.name: column for column in was.columns}, [column.name for column in table.columns]
    kind, thing, renames = ChangeKind.TABLE_SCHEMA, f"table {table.name}", column_renames(vertex, restored)
    appended, make = table.mode is TableMode.APPEND, partial(Change, kind=kind, thing=thing)
    if table.mode is TableMode.OVERWRITE:
        yield from unrenamable(thing, names, old, renames)
    else:
        yield from renamed_columns(kind, thing, names, old, renames, becomes=_REWRITTEN if appended else "")
    then = columns_then(names, old, renames.now)
    if appended:
        yield from _refused_names(table, was, then, make)
        yield from _refused_by_sink(table, then, make)
        yield from _reordered(table, was, restored, renames.now, make)
    for column in table.columns:
        known, now = old.pop(then.get(column.name, column.name), None), _shown(column)
        if known is None:
            since = f"holds only what comes after checkpoint {restored.checkpoint}"
            yield make(column=column.name, was=None, now=now, becomes=since)
        elif known.type != column.type:
            fits = _FITTING.get(table.mode, eq)
            wider = fits(parsed(known.type), parsed(column.type)) and column.name not in table.partitioned_by
            becomes = _READ_WIDER if appended else "widened"
            refused = "" if wider else f"change it back to {_shown(known)}, or give the column another name"
            yield make(column=column.name, was=_shown(known), now=_shown(column), becomes=becomes, refused=refused)
    drops = dropped_now(table, was) if table.mode.keeps_files else tuple(old)
    for gone in old.values():
        if gone.name not in drops:
            stays = "stays, null in new rows"
            stays += f". change_columns(drop=[{gone.name!r}]) takes it out of the table" if appended else ""
            yield make(column=gone.name, was=_shown(gone), now=NOT_WRITTEN, becomes=stays)
        else:
            yield make(column=gone.name, was=_shown(gone), now=None, becomes=_UNSEEN if appended else "dropped")


def _refused_names(
    table: Table, was: TableColumns, then: Mapping[str, str], make: Callable[..., Change]
) -> Iterator[Change]:
    """Yield each new name that would show values of a dropped column, and the drop of a column that never existed."""
    there = {column.name for column in was.columns}
    for column in table.columns:
        if column.name not in there and held_in_files(column.name, was):
            refused = (
                "the table had a column of this name, which was dropped. Its files still hold the old values, which "
                "would come back. Take another name"
            )
            was_called = then.get(column.name, "gone")
            yield make(column=column.name, was=was_called, now=_shown(column), refused=refused)
    unclear = unknown_drop(table, was)
    if unclear is not None:
        name, stays = unclear
        refused = (
            f"change_columns drops it, and the table has no such column. If you mean {stays}, which the pipeline does "
            "not write any more, name that. Otherwise leave it out"
        )
        yield make(column=name, was="unknown", now="dropped", refused=refused)


def _shown(column: TableColumn) -> str:
    return shown(parsed(column.type))
