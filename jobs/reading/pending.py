"""The cut that waits for approval: what each table would show if somebody approved it.

The new rows are read from the files that the entry names. No table's log mentions these files yet. Rows that a table
had before come from the cut from which the waiting cut continues.
"""

from dataclasses import dataclass
from datetime import datetime

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.commit.columns import columns_of
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from jobs.reading.cut import Cut
from jobs.reading.moments import CutUnreadableError, NoSuchTableError, time_of
from jobs.state.files import frame_of
from jobs.storage.parquet import parquet_of
from jobs.suggestions import there_are
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True, repr=False)
class PendingCut:
    """A cut that waits for approval, which `Cuts.pending` returns. Tables are named as in a `Cut`.

    Every read can raise NoSuchTableError, and CutUnreadableError if the cut was settled meanwhile or a file is missing.
    """

    _warehouse: Warehouse
    _row: CheckpointRecord
    _parent: Cut | None
    """The cut from which this one continues. None: this is the first cut."""

    def __repr__(self) -> str:
        """Return a text with pipeline, warehouse and the number of the cut."""
        return f"<Pending cut {self.checkpoint} of {self.job} in {self._warehouse.root}>"

    @property
    def job(self) -> str:
        """The pipeline."""
        return self._warehouse.paths.job

    @property
    def checkpoint(self) -> int:
        """The id of the held cut. On approval, the cut gets a new id."""
        return self._row.checkpoint

    @property
    def held_at(self) -> datetime:
        """When the tick held it, UTC."""
        return time_of(self._row.statistics.committed_ms)

    @property
    def rows(self) -> int:
        """How many rows the sources sent since the cut from which this one continues."""
        return self._row.statistics.rows

    @property
    def rows_estimated(self) -> int:
        """How many of these rows are estimates of a source."""
        return self._row.statistics.rows_estimated

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The verdicts of the suites on the rows, as JSON texts."""
        return self._row.statistics.verdicts

    @property
    def tables(self) -> tuple[str, ...]:
        """The output tables at this cut."""
        states = f"{self._warehouse.paths.states}/"
        return tuple(sorted(name for name in columns_of(self._row) if not name.startswith(states)))

    @property
    def changed(self) -> tuple[str, ...]:
        """The output tables that the approval would change."""
        return tuple(name for name in self.tables if self._net(name) is not None)

    def polars(self, table: str) -> pl.LazyFrame:
        """Return a table as it would be after the approval. The rows of the parent's cut are read lazily."""
        names = self._columns(table)
        net = self._net(table)
        before = self._parent.polars(table) if self._parent and table in self._parent.tables else None
        if before is not None and net is not None:
            before = before.rename({old: new for new, old in net.renamed})
        if net is None:
            return before.select(names) if before is not None else pl.LazyFrame(schema=names)
        own = self._of_files(table, (*net.adds, *net.files))
        replaces = net.mode is not TableMode.APPEND or net.removes
        parts = [own] if before is None or replaces else [before, own]
        return pl.concat(parts, how="diagonal_relaxed").select(names)

    def arrow(self, table: str) -> pa.Table:
        """Return a table's rows as they would be after the approval."""
        return self.polars(table).collect().to_arrow()

    def added(self, table: str) -> pl.LazyFrame:
        """Return the rows that the approval would add to an append table, or all rows of another changed table."""
        names, net = self._columns(table), self._net(table)
        files = (*net.adds, *net.files) if net is not None else ()
        return self._of_files(table, files).select(names)

    def _net(self, table: str) -> TableRecord | None:
        return next((each for each in self._row.tables if each.table == table), None)

    def _columns(self, table: str) -> list[str]:
        if table not in self.tables:
            there = there_are(table, self.tables)
            raise NoSuchTableError(f"pending cut {self.checkpoint} of {self.job} has no table {table!r}: {there}")
        return [column.name for column in columns_of(self._row)[TableName(table)]]

    def _of_files(self, table: str, files: tuple[FileHandle, ...]) -> pl.LazyFrame:
        """Return the rows of these files. A column that no file has is null."""
        try:
            read = [pq.read_table(parquet_of(self._warehouse.place(file.path))) for file in files]
        except OSError as error:
            raise CutUnreadableError(
                f"pending cut {self.checkpoint} of {self.job} cannot be read: a file of table {table} is missing "
                f"({error}). If somebody has settled the cut, 'tidemark cut {self.job}' shows what is published"
            ) from error
        empty = pl.LazyFrame(schema=dict.fromkeys(self._columns(table), pl.Null))
        return pl.concat([empty, *(frame_of(rows).lazy() for rows in read)], how="diagonal_relaxed")
