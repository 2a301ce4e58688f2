"""Looks for keys that an upsert table holds more than once, because of a wrong function or another writer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import Row, TableKeys
from jobs.doctor.findings import Finding, Section
from jobs.doctor.table_health import modes_of
from jobs.engine_paths import polars_reads
from jobs.stores.warehouse import Warehouse

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
    """Return the section about upsert tables with double keys. It reads their key columns only with `verify`."""
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
    """Return the keys that several rows of a table have. Another section reports tables that cannot be read."""
    folder = warehouse.place(table.table)
    try:
        loaded = DeltaTable(str(folder))
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
