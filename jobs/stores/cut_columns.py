"""The columns of tables at a row that does not say them: rows written before format 4 (D6)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from deltalake import Schema

from checkpointing.columns import TableColumns
from checkpointing.commit.net import keyed_tables
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.state.files import schema_of
from jobs.stores.cuts import Cut
from jobs.stores.delta_log import DeltaLog
from jobs.stores.table_columns import columns_of_schema
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import load


@dataclass(frozen=True, slots=True)
class _Asked:
    warehouse: Warehouse
    record: CheckpointRecord
    cuts: Mapping[CheckpointId, Cut]


def with_columns(
    warehouse: Warehouse, record: CheckpointRecord, tables: Iterable[TableName], cuts: Mapping[CheckpointId, Cut]
) -> CheckpointRecord:
    """Return the row with the columns of these tables, unless it says its columns itself.

    A state table has the columns of its files, if they agree; any other those of its log at the row's cut: the
    parent's for a plain savepoint, and the newest for a row that is not published yet, whose columns the version that
    wrote it had added before. Raises TableNotCopyableError for a log that cannot be read.
    """
    if record.columns:
        return record
    return record.model_copy(update={"columns": tuple(_found(_Asked(warehouse, record, cuts), tables))})


def _found(asked: _Asked, names: Iterable[TableName]) -> Iterator[TableColumns]:
    keyed = dict(keyed_tables(asked.record, asked.warehouse.paths.job))
    for name in names:
        state = keyed.get(name)
        schema = None
        if state is not None and state.mode is TableMode.STATE:
            schema = _of_files(asked.warehouse, state.files)
        schema = schema or _of_log(asked, name)
        if schema is not None:
            yield TableColumns(name, columns_of_schema(schema))


def _of_files(warehouse: Warehouse, files: Iterable[FileHandle]) -> Schema | None:
    footers = [schema_of(str(warehouse.root), file) for file in files]
    schemas = [Schema.from_arrow(footer) for footer in footers if footer is not None]
    agree = schemas and len({columns_of_schema(schema) for schema in schemas}) == 1
    return schemas[0] if agree else None


def _of_log(asked: _Asked, name: TableName) -> Schema | None:
    if not DeltaLog(asked.warehouse.path(asked.warehouse.paths.table(name))).exists():
        return None
    record = asked.record
    cut = asked.cuts.get(record.checkpoint if record.commits else record.parent, {})
    return load(asked.warehouse, name, cut.get(name)).schema()
