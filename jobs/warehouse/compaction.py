"""Writes the rows of an append table's small files into larger files, which replace them at the next checkpoint.

The core chooses the files (`checkpointing.commit.compaction`). Only files with the same columns become one file, so
every engine reads the same rows from the new file, whatever columns the table has by then. Files of other writers, and
files with a deletion vector, are left alone.
"""

from collections.abc import Callable, Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.commit.compaction import ActiveFile, groups_to_compact
from checkpointing.identifiers import Generation, TableName, VertexId
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted
from checkpointing.metadata.paths import staged_name_in
from checkpointing.metadata.record import FileCompaction
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.parquet import parquet_of
from jobs.warehouse.file_checks import is_ours
from jobs.warehouse.output_tables import load
from jobs.warehouse.table_snapshot import paths_with_deletion_vectors
from jobs.warehouse.warehouse import Warehouse

_PART_ROWS = 1_048_576
_PART_BYTES = 64 * 1024 * 1024
"""Once the row groups that were read have this many rows or Arrow bytes, they are written as one row group."""


class CompactionEndedError(Exception):
    """The attempt is over, so the files are not needed any more."""


class Compactor:
    """Compacts the tables of one attempt."""

    def __init__(self, warehouse: Warehouse, generation: Generation, is_over: Callable[[], bool]) -> None:
        """Write files of this generation. Once `is_over` returns True, compaction stops at the next file."""
        self._warehouse = warehouse
        self._generation = generation
        self._is_over = is_over

    def compact(self, effect: CompactFiles) -> FilesCompacted:
        """Compact the tables until about `bytes_max` bytes were read. The answer names the tables with files left.

        Raises CompactionEndedError once the attempt is over, and OSError, ArrowException and TableNotCopyableError.
        After an error, no new file remains.
        """
        found: dict[TableName, list[FileCompaction]] = {}
        more: list[TableName] = []
        left = effect.bytes_max
        try:
            for table in effect.tables:
                for group in self._groups(table, effect):
                    if left <= 0:
                        more.append(table)
                        break
                    left -= sum(file.bytes for file in group)
                    for alike in self._alike(group):
                        found.setdefault(table, []).append(self._compacted(table, alike))
        except BaseException:
            for made in (each for compactions in found.values() for each in compactions):
                self._warehouse.delete(made.into.path)
            raise
        return FilesCompacted(tuple(Compacted(table, tuple(made)) for table, made in found.items()), tuple(more))

    def _groups(self, name: TableName, effect: CompactFiles) -> Iterator[tuple[ActiveFile, ...]]:
        table = load(self._warehouse, name)
        marked = paths_with_deletion_vectors(table)
        actions = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        sizes = {unquote(each["path"]): each["size_bytes"] for each in actions}
        ours = {f"{name}/{path}": size for path, size in sizes.items() if is_ours(path) and path not in marked}
        files = (ActiveFile(path, size) for path, size in ours.items())
        for paths in groups_to_compact(files, effect.files_min, effect.bytes_max):
            yield tuple(ActiveFile(path, ours[path]) for path in paths)

    def _alike(self, group: tuple[ActiveFile, ...]) -> Iterator[tuple[pa.Schema, list[str]]]:
        """Yield each set of at least two files of a group that have the same columns."""
        found: list[tuple[pa.Schema, list[str]]] = []
        for file in group:
            with self._opened(file.path) as opened:
                schema = opened.schema_arrow.remove_metadata()
            same = next((paths for known, paths in found if known.equals(schema)), None)
            if same is None:
                found.append((schema, [file.path]))
            else:
                same.append(file.path)
        yield from ((schema, paths) for schema, paths in found if len(paths) > 1)

    def _compacted(self, table: TableName, alike: tuple[pa.Schema, list[str]]) -> FileCompaction:
        schema, paths = alike
        name = staged_name_in(paths[0])
        vertex, folder = (name.vertex, name.partition) if name is not None else (VertexId(""), "")
        files = StagedFiles(str(self._warehouse.root), self._warehouse.paths.job, self._generation, vertex, 0)
        into = files.write_parts(table, self._parts(paths, schema), schema, folder=folder)
        return FileCompaction(into=into, of=tuple(paths))

    def _parts(self, paths: list[str], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of these files in parts, each of which becomes a row group."""
        waiting: list[pa.Table] = []
        for path in paths:
            with self._opened(path) as file:
                for group in range(file.num_row_groups):
                    waiting.append(file.read_row_group(group).cast(schema))
                    rows, size = sum(each.num_rows for each in waiting), sum(each.nbytes for each in waiting)
                    if rows >= _PART_ROWS or size >= _PART_BYTES:
                        yield pa.concat_tables(waiting)
                        waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _opened(self, path: str) -> pq.ParquetFile:
        if self._is_over():
            raise CompactionEndedError(path)
        return pq.ParquetFile(parquet_of(self._warehouse.place(path)))
