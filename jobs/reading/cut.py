"""One consistent cut: every table at the Delta version of one checkpoint, and every operator's state."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from checkpointing.commit.lost_publications import LogSeen, Wanted
from checkpointing.completeness import complete_until_ms
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.engine_paths import polars_reads, spark_address
from jobs.reading.moments import (
    CutGoneError,
    CutUnreadableError,
    NoSuchOperatorError,
    NoSuchTableError,
    ReadingError,
    time_of,
)
from jobs.reading.operator_state import OperatorState, opened_state
from jobs.storage.place import StoragePlace
from jobs.suggestions import there_are
from jobs.warehouse.checkpoints import UpstreamCut, rests_on
from jobs.warehouse.cuts_table import RecordedCut, event_time
from jobs.warehouse.log_entries import log_versions, published_by
from jobs.warehouse.table_snapshot import active_paths, delta_table, has_deletion_vectors
from jobs.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Source(Protocol):
    """Knows whether a cut is still retained."""

    def still(self, checkpoint: CheckpointId) -> str | None:
        """Return None while that cut is recorded, else a text that names the recorded cuts."""
        ...

    def past_row(self, checkpoint: CheckpointId) -> CheckpointRecord | None:
        """Return the entry of a checkpoint that may have been subsumed a moment ago."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Cut:
    """A published cut, which `Cuts` returns. All reads show the same checkpoint, whatever ticks do meanwhile.

    A table's name is its place in the warehouse, `schema/table`. Every read can raise NoSuchTableError, CutGoneError if
    a clean-up has deleted the cut, and CutUnreadableError if a file of a retained cut is missing.
    """

    _warehouse: Warehouse
    _recorded: RecordedCut
    _row: CheckpointRecord | None
    _source: _Source

    def __repr__(self) -> str:
        """Return a text with pipeline, warehouse, time of publication and number of tables."""
        at, tables = self.published_at.isoformat(timespec="seconds"), len(self.tables)
        return (
            f"<Cut {self.checkpoint} of {self.job} in {self._warehouse.root}, published {at}, "
            f"{tables} {'table' if tables == 1 else 'tables'}>"
        )

    @property
    def job(self) -> str:
        """The pipeline."""
        return self._warehouse.paths.job

    @property
    def checkpoint(self) -> int:
        """The id of the checkpoint."""
        return self._recorded.checkpoint

    @property
    def finished(self) -> bool:
        """Whether the job had finished: every source had ended, and the tables show the effect of every row."""
        return self._row is not None and self._row.finished

    @property
    def published_at(self) -> datetime:
        """When the publication of the last table was complete, UTC."""
        return time_of(self._recorded.published_at_ms)

    @property
    def versions(self) -> Mapping[str, int]:
        """The Delta version of every table, the operators' state tables included."""
        return dict(sorted((str(name), version) for name, version in self._recorded.versions.items()))

    @property
    def tables(self) -> tuple[str, ...]:
        """The output tables."""
        return tuple(name for name in self.versions if not name.startswith(f"{self._warehouse.paths.states}/"))

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators whose state can be read."""
        states = f"{self._warehouse.paths.states}/"
        return tuple(name.removeprefix(states) for name in self.versions if name.startswith(states))

    @property
    def rests_on(self) -> tuple[UpstreamCut, ...]:
        """The cuts of other jobs whose rows this cut holds; none if its pipeline reads no other job's cuts."""
        return rests_on(self.entry())

    def complete_until(self, table: str) -> datetime | None:
        """Return the time, in UTC, until which a table is complete: it has each row whose event time is not later.

        The table also has each window that ends by that time. So a day is complete when this time is the day's last
        millisecond, or later. Late rows are left aside. The time is 9999-12-31T23:59:59.999999 when no more rows can
        come. It is None if the table keeps no event time, if no row had an event time yet, or if rows may wait in an
        operator's state until a drain. Raises NoSuchTableError.
        """
        self.version(table)
        entry = self.entry()
        ms = None if entry is None else complete_until_ms(entry, TableName(table))
        return None if ms is None else event_time(ms)

    def entry(self) -> CheckpointRecord | None:
        """Return the entry of the checkpoint, or None if an older version of Tidemark kept the cut without it."""
        return self._row or self._source.past_row(self._recorded.checkpoint)

    def version(self, table: str) -> int:
        """Return a table's Delta version at this cut; raise NoSuchTableError listing the tables."""
        version = self._recorded.versions.get(TableName(table))
        if version is None:
            raise NoSuchTableError(
                f"cut {self.checkpoint} of {self.job} has no table {table!r}: {there_are(table, self.tables)}"
            )
        return version

    def folder(self, table: str) -> str:
        """Return where a table lies, as an absolute path; raise NoSuchTableError."""
        return str(self.place(table))

    def place(self, table: str) -> StoragePlace:
        """Return the folder of a table in its storage; raise NoSuchTableError."""
        self.version(table)
        return self._warehouse.place(self._warehouse.paths.table(TableName(table)))

    def polars(self, table: str) -> pl.LazyFrame:
        """Return a table at this cut, lazily. The files are checked now, and read when you collect."""
        opened = self.opened(table)
        if polars_reads(self.folder(table)):
            return pl.scan_delta(opened)
        if has_deletion_vectors(opened):
            return pl.LazyFrame(self.arrow(table))
        return pl.scan_delta(opened, use_pyarrow=True)

    def arrow(self, table: str) -> pa.Table:
        """Return a table's rows at this cut."""
        opened = self.opened(table)
        try:
            if has_deletion_vectors(opened):  # delta-rs reads them by its own engine alone
                return pa.table(opened.scan()).cast(pa.schema(opened.schema().to_arrow()))
            return opened.to_pyarrow_table()
        except (OSError, DeltaError) as error:
            raise self._unreadable(f"table {table}", error) from error

    def spark(self, spark: "SparkSession", table: str) -> "DataFrame":
        """Return a table at this cut, by `versionAsOf`; the session needs Delta (`io.delta:delta-spark`)."""
        self.opened(table)
        reader = spark.read.format("delta").option("versionAsOf", self.version(table))
        return reader.load(spark_address(self.folder(table)))

    def state(self, operator: str) -> OperatorState:
        """Return an operator's keyed state at this cut: real columns, one row per key.

        Raises NoSuchOperatorError listing the operators, CutGoneError, CutUnreadableError.
        """
        if operator not in self.operators:
            there = there_are(operator, self.operators)
            raise NoSuchOperatorError(
                f"cut {self.checkpoint} of {self.job} has no state of an operator {operator!r}: {there}"
            )
        name = self._warehouse.paths.state_table(VertexId(operator))
        row = self.entry()
        if row is None:
            raise self._without_entry(f"the state of {operator}")
        return opened_state(self._warehouse.root, row, VertexId(operator), self.opened(name))

    def opened(self, table: str) -> DeltaTable:
        """Return a table, opened by delta-rs at its version at this cut. All its files exist."""
        folder, version = self.place(table), self.version(table)
        try:
            opened = delta_table(folder, version)
            published = self._is_as_published(TableName(table), opened)
            missing = next((path for path in active_paths(opened) if not _is_there(folder, path)), None)
        except Exception as error:
            raise self._unreadable(f"table {table}", error) from error
        if not published:
            raise self._unreadable(f"table {table}", f"version {version} is not what was published for it")
        if missing is not None:
            raise self._unreadable(f"table {table}", f"{missing} is missing")
        return opened

    def _is_as_published(self, table: TableName, opened: DeltaTable) -> bool:
        """Return whether the log's entry of that version published this cut.

        Another entry may have replaced a lost one.
        """
        folder, version = self._warehouse.place(table), opened.version()
        entry = published_by(folder, version, self._warehouse.paths.transaction_id(table))
        named = self._row is not None and any(each.table == table for each in self._row.tables)
        published = {} if entry is None else {version: entry}
        seen = LogSeen(version, published=published, oldest=min(log_versions(folder), default=0))
        return seen.is_as_published(
            version, Wanted(self._recorded.checkpoint if named else None, self._recorded.checkpoint)
        )

    def _without_entry(self, what: str) -> ReadingError:
        """Return the error for a cut that was kept without its entry. No file is damaged in this case.

        Tidemark up to 0.1.0 kept the cut on which a savepoint rests, but not the cut's entry.
        """
        if self._source.still(self._recorded.checkpoint) is not None:
            return self._unreadable(what, "its entry in `checkpoints` was subsumed")
        return CutUnreadableError(
            f"{what} can't be read at cut {self.checkpoint} of {self.job}: an older version of Tidemark kept this cut "
            "for a savepoint, without the entry that says which state files count. Its tables can be read. Read the "
            "state at another cut"
        )

    def _unreadable(self, what: str, why: Exception | str) -> ReadingError:
        """Return the error for a part of this cut that can't be read: CutGoneError if the cut is no longer retained."""
        there = self._source.still(self._recorded.checkpoint)
        met = f"{type(why).__name__}: {str(why).splitlines()[0]}" if isinstance(why, Exception) else why
        if there is not None:
            return CutGoneError(
                f"cut {self.checkpoint} of {self.job} is no longer retained, and {what} can't be read at it any more "
                f"({met}): {there}; 'retained' says how many are kept"
            )
        return CutUnreadableError(
            f"cut {self.checkpoint} of {self.job} is damaged: {what} can't be read at it ({met}): 'tidemark run "
            f"{self.job}' brings back what the retained entries still hold; else restore the folder from a backup of "
            "the "
            "warehouse, or read another cut"
        )


def _is_there(folder: StoragePlace, path: str) -> bool:
    """Return whether an active file exists. A file outside the table's folder is not checked."""
    return "://" in path or path.startswith("/") or (folder / path).exists()
