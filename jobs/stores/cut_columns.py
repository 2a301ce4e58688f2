"""Finds the columns that tables had at an old entry, one written before format 4, which does not list them (D6)."""

from collections.abc import Iterable, Mapping

from deltalake import Schema

from checkpointing.columns import TableColumns
from checkpointing.commit.net import keyed_tables
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from jobs.state.files import schemas_of
from jobs.stores.cuts import Cut
from jobs.stores.delta_log import DeltaLog
from jobs.stores.table_columns import columns_of_schema
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import load


def with_columns(
    warehouse: Warehouse, record: CheckpointRecord, tables: Iterable[TableName], cuts: Mapping[CheckpointId, Cut]
) -> CheckpointRecord:
    """Return the entry with the columns of these tables, unless it lists its columns already.

    A state table has the columns of its files, if they agree. Any other table has the columns in its log at the entry's
    cut. A plain savepoint has its parent's cut. For an entry that is not published yet, the newest version counts,
    because the Tidemark that wrote such an entry added the columns first. Raises TableNotCopyableError for an
    unreadable log.
    """
    if record.columns:
        return record
    keyed = dict(keyed_tables(record, warehouse.paths.job))
    cut = cuts.get(record.checkpoint if record.commits else record.parent, {})
    schemas = {
        name: _of_files(warehouse, keyed.get(name)) or _of_log(warehouse, name, cut.get(name)) for name in tables
    }
    found = (TableColumns(name, columns_of_schema(schema)) for name, schema in schemas.items() if schema is not None)
    return record.model_copy(update={"columns": tuple(found)})


def _of_files(warehouse: Warehouse, state: TableRecord | None) -> Schema | None:
    if state is None or state.mode is not TableMode.STATE:
        return None
    footers = schemas_of(str(warehouse.root), state.files)
    schemas = [Schema.from_arrow(footer) for footer in footers if footer is not None]
    agree = schemas and len({columns_of_schema(schema) for schema in schemas}) == 1
    return schemas[0] if agree else None


def _of_log(warehouse: Warehouse, name: TableName, version: int | None) -> Schema | None:
    there = DeltaLog(warehouse.place(warehouse.paths.table(name))).exists()
    return load(warehouse, name, version).schema() if there else None
