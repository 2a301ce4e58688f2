"""One subtask's range of an upsert table: one file, which is copied on write.

The file has no key groups, since readers of the table do not want them. After a change of parallelism the files of
the old ranges do not fit. Then their rows come through the exchange, where Spark computes their key groups again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from jobs.sinks.staged_files import StagedFiles
from jobs.state.files import read_verified
from jobs.state.frames import arrow_of, empty_frame, frame_of
from jobs.state.worker_copy import COPIES, Copy, RangeName, WorkerCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRange:
    """The rows of one upsert table in one range of key groups. `renamed` are old column names by the new ones."""

    operator: str
    table: TableName
    keys: tuple[str, ...]
    schema: pa.Schema
    range: KeyGroupRange
    files: tuple[KeyedFile, ...]
    writer: StagedFiles
    version: Version
    renamed: Mapping[str, str] = field(default_factory=dict)
    copies: WorkerCopies = COPIES

    def load(self) -> pl.DataFrame:
        """Return the range's rows; raise StateFileError if a file is missing or damaged."""
        copy = self.copies.find(self._name, [file.file.path for file in self.files], empty_frame(self.schema).schema)
        if copy is not None and len(copy.paths) == len(self.files):
            return copy.rows
        parts = (frame_of(self._read(file)) for file in self.files)
        return pl.concat([empty_frame(self.schema), *parts])

    def write(self, current: pl.DataFrame, output: pl.DataFrame, gone: pl.DataFrame) -> tuple[KeyedFile, ...]:
        """Write the range with `output` in place of the rows of its keys, and without the keys that are `gone`.

        The last row of a key wins. Return the range's files, complete: one, or none if the range has no rows.
        """
        on = list(self.keys)
        newest = output.unique(subset=on, keep="last", maintain_order=True)
        kept = current.join(newest, on=on, how="anti", nulls_equal=True)
        if not gone.is_empty():
            kept = kept.join(gone, on=on, how="anti", nulls_equal=True)
        rows = pl.concat([kept, newest])
        if rows.is_empty():
            return ()
        handle = self.writer.write(self.table, arrow_of(rows, self.schema))
        self.copies.keep(self._name, Copy((handle.path,), rows))
        return (KeyedFile(handle, KeyedFileKind.BASE, self.range.first, self.range.last, self.version),)

    def _read(self, file: KeyedFile) -> pa.Table:
        return read_verified(self.writer.root, self.operator, file.file, self.schema, self.renamed)

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)
