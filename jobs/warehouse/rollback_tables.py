"""Plans how each table is rolled back to its content at an older cut: which files are added and removed (K2).

An upsert or state table is set to the cut's files (ADR 1, 3). In an append table, only Tidemark's own files change. The
table's log says which of these files were active at the cut. Files that other writers have removed since stay removed.
This module only plans, and changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from checkpointing.columns import TableColumns, in_another_order
from checkpointing.commit.columns import (
    Columns,
    columns_of,
    gone_since,
    leaving_back,
    listed,
    renamed_back,
    unclear_back,
)
from checkpointing.commit.net_files import keyed_tables
from checkpointing.graph import TableMode
from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.paths import is_state_table, laid_out_otherwise, relative_to_table
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from jobs.warehouse.cuts_table import Cut
from jobs.warehouse.file_checks import is_ours, logged_files, lost_files, marked, merged
from jobs.warehouse.output_tables import Base, base_of, first_problem, known_files, load
from jobs.warehouse.table_columns import columns_of_schema, names_in, wider_values
from jobs.warehouse.table_rules import purge
from jobs.warehouse.table_snapshot import paths_with_deletion_vectors
from jobs.warehouse.undo_optimize import Undo, to_undo
from jobs.warehouse.warehouse import Warehouse


class TableNotRolledBackError(Exception):
    """A table cannot be rolled back. The message names the table, the obstacle and the way out."""


@dataclass(frozen=True, slots=True)
class TableBack:
    """How one table is rolled back: its record in the rollback's entry, its present Delta version, and the target's.

    `to_version` is None if the target content was never published (a plain savepoint), or if the table has no content.
    """

    record: TableRecord
    version: int
    to_version: int | None
    adds: tuple[FileHandle, ...]
    removes: tuple[FileHandle, ...]
    kept: tuple[FileHandle, ...]
    """Files of Tidemark that are active and stay active."""
    undo: Undo | None = None
    """Merges of another writer that must be undone first. The other fields describe the steps after that."""


@dataclass(frozen=True, slots=True)
class History:
    """The readable entries, every recorded cut, and the cut that the tables show now."""

    records: Mapping[CheckpointId, CheckpointRecord]
    cuts: Mapping[CheckpointId, Cut]
    now: Cut
    pending: CheckpointRecord | None = None
    """The newest entry, if it is committed but not published, or only published in part."""


def tables_back(warehouse: Warehouse, target: CheckpointRecord, seen: History) -> tuple[TableBack, ...]:
    """Return the plans for all tables that the job has now, or had at the target entry.

    Raises TableNotRolledBackError for a table that cannot be rolled back, and TableNotCopyableError for a log that
    cannot be read or a cut that is gone.
    """
    base = base_of(target, seen.records, seen.cuts)
    keyed = dict(keyed_tables(target, warehouse.paths.job))
    names = dict.fromkeys([*seen.now, *base.tables, *keyed])
    modes = _modes(warehouse, seen.records.values(), names)
    found = []
    for name in names:
        if modes[name] is TableMode.APPEND:
            found.append(_append_back(warehouse, name, base, seen))
        else:
            files = keyed[name].files if name in keyed else ()
            found.append(_keyed_back(warehouse, TableName(name), modes[name], files, base))
    return tuple(found)


def with_columns_back(
    warehouse: Warehouse,
    tables: tuple[TableBack, ...],
    target: CheckpointRecord,
    newest: CheckpointRecord | None,
    pending: CheckpointRecord | None,
) -> tuple[TableBack, ...]:
    """Return the plans with the columns that each table loses.

    These are the columns that the table may have now and that the target lacks.

    Renamed columns of an append table get their old names back, also in files of other writers.

    If the newest entry does not have the table, because the table was renamed, the columns are read from the table's
    log. `pending` is the newest entry as it was appended, if this entry is not published yet.
    """
    then = columns_of(target)
    return tuple(
        replace(
            each,
            record=each.record.model_copy(
                update=_columns_back(warehouse, each, listed(newest).get(name), then.get(name), pending)
            ),
        )
        for each in tables
        for name in (each.record.table,)
    )


def _columns_back(
    warehouse: Warehouse,
    back: TableBack,
    now: TableColumns | None,
    then: Columns | None,
    pending: CheckpointRecord | None,
) -> dict[str, object]:
    """Return the fields of a table's record that say how its columns are rolled back.

    Raises TableNotRolledBackError if it is not known under which name rows of others have a column.
    """
    record = back.record
    shown = (now and now.columns) or columns_of_schema(load(warehouse, record.table).schema())
    name, said = record.table, {"leaving": leaving_back(shown, then, pending, record.table)}
    if record.mode is not TableMode.APPEND:
        return {**said, "in_order": in_another_order(shown, then or ())}
    renamed = renamed_back(shown, then, pending, name)
    foreign = sorted(_active(load(warehouse, name), name).keys() - _ours(load(warehouse, name), name).keys())
    held = names_in(warehouse, foreign) if gone_since(then or (), now) else frozenset()
    unclear = unclear_back(shown, then or (), renamed, now, held) if foreign else None
    if unclear is not None:
        raise TableNotRolledBackError(
            f"table {name} has rows of others (such as {foreign[0]}): {unclear}. Nobody knows under which name they "
            "have its values: take the rows of others out of the table, and do the same again"
        )
    _must_have_no_wider_values(warehouse, name, shown, then or (), foreign)
    both = tuple(dict.fromkeys((*record.renamed, *renamed)))
    return {**said, "renamed": both, "in_order": in_another_order(shown, then or ())}


def _must_have_no_wider_values(
    warehouse: Warehouse, name: TableName, shown: Columns, then: Columns, foreign: list[str]
) -> None:
    """Refuse a rollback to before a widening if files of others have the wider type, which no reader narrows."""
    before = {column.identity: column.type for column in then}
    narrower = {column.name: before.get(column.identity, column.type) for column in shown}
    narrower = {column.name: narrower[column.name] for column in shown if narrower[column.name] != column.type}
    wide = wider_values(warehouse, name, foreign, narrower)
    if wide is not None:
        raise TableNotRolledBackError(f"{wide}, and do the same again")


def _modes(
    warehouse: Warehouse, rows: Iterable[CheckpointRecord], names: Iterable[TableName]
) -> dict[TableName, TableMode]:
    """Return the mode of each table from any entry that has it. Tables in no entry are treated as append tables."""
    job, known = warehouse.paths.job, dict.fromkeys(names, TableMode.APPEND)
    for row in rows:
        known |= {table.table: table.mode for table in row.tables}
        known |= {name: table.mode for name, table in keyed_tables(row, job)}
    return known | {name: TableMode.STATE for name in known if is_state_table(name)}


def _keyed_back(
    warehouse: Warehouse, name: TableName, mode: TableMode, files: tuple[FileHandle, ...], base: Base
) -> TableBack:
    table = load(warehouse, name)
    _must_be_writable(warehouse, table, name, mode)
    _must_be_laid_out(table, name, files)
    vectors = paths_with_deletion_vectors(table)
    if vectors:
        folder = str(warehouse.place(name))
        what = f"has deletion vectors on {len(vectors)} files ({min(vectors)})"
        raise TableNotRolledBackError(f"table {name} {what}: {purge(folder)}, and do the same again")
    active = _active(table, name)
    wanted = {file.path: file for file in files}
    record = TableRecord(table=name, mode=mode, files=files, parent_version=table.version())
    return TableBack(
        record=record,
        version=table.version(),
        to_version=_version_of(name, base),
        adds=tuple(file for path, file in wanted.items() if path not in active),
        removes=tuple(file for path, file in active.items() if path not in wanted),
        kept=tuple(file for path, file in wanted.items() if path in active),
    )


def _append_back(warehouse: Warehouse, name: TableName, base: Base, seen: History) -> TableBack:
    table, folder = load(warehouse, name), warehouse.place(name)
    then = base.cut.get(name, 0)
    known, old = known_files(seen.records), load(warehouse, name, then)
    wanted = base.after_rows(name, {path: known.get(path, file) for path, file in _ours(old, name).items()})
    undo = to_undo(warehouse, name, table, then, {path.removeprefix(f"{name}/") for path in wanted})
    back = undo.back(name) if undo is not None else {}
    now = _ours(table, name) | _of_ours(back, name) | _pending(seen.pending, name)
    lost = {f"{name}/{path}": each for path, each in lost_files(folder, table.version(), then).items()}
    lost = {path: each for path, each in lost.items() if path not in back}
    merged_ones = sorted(lost.keys() - wanted.keys())
    if merged_ones:
        raise TableNotRolledBackError(f"table {name}: {merged(lost[merged_ones[0]].by, str(folder))}")
    removes = tuple(file for path, file in sorted(now.items()) if path not in wanted)
    adds = _with_statistics(
        old, name, [file for path, file in sorted(wanted.items()) if path not in now and path not in lost]
    )
    _must_let_go(warehouse, table, name, removes)
    _must_be_laid_out(table, name, adds)
    record = TableRecord(
        table=name,
        mode=TableMode.APPEND,
        adds=adds,
        removes=removes,
        renamed=base.renamed(name),
        parent_version=table.version(),
        planned_on=CheckpointId(table.transaction_version(warehouse.paths.transaction_id(name)) or NO_CHECKPOINT),
    )
    kept = tuple(file for path, file in sorted(wanted.items()) if path in now)
    return TableBack(record, table.version(), _version_of(name, base), adds, removes, kept, undo)


def _version_of(name: TableName, base: Base) -> int | None:
    """Return the version with the content to restore, or None if entries since that version add files."""
    unpublished = any(table.table == name for row in base.rows for table in row.tables)
    return None if unpublished else base.cut.get(name, 0)


def _pending(row: CheckpointRecord | None, name: TableName) -> dict[str, FileHandle]:
    """Return the files of a committed entry that a paused tick may still publish."""
    tables = row.tables if row is not None else ()
    added = (
        file
        for table in tables
        if table.table == name
        for file in (*table.adds, *(each.into for each in table.compactions))
    )
    return {file.path: file for file in added}


def _must_let_go(warehouse: Warehouse, table: DeltaTable, name: TableName, removes: tuple[FileHandle, ...]) -> None:
    _must_be_writable(warehouse, table, name, TableMode.APPEND)
    folder = str(warehouse.place(name))
    if not removes:
        return
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        way_out = f"run ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.appendOnly'='false')"
        raise TableNotRolledBackError(f"table {name} is append-only, and a rollback takes files out: {way_out}")
    inside = {path for file in removes if (path := relative_to_table(name, file.path)) is not None}
    vectors = paths_with_deletion_vectors(table).intersection(inside)
    if vectors:
        raise TableNotRolledBackError(f"table {name}: {marked(vectors, folder)}")


def _must_be_writable(warehouse: Warehouse, table: DeltaTable, name: TableName, mode: TableMode) -> None:
    """Refuse now what the log would refuse after the commit point. The table's own columns are checked."""
    problem = first_problem(table, mode, str(warehouse.place(name)))
    if problem:
        raise TableNotRolledBackError(f"table {name} {problem}")


