"""Checks the job's Delta tables: how long their logs are, who else wrote to them, and what forbids publishing."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Final

import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkpointing.commit.cleanup import Unneeded, readable_cuts
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.files import files_of, handles_of
from checkpointing.metadata.record import CheckpointRecord, Row, TableKeys
from jobs.doctor.findings import Finding, Section, command
from jobs.engine_paths import polars_reads
from jobs.showing.quantities import plural, size
from jobs.sinks.statistics import leaves_out
from jobs.storage.objects import ObjectStore
from jobs.storage.parquet import parquet_of
from jobs.storage.place import StoragePlace
from jobs.tick.cleaning import plan_cleanup
from jobs.tick.rollback_plan import way_out
from jobs.tick.start_checks import must_be_repairable, must_not_be_ahead
from jobs.warehouse.cleanup import JobTable
from jobs.warehouse.cuts_table import Cut
from jobs.warehouse.file_checks import damages, is_ours, logged_files
from jobs.warehouse.internal_tables import is_own
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.log_entries import LogEntry, log_of, newest_entries
from jobs.warehouse.log_lengths import EVERY_VERSIONS, log_length
from jobs.warehouse.output_tables import shape_of
from jobs.warehouse.refusals import TablesAheadError, TablesBehindError
from jobs.warehouse.table_rules import problems_of, purge
from jobs.warehouse.table_snapshot import active_paths, delta_table, paths_with_deletion_vectors
from jobs.warehouse.warehouse import Warehouse

LONG_LOG: Final = 4 * EVERY_VERSIONS
"""With this many log entries since the last Delta log checkpoint, a table opens slowly. Ticks write one every 50."""


@dataclass(frozen=True, slots=True)
class _Health:
    seen: str
    findings: tuple[Finding, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)


def table_section(stores: JobStores, tables: tuple[JobTable, ...], rows: tuple[Row, ...]) -> Section:
    """Return the section about tables, with the job's own two first: whether the next tick can begin with them."""
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
    """Yield tables that show less than the recorded cuts, or more than the newest entry, and what to do about them."""
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
    """Return the mode of each table that the entries name."""
    return {table.table: table.mode for row in rows if isinstance(row, CheckpointRecord) for table in row.tables}


def _with_logs(warehouse: Warehouse, tables: tuple[JobTable, ...]) -> Iterator[JobTable]:
    return (table for table in tables if table.has_log(warehouse.paths))


def _own(warehouse: Warehouse, name: str, refused: Finding | None) -> _Health:
    folder = warehouse.place(name)
    seen, findings, values = _log(warehouse, name, folder)
    strange = [path for path in active_paths(delta_table(folder)) if not is_own(path)]
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
        table = delta_table(folder)
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
    """Yield what in the table itself forbids publishing. A starting tick also compares the table with the pipeline."""
    shape = shape_of(table)
    for problem in problems_of(shape, shape.columns, mode or TableMode.APPEND, str(folder), shape.partitioned_by):
        yield Finding(f"table {name} {problem.what}: nothing can be published into it", problem.way_out)
    if mode not in (None, TableMode.APPEND):
        marked = paths_with_deletion_vectors(table)
        if marked:
            what = f"table {name} has deletion vectors on {len(marked)} files: nothing can be published into it"
            yield Finding(what, purge(str(folder)))


def _foreign(warehouse: Warehouse, name: TableName, table: DeltaTable, mode: TableMode | None) -> Iterator[Finding]:
    """Yield what others changed in a table that must hold exactly the checkpoint's files.

    They may change an append table.
    """
    foreign = list(_since_ours(warehouse.place(name), table.version()))
    changed = [entry for entry in foreign if entry.operation not in _HARMLESS]
    if changed and mode not in (None, TableMode.APPEND):
        entries = ", ".join(str(entry) for entry in reversed(changed[:3]))
        what = f"table {name} was changed by others since the last checkpoint ({entries})"
        yield Finding(what, f"{command('run', warehouse)}: the next checkpoint that changes it restores it")


