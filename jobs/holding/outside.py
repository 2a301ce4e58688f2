"""Publishes committed checkpoints into the outside sinks of a job's tables (ADR 17)."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import Publication, PublishFailed, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.failures import TickRefusedError
from jobs.holding.outside_rows import ChangesOfFiles, RowsOfFiles
from jobs.sinks.port import SinkError, TableSink, UpsertedTable
from jobs.stores.warehouse import Warehouse
from jobs.user_code import message_of

NO_SINKS: Final[Mapping[TableName, TableSink]] = MappingProxyType({})


class SinkRefusedError(TickRefusedError):
    """An outside sink cannot take the rows of a table. The message names both, and the way out."""


class OutsideSinks:
    """The outside sinks of one job, by table."""

    def __init__(self, warehouse: Warehouse, sinks: Mapping[TableName, TableSink]) -> None:
        """Publish from the files of that warehouse."""
        self._warehouse = warehouse
        self._sinks = sinks

    def prepare(self, tables: Iterable[TableName] | None = None) -> dict[TableName, CheckpointId]:
        """Prepare the targets of these tables, or all. Return the newest checkpoint that each has.

        Raises SinkRefusedError, also for a table whose sink is not known.
        """
        return {table: self._prepared(table) for table in (self._sinks if tables is None else tables)}

    def _prepared(self, table: TableName) -> CheckpointId:
        job, bound = self._warehouse.paths.job, self._sinks.get(table)
        if bound is None:
            raise SinkRefusedError(
                f"the sink of table {table} goes back too, and no pipeline of {job} was found that has it; nothing was "
                "changed. Name the pipeline as module:attribute, or leave the sink as it is with --leave-outside"
            )
        try:
            if isinstance(bound, UpsertedTable):
                return CheckpointId(bound.sink.prepare_upsert(job, table, bound.schema, bound.keys))
            return CheckpointId(bound.sink.prepare(job, table, bound.schema))
        except Exception as error:
            raise SinkRefusedError(f"the sink of table {table}: {_told(error)}") from error

    def publish(self, publication: Publication, checkpoint: CheckpointId) -> TablePublished | PublishFailed:
        """Give a checkpoint's rows to the table's sink, once, whatever was tried before."""
        table = publication.table
        bound = self._sinks.get(table)
        job = self._warehouse.paths.job
        waits = f"the sink of table {table} does not have checkpoint {checkpoint} yet, which is committed"
        if bound is None:
            return PublishFailed(
                checkpoint,
                table,
                f"{waits}: start 'tidemark run {job}' with the pipeline that has this sink, which publishes it",
            )
        try:
            self._give(bound, publication, checkpoint)
        except Exception as error:  # noqa: BLE001 - a sink is a user's code
            way_out = f"Repair it and start again, or give it up with 'tidemark rollback {job} N --leave-outside'"
            return PublishFailed(checkpoint, table, f"{waits}: {_told(error)}. {way_out}")
        return TablePublished(checkpoint, table, 0, outside=True)

    def _give(self, bound: TableSink, publication: Publication, checkpoint: CheckpointId) -> None:
        job, table = self._warehouse.paths.job, publication.table
        if isinstance(bound, UpsertedTable):
            bound.sink.apply(job, table, checkpoint, ChangesOfFiles(self._warehouse, publication, bound.keys))
        else:
            bound.sink.publish(job, table, checkpoint, RowsOfFiles(self._warehouse, publication.adds))


def must_not_be_ahead_outside(held: Mapping[TableName, CheckpointId], rows: tuple[Row, ...]) -> None:
    """Raise SinkRefusedError if a target has a newer checkpoint than this warehouse ever committed.

    Another warehouse has published it. The target would pass over the checkpoints of this one as known.
    """
    newest = max((row.checkpoint for row in rows if isinstance(row, CheckpointRecord)), default=CheckpointId(0))
    for table, checkpoint in held.items():
        if checkpoint > newest:
            raise SinkRefusedError(
                f"the sink of table {table} has checkpoint {checkpoint} of this job, and the newest one of this "
                f"warehouse is {newest}, so another warehouse has published into it: name that warehouse with "
                "--warehouse, or give the sink an empty target"
            )


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, SinkError) else message_of(error)