def _must_be_laid_out(table: DeltaTable, name: TableName, files: Iterable[FileHandle]) -> None:
    """Refuse a table whose partitioning another writer has changed since the cut."""
    by = table.metadata().partition_columns
    if laid_out_otherwise(by, (file.path for file in files)) is not None:
        raise TableNotRolledBackError(
            f"table {name} is laid out by {', '.join(by) or 'no column'} now, and its files at that cut are not: put "
            "back a copy of the table's folder from before"
        )


def _ours(table: DeltaTable, name: TableName) -> dict[str, FileHandle]:
    return _of_ours(_active(table, name), name)


def _of_ours(files: Mapping[str, FileHandle], name: TableName) -> dict[str, FileHandle]:
    return {path: file for path, file in files.items() if is_ours(relative_to_table(name, path) or "")}


def _with_statistics(old: DeltaTable, name: TableName, files: list[FileHandle]) -> tuple[FileHandle, ...]:
    """Return the files with statistics. Handles of an entry have statistics, and the others get the log's."""
    if not any(file.crc32 == UNKNOWN_CRC32 for file in files):
        return tuple(files)
    logged = {f"{name}/{path}": each.statistics for path, each in logged_files(old).items()}
    return tuple(replace(file, stats=logged[file.path]) if file.crc32 == UNKNOWN_CRC32 else file for file in files)


def _active(table: DeltaTable, name: TableName) -> dict[str, FileHandle]:
    """Return the active files of a loaded table as handles, without checksums, which the log does not have."""
    actions = pa.table(table.get_add_actions()).select(["path", "size_bytes", "num_records"]).to_pylist()
    handles = (
        FileHandle(f"{name}/{unquote(each['path'])}", each["num_records"] or 0, each["size_bytes"], UNKNOWN_CRC32)
        for each in actions
    )
    return {file.path: file for file in handles}
