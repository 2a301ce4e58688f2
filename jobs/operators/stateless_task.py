"""Writes the rows of one Spark partition of a stateless vertex, the failing rows to quarantine too."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from jobs.operators.changes import ADDING, KIND, with_kind
from jobs.operators.reports import TaskReport, report_batch
from jobs.operators.worker_heap import freeze_imports
from jobs.sinks.staged_files import StagedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessTask:
    """All that a task needs. `failed` names the column with the failed rules; None without rules.

    All rows go to `table` if there is one, laid out by `partitioned_by`. Else they go to `channel`, else nowhere. If it
    `emits_changes`, the rows have a kind. All changes go to `channel`, and the rows that are added to `table`.
    """

    writer: StagedFiles
    schema: pa.Schema
    failed: str | None
    table: TableName | None
    channel: TableName | None
    emits: bool
    quarantine: TableName | None
    partitioned_by: tuple[str, ...] = ()
    emits_changes: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows and yield one report; yield nothing for a Spark partition without rows."""
        timed = replace(self, writer=self.writer.timed())
        yield from timed.carry_out(batches)
        freeze_imports()

    def carry_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do what `run` promises; the writer's stopwatch has run since the task began."""
        received = [batch for batch in batches if batch.num_rows]
        if received:
            yield from report_batch(self._write(pa.Table.from_batches(received)))

    def _write(self, rows: pa.Table) -> TaskReport:
        kept = _added(rows) if self.emits_changes else rows
        written = self._write_all(kept)
        changes = self._write_changes(rows)
        staged = [(self.table, file) for file in written if self.table is not None]
        failed = self._write_failed(kept)
        emitted = changes if self.emits_changes else written
        return TaskReport(
            subtask=0,
            emitted=emitted if self.emits else (),
            staged=(*staged, *failed),
            work=self.writer.watch.work(rows.num_rows),
        )

    def _write_all(self, rows: pa.Table) -> tuple[FileHandle, ...]:
        place = self.table if self.emits_changes else self.table or self.channel
        if place is None or not rows.num_rows:
            return ()
        return self.writer.write_partitions(
            place, rows.select(self.schema.names).cast(self.schema), self.partitioned_by
        )

    def _write_changes(self, rows: pa.Table) -> tuple[FileHandle, ...]:
        if not self.emits_changes or self.channel is None:
            return ()
        schema = with_kind(self.schema)
        return (self.writer.write(self.channel, rows.select(schema.names).cast(schema)),)

    def _write_failed(self, rows: pa.Table) -> tuple[tuple[TableName, FileHandle], ...]:
        if self.quarantine is None or self.failed is None:
            return ()
        failed = rows.filter(pc.is_valid(rows.column(self.failed)))
        if failed.num_rows == 0:
            return ()
        schema = self.schema.append(pa.field(self.failed, pa.string()))
        return ((self.quarantine, self.writer.write(self.quarantine, failed.cast(schema))),)


def _added(changes: pa.Table) -> pa.Table:
    """Return the rows that are added, without their kinds."""
    return changes.filter(pc.is_in(changes.column(KIND), pa.array(ADDING))).drop_columns(KIND)
