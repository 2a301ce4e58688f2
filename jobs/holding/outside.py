"""Publishes committed checkpoints into the outside sinks of a job's tables (ADR 17)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import Publication, PublishFailed, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.failures import TickRefusedError
from jobs.sinks.port import Sink, SinkError
from jobs.storage.parquet import parquet_of
from jobs.stores.warehouse import Warehouse
from jobs.user_code import message_of

NO_SINKS: Final[Mapping[TableName, Sink]] = MappingProxyType({})


class SinkRefusedError(TickRefusedError):
    """An outside sink cannot take the rows of a table. The message names both, and the way out."""


@dataclass(frozen=True, slots=True)
class RowsOfFiles:
    """The rows that a checkpoint adds to a table. Each iteration reads its files again, batch by batch."""

    warehouse: Warehouse
    publication: Publication

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, file by file."""
        for file in self.publication.adds:
            with pq.ParquetFile(parquet_of(self.warehouse.place(file.path))) as parquet:
                yield from parquet.iter_batches()


class OutsideSinks:
    """The outside sinks of one job, by table."""

    def __init__(self, warehouse: Warehouse, sinks: Mapping[TableName, Sink]) -> None:
        """Publish from the files of that warehouse."""
        self._warehouse = warehouse
        self._sinks = sinks

    def prepare(self, schemas: Mapping[TableName, pa.Schema]) -> dict[TableName, CheckpointId]:
        """Prepare all targets. Return the newest checkpoint that each has. Raises SinkRefusedError."""
        return {table: self._prepared(table, sink, schemas[table]) for table, sink in self._sinks.items()}

    def _prepared(self, table: TableName, sink: Sink, schema: pa.Schema) -> CheckpointId:
        try:
            return CheckpointId(sink.prepare(self._warehouse.paths.job, table, schema))
        except Exception as error:
            raise SinkRefusedError(f"the sink of table {table}: {_told(error)}") from error

    def publish(self, publication: Publication, checkpoint: CheckpointId) -> TablePublished | PublishFailed:
        """Give a checkpoint's rows to the table's sink, once, whatever was tried before."""
        table = publication.table
        sink = self._sinks.get(table)
        job = self._warehouse.paths.job
        waits = f"the sink of table {table} does not have checkpoint {checkpoint} yet, which is committed"
        if sink is None:
            return PublishFailed(
                checkpoint,
                table,
                f"{waits}: start 'tidemark run {job}' with the pipeline that has this sink, which publishes it",
            )
        try:
            sink.publish(job, table, checkpoint, RowsOfFiles(self._warehouse, publication))
        except Exception as error:  # noqa: BLE001 - a sink is a user's code
            way_out = f"Repair it and start again, or give it up with 'tidemark rollback {job} N --leave-outside'"
            return PublishFailed(checkpoint, table, f"{waits}: {_told(error)}. {way_out}")
        return TablePublished(checkpoint, table, 0, outside=True)


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
