"""Uses a Delta table's log as a register with compare-and-swap: load a version, commit exactly the next one.

A commit from version v becomes version v + 1, or it fails if another commit came first (`log_entry`). An exception says
nothing about the outcome, so the committer reads back what it wrote.

delta-rs reads the log. What this process committed itself is known, so nobody asks a storage whether it is there: a
commit from an older version than the newest fails. delta-rs takes it in before the table is used next.

A process that is killed leaves the whole commit or none, because a log entry is linked into place. It is not synced
then, so a power cut may lose it. `DeltaLog.sync` makes one durable, before anything relies on it (`durable`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, delete_folder
from jobs.storage.synced import new_folders, sync_files, sync_folders
from jobs.storage.together import together
from jobs.stores.log_entries import METADATA_KEY, entry_place, log_of
from jobs.stores.log_entry import write_entry

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

Action = AddAction | RemoveAction


class CommitMoment(Enum):
    """The two moments at which a test may interfere: around the call that commits."""

    BEFORE = "before"
    AFTER = "after"


FaultHook = Callable[[CommitMoment], None]
"""Called before and after each real commit. A test that raises AFTER plays a lost reply."""


def no_fault(moment: CommitMoment) -> None:
    """Let the commit pass: the hook of every real run."""
    del moment


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of a table as its commitInfo tells it; `ours` is what Tidemark wrote there, or None."""

    version: int
    operation: str
    ours: dict[str, Any] | None
    engine: str = ""
    """The program that wrote it, as it calls itself."""

    def __str__(self) -> str:
        """Return the entry as a message names it."""
        return f"{self.operation} at version {self.version}"


class DeltaLog:
    """One table's log, held open. Each look reads only what was committed since the last one."""

    def __init__(self, folder: StoragePlace, *, hook: FaultHook = no_fault) -> None:
        """Name the table; nothing is read yet."""
        self.folder = folder
        self._hook = hook
        self._table: DeltaTable | None = None
        self._committed = -1
        """The newest version that was committed here. The loaded table may not have it yet."""
        self.sound_at: int | None = None
        """The version at which no other writer was found to have removed anything (`own_tables`)."""

    def has_committed(self, version: int) -> bool:
        """Return whether that version is the last that was committed here, so that its entry need not be read."""
        return version == self._committed

    @property
    def is_open(self) -> bool:
        """Whether the table was read or made here."""
        return self._table is not None

    def exists(self) -> bool:
        """Return whether a table is there."""
        if isinstance(self.folder.storage, Folder):
            return DeltaTable.is_deltatable(str(self.folder))
        return log_of(self.folder).is_folder()  # unlike delta-rs, it says why a store cannot be asked

    def create(self, schema: pa.Schema | Schema, configuration: dict[str, str]) -> None:
        """Create the table if it is missing. Of several processes that try at once, one succeeds and all go on."""
        if self.is_open or self.exists():
            return
        new = new_folders(self.folder)
        try:
            DeltaTable.create(
                str(self.folder),
                schema,
                mode="ignore",
                configuration=configuration,
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=NO_HOOKS,
            )
        except Exception:
            if not self.exists():
                raise
        self.sync(0)
        sync_folders(new)

    def drop(self) -> None:
        """Delete the log, so that the folder is no table any more. Only for a table without any commit."""
        delete_folder(log_of(self.folder))
        self._table, self._committed = None, -1

    def current(self) -> DeltaTable:
        """Return the table at its newest version. Raises what delta-rs raises if it cannot be read."""
        if self._table is None:
            return self.reopen()
        version = self._table.version()
        if version < self._committed or not self.ends_at(version):
            return self._updated(self._table)
        return self._table  # versions have no gaps; an update would list all entries, however many there are

    def known(self) -> DeltaTable:
        """Return the table as of the last look, or of the last commit here. Another process may have committed since.

        Raises what delta-rs raises if it cannot be read.
        """
        if self._table is None:
            return self.reopen()
        return self._table if self._table.version() >= self._committed else self._updated(self._table)

    def ends_at(self, version: int) -> bool:
        """Return whether that is the newest version, by one look for its entry and one for the next.

        The newest version always has its entry, unless the table was dropped.
        """
        entries = [entry_place(self.folder, version), entry_place(self.folder, version + 1)]
        there, later = together(self.folder.storage, StoragePlace.exists, entries)
        return there and not later

    def must_have(self, version: int) -> None:
        """Raise FileNotFoundError if the entry of a version is gone: an entry behind it would leave a gap."""
        if not entry_place(self.folder, version).exists():
            raise FileNotFoundError(f"entry {version} of the log of {self.folder} is gone")

    def _updated(self, table: DeltaTable) -> DeltaTable:
        before = table.version()
        try:
            table.update_incremental()
        except Exception:  # noqa: BLE001 - a log shortened since the last look: reading it anew is always right
            return self.reopen()
        return table if table.version() > before else self.reopen()

    def reopen(self) -> DeltaTable:
        """Return the table as its log says, read anew."""
        self._table, self._committed = None, -1
        self._table = DeltaTable(str(self.folder))
        return self._table

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[Action],
        *,
        says: dict[str, Any],
        transaction: Transaction | None = None,
        schema: Schema | None = None,
    ) -> None:
        """Commit `actions` as the version after the one `table` is loaded at, or raise.

        With `schema` the same commit gives the table these columns. An exception does not say that the commit is
        absent: read back `says` by `entries_after`.
        """
        self._hook(CommitMoment.BEFORE)
        write_entry(self.folder, table, actions, schema=schema, says={METADATA_KEY: says}, transaction=transaction)
        if self.sound_at == table.version():
            self.sound_at = table.version() + 1
        self._committed = table.version() + 1
        self._hook(CommitMoment.AFTER)

    def sync(self, version: int) -> None:
        """Make one log entry durable."""
        sync_files([entry_place(self.folder, version)])


