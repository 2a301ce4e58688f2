"""Enters a job's tables into a catalog: creates, renames, replaces and removes entries, but only those of this job."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId, TableName
from jobs.catalogs.port import (
    JOB,
    OWNER,
    SCHEMA_CHECKPOINT,
    TABLE,
    WAREHOUSE,
    Catalog,
    CatalogEntry,
    CatalogError,
    CatalogTable,
    UnusableCatalogError,
)
from jobs.reading.cut_sql import view_name
from jobs.warehouse.table_columns import COMMENT, columns_of_schema
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

_OWN_PREFIXES: Final = ("delta.", "tidemark.")


def names_in_catalog(tables: Iterable[TableName]) -> dict[TableName, str]:
    """Return the name that each table has in a catalog, such as `gold_daily` for `gold/daily`.

    Raises UnusableCatalogError if two tables would have the same name.
    """
    names: dict[str, TableName] = {}
    for table in tables:
        other = names.setdefault(view_name(table), table)
        if other != table:
            raise UnusableCatalogError(
                f"catalog: the tables {other} and {table} would both be called {view_name(table)}; rename one of them"
            )
    return {table: name for name, table in names.items()}


def table_in_catalog(warehouse: Warehouse, table: TableName, loaded: DeltaTable) -> CatalogTable:
    """Return the description of a table that a catalog gets, as the table's Delta log has it."""
    metadata, schema = loaded.metadata(), loaded.schema()
    own = {name: value for name, value in metadata.configuration.items() if not name.startswith(_OWN_PREFIXES)}
    comments = {each.name: str(each.metadata[COMMENT]) for each in schema.fields if COMMENT in each.metadata}
    return CatalogTable(
        name=view_name(table),
        location=str(warehouse.place(table)),
        columns=columns_of_schema(schema),
        schema=schema.to_json(),
        partitioned_by=tuple(metadata.partition_columns),
        comment=metadata.description or "",
        comments=comments,
        properties=own | {**owner(warehouse), TABLE: str(table)},
    )


def tables_in_catalog(warehouse: Warehouse, logs: TableLogs, names: Iterable[TableName]) -> Iterator[CatalogTable]:
    """Yield the description of each of these tables. A table that has no log yet is left out."""
    for name in names:
        known = logs.log(name).current()
        if known is not None:
            yield table_in_catalog(warehouse, name, known.loaded)


def owner(warehouse: Warehouse) -> dict[str, str]:
    """Return the properties that mark a job's entries."""
    return {JOB: str(warehouse.paths.job), WAREHOUSE: str(warehouse.root)}


def register(
    catalog: Catalog,
    table: CatalogTable,
    entries: Mapping[str, CatalogEntry],
    checkpoint: CheckpointId,
    renamed_from: str | None = None,
) -> bool:
    """Create or correct a table's entry, given all entries. Return whether the entry changed.

    Calling twice is harmless.

    If the table was renamed, its entry is still called `renamed_from`, and gets the new name. Raises CatalogError for
    an entry of somebody else.
    """
    found, name = entries.get(table.name), table.name
    was = None if found is not None or renamed_from is None else entries.get(renamed_from)
    if was is not None and renamed_from is not None and _is_ours(was, table.properties):
        found, name = was, renamed_from
    if found is not None and not _is_ours(found, table.properties):
        raise CatalogError(_of_others(table.name, found))
    same = found is not None and found.columns == catalog.entry(table).columns
    since = found.properties.get(SCHEMA_CHECKPOINT) if found is not None and same else None
    told = replace(table, properties={**table.properties, SCHEMA_CHECKPOINT: since or str(checkpoint)})
    wanted = catalog.entry(told)
    if found is None:
        catalog.create(told, wanted)
    elif name != table.name or found.differs(wanted):
        catalog.replace(name, told, wanted)
    else:
        return False
    return True


def unregister_others(
    catalog: Catalog, entries: Mapping[str, CatalogEntry], warehouse: Warehouse, names: Collection[str]
) -> None:
    """Remove this job's entries of tables that the job no longer has, which are all entries but `names`."""
    ours = owner(warehouse)
    for name, entry in entries.items():
        if name not in names and _is_ours(entry, ours):
            catalog.drop(name)


def differences(catalog: Catalog, tables: Iterable[CatalogTable]) -> Iterator[tuple[str, str]]:
    """Yield each table whose entry is missing, stale or somebody else's, and what is wrong with the entry."""
    entries = dict(catalog.entries())
    for table in tables:
        found = entries.get(table.name)
        if found is None:
            yield table.name, "is not there"
        elif not _is_ours(found, table.properties):
            yield table.name, _of_others(table.name, found)
        elif differs := found.differs(catalog.entry(table)):
            yield table.name, f"is stale: {differs}"


def _is_ours(entry: CatalogEntry, properties: Mapping[str, str]) -> bool:
    return all(entry.properties.get(name) == properties[name] for name in OWNER)


def _of_others(name: str, found: CatalogEntry) -> str:
    whose = "of somebody else"
    if JOB in found.properties:
        whose = f"of job {found.properties[JOB]} in {found.properties.get(WAREHOUSE)}"
    return f"the entry {name} is {whose} and was left alone: choose another catalog_schema, or drop that entry"
