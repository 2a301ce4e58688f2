"""Checks the files: those that an entry or a recorded cut needs must be whole, and unneeded ones should be deleted."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkpointing.commit.cleanup import Unneeded, readable_cuts
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.files import files_of, handles_of
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.doctor.findings import Finding, Section, command
from jobs.recovery.restore_damage import way_out
from jobs.runtime.cleaning import plan_cleanup
from jobs.showing.quantities import plural, size
from jobs.storage.parquet import parquet_of
from jobs.stores.cuts import Cut
from jobs.stores.logged_files import logged_files
from jobs.stores.lost_files import is_ours
from jobs.stores.soundness import damages
from jobs.stores.warehouse import Warehouse

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
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
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


def _damaged_rows(
    warehouse: Warehouse, rows: tuple[Row, ...], records: list[CheckpointRecord], damaged: Mapping[str, str]
) -> Iterator[Finding]:
    newest = newest_checkpoint(rows)
    for row in records:
        found = [damaged[path] for path in sorted(files_of(row)) if path in damaged]
        if found:
            what = f"{row.kind.value} {row.checkpoint} is damaged: {_some(found)}"
            yield Finding(what, way_out(warehouse, besides=row) if row == newest else _older(warehouse, row))


def _older(warehouse: Warehouse, row: CheckpointRecord) -> str:
    if row.is_savepoint:
        gone = command("savepoint", warehouse, "--dispose", str(row.checkpoint))
        return f"restore it from a backup, or give the savepoint up: {gone}"
    takes = f"{command('run', warehouse)}, whose checkpoints replace it"
    return f"restore it from a backup, or {takes}; a tick begins from it only if you name it"


def _readable(rows: tuple[Row, ...], cuts: Mapping[CheckpointId, Cut]) -> dict[CheckpointId, Cut]:
    """Return the readable cuts. Others stay recorded until the next cut is recorded, and may have lost their files."""
    readable = readable_cuts(rows, cuts.keys())
    return {checkpoint: cut for checkpoint, cut in cuts.items() if checkpoint in readable}


def _hollow_tables(warehouse: Warehouse, cuts: Mapping[CheckpointId, Cut], named: set[str]) -> Iterator[Finding]:
    """Yield the tables with missing files at a readable version."""
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
        loaded = DeltaTable(str(folder), version=version)
    except Exception:  # noqa: BLE001 - the table's own section says so
        return
    for path, file in logged_files(loaded).items():
        is_elsewhere = "://" in path or path.startswith("/")  # another writer's, outside the table's folder
        if not is_elsewhere and (folder / path).size() != file.bytes:
            yield f"{table}/{path}"


def _narrow_bounds(warehouse: Warehouse, cuts: Mapping[CheckpointId, Cut]) -> Iterator[Finding]:
    """Yield the tables whose log has bounds of decimals that leave out values. Tidemark 0.1.0 wrote such bounds.

    A query with a condition then passes over the file, and misses its rows.
    """
    for table, version in sorted(cuts[max(cuts)].items()) if cuts else ():
        found = sorted(files_with_narrow_bounds(warehouse, table, version))
        if found:
            what = (
                f"table {table}: the log's bounds of decimals leave out values of {_some(found)}, so a query with a "
                "condition on them may miss rows. Tidemark 0.1.0 wrote such bounds"
            )
            again = f"tidemark run {warehouse.paths.job} --warehouse EMPTY_FOLDER"
            yield Finding(what, f"fill the tables again, which writes right bounds: {again}")


def files_with_narrow_bounds(warehouse: Warehouse, table: TableName, version: int) -> Iterator[str]:
    """Yield the job's own files of a table with a decimal outside of its bounds in the log, each with the column."""
    folder = warehouse.place(table)
    try:
        files = logged_files(DeltaTable(str(folder), version=version))
        for path, file in files.items():
            bounds = json.loads(file.statistics, parse_float=Decimal, parse_int=Decimal)
            if is_ours(path) and bounds.get("minValues"):
                with pq.ParquetFile(parquet_of(folder / path)) as opened:
                    schema = opened.schema_arrow
                    named = [name for name in schema.names if pa.types.is_decimal(schema.field(name).type)]
                    rows = opened.read(named)
                yield from (f"{path} ({name!r})" for name in named if _is_narrow(rows.column(name), name, bounds))
    except Exception:  # noqa: BLE001 - a log or a file that is damaged or gone, which other findings name
        return


def _is_narrow(column: pa.ChunkedArray, name: str, bounds: Mapping[str, Mapping[str, Decimal]]) -> bool:
    found = pc.min_max(column)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    low, high = bounds["minValues"].get(name), bounds["maxValues"].get(name)
    return least is not None and ((low is not None and low > least) or (high is not None and high < greatest))


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
