"""Opens a small table of an object store with two requests one after the other, instead of a dozen.

delta-rs reads a Delta log checkpoint in eight or nine ranges, one after the other, and each log entry twice. For a
table whose whole state has a few kB, this takes most of a tick's start. So the files that delta-rs needs are copied
into a folder of this machine, all at the same time, and delta-rs reads them there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from checkpointing.commit.two_phase import Entries
from checkpointing.handles import FileHandle
from checkpointing.partitions import Value
from jobs.storage.folder import Folder
from jobs.storage.objects import DELTA_CLIENT
from jobs.storage.place import (
    StoragePlace,
    SyncedNames,
    delete_folder,
    new_folders,
    scratch_folder,
    sync_files,
    sync_folders,
    together,
)
from jobs.warehouse.log_entries import ENTRY, LOG_CHECKPOINT, METADATA_KEY, entry_place, log_of
from jobs.warehouse.log_rewriting import rewrite_log
from jobs.warehouse.log_writing import needs_own_first_entry, write_entry, write_first_entry
from jobs.warehouse.table_rules import Metadata
from jobs.warehouse.table_snapshot import Action, KnownTable, delta_table
from jobs.warehouse.warehouse import Warehouse


def copied(folder: StoragePlace) -> tuple[DeltaTable, int]:
    """Return the table at its newest version, and the version of its newest Delta log checkpoint, or -1.

    The returned table cannot be updated, and its address is not the address of `folder`. Raises OSError, and the error
    of delta-rs for a log that cannot be loaded. The function can fail where delta-rs itself succeeds: if the log is
    shortened at this moment, or if its Delta log checkpoint consists of several files.
    """
    names = [each.name for each in log_of(folder).entries()]
    start = max((int(match[1]) for match in map(LOG_CHECKPOINT.fullmatch, names) if match), default=-1)
    entries = (match for match in map(ENTRY.fullmatch, names) if match)
    needed = [match[0] for match in entries if int(match[1]) > start]
    if start >= 0:
        needed.append(f"{start:020d}.checkpoint.parquet")
    contents = together(folder.storage, lambda name: (log_of(folder) / name).read(), needed)
    with scratch_folder() as scratch:
        for name, content in zip(needed, contents, strict=True):
            (log_of(scratch) / name).write(content, durable=False)
        return delta_table(scratch), start


# ------------------------------------------------------------------
# Uses a Delta table's log as a register with compare-and-swap: load a version, commit exactly the next one.
#
# A commit from version v becomes version v + 1. It fails if another commit came first (`log_writing`). If it raises,
# its outcome is unknown, so the committer reads the log to find out.
#
# delta-rs reads the log. This process knows its own commits (`table_snapshot`), so it does not read them from the
# storage. If another process has committed too, the next commit fails, and a look finds an entry after the known
# version. Then delta-rs reads all entries since its last look. delta-rs also reads them after a commit of this process
# that changes metadata.
#
# If a process is killed, its commit is in the log as a whole or not at all, because a log entry is linked into place.
# The log entry is not synced at that time, so a power cut can lose it. `DeltaLog.sync` makes a log entry durable before
# anything relies on the entry (`Durability`).


NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class CommitMoment(Enum):
    """The two moments at which a test may interfere with a commit: before and after the call."""

    BEFORE = "before"
    AFTER = "after"


FaultHook = Callable[[CommitMoment], None]
"""A function that is called before and after each real commit. A test that raises in AFTER simulates a lost reply."""


def no_fault(moment: CommitMoment) -> None:
    """Do nothing. Every real run uses this hook."""
    del moment


class DeltaLog:
    """The log of one table, held open. Each look reads only the versions that came after the last look."""

    def __init__(self, folder: StoragePlace, *, hook: FaultHook = no_fault, small: bool = False) -> None:
        """Store the folder. Nothing is read yet. A `small` log is short, and is opened as a copy in an object store."""
        self.folder = folder
        self._small = small and not isinstance(folder.storage, Folder)
        self._is_copy = False
        """Whether delta-rs has the table from a copy of its log, which it cannot update."""
        self._hook = hook
        self._table: KnownTable | None = None
        self._committed = -1
        """The newest version that this process committed. If the known table is older, the log must be read."""
        self._looked = False
        """Whether the table was looked at since `look_anew`."""
        self._just_opened = False
        """Whether `create` has opened the table, and the table has not been used since."""
        self.checkpoint_at: int | None = None
        """The version of the newest Delta log checkpoint, -1 for none. None before `log_lengths` has asked for it."""
        self.sound_at: int | None = None
        """The version up to which no other writer has removed files of Tidemark (`internal_tables`)."""

    def has_committed(self, version: int) -> bool:
        """Return True if this process's last commit made that version, so that its log entry need not be read."""
        return version == self._committed

    @property
    def is_open(self) -> bool:
        """True if this process has read or created the table."""
        return self._table is not None

    def exists(self) -> bool:
        """Return True if the table exists."""
        if isinstance(self.folder.storage, Folder):
            return DeltaTable.is_deltatable(str(self.folder))
        return log_of(self.folder).is_folder()  # unlike delta-rs, this raises the reason if a store does not answer

    def create(
        self,
        schema: pa.Schema | Schema,
        configuration: dict[str, str],
        comment: str = "",
        partitioned_by: Sequence[str] = (),
    ) -> None:
        """Create the table if it is missing. If several processes try at once, one creates it, and all succeed."""
        if self.is_open or self._opens() or self.exists():
            return
        new = new_folders(self.folder)
        try:
            made_of = schema if isinstance(schema, Schema) else Schema.from_arrow(schema)
            if needs_own_first_entry(made_of):
                write_first_entry(self.folder, made_of, configuration, comment, partitioned_by)
            else:
                DeltaTable.create(
                    str(self.folder),
                    schema,
                    mode="ignore",
                    partition_by=list(partitioned_by) or None,
                    description=comment or None,
                    configuration=configuration,
                    raise_if_key_not_exists=False,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=NO_HOOKS,
                    storage_options=DELTA_CLIENT,
                )
        except Exception:
            if not self.exists():
                raise
        self.sync(0)
        sync_folders(new)

    def _opens(self) -> bool:
        """Return whether an object store has the table. The table is read, which costs little more than a check."""
        if isinstance(self.folder.storage, Folder):
            return False
        try:
            self.reopen()
        except Exception:  # noqa: BLE001 - it is missing, or cannot be read, as the next look says
            return False
        self._just_opened = True
        return True

    def drop(self) -> None:
        """Delete the log, so that the folder is no longer a table. Call this only for a table without any commit."""
        delete_folder(log_of(self.folder))
        self._table, self._committed, self.checkpoint_at = None, -1, None

    def current(self) -> KnownTable:
        """Return the table at its newest version. Raise the error of delta-rs if the table cannot be read."""
        if self._table is None:
            return self.reopen()
        self._looked = True
        version = self._table.version()
        if version < self._committed or not self.ends_at(version):
            return self._updated(self._table, version + 1)
        return self._table  # versions have no gaps, and an update would list all log entries, however many exist

    def known(self) -> KnownTable:
        """Return the table as of this object's last look or commit. Another process may have committed since.

        Raises the error of delta-rs if the table cannot be read.
        """
        if self._table is None:
            return self.reopen()
        version = self._table.version()
        return self._table if version >= self._committed else self._updated(self._table, version + 1)

    def looked_at(self) -> KnownTable:
        """Return the table as of a look since the last call of `look_anew`. If there was no such look, look now.

        Raises the error of delta-rs if the table cannot be read.
        """
        return self.known() if self._looked else self.current()

    def look_anew(self) -> None:
        """Make the next `looked_at` look at the table, because others may have committed since the table was used."""
        self._looked, self._just_opened = self._looked and self._just_opened, False

    def ends_at(self, version: int) -> bool:
        """Return True if this is the newest version: it has a log entry, and the next version has none.

        The newest version always has its log entry, unless the table was dropped.
        """
        entries = [entry_place(self.folder, version), entry_place(self.folder, version + 1)]
        there, later = together(self.folder.storage, StoragePlace.exists, entries)
        return there and not later

    def must_have(self, version: int) -> None:
        """Raise FileNotFoundError if the newest log entry is gone, because the next commit would leave a gap."""
        if not entry_place(self.folder, version).exists():
            raise FileNotFoundError(f"entry {version} of the log of {self.folder} is gone")

    def loaded(self) -> DeltaTable:
        """Return the table of `known` as an object of delta-rs, which reads this process's commits if needed.

        Raises the error of delta-rs if the table cannot be read.
        """
        known = self.known()
        if self._is_copy:
            return self._opened(delta_table(self.folder)).loaded
        is_behind = known.loaded.version() < known.version()
        return (self._updated(known, known.version()) if is_behind else known).loaded

    def _updated(self, table: KnownTable, least: int) -> KnownTable:
        """Make delta-rs read newer commits, and return the table. Reopen the log if its version is below `least`."""
        if self._is_copy:
            return self.reopen()
        try:
            table.loaded.update_incremental()
        except Exception:  # noqa: BLE001 - the log may have been shortened since the last look, so read it anew
            return self.reopen()
        if table.loaded.version() < least:
            return self.reopen()
        self._table = KnownTable(table.loaded, self.folder.name)
        return self._table

    def reopen(self) -> KnownTable:
        """Read the log anew. Return the table."""
        self._table, self._committed = None, -1
        if self._small:
            with suppress(Exception):  # whatever it is, delta-rs may succeed, or says what is wrong with the log
                table, self.checkpoint_at = copied(self.folder)
                return self._opened(table, is_copy=True)
        return self._opened(delta_table(self.folder))

    def _opened(self, table: DeltaTable, *, is_copy: bool = False) -> KnownTable:
        self._table, self._is_copy, self._looked = KnownTable(table, self.folder.name), is_copy, True
        return self._table

    def commit(
        self,
        table: KnownTable,
        actions: Sequence[Action],
        *,
        says: dict[str, Any],
        transaction: Transaction | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        """Commit `actions` as the version after `table`, which this log has returned last, or raise.

        With `metadata`, the same commit changes the table's metadata too. If the method raises, the commit may still be
        in the log. To find out, search the result of `entries_after` for `says`, which the commit stores in its
        `commitInfo`.
        """
        self._hook(CommitMoment.BEFORE)
        write_entry(self.folder, table, actions, metadata=metadata, says={METADATA_KEY: says}, transaction=transaction)
        if self.sound_at == table.version():
            self.sound_at = table.version() + 1
        self._committed = table.version() + 1
        if metadata is None:
            self._table = table.after(actions)
        self._hook(CommitMoment.AFTER)

    def rewrite(self, into: Mapping[str, FileHandle | None]) -> None:
        """Replace erased files by their successors in the whole log (`log_rewriting`), and open the log anew.

        Paths are relative to the table's folder. Raises the errors of `rewrite_log` and of delta-rs.
        """
        names = {each.name for each in self.folder.entries(deep=True)}
        rewrite_log(self.folder, into, names.__contains__, lambda: self._hook(CommitMoment.BEFORE))
        self.reopen()

    def sync(self, version: int) -> None:
        """Make one log entry durable."""
        sync_files([entry_place(self.folder, version)])


def remove(path: str, at_ms: int, *, data_change: bool = True) -> RemoveAction:
    """Return the action that removes an active file from the table.

    Without `data_change`, the same commit adds another file with the rows of this file.
    """
    return RemoveAction(path=path, data_change=data_change, deletion_timestamp=at_ms)


def add(
    path: str, size: int, stats: str, at_ms: int, partition: Iterable[Value] = (), *, data_change: bool = True
) -> AddAction:
    """Return the action that adds a file to the table. `path` is relative to the table's folder.

    `partition` has the values of the table's partition columns. Without `data_change`, the table already shows the
    file's rows in other files, which the same commit removes. Then no reader that follows the table reads these rows
    again.
    """
    values = dict(partition)
    return AddAction(
        path=path, size=size, partition_values=values, modification_time=at_ms, data_change=data_change, stats=stats
    )


# ------------------------------------------------------------------
# Makes files durable before a commit names them, so that a power cut cannot lose such a file (`commit.two_phase`).
#
# Neither delta-rs nor the writers of staged files sync their files.


class Durability:
    """Syncs files of one warehouse. In an object store, every file is durable already."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Begin without any file that is known to be durable."""
        self._warehouse = warehouse
        self._synced = SyncedNames(warehouse.storage)

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make these files of the warehouse durable. A missing file is left to the code that reads it."""
        self._synced.sync(tuple(paths))

    def sync_entries(self, entries: Iterable[Entries]) -> None:
        """Make these log entries of tables durable, if the logs still have them."""
        tables = ((self._warehouse.place(each.table), range(each.first, each.last + 1)) for each in entries)
        self._synced.sync([entry_place(folder, version).name for folder, versions in tables for version in versions])
