"""Looks for keys that an upsert table holds more than once: a wrong keyed function or a foreign writer doubled them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.graph import TableMode
from checkpointing.metadata.record import Row, TableKeys
from jobs.doctor.findings import Finding, Section
from jobs.doctor.table_health import modes_of
from jobs.engine_paths import polars_reads
from jobs.stores.warehouse import Warehouse

_TIMES: Final = "\0times"


@dataclass(frozen=True, slots=True)
class _Doubled:
    keys: int
    example: str


def key_section(warehouse: Warehouse, rows: tuple[Row, ...], *, verify: bool) -> Section:
    """Return, with `verify`, which upsert tables hold a key more than once; their key columns are read for it."""
    newest = newest_checkpoint(rows)
    tables = [each for vertex in newest.vertices for each in vertex.table_keys] if newest else []
    if not verify:
        return Section("keys", (("upsert tables", f"{len(tables)}, not read; --verify looks for double keys"),))
    found = {each: _doubled(warehouse, each) for each in tables}
    unknown = sorted(_upserts(rows) - {each.table for each in tables})
    seen = [
        *(
            (str(each.table), "each key once" if not doubled else f"{doubled.keys} keys more than once")
            for each, doubled in found.items()
        ),
        *((name, "not read: its key is recorded with the next checkpoint") for name in unknown),
    ]
    return Section("keys", tuple(seen), tuple(_findings(warehouse, found)))


def _findings(warehouse: Warehouse, found: dict[TableKeys, _Doubled | None]) -> Iterator[Finding]:
    job = warehouse.paths.job
    for each, doubled in found.items():
        if doubled is not None:
            yield Finding(
                f"upsert table {each.table} holds {doubled.keys} keys more than once, such as {doubled.example}",
                "let the function of the vertex that writes it put out rows under its own keys only, then fill the "
                f"tables anew: tidemark run {job} --warehouse EMPTY_FOLDER",
            )


def _doubled(warehouse: Warehouse, table: TableKeys) -> _Doubled | None:
    """Return the keys that several rows of a table have; None also if it cannot be read, which another section says."""
    folder = warehouse.path(table.table)
    try:
        loaded = DeltaTable(str(folder))
        keys = pl.scan_delta(loaded, use_pyarrow=not polars_reads(folder)).select(table.columns)
        twice = keys.group_by(table.columns).agg(pl.len().alias(_TIMES)).filter(pl.col(_TIMES) > 1).collect()
    except Exception:  # noqa: BLE001 - a log or a file that is damaged or gone
        return None
    if twice.is_empty():
        return None
    first = twice.sort(_TIMES, descending=True).row(0, named=True)
    example = ", ".join(f"{name}={first[name]}" for name in table.columns)
    return _Doubled(twice.height, f"{example} ({first[_TIMES]} rows)")


def _upserts(rows: tuple[Row, ...]) -> set[str]:
    return {str(name) for name, mode in modes_of(rows).items() if mode is TableMode.UPSERT}
