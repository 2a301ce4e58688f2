"""Checks the job's Delta tables: how long their logs are, who else wrote them, and what forbids publishing."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from deltalake import DeltaTable

from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.cleanup.tables import JobTable
from jobs.doctor.findings import Finding, Section, command
from jobs.holding.failures import TablesAheadError, TablesBehindError
from jobs.holding.job_stores import JobStores
from jobs.recovery.tables_ahead import must_not_be_ahead
from jobs.recovery.tables_behind import must_be_repairable
from jobs.showing.quantities import plural
from jobs.storage.objects import ObjectStore
from jobs.storage.place import StoragePlace
from jobs.stores.known_table import active_paths, paths_with_deletion_vectors
from jobs.stores.log_entries import LogEntry, log_of, newest_entries
from jobs.stores.maintenance import EVERY_VERSIONS, log_length
from jobs.stores.output_tables import shape_of
from jobs.stores.row_files import is_own
from jobs.stores.table_rules import problems_of, purge
from jobs.stores.warehouse import Warehouse

LONG_LOG: Final = 4 * EVERY_VERSIONS
"""From this many log entries since the last Delta log checkpoint, opening a table is slow. Ticks write one every 50."""


@dataclass(frozen=True, slots=True)
class _Health:
    seen: str
    findings: tuple[Finding, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)


def table_section(stores: JobStores, tables: tuple[JobTable, ...], rows: tuple[Row, ...]) -> Section:
    """Return the section about tables, the job's own two first, and whether the next tick could begin with them."""
    warehouse, modes = stores.warehouse, modes_of(rows)
    refused = dict(_refused(stores, tables, rows))
    named = [
        *(
            (name, _own(warehouse, name, refused.get(TableName(name))))
            for name in (warehouse.paths.checkpoints, warehouse.paths.cuts)
        ),
        *(
            (str(table.name), _of(warehouse, table.name, modes, refused.get(table.name)))
            for table in _with_logs(warehouse, tables)
        ),
    ]
    there = {name for name, _ in named}
    return Section(
        "tables",
        tuple((name, health.seen) for name, health in named),
        (
            *(finding for _, health in named for finding in health.findings),
            *(finding for table, finding in refused.items() if table not in there),
        ),
        {name: dict(health.values) for name, health in named},
    )


def _refused(
    stores: JobStores, tables: tuple[JobTable, ...], rows: tuple[Row, ...]
) -> Iterator[tuple[TableName, Finding]]:
    """Yield the tables that show less than the newest cut or more than the newest entry: the next tick refuses them."""
    try:
        doubt = must_be_repairable(stores, rows)
        repairs, cuts = doubt.repairs, stores.warehouse.paths.cuts
        if doubt.rebuilt:
            ids = ", ".join(str(checkpoint) for checkpoint in sorted(doubt.rebuilt))
            what = f"the cuts of checkpoints {ids} are lost: a file of {cuts} is gone or damaged"
            repair = f"{command('run', stores.warehouse)}, which rebuilds them from checkpoint entries and logs"
            yield TableName(cuts), Finding(what, repair)
        for table in sorted(repairs.tables):
            what = f"table {table} shows less than the recorded cuts say: entries of its log are gone"
            yield table, Finding(what, f"{command('run', stores.warehouse)}, which publishes the missing files again")
        shown = [table.name for table in _with_logs(stores.warehouse, tables) if table.name not in repairs.tables]
        must_not_be_ahead(stores, shown, rows)
    except (TablesBehindError, TablesAheadError) as error:
        yield error.table, Finding(error.what, error.way_out)


def modes_of(rows: tuple[Row, ...]) -> dict[TableName, TableMode]:
    """Return each table's mode, as far as the entries say it."""
    return {table.table: table.mode for row in rows if isinstance(row, CheckpointRecord) for table in row.tables}


def _with_logs(warehouse: Warehouse, tables: tuple[JobTable, ...]) -> Iterator[JobTable]:
    return (table for table in tables if table.has_log(warehouse.paths))


def _own(warehouse: Warehouse, name: str, refused: Finding | None) -> _Health:
    folder = warehouse.place(name)
    seen, findings, values = _log(warehouse, name, folder)
    strange = [path for path in active_paths(DeltaTable(str(folder))) if not is_own(path)]
    found = [*([refused] if refused is not None else []), *findings]
    if strange:
        what = f"{name} holds {len(strange)} files that others wrote ({min(strange)}), where only Tidemark may write"
        found.append(Finding(what, f"{command('run', warehouse)}, whose next commit removes them"))
    return _Health(seen, tuple(found), values)