def _unfenced(warehouse: Warehouse, name: TableName, table: DeltaTable) -> Iterator[Finding]:
    """Yield a finding if Spark has committed to a table in S3.

    Its Delta library does not check that the entry is new.
    """
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
"""The number of newest log entries that are searched for writers of a table."""

_HARMLESS: Final = frozenset({"SET TBLPROPERTIES", "VACUUM START", "VACUUM END", "CREATE TABLE"})


def _since_ours(folder: StoragePlace, version: int) -> Iterator[LogEntry]:
    for entry in newest_entries(folder, version):
        if entry.ours is not None or entry.version == 0:
            return
        yield entry


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


# ------------------------------------------------------------------
# Checks the files: files that an entry or a recorded cut needs must be whole, and unneeded files should be deleted.


_NAMED_AT_MOST: Final = 3


def file_section(
    warehouse: Warehouse,
    rows: tuple[Row, ...],
    cuts: Mapping[CheckpointId, Cut],
    grace_ms: int,
    *,
    verify: bool,
) -> Section:
    """Return the section about files. `verify` reads every file that an entry names and compares its checksum."""
    records = [_needing(row, cuts) for row in rows if isinstance(row, CheckpointRecord)]
    named = {file.path: file for row in records for file in handles_of(row)}
    damaged = {found.path: str(found) for found in damages(warehouse.storage, named.values(), checksums=verify)}
    unneeded = plan_cleanup(warehouse, grace_ms).decision
    how = "by checksum" if verify else "by size; --verify compares checksums"
    return Section(
        "files",
        (
            (
                "needed to restore",
                f"{plural(len(named), 'file')}, {size(sum(file.bytes for file in named.values()))}, checked {how}",
            ),
            ("unneeded", _amount(unneeded.delete)),
            ("kept for readers", _amount(unneeded.waiting)),
        ),
        (
            *_damaged_rows(warehouse, rows, records, damaged),
            *_hollow_tables(warehouse, _readable(rows, cuts), set(named)),
            *(_narrow_bounds(warehouse, _readable(rows, cuts)) if verify else ()),
            *_unneeded(warehouse, unneeded.delete),
        ),
        {
            "needed": {"files": len(named), "bytes": sum(file.bytes for file in named.values())},
            "checked_by": "checksum" if verify else "size",
            "damaged": sorted(damaged),
            "unneeded": _counted(unneeded.delete),
            "kept_for_readers": _counted(unneeded.waiting),
        },
    )


def _needing(row: CheckpointRecord, cuts: Mapping[CheckpointId, Cut]) -> CheckpointRecord:
    """Return the entry with the files that it needs.

    An erasure needs its successor files only until it is published.
    """
    return row.model_copy(update={"erased": ()}) if row.checkpoint in cuts else row


def _damaged_rows(
    warehouse: Warehouse, rows: tuple[Row, ...], records: list[CheckpointRecord], damaged: Mapping[str, str]
) -> Iterator[Finding]:
    newest = newest_checkpoint(rows)
    for row in records:
        found = [damaged[path] for path in sorted(files_of(row)) if path in damaged]
        if found:
            what = f"{row.kind.value} {row.checkpoint} is damaged: {_some(found)}"
            is_newest = newest is not None and row.checkpoint == newest.checkpoint
            yield Finding(what, way_out(warehouse, besides=row) if is_newest else _older(warehouse, row))


def _older(warehouse: Warehouse, row: CheckpointRecord) -> str:
    if row.is_savepoint:
        gone = command("savepoint", warehouse, "--dispose", str(row.checkpoint))
        return f"restore it from a backup, or give the savepoint up: {gone}"
    takes = f"{command('run', warehouse)}, whose checkpoints replace it"
    return f"restore it from a backup, or {takes}; a tick begins from it only if you name it"


