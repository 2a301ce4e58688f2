"""Publishes a committed checkpoint: adds its files to a table's log, once, by compare-and-swap (F3).

The log itself records which checkpoint the table shows, because `txn(job/table) = n` is in the same commit as the files
of n. Each attempt reads that number first, so a lost reply only costs one more attempt. Other writers can commit
between two attempts. In an append table, rows are added after such commits. Any other table is set to exactly the
checkpoint's files again. This undoes a foreign OPTIMIZE, DELETE or UPDATE, and the checkpoint's note names this foreign
commit. A rollback removes only Tidemark's own files from an append table (`TableRecord.removes`). If another writer has
merged these files into other files, the rollback stops, and names the table. Before an entry that erased rows is
published, the log is rewritten (`log_rewriting`).
"""

from base64 import b64decode
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter
from typing import Final, assert_never

from deltalake import Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from checkpointing.commit.compaction import still_possible
from checkpointing.commit.net_files import changes_at
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import Publication, PublishFailed, TablePublished
from checkpointing.metadata.paths import laid_out_otherwise, partition_of, relative_to_table
from checkpointing.state_evolution import parsed, reads_narrower
from jobs.storage.folder import Folder, link_to
from jobs.storage.place import together
from jobs.warehouse import log_lengths
from jobs.warehouse.delta_log import add, remove
from jobs.warehouse.file_checks import logged_files, misfit, not_removable
from jobs.warehouse.log_entries import LogEntry, newest_entries
from jobs.warehouse.output_tables import first_problem
from jobs.warehouse.renamed_files import CannotRenameError, Renamed, RenamingActions
from jobs.warehouse.table_columns import next_schema, told, type_of, wider_values
from jobs.warehouse.table_rules import Metadata, advice, next_metadata, purge, refused_for_good
from jobs.warehouse.table_snapshot import Action, KnownTable
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

TRIES: Final = 10
"""The number of attempts to commit into a table to which others write all the time. Then the tick gives up."""


_PATH: Final = attrgetter("path")


class _CannotPublishError(Exception):
    """A publication is not possible now. The message names the table and the way out."""


@dataclass(frozen=True, slots=True)
class _Request:
    publication: Publication
    checkpoint: CheckpointId
    again: bool
    by: Generation | None

    @property
    def table(self) -> TableName:
        return self.publication.table


