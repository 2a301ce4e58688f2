"""Changes a publication's actions so that it renames columns of an append table: files come under new names (G2).

Each file that the table shows is looked at, also those that others appended since the last look. So it does not matter
who commits when: once the columns have their new names, no file has an old one. The files change places without a
change of rows (`dataChange=false`), so nobody who follows the table reads a row twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.paths import partition_of, relative_to_table
from jobs.stores.delta_log import add, remove
from jobs.stores.known_table import Action, KnownTable
from jobs.stores.logged_files import logged_files
from jobs.stores.lost_files import is_ours
from jobs.stores.renamed_files import Renamed, RenamedFiles, TakenNameError
from jobs.stores.table_rules import purge
from jobs.stores.warehouse import Warehouse

Told = Callable[[int, int], None]
"""A function that hears how many of how many bytes are done."""


class CannotRenameError(Exception):
    """A file of the table cannot be written under new names. The message names it and the way out."""


class RenamingActions:
    """Renames columns of the tables of one attempt."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Serve the warehouse's job."""
        self._warehouse = warehouse
        self._files = RenamedFiles(warehouse)

    def prepare(self, table: KnownTable, name: TableName, renamed: Renamed, generation: Generation, told: Told) -> None:
        """Write the files again that the table shows now. Raises as `RenamedFiles.written_again` does."""
        sizes = {f"{name}/{path}": each.bytes for path, each in logged_files(table.loaded).items()}
        total, done, unseen = sum(sizes.values()), 0, _unseen(table.loaded, renamed)
        for path in sorted(table.files):
            self._files.written_again(name, path, renamed, generation, unseen)
            done += sizes.get(path, 0)
            told(done, total)

    def changed(self, table: KnownTable, publication: Publication, actions: Sequence[Action]) -> list[Action]:
        """Return what the publication commits instead of these actions. Raises CannotRenameError, OSError."""
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
        """Return the actions that add a file. If its columns have old names, it is written again.

        A column of a file that comes back keeps its name if the cut has a column of that name.
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
    """Return the partition of each file. Paths tell those of our files, and the log those of other writers' files."""
    if not table.metadata().partition_columns:
        return {}
    logged = logged_files(table)
    return {
        path: partition_of(path) if is_ours(inside) or inside not in logged else logged[inside].partition
        for path in paths
        for inside in (path.removeprefix(f"{name}/"),)
    }
