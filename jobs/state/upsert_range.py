"""One subtask's range of an upsert table: one file, which is copied on write.

A partitioned table has one file for each partition of the range. Only partitions whose rows change are copied.

The file has no key groups, since readers of the table do not want them. After a change of parallelism the files of
the old ranges do not fit. Then their rows come through the exchange, where Spark computes their key groups again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from checkpointing.metadata.paths import staged_name_in
from jobs.sinks.partitions import MEAN_NULL, PartitionError, partitions
from jobs.sinks.staged_files import StagedFiles
from jobs.state.files import read_verified
from jobs.state.frames import arrow_of, empty_frame, frame_of
from jobs.state.worker_copy import COPIES, Copy, RangeName, WorkerCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRange:
    """The rows of one upsert table in one range of key groups. `renamed` are old column names by the new ones.

    With `all_partitions`, every partition is written again: the files have other columns, or another range.
    """

    operator: str
    table: TableName
    keys: tuple[str, ...]
    schema: pa.Schema
    range: KeyGroupRange
    files: tuple[KeyedFile, ...]
    writer: StagedFiles
    version: Version
    renamed: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()
    all_partitions: bool = False
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

        The last row of a key wins. Return the range's files, complete: one for each partition that has rows.
        Raises PartitionError for rows that cannot be laid out.
        """
        on = list(self.keys)
        output, gone = self._plain(output), self._plain(gone)
        newest = output.unique(subset=on, keep="last", maintain_order=True)
        kept = current.join(newest, on=on, how="anti", nulls_equal=True)
        if not gone.is_empty():
            kept = kept.join(gone, on=on, how="anti", nulls_equal=True)
        rows = pl.concat([kept, newest])
        if rows.is_empty():
            return ()
        stay, changed = self._apart(current, kept, rows, newest)
        written: tuple[FileHandle, ...] = ()
        if not changed.is_empty():
            written = self.writer.write_partitions(self.table, arrow_of(changed, self.schema), self.partitioned_by)
        files = (*stay, *(self._base(handle) for handle in written))
        self.copies.keep(self._name, Copy(tuple(each.file.path for each in files), rows))
        return files

    def _base(self, handle: FileHandle) -> KeyedFile:
        return KeyedFile(handle, KeyedFileKind.BASE, self.range.first, self.range.last, self.version)

    def _apart(
        self, current: pl.DataFrame, kept: pl.DataFrame, rows: pl.DataFrame, newest: pl.DataFrame
    ) -> tuple[tuple[KeyedFile, ...], pl.DataFrame]:
        """Return the files that stay, and the rows of all other partitions: those that lose or get a row."""
        by = list(self.partitioned_by)
        if not by or self.all_partitions:
            return (), rows
        lost = current.join(kept, on=list(self.keys), how="anti", nulls_equal=True)
        touched = pl.concat([lost.select(by), newest.select(by)]).unique()
        folders = {folder for folder, _ in partitions(self.table, touched.to_arrow(), self.partitioned_by)}
        stay = tuple(each for each in self.files if _folder_of(each) not in folders)
        return stay, rows.join(touched, on=by, how="semi", nulls_equal=True)

    def _plain(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with null for texts that mean null in partition columns. Raises PartitionError for a key."""
        for name in self.partitioned_by:
            if name not in rows.columns or rows.schema[name] != pl.String:
                continue
            means_null = pl.col(name).is_in(MEAN_NULL)
            found = rows.filter(means_null)
            if name in self.keys and not found.is_empty():
                raise PartitionError(
                    f"table {self.table}: key {name} is {found[name][0]!r}, which a partition column of Delta cannot "
                    "tell from null: give it another value with with_column, or leave such rows out"
                )
            rows = rows.with_columns(pl.when(~means_null).then(pl.col(name)).alias(name))
        return rows

    def _read(self, file: KeyedFile) -> pa.Table:
        return read_verified(self.writer.root, self.operator, file.file, self.schema, self.renamed)

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)


def _folder_of(file: KeyedFile) -> str:
    name = staged_name_in(file.file.path)
    return "" if name is None else name.partition