def _readable(rows: tuple[Row, ...], cuts: Mapping[CheckpointId, Cut]) -> dict[CheckpointId, Cut]:
    """Return the readable cuts.

    Other cuts stay recorded until the next one is recorded, but may have lost their files.
    """
    readable = readable_cuts(rows, cuts.keys())
    return {checkpoint: cut for checkpoint, cut in cuts.items() if checkpoint in readable}


def _hollow_tables(warehouse: Warehouse, cuts: Mapping[CheckpointId, Cut], named: set[str]) -> Iterator[Finding]:
    """Yield the tables that lack files at the version of a readable cut."""
    versions: dict[TableName, dict[int, CheckpointId]] = {}
    for checkpoint, cut in sorted(cuts.items()):
        for table, version in cut.items():
            versions.setdefault(table, {})[version] = checkpoint
    for table, wanted in sorted(versions.items()):
        for version, checkpoint in sorted(wanted.items(), reverse=True):
            lost = [path for path in _missing(warehouse, table, version) if path not in named]
            if lost:
                what = f"table {table} at version {version}, of checkpoint {checkpoint}, lacks {_some(lost)}"
                yield Finding(what, f"restore them from a backup, or the folder {warehouse.place(table)} as a whole")
                break


def _missing(warehouse: Warehouse, table: TableName, version: int) -> Iterator[str]:
    folder = warehouse.place(table)
    try:
        loaded = delta_table(folder, version)
    except Exception:  # noqa: BLE001 - the table's own section says so
        return
    for path, file in logged_files(loaded).items():
        is_elsewhere = "://" in path or path.startswith("/")  # another writer's, outside the table's folder
        if not is_elsewhere and (folder / path).size() != file.bytes:
            yield f"{table}/{path}"


def _narrow_bounds(warehouse: Warehouse, cuts: Mapping[CheckpointId, Cut]) -> Iterator[Finding]:
    """Yield the tables whose log has bounds that leave out values of a file.

    Tidemark 0.1.0 wrote such bounds of decimals. A query with a condition then skips the file, and misses its rows.
    """
    again = f"tidemark run {warehouse.paths.job} --warehouse EMPTY_FOLDER"
    for table, version in sorted(cuts[max(cuts)].items()) if cuts else ():
        found = sorted(files_with_narrow_bounds(warehouse, table, version))
        for named, by, way in (
            (
                [name for path, name in found if is_ours(path)],
                "Tidemark 0.1.0 wrote such bounds of decimals",
                f"fill the tables again, which writes right bounds: {again}",
            ),
            (
                [name for path, name in found if not is_ours(path)],
                "Another program wrote them",
                "let that program write these rows anew, or read the table without conditions",
            ),
        ):
            if named:
                what = (
                    f"table {table}: the log's bounds leave out values of {_some(named)}, so a query with a condition "
                    f"on them may miss rows. {by}"
                )
                yield Finding(what, way)


def files_with_narrow_bounds(warehouse: Warehouse, table: TableName, version: int) -> Iterator[tuple[str, str]]:
    """Yield the files with a value outside the bounds in the log: the path, and a text of path and column."""
    folder = warehouse.place(table)
    try:
        for path, file in logged_files(delta_table(folder, version)).items():
            bounds = json.loads(file.statistics, parse_float=Decimal, parse_int=Decimal)
            low, high = bounds.get("minValues", {}), bounds.get("maxValues", {})
            is_elsewhere = "://" in path or path.startswith("/")
            if is_elsewhere or not (low or high):
                continue
            with pq.ParquetFile(parquet_of(folder / path)) as opened:
                named = [name for name in opened.schema_arrow.names if name in low or name in high]
                rows = opened.read(named)
            for name in named:
                if leaves_out(rows.column(name), low.get(name), high.get(name)):
                    yield path, f"{path} ({name!r})"
    except Exception:  # noqa: BLE001 - a log or a file that is damaged or gone, which other findings name
        return


