"""Writes the rows of one Spark partition of a stateless vertex, the failing rows to quarantine too."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from jobs.operators.changes import ADDING, KIND, with_kind
from jobs.operators.python_workers import freeze_imports
from jobs.operators.reports import TaskReport, report_batch, times_read
from jobs.sinks.staged_files import StagedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessTask:
    """All that a task needs. `failed` names the column with the failed rules; None without rules.

    All rows go to `table` if there is one, laid out by `partitioned_by`. Without a table they go to `channel`, if there
    is one. If the task `emits_changes`, the rows have a kind. Then all changes go to `channel`, and the added rows go
    to `table`. If the table has a `version` column, only rows that the table may show go to it, and all rows go to
    `channel`.
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
    version: str | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows and yield one report. Yield nothing for a Spark partition without rows."""
        timed = replace(self, writer=self.writer.timed())
        yield from timed.carry_out(batches)
        freeze_imports()

    def carry_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows and yield the report, as `run` does. The writer's stopwatch has run since the task began."""
        received = [batch for batch in batches if batch.num_rows]
        yield from times_read(0, self.writer)
        if received:
            yield from report_batch(self._write(pa.Table.from_batches(received)))

    def _write(self, rows: pa.Table) -> TaskReport:
        kept = _added(rows) if self.emits_changes else rows
        written = self._write_all(kept)
        emitted = written if self._emits_what_it_keeps else self._write_channel(rows)
        staged = [(self.table, file) for file in written if self.table is not None]
        failed = self._write_failed(kept)
        return TaskReport(
            subtask=0,
            emitted=emitted if self.emits else (),
            staged=(*staged, *failed),
            work=self.writer.watch.work(rows.num_rows),
        )

    @property
    def _emits_what_it_keeps(self) -> bool:
        """True if downstream vertices read the files of the table, or without a table the files of the channel."""
        return not self.emits_changes and self.version is None

    def _write_all(self, rows: pa.Table) -> tuple[FileHandle, ...]:
        place = self.table or (self.channel if self._emits_what_it_keeps else None)
        if place is None or not rows.num_rows:
            return ()
        typed = rows.select(self.schema.names).cast(self.schema)
        if self.table is None:
            return (self.writer.write_channel(place, iter([typed]), self.schema),)
        if self.version is not None:
            return self.writer.write_newest(place, typed, self.partitioned_by, self.version)
        return self.writer.write_partitions(place, typed, self.partitioned_by)

    def _write_channel(self, rows: pa.Table) -> tuple[FileHandle, ...]:
        """Write all rows for downstream vertices, with the kinds of changes if there are kinds."""
        if self.channel is None:
            return ()
        schema = with_kind(self.schema) if self.emits_changes else self.schema
        return (self.writer.write_channel(self.channel, iter([rows.select(schema.names).cast(schema)]), schema),)

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
