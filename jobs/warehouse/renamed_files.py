"""Rewrites files of an append table under the new names of the table's columns.

Rows and their order do not change. A file of the job is rewritten as a file of the job, so a rollback can identify its
rows. The rewritten file of another writer gets a name that no micro-batch uses, so its rows stay in the table through
every rollback.

A file is read and written row group by row group. A large file becomes several files, so that no whole file need fit
into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, TableName, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.paths import partition_of, relative_to_table, staged_name_in
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.parquet import parquet_of
from jobs.warehouse.delta_log import add, remove
from jobs.warehouse.file_checks import is_ours, logged_files
from jobs.warehouse.table_rules import purge
from jobs.warehouse.table_snapshot import Action, KnownTable
from jobs.warehouse.warehouse import Warehouse

_FILE_BYTES: Final = 256 * 1024 * 1024
"""A new file gets row groups of up to about this many uncompressed bytes."""

Renamed = tuple[tuple[str, str], ...]
"""The new and the old name of each column."""


@dataclass(frozen=True, slots=True)
class _Key:
    table: TableName
    path: str
    renamed: Renamed
    generation: Generation
    unseen: tuple[str, ...]


class TakenNameError(ValueError):
    """Another writer's file already has a column with a new name, whose values would be shown under that name."""


class BothNamesError(TakenNameError):
    """A file has a renamed column under both of its names, so it is not known which values are valid."""

    def __init__(self, path: str, new: str, old: str) -> None:
        super().__init__(f"somebody else wrote file {path} with both columns {old} and {new}")


class UnseenColumnError(TakenNameError):
    """A file has a column with a new name that the table does not show. A rollback may have removed that column."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"somebody else wrote file {path} with a column {name}, which the table does not show")


class RenamedFiles:
    """Rewrites files, each only once. The results are remembered, so that a second attempt to publish is quick."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Serve the warehouse's job."""
        self._warehouse = warehouse
        self._known: dict[_Key, tuple[FileHandle, ...] | None] = {}

    def written_again(
        self, table: TableName, path: str, renamed: Renamed, generation: Generation, unseen: tuple[str, ...] = ()
    ) -> tuple[FileHandle, ...] | None:
        """Return new files with the rows of this file, or None if the file has no column with an old name.

        `generation` is the generation of the checkpoint entry with which the columns are renamed. The new files have it
        in their names, so no leftover of another generation has the same name. `path` is the file's path in the
        warehouse. If the table shows the file, `unseen` are the new names that the table does not show yet. Raises
        TakenNameError, OSError and ArrowException.
        """
        key = _Key(table, path, renamed, generation, unseen)
        if key not in self._known:
            self._known[key] = self._rewrite(key)
        return self._known[key]

    def _rewrite(self, key: _Key) -> tuple[FileHandle, ...] | None:
        with pq.ParquetFile(parquet_of(self._warehouse.place(key.path))) as file:
            schema = file.schema_arrow.remove_metadata()
            names = _under_new_names(key, schema.names)
            if names == schema.names:
                return None
            schema = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
            return tuple(self._written(key, file, groups, schema) for groups in _shares(file))

    def _written(self, key: _Key, file: pq.ParquetFile, groups: list[int], schema: pa.Schema) -> FileHandle:
        own = staged_name_in(key.path)
        vertex, folder = (own.vertex, own.partition) if own is not None else (VertexId(""), "")
        files = StagedFiles(str(self._warehouse.root), self._warehouse.paths.job, key.generation, vertex, 0)
        parts = (file.read_row_group(group).rename_columns(schema.names).cast(schema) for group in groups)
        path = (
            ""
            if own is not None
            else self._warehouse.paths.foreign_file(key.table, key.generation, key.path, uuid4().hex)
        )
        return files.write_parts(key.table, parts, schema, folder=folder, path=path)


def _under_new_names(key: _Key, names: list[str]) -> list[str]:
    """Return the file's columns under their new names. Raises TakenNameError if another column has a new name."""
    for new, old in key.renamed:
        if new in names and old in names:
            raise BothNamesError(key.path, new, old)
        if new in names and new in key.unseen:
            raise UnseenColumnError(key.path, new)
        names = [new if name == old else name for name in names]
    return names


def _shares(file: pq.ParquetFile) -> Iterator[list[int]]:
    """Yield the row groups for each new file. A file without rows becomes one file without rows."""
    share: list[int] = []
    size = 0
    for group in range(file.num_row_groups):
        own = file.metadata.row_group(group).total_byte_size
        if share and size + own > _FILE_BYTES:
            yield share
            share, size = [], 0
        share.append(group)
        size += own
    yield share


# ------------------------------------------------------------------
# Changes the actions of a publication that renames columns of an append table: files get the new names (G2).
#
# Every file that the table shows is checked, including files that others appended since the last look. So it does not
# matter who commits when: once the columns have their new names, no file has an old name. The rewritten files replace
# the old files without a change of data (`dataChange=false`), so no reader that follows the table reads a row twice.