def _unneeded(warehouse: Warehouse, unneeded: tuple[Unneeded, ...]) -> Iterator[Finding]:
    if unneeded:
        tables = sorted({str(each.file.table) for each in unneeded})
        yield Finding(f"{_amount(unneeded)}, unneeded: in {_some(tables)}", command("cleanup", warehouse))


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _counted(files: tuple[Unneeded, ...]) -> dict[str, int]:
    return {"files": len(files), "bytes": sum(each.file.bytes for each in files)}


def _amount(files: tuple[Unneeded, ...]) -> str:
    return f"{plural(len(files), 'file')}, {size(sum(each.file.bytes for each in files))}" if files else "none"


# ------------------------------------------------------------------
# Looks for keys that an upsert table holds more than once, because of a wrong function or another writer.


_TIMES: Final = "\0times"


@dataclass(frozen=True, slots=True)
class _Looked:
    """The result of reading a table's keys; `doubled` describes double keys, and is empty without any.

    `keys` is the number of double keys, None if the table was not read.
    """

    seen: str
    doubled: str = ""
    keys: int | None = None


def key_section(warehouse: Warehouse, rows: tuple[Row, ...], *, verify: bool) -> Section:
    """Return the section about upsert tables with double keys. The key columns are read only with `verify`."""
    newest = newest_checkpoint(rows)
    keys = [each for vertex in newest.vertices for each in vertex.table_keys] if newest else []
    tables = [each for each in keys if each.mode is TableMode.UPSERT]
    if not verify:
        seen_of = (("upsert tables", f"{len(tables)}, not read; --verify looks for double keys"),)
        return Section("keys", seen_of, (), {str(each.table): None for each in tables})
    looked = {each.table: _look(warehouse, each) for each in tables}
    unknown = sorted(_upserts(rows) - looked.keys())
    seen = [
        *((str(table), look.seen) for table, look in looked.items()),
        *((table, "not read: its key is recorded with the next checkpoint") for table in unknown),
    ]
    values = {str(table): look.keys for table, look in looked.items()} | dict.fromkeys(unknown)
    skipped = tuple(f"double keys of {table}: {said}" for table, said in seen if said.startswith("not read"))
    return Section("keys", tuple(seen), tuple(_findings(warehouse, looked)), values, skipped)


def _findings(warehouse: Warehouse, looked: dict[TableName, _Looked]) -> Iterator[Finding]:
    for table, look in looked.items():
        if look.doubled:
            yield Finding(
                f"upsert table {table} holds {look.doubled}",
                "change the function of the vertex that writes it, so that it emits rows under its own keys only; then "
                f"fill the tables again: tidemark run {warehouse.paths.job} --warehouse EMPTY_FOLDER",
            )


def _look(warehouse: Warehouse, table: TableKeys) -> _Looked:
    """Return the keys that occur in several rows of a table. Another section reports tables that cannot be read."""
    folder = warehouse.place(table.table)
    try:
        loaded = delta_table(folder)
        keys = pl.scan_delta(loaded, use_pyarrow=not polars_reads(str(folder))).select(table.columns)
        twice = keys.group_by(table.columns).agg(pl.len().alias(_TIMES)).filter(pl.col(_TIMES) > 1).collect()
    except Exception as error:  # noqa: BLE001 - a log or a file that is damaged or gone
        return _Looked(f"not read ({type(error).__name__})")
    if twice.is_empty():
        return _Looked("each key once", keys=0)
    first = twice.sort(_TIMES, descending=True).row(0, named=True)
    example = ", ".join(f"{name}={first[name]}" for name in table.columns)
    doubled = f"{twice.height} keys more than once, such as {example} ({first[_TIMES]} rows)"
    return _Looked(f"{twice.height} keys more than once", doubled, twice.height)


def _upserts(rows: tuple[Row, ...]) -> set[TableName]:
    return {name for name, mode in modes_of(rows).items() if mode is TableMode.UPSERT}