def _of(
    warehouse: Warehouse, name: TableName, modes: Mapping[TableName, TableMode], refused: Finding | None
) -> _Health:
    folder = warehouse.place(name)
    try:
        table = DeltaTable(str(folder))
        seen, findings, values = _log(warehouse, name, folder)
        mode = modes.get(name)
        found = [
            *([refused] if refused is not None else []),
            *findings,
            *_forbidding(name, table, mode, folder),
            *_foreign(warehouse, name, table, mode),
            *_unfenced(warehouse, name, table),
        ]
        files = len(active_paths(table))
        values |= {"version": table.version(), "files": files, "mode": None if mode is None else mode.value}
        return _Health(f"version {table.version()}, {plural(files, 'file')}, {seen}", tuple(found), values)
    except Exception as error:  # noqa: BLE001 - a log that is damaged or gone
        what = f"table {name}: its log cannot be read ({type(error).__name__}: {_first_line(error)})"
        backup = Finding(what, f"restore {log_of(folder)} from a backup")
        return _Health("unreadable", (refused or backup,), {"readable": False})


def _log(warehouse: Warehouse, name: str, folder: StoragePlace) -> tuple[str, tuple[Finding, ...], dict[str, object]]:
    length = log_length(folder)
    seen = f"{length.entries} log entries, of which a reader opens {length.since_checkpoint}"
    values: dict[str, object] = {"log_entries": length.entries, "log_entries_to_open": length.since_checkpoint}
    if length.since_checkpoint < LONG_LOG:
        return seen, (), values
    what = f"table {name}: every reader has to read {length.since_checkpoint} log entries"
    return seen, (Finding(what, f"{command('run', warehouse)}, which writes a Delta log checkpoint"),), values


def _forbidding(name: TableName, table: DeltaTable, mode: TableMode | None, folder: StoragePlace) -> Iterator[Finding]:
    """Yield what in the table itself forbids publishing. A starting tick also compares it with the pipeline."""
    shape = shape_of(table)
    for problem in problems_of(shape, shape.columns, mode or TableMode.APPEND, str(folder), shape.partitioned_by):
        yield Finding(f"table {name} {problem.what}: nothing can be published into it", problem.way_out)
    if mode not in (None, TableMode.APPEND):
        marked = paths_with_deletion_vectors(table)
        if marked:
            what = f"table {name} has deletion vectors on {len(marked)} files: nothing can be published into it"
            yield Finding(what, purge(str(folder)))


def _foreign(warehouse: Warehouse, name: TableName, table: DeltaTable, mode: TableMode | None) -> Iterator[Finding]:
    """Yield what others did to a table that must hold exactly the checkpoint's files. To an append table they may."""
    foreign = list(_since_ours(warehouse.place(name), table.version()))
    changed = [entry for entry in foreign if entry.operation not in _HARMLESS]
    if changed and mode not in (None, TableMode.APPEND):
        entries = ", ".join(str(entry) for entry in reversed(changed[:3]))
        what = f"table {name} was changed by others since the last checkpoint ({entries})"
        yield Finding(what, f"{command('run', warehouse)}: the next checkpoint that changes it restores it")


def _unfenced(warehouse: Warehouse, name: TableName, table: DeltaTable) -> Iterator[Finding]:
    """Yield whether Spark has committed to a table in S3: its Delta library does not ask whether the entry exists."""
    if not isinstance(warehouse.storage, ObjectStore) or warehouse.storage.root.scheme != "s3":
        return
    entries = islice(newest_entries(warehouse.place(name), table.version()), _LOOKED_AT)
    found = next((entry for entry in entries if entry.ours is None and _SPARK.search(entry.engine)), None)
    if found is not None:
        yield Finding(
            f"table {name}: {found} was written by {found.engine}, whose commits to S3 use no conditional put, so two "
            "writers may both commit a version",
            "let other programs write to it by delta-rs, or into a table of their own",
        )


_SPARK: Final = re.compile(r"Spark", re.IGNORECASE)
_LOOKED_AT: Final = 100
"""So many of the newest log entries tell who writes to a table now."""

_HARMLESS: Final = frozenset({"SET TBLPROPERTIES", "VACUUM START", "VACUUM END", "CREATE TABLE"})


def _since_ours(folder: StoragePlace, version: int) -> Iterator[LogEntry]:
    for entry in newest_entries(folder, version):
        if entry.ours is not None or entry.version == 0:
            return
        yield entry


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
