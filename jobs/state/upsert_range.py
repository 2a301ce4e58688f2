"""One subtask's range of an upsert table: files of bounded size, which are copied on write.

Only files whose rows change are rewritten. Their unchanged rows come first in the new files, and the changed rows last.
So rows that changed recently lie together, and keys that soon change again touch few files.

The files have no key groups, because readers of the table do not need them. After a change of parallelism the files of
the old ranges do not fit the new ranges. Then their rows go through the exchange, and their key groups are computed
again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl
import pyarrow as pa

from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from checkpointing.metadata.paths import staged_name_in
from jobs.sinks.staged_files import MEAN_NULL, PartitionError, StagedFiles, partitions
from jobs.state.files import arrow_of, empty_frame, frame_of, of_its_own, read_verified
from jobs.state.keyed_rows import FoundKeys, KeyedRows, RowLayer
from jobs.state.mapped_files import MAPPED, MappedFiles
from jobs.state.worker_copy import COPIES, Copy, RangeName, WorkerCopies
from jobs.storage.place import storage_at, together

FILE_ROWS_MAX: Final = 250_000
"""The largest number of rows of a file. Smaller files save writing, and larger ones reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRange:
    """The rows of one upsert table in one range of key groups. `renamed` maps new column names to old ones.

    With `all_files`, every file is rewritten, because the files have other columns, or are of another range. A file has
    at most `file_rows_max` rows.
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
    all_files: bool = False
    file_rows_max: int = FILE_ROWS_MAX
    copies: WorkerCopies = COPIES
    mapped: MappedFiles = MAPPED

    def load(self) -> KeyedRows:
        """Return the range's rows, a layer for each file. Raise StateFileError if a file is missing or damaged.

        Only files whose rows are not in the worker's copy are read. If another worker has written the range since, the
        copy is older, but still has most of the files.
        """
        nothing = empty_frame(self.schema)
        copy = self.copies.newest(self._name, nothing.schema)
        parts = {} if copy is None else dict(zip(copy.paths, copy.rows.layers, strict=True))
        lacking = [file for file in self.files if file.file.path not in parts]
        read = together(storage_at(self.writer.root), self._read, lacking)
        parts |= {file.file.path: layer for file, layer in zip(lacking, read, strict=True)}
        return KeyedRows(nothing, tuple(parts[file.file.path] for file in self.files))

    def write(self, current: KeyedRows, output: pl.DataFrame, gone: pl.DataFrame) -> tuple[KeyedFile, ...]:
        """Write the range with `output` in place of the rows of its keys, and without the keys that are `gone`.

        `current` has the rows that `load` returned. If `output` has several rows of a key, the last one is written.
        Return all files of the range, each with rows of one partition. Raises PartitionError for rows that cannot be
        laid out.
        """
        on = list(self.keys)
        output, gone = self._plain(output), self._plain(gone)
        newest = output.unique(subset=on, keep="last", maintain_order=True)
        found = current.find(pl.concat([newest.select(on), gone.select(on)]), on)
        again = self._files_again(current, found, newest)
        kept = [
            layer.without(where).live
            for layer, where, is_again in zip(current.layers, found.places, again, strict=True)
            if is_again
        ]
        written = list(self._written(pl.concat([current.nothing, *kept, newest])))
        stay = [
            (file, layer)
            for file, layer, is_again in zip(self.files, current.layers, again, strict=False)
            if not is_again
        ]
        files, layers = [each for each, _ in (*stay, *written)], [each for _, each in (*stay, *written)]
        paths = tuple(each.file.path for each in files)
        self.copies.keep(self._name, Copy(paths, KeyedRows(current.nothing, tuple(layers))))
        self.mapped.keep_only(self._name, paths)
        return tuple(files)

    def _files_again(self, current: KeyedRows, found: FoundKeys, newest: pl.DataFrame) -> list[bool]:
        """Return for each layer whether its rows are rewritten.

        They are rewritten if one of them changes. They are also rewritten if they are few and their partition gets new
        rows, so that a partition does not collect many small files.
        """
        if self.all_files:
            return [True for _ in current.layers]
        gets = {folder for folder, _ in self._by_partition(newest)}
        return [
            bool(where.any()) or (2 * layer.rows.height < self.file_rows_max and _folder_of(file) in gets)
            for file, layer, where in zip(self.files, current.layers, found.places, strict=True)
        ]

    def _written(self, rows: pl.DataFrame) -> Iterator[tuple[KeyedFile, RowLayer]]:
        """Write these rows to files of about the same size in each partition. Yield each file and its rows."""
        for _, part in self._by_partition(rows):
            files = -(-part.height // self.file_rows_max)
            for piece in _pieces(part, -(-part.height // files)):
                content = arrow_of(piece, self.schema)
                (handle,) = self.writer.write_partitions(self.table, content, self.partitioned_by)
                layer, is_mapped = self.mapped.keep(self._name, handle.path, of_its_own(piece, content))
                file = KeyedFile(handle, KeyedFileKind.BASE, self.range.first, self.range.last, self.version)
                yield file, RowLayer(layer, None, is_mapped)

    def _by_partition(self, rows: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
        """Return the folder and the rows of each partition that has rows."""
        if rows.is_empty():
            return []
        if not self.partitioned_by:
            return [("", rows)]
        laid_out = partitions(self.table, arrow_of(rows, self.schema), self.partitioned_by)
        return [(folder, frame_of(part)) for folder, part in laid_out]

    def _plain(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows, with null for texts that a partition column cannot tell from null.

        Raises PartitionError for such a text in a key column.
        """
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

    def _read(self, file: KeyedFile) -> RowLayer:
        rows, are_mapped = self.mapped.read(
            self._name,
            file.file.path,
            empty_frame(self.schema).schema,
            lambda: frame_of(read_verified(self.writer.root, self.operator, file.file, self.schema, self.renamed)),
        )
        return RowLayer(rows, None, are_mapped)

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)


def _pieces(rows: pl.DataFrame, rows_max: int) -> Iterator[pl.DataFrame]:
    """Yield the rows in pieces. Each is a copy, because a kept slice would hold all rows in memory."""
    if rows.height <= rows_max:
        yield rows
        return
    for piece in rows.iter_slices(rows_max):
        yield piece.select(pl.all().gather(pl.int_range(pl.len())))


def _folder_of(file: KeyedFile) -> str:
    name = staged_name_in(file.file.path)
    return "" if name is None else name.partition