class Publisher:
    """Publishes committed checkpoints, and keeps each table's log open in between."""

    def __init__(self, warehouse: Warehouse, tables: TableLogs) -> None:
        """Publish for the warehouse's job."""
        self._warehouse = warehouse
        self._tables = tables
        self._renamed = RenamingActions(warehouse)

    def rename_files(
        self, table: TableName, renamed: Renamed, generation: Generation, told: Callable[[int, int], None]
    ) -> None:
        """Rewrite the table's files under new names of columns, so that `generation` can publish them fast.

        `told` is called with the number of finished bytes and of all bytes. Nothing is published. Raises the error of
        delta-rs if the table cannot be read, TakenNameError, OSError and ArrowException.
        """
        self._renamed.prepare(self._tables.log(table).current(), table, renamed, generation, told)

    def publish(
        self,
        publication: Publication,
        checkpoint: CheckpointId,
        *,
        again: bool = False,
        by: Generation | None = None,
    ) -> TablePublished | PublishFailed:
        """Make the table show checkpoint n of this publication exactly once, whatever earlier attempts have done.

        `again` says that the log has lost an earlier publication. The new log entry records this too. `by` is the
        generation of the running tick, if the tick has just checked the table. Then an object store is not asked for
        the table's newest version, since the commit fails if another commit came first. The store is not asked for
        files that this generation staged either, since it has confirmed each of them. The result has the version at
        which the table began to show n. Foreign commits can follow that version. A failure leaves the table unchanged,
        and a second call is always safe.
        """
        request = _Request(publication, checkpoint, again, by)
        try:
            return self._publish(request)
        except _CannotPublishError as error:
            return PublishFailed(checkpoint, request.table, str(error))
        except Exception as error:  # noqa: BLE001 - if the log cannot be read, the next tick tries again
            text = f"table {request.table}: its log cannot be used ({type(error).__name__}: {error})"
            return PublishFailed(checkpoint, request.table, text)

    def maintain(self, table: TableName) -> None:
        """Write a Delta log checkpoint if one is due, so that the table opens fast. Nothing is deleted."""
        log_lengths.checkpoint_log(self._tables.log(table))

    def _publish(self, request: _Request) -> TablePublished:
        log = self._tables.log(request.table)
        met: Exception | None = None
        if request.publication.erases and self._tables.shown(log.current(), request.table) < request.checkpoint:
            log.rewrite(_successors(request))
        for _ in range(TRIES):
            asks = request.by is None or met is not None
            table = log.current() if asks else log.known()
            if self._tables.shown(table, request.table) >= request.checkpoint:
                version = self._version_showing(table, request)
                return TablePublished(request.checkpoint, request.table, version, "")
            if met is not None and not _may_pass(met):
                break
            try:
                actions, note = self._plan(table, request)
                actions = _with_erased(table, request, actions, self._warehouse.now_ms())
            except _CannotPublishError as error:
                if asks:
                    raise
                met = error  # another process may have published it, and deleted its files as no longer needed
                continue
            metadata = self._next_metadata(table, request, actions)
            if metadata is not None:
                changed = told(table.loaded.schema(), metadata.schema, dict(request.publication.renamed))
                note = "; ".join(said for said in (changed, note) if said)
            try:
                says, transaction = self._says(request), self._transaction(request)
                log.commit(table, actions, says=says, transaction=transaction, metadata=metadata)
            except Exception as error:  # noqa: BLE001 - the next turn reads the outcome
                met = error
                log.reopen()
                continue
            self._tables.published(table, request.table, request.checkpoint)
            return TablePublished(request.checkpoint, request.table, table.version() + 1, note)
        raise _CannotPublishError(f"table {request.table}: its log refuses the commit ({met}). {advice(str(met))}")

    def _next_metadata(self, table: KnownTable, request: _Request, actions: list[Action]) -> Metadata | None:
        """Return the columns, comments and properties that the table gets in this commit, or None if none changes."""
        publication = request.publication
        leaving = publication.leaving
        if publication.no_others:
            leaving = tuple(field.name for field in table.loaded.schema().fields)
        renamed, in_order = dict(publication.renamed), publication.in_order
        schema = next_schema(table.loaded, publication.columns, leaving, renamed, in_order=in_order)
        if schema is not None:
            self._must_be_writable(table, request, actions)
            _must_keep_types(table, request)
            self._must_have_no_wider_values(table, request)
        says = self._tables.says(request.table)
        return next_metadata(table.loaded, schema, says, publication.columns)

    def _must_have_no_wider_values(self, table: KnownTable, request: _Request) -> None:
        """Refuse a rollback to before a widening if others have written wider values since the rollback was planned."""
        publication = request.publication
        if not publication.rolls_back or not publication.mode.keeps_files:
            return
        there = {field.name: type_of(field) for field in table.loaded.schema().fields}
        before = dict(publication.renamed)
        types = {before.get(column.name, column.name): column.type for column in publication.columns}
        narrower = {name: kind for name, kind in types.items() if there.get(name, kind) != kind}
        wide = wider_values(self._warehouse, request.table, table.files, narrower)
        if wide is not None:
            raise _CannotPublishError(f"{wide}, then start again")

    def _must_be_writable(self, table: KnownTable, request: _Request, actions: list[Action]) -> None:
        """Refuse what delta-rs would refuse, because delta-rs does not write a log entry that changes columns."""
        folder, mode = str(self._tables.log(request.table).folder), request.publication.mode
        takes_out = any(isinstance(action, RemoveAction) for action in actions)
        problem = first_problem(table.loaded, TableMode.UPSERT if takes_out else mode, folder)
        if problem:
            raise _CannotPublishError(f"table {request.table} {problem}")

    def _plan(self, table: KnownTable, request: _Request) -> tuple[list[Action], str]:
        publication = request.publication
        match publication.mode:
            case TableMode.APPEND:
                new = [file for file in publication.adds if file.path not in table.files]
                adds = self._adds(table, request, new)
                changes = [*self._takes_out(table, request), *adds]
                if publication.renamed:
                    return self._under_new_names(table, request, changes), ""
                return [*changes, *self._compactions(table, request)], ""
            case TableMode.UPSERT | TableMode.OVERWRITE | TableMode.STATE:
                new, gone = changes_at(publication, table.version(), table.files)
                adds = self._adds(table, request, new)
                foreign = self._foreign_since_ours(table, request)
                healed = f"set back to the checkpoint's files after {_named(foreign)}" if foreign else ""
                return [*self._removes(table, request, gone), *adds], healed
            case _:
                assert_never(publication.mode)

    def _adds(self, table: KnownTable, request: _Request, files: list[FileHandle]) -> list[Action]:
        self._must_be_laid_out(table, request, files)
        now_ms = self._warehouse.now_ms()
        new = {_inside(request.table, file): file for file in sorted(files, key=_PATH)}
        together(self._warehouse.storage, lambda file: self._must_exist(request, file), new.values())
        return [add(path, file.bytes, file.stats, now_ms, partition_of(file.path)) for path, file in new.items()]

    def _must_be_laid_out(self, table: KnownTable, request: _Request, new: list[FileHandle]) -> None:
        by = table.loaded.metadata().partition_columns
        unfit = laid_out_otherwise(by, map(_PATH, new))
        if unfit is not None:
            raise _CannotPublishError(
                f"table {request.table} is laid out by {', '.join(by) or 'no column'}, and file {unfit} of checkpoint "
                f"{request.checkpoint} is not: name another table, or put back the folder's log from before"
            )

    def _removes(self, table: KnownTable, request: _Request, gone: AbstractSet[str]) -> list[Action]:
        vectors = table.with_deletion_vectors()
        if vectors:
            foreign = self._foreign_since_ours(table, request)
            folder = str(self._tables.log(request.table).folder)
            raise _CannotPublishError(
                f"table {request.table}: {_named(foreign)} left deletion vectors on {len(vectors)} files "
                f"({min(vectors)}), which only Spark can take back: {purge(folder)}, then start again"
            )
        now_ms = self._warehouse.now_ms()
        return [remove(path.removeprefix(f"{request.table}/"), now_ms) for path in sorted(gone)]

    def _takes_out(self, table: KnownTable, request: _Request) -> list[Action]:
        """Return the removes of a rollback. A file that was never in the log need not be removed."""
        wanted = {_inside(request.table, file) for file in request.publication.removes}
        if not wanted:
            return []
        why_not = not_removable(table, self._tables.log(request.table).folder, wanted)
        if why_not:
            raise _CannotPublishError(f"table {request.table}: {why_not}")
        now_ms = self._warehouse.now_ms()
        return [remove(path, now_ms) for path in sorted(wanted - table.without(wanted))]

    def _under_new_names(self, table: KnownTable, request: _Request, actions: list[Action]) -> list[Action]:
        """Return the actions, changed so that afterwards no file of the table has an old name of a column.

        Compactions are left out, because they would add files with old names.
        """
        try:
            return self._renamed.changed(table, request.publication, actions)
        except CannotRenameError as error:
            raise _CannotPublishError(f"table {request.table}: {error}") from error

    def _compactions(self, table: KnownTable, request: _Request) -> list[Action]:
        """Return the actions of the compactions that are still possible. One with a damaged file is left out."""
        said = request.publication.compactions
        if not said:
            return []
        marked = {f"{request.table}/{path}" for path in table.with_deletion_vectors()}
        now_ms, actions = self._warehouse.now_ms(), list[Action]()
        for each in still_possible(said, table.files, marked):
            path, into = _inside(request.table, each.into), each.into
            if misfit(into, self._warehouse.place(into.path).size()):
                continue
            values = partition_of(into.path)
            actions.append(add(path, into.bytes, into.stats, now_ms, values, data_change=False))
            gone = (path.removeprefix(f"{request.table}/") for path in each.of)
            actions += [remove(path, now_ms, data_change=False) for path in gone]
        return actions

    def _foreign_since_ours(self, table: KnownTable, request: _Request) -> list[LogEntry]:
        """Return the log entries of others since Tidemark's last commit (or the table's creation), oldest first."""
        log = self._tables.log(request.table)
        if log.has_committed(table.version()):
            return []
        entries = newest_entries(log.folder, table.version())
        foreign = takewhile(lambda entry: entry.ours is None and entry.version > 0, entries)
        return [*foreign][::-1]

    def _must_exist(self, request: _Request, file: FileHandle) -> None:
        place = self._warehouse.place(file.path)
        if not isinstance(place.storage, Folder) and not file.inline and self._was_written(request, file):
            return
        size = place.size()
        if file.inline and size != file.bytes and link_to(place.storage, file.path) is None:
            place.replace(b64decode(file.inline))
            size = place.size()
        wrong = misfit(file, size)
        if wrong:
            raise _CannotPublishError(
                f"table {request.table}: staged file {file.path} of checkpoint {request.checkpoint} {wrong}. "
                "Restore it from a backup of the warehouse, or roll back to an older checkpoint"
            )

    def _was_written(self, request: _Request, file: FileHandle) -> bool:
        """Return True if a task of the calling tick has written the file."""
        if request.by is None:
            return False
        return file.path.startswith(f"{self._warehouse.paths.staged_folder(request.table, request.by)}/")

    def _says(self, request: _Request) -> dict[str, object]:
        says: dict[str, object] = {"job": self._warehouse.paths.job, "checkpoint": request.checkpoint}
        says = says | {"erases": True} if request.publication.erases else says
        return says | {"again": True} if request.again else says

    def _transaction(self, request: _Request) -> Transaction:
        name = self._warehouse.paths.transaction_id(request.table)
        return Transaction(app_id=name, version=request.checkpoint, last_updated=self._warehouse.now_ms())

    def _version_showing(self, table: KnownTable, request: _Request) -> int:
        """Return the oldest version at which the table showed the checkpoint or a newer checkpoint.

        The search begins at the newest version.
        """
        found = table.version()
        for entry in newest_entries(self._tables.log(request.table).folder, found):
            shown = self._checkpoint_of(entry)
            if shown is not None and shown < request.checkpoint:
                break
            if shown is not None:
                found = entry.version
            if shown == request.checkpoint:
                break
        return found

    def _checkpoint_of(self, entry: LogEntry) -> int | None:
        if entry.ours is None or entry.ours.get("job") != self._warehouse.paths.job:
            return None
        shown = entry.ours.get("checkpoint")
        return shown if isinstance(shown, int) else None