def newest_entries(table: DeltaTable) -> Iterator[LogEntry]:
    """Yield the entries of a table's log, newest first, reading only as far back as is asked for."""
    look, seen = 4, 0
    while True:
        entries = table.history(look)
        for entry in entries[seen:]:
            ours = entry.get(METADATA_KEY)
            said, engine = ours if isinstance(ours, dict) else None, entry.get("engineInfo")
            yield LogEntry(entry["version"], entry.get("operation", "a commit"), said, str(engine or ""))
        if len(entries) < look:
            return
        look, seen = look * 8, len(entries)


def entries_after(table: DeltaTable, version: int) -> Iterator[LogEntry]:
    """Yield the entries of versions after `version`, newest first."""
    for entry in newest_entries(table):
        if entry.version <= version:
            return
        yield entry


def active_paths(table: DeltaTable) -> list[str]:
    """Return the paths of the table's active files, as its log names them."""
    return [str(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


def paths_with_deletion_vectors(table: DeltaTable) -> frozenset[str]:
    """Return the paths, as `active_paths` names them, of active files with a deletion vector.

    delta-rs cannot name those in a remove. Asking costs nothing for a table that never had the feature.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return frozenset()
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    root = _plain(str(table.table_uri)).rstrip("/") + "/"
    return frozenset(_plain(uri).removeprefix(root) for uri in vectors.column("filepath").to_pylist())


def _plain(uri: str) -> str:
    return unquote(urlparse(uri).path) if uri.startswith("file:") else uri


def remove(path: str, at_ms: int) -> RemoveAction:
    """Return the action that takes an active file out of the table."""
    return RemoveAction(path=path, data_change=True, deletion_timestamp=at_ms)


def add(path: str, size: int, stats: str, at_ms: int) -> AddAction:
    """Return the action that enters a file into the table; `path` is relative to the table's folder."""
    return AddAction(path=path, size=size, partition_values={}, modification_time=at_ms, data_change=True, stats=stats)
