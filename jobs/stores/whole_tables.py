"""Completes the tables of an entry: finds all their files, and not only those that the entry adds.

For an upsert or state table, the entry has all files, because its snapshots name all live files. For an append table,
there are two parts: the files at the newest published cut on the entry's way back, and the files that the entries since
then add.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from checkpointing.commit.net import keyed_tables, nothing_staged
from checkpointing.graph import TableMode
from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.paths import is_data_file, laid_out_otherwise
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from jobs.stores.cuts import Cut
from jobs.stores.known_table import paths_with_deletion_vectors
from jobs.stores.logged_files import logged_files
from jobs.stores.table_rules import purge
from jobs.stores.warehouse import Warehouse

Records = Mapping[CheckpointId, CheckpointRecord]


class TableNotCopyableError(ValueError):
    """The files of a table cannot be found. The message names the table, the obstacle and the way out."""


@dataclass(frozen=True, slots=True)
class Base:
    """The start for append tables: the newest published cut, its checkpoint, and the entries since, oldest first."""

    checkpoint: CheckpointId
    cut: Mapping[TableName, int]
    rows: tuple[CheckpointRecord, ...]

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables of the cut, then other tables that the entries name."""
        return tuple(dict.fromkeys([*self.cut, *(table.table for row in self.rows for table in row.tables)]))

    def renamed(self, table: TableName) -> tuple[tuple[str, str], ...]:
        """Return the columns that the entries since rename: files of the cut may still have the old names."""
        tables = (each for row in self.rows for each in row.tables if each.table == table)
        return tuple(dict.fromkeys(pair for each in tables for pair in each.renamed))

    def after_rows(self, table: TableName, files: dict[str, FileHandle]) -> dict[str, FileHandle]:
        """Return an append table's files by path: those of the cut, changed by the entries since."""
        for each in (each for row in self.rows for each in row.tables if each.table == table):
            gone = {file.path for file in each.removes}
            files = {path: file for path, file in files.items() if path not in gone}
            files |= {file.path: file for file in each.adds}
        return files


def whole_record(
    warehouse: Warehouse, record: CheckpointRecord, records: Records, cuts: Mapping[CheckpointId, Cut]
) -> CheckpointRecord:
    """Return the entry in a form that needs no other: every table with all its files, nothing staged, no parent.

    Reads logs only. Raises TableNotCopyableError, which names a table with deletion vectors, of another layout or with
    files elsewhere, or an entry whose parent's cut is gone.
    """
    base = base_of(record, records, cuts)
    keyed = dict(keyed_tables(record, warehouse.paths.job))
    said = {each.table for each in record.columns}
    modes = {table.table: table.mode for row in records.values() for table in row.tables}
    known = known_files(records)
    # A renamed table's old name is no table of the entry.
    names = (name for name in base.tables if not said or name in said)
    appended = (
        TableRecord(
            table=name,
            mode=TableMode.APPEND,
            adds=_appended(warehouse, name, base, known),
            renamed=base.renamed(name),
            parent_version=0,
        )
        for name in names
        if name not in keyed and modes.get(name, TableMode.APPEND) is TableMode.APPEND
    )
    tables = [*appended, *keyed.values()]
    return record.model_copy(
        update={
            "parent": NO_CHECKPOINT,
            "vertices": nothing_staged(record),
            "tables": tuple(table for table in tables if table.adds or table.files),
        }
    )


def appended_files(warehouse: Warehouse, name: TableName, records: Records) -> tuple[FileHandle, ...]:
    """Return the files that an append table shows now, as handles of the entries. Raises as `whole_record` does."""
    known = known_files(records)
    return tuple(known.get(file.path, file) for file in _in_log(warehouse, name, None))


def known_files(records: Records) -> Mapping[str, FileHandle]:
    """Return the files that these entries add to append tables, by path. Compactions add files too."""
    tables = [table for row in records.values() for table in row.tables]
    added = {file.path: file for table in tables for file in table.adds}
    return added | {each.into.path: each.into for table in tables for each in table.compactions}


def load(warehouse: Warehouse, table: TableName, version: int | None = None) -> DeltaTable:
    """Return a table at that version. Raise TableNotCopyableError if its log cannot be read there."""
    folder = warehouse.place(warehouse.paths.table(table))
    try:
        return DeltaTable(str(folder), version=version)
    except Exception as error:
        raise TableNotCopyableError(
            f"table {table} cannot be read at version {version} ({type(error).__name__}: {error}): "
            "restore its folder from a backup"
        ) from error


def base_of(record: CheckpointRecord, records: Records, cuts: Mapping[CheckpointId, Cut]) -> Base:
    """Return the start for an entry's append tables. Raise TableNotCopyableError if its parent's cut is gone."""
    rows: list[CheckpointRecord] = []
    at = record
    while at.checkpoint not in cuts:
        rows.append(at)
        if at.parent == NO_CHECKPOINT or at.parent in cuts:
            return Base(at.parent, cuts.get(at.parent, {}), tuple(reversed(rows)))
        if at.parent not in records:
            raise TableNotCopyableError(
                f"{record.kind.value} {record.checkpoint} builds on checkpoint {at.parent}, of which neither the "
                "entry nor the cut exists any more: take a new savepoint"
            )
        at = records[at.parent]
    return Base(at.checkpoint, cuts[at.checkpoint], tuple(reversed(rows)))


def _appended(
    warehouse: Warehouse, name: TableName, base: Base, known: Mapping[str, FileHandle]
) -> tuple[FileHandle, ...]:
    logged = _in_log(warehouse, name, base.cut[name]) if name in base.cut else ()
    return tuple(base.after_rows(name, {file.path: known.get(file.path, file) for file in logged}).values())


def _in_log(warehouse: Warehouse, name: TableName, version: int | None) -> Iterator[FileHandle]:
    table = load(warehouse, name, version)
    folder = str(warehouse.place(name))
    partitioned_by = table.metadata().partition_columns
    files = logged_files(table)
    marked = paths_with_deletion_vectors(table).intersection(files)
    if marked:
        raise TableNotCopyableError(
            f"table {name} has deletion vectors on {len(marked)} files ({min(marked)}), which a copy would lose: "
            f"{purge(folder)}, let the job complete a checkpoint, and try again"
        )
    for path, file in files.items():
        if not is_data_file(path):
            raise TableNotCopyableError(
                f"table {name} names a file outside its folder ({path}), as a shallow clone does: copy the table whole"
            )
        if laid_out_otherwise(partitioned_by, [f"{name}/{path}"]) is not None:
            raise TableNotCopyableError(
                f"table {name} is laid out by {', '.join(partitioned_by)}, and others have added {path}, whose "
                "partition no entry tells: move its rows into the pipeline's input, or name another table"
            )
        yield FileHandle(f"{name}/{path}", file.rows or 0, file.bytes, UNKNOWN_CRC32, file.statistics)
