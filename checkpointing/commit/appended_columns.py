"""Decides how the columns of an append table change (D6, G2).

An append table keeps its files, so it keeps its columns, unless the pipeline declares that one leaves or has another
name.

A dropped column leaves the table's schema. The files keep it, and no reader sees it, because readers find columns by
name. So the name is remembered. If a new column took it, the old values would come back, and so this is refused.

A renamed column needs its files to be written again, because no column mapping translates names (ADR 11). Publishing
the checkpoint does that, in the same Delta commit. The invariant: whatever commits of others come first, no file that
the table shows has a value under the old name alone.

New columns come last, and the others keep their places. Other programs may insert rows by position.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from checkpointing.columns import TableColumn, TableColumns, columns_then
from checkpointing.graph import Table
from checkpointing.identifiers import CheckpointId

Columns = tuple[TableColumn, ...]


def appended_columns(table: Table, was: TableColumns, parent: CheckpointId, renamed: Mapping[str, str]) -> TableColumns:
    """Return the columns of an append table at the next cut. `renamed` are old names by the new ones.

    A new column counts since the parent. A renamed one counts since the old one did.
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
    """Return a column of the last cut under the name and type that it has now."""
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
    """Return whether files may hold values of a dropped column of this name. As in Spark, case does not count."""
    return is_one_of(name, was.dropped) and name not in {column.name for column in was.columns}


def is_one_of(name: str, names: Collection[str]) -> bool:
    """Return whether this is one of the names. Case does not count, as in Spark."""
    return name.casefold() in {each.casefold() for each in names}


def unknown_drop(table: Table, was: TableColumns) -> tuple[str, str] | None:
    """Return a column that the pipeline drops and the table never had, and one that it may mean. None: all are clear.

    Without a column that may be meant, there is nothing to be mistaken about.
    """
    declared = {column.name for column in table.columns}
    stay = [each.name for each in was.columns if each.name not in declared and each.name not in table.drops]
    names = {each.name for each in was.columns}
    unknown = [name for name in table.drops if name not in names and not is_one_of(name, was.dropped)]
    return (unknown[0], stay[0]) if unknown and stay else None