def _must_keep_types(table: KnownTable, request: _Request) -> None:
    """Refuse a foreign column with the name of a new column and another type, in a table that keeps its files.

    A rollback is exempt, because it gives widened columns their earlier types back.
    """
    if not request.publication.mode.keeps_files or request.publication.rolls_back:
        return
    there = {field.name: type_of(field) for field in table.loaded.schema().fields}
    for column in request.publication.columns:
        if not reads_narrower(parsed(there.get(column.name, column.type)), parsed(column.type)):
            raise _CannotPublishError(
                f"table {request.table} has column {column.name} as {there[column.name]}, and checkpoint "
                f"{request.checkpoint} has it as {column.type}: somebody else added it meanwhile; take it back with "
                f"RESTORE TABLE delta.`{table.loaded.table_uri}`, then start again"
            )


def _successors(request: _Request) -> dict[str, FileHandle | None]:
    """Return the successor of each erased file of the table. All paths lie inside the table's folder."""
    prefix = f"{request.table}/"
    return {
        each.path.removeprefix(prefix): each.into and replace(each.into, path=_inside(request.table, each.into))
        for each in request.publication.erased
    }


def _with_erased(table: KnownTable, request: _Request, actions: list[Action], now_ms: int) -> list[Action]:
    """Return the actions, and further ones for readers that hold an older snapshot of the log open.

    Such a reader has the erased files, and not their successors. The further actions replace the erased files for it.
    The log itself was rewritten before. The actions are marked as no change of data, so followers read nothing again.
    """
    into = _successors(request)
    gone = {each.path for each in actions if isinstance(each, RemoveAction)}
    shown = logged_files(table.loaded) if into else {}
    there = (shown[each.path] for each in into.values() if each is not None and each.path in shown)
    again = [
        add(each.path, each.bytes, each.statistics, now_ms, each.partition, data_change=False)
        for each in there
        if each.path not in gone
    ]
    return [*actions, *(remove(path, now_ms, data_change=False) for path in into if path not in gone), *again]


def _inside(table: TableName, file: FileHandle) -> str:
    path = relative_to_table(table, file.path)
    if path is None:
        raise _CannotPublishError(f"table {table}: file {file.path} does not lie in the table's folder")
    return path


def _named(foreign: list[LogEntry]) -> str:
    shown = ", ".join(f"foreign {entry}" for entry in foreign[:3])
    return f"{shown} and {len(foreign) - 3} more" if len(foreign) > 3 else shown or "a foreign commit"  # noqa: PLR2004


def _may_pass(error: Exception) -> bool:
    """Return True if another attempt can succeed: another commit came first, or only the reply was lost."""
    return not (isinstance(error, CommitFailedError) and refused_for_good(str(error)))