Told = Callable[[int, int], None]
"""A function that is called with the number of finished bytes and of all bytes."""


class CannotRenameError(Exception):
    """A file of the table cannot be written under new names. The message names the file and the way out."""


class RenamingActions:
    """Renames columns of the tables of one attempt."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Serve the warehouse's job."""
        self._warehouse = warehouse
        self._files = RenamedFiles(warehouse)

    def prepare(self, table: KnownTable, name: TableName, renamed: Renamed, generation: Generation, told: Told) -> None:
        """Rewrite the files that the table shows now. Raises the errors of `RenamedFiles.written_again`."""
        sizes = {f"{name}/{path}": each.bytes for path, each in logged_files(table.loaded).items()}
        total, done, unseen = sum(sizes.values()), 0, _unseen(table.loaded, renamed)
        for path in sorted(table.files):
            self._files.written_again(name, path, renamed, generation, unseen)
            done += sizes.get(path, 0)
            told(done, total)

    def changed(self, table: KnownTable, publication: Publication, actions: Sequence[Action]) -> list[Action]:
        """Return the actions that the publication commits instead of these. Raises CannotRenameError, OSError."""
        name, at_ms = publication.table, self._warehouse.now_ms()
        gone = {f"{name}/{each.path}" for each in actions if isinstance(each, RemoveAction)}
        found: list[Action] = []
        for action in actions:
            found += self._added(publication, action, at_ms) if isinstance(action, AddAction) else [action]
        unseen = _unseen(table.loaded, publication.renamed)
        again = {
            path: files
            for path in sorted(table.files - gone)
            if (files := self._again(publication, path, unseen)) is not None
        }
        marked = sorted({f"{name}/{path}" for path in table.with_deletion_vectors()} & again.keys())
        if marked:
            folder = str(self._warehouse.place(name))
            raise CannotRenameError(
                f"a DELETE or UPDATE left deletion vectors on {len(marked)} files ({marked[0]}), which only "
                f"Spark can take back, and a column gets another name: {purge(folder)}, then start again"
            )
        partitions = _partitions(table.loaded, name, again)
        for path, files in again.items():
            found.append(remove(path.removeprefix(f"{name}/"), at_ms, data_change=False))
            found += (self._add(name, file, at_ms, partitions.get(path, ()), data_change=False) for file in files)
        return found

    def _added(self, publication: Publication, action: AddAction, at_ms: int) -> list[Action]:
        """Return the actions that add a file. If its columns have old names, the file is rewritten.

        In a file that a rollback adds again, a column keeps its old name if the cut has a column with that name.
        """
        columns = {column.name for column in publication.columns}
        due = tuple((new, old) for new, old in publication.renamed if old not in columns)
        files = self._again(replace(publication, renamed=due), f"{publication.table}/{action.path}") if due else None
        values = tuple(dict(action.partition_values).items())
        if files is None:
            return [action]
        return [self._add(publication.table, file, at_ms, values, data_change=True) for file in files]

    def _again(
        self, publication: Publication, path: str, unseen: tuple[str, ...] = ()
    ) -> tuple[FileHandle, ...] | None:
        if publication.generation is None:
            raise CannotRenameError("nobody says to which generation files belong that are written again")
        try:
            return self._files.written_again(
                publication.table, path, publication.renamed, publication.generation, unseen
            )
        except TakenNameError as error:
            raise CannotRenameError(
                f"{error}, and a column gets another name: take these rows out of the table, then start again"
            ) from error

    def _add(
        self,
        name: TableName,
        file: FileHandle,
        at_ms: int,
        values: Iterable[tuple[str, str | None]],
        *,
        data_change: bool,
    ) -> AddAction:
        path = relative_to_table(name, file.path)
        if path is None:
            raise CannotRenameError(f"file {file.path} does not lie in the table's folder")
        return add(path, file.bytes, file.stats, at_ms, values, data_change=data_change)


def _unseen(table: DeltaTable, renamed: Renamed) -> tuple[str, ...]:
    """Return the new names that no column of the table has yet."""
    shown = {field.name for field in table.schema().fields}
    return tuple(new for new, _ in renamed if new not in shown)


def _partitions(
    table: DeltaTable, name: TableName, paths: Iterable[str]
) -> Mapping[str, tuple[tuple[str, str | None], ...]]:
    """Return the partition of each file: from the path for the job's files, and from the log for other files."""
    if not table.metadata().partition_columns:
        return {}
    logged = logged_files(table)
    return {
        path: partition_of(path) if is_ours(inside) or inside not in logged else logged[inside].partition
        for path in paths
        for inside in (path.removeprefix(f"{name}/"),)
    }
