"""Keeps tables' logs short, so that the ten-thousandth commit costs as much as the first (P9).

After every `EVERY_VERSIONS` versions, a Delta log checkpoint is written. In an object store, `checkpoints` and `cuts`
get Delta log checkpoints more often, because each start opens these tables before its first micro-batch, and makes two
requests for each log entry since the last one. No reader opens an old version of these two tables. So after a Delta log
checkpoint is `EVERY_VERSIONS` old, the log entries before it are deleted, and so are the row files that no later
version names. This is safe for a reader that began earlier, because the files that the reader has listed are kept for
at least `EVERY_VERSIONS` more versions and an hour. Cuts name old versions of output tables. In those tables, only log
entries before all cuts are deleted (`drop_entries`).

Only the tick that holds the job may call these functions, and not on the commit path. A claim takes a new version, so a
row file that was written before the claim and not committed can never be committed.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from checkpointing.metadata.paths import is_data_file
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, sync_files
from jobs.storage.port import Listed
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.file_checks import is_ours
from jobs.warehouse.internal_tables import ROWS_FOLDER
from jobs.warehouse.log_entries import (
    LOG_CHECKPOINT,
    entry_place,
    file_actions,
    log_of,
    log_versions,
)

EVERY_VERSIONS: Final = 50
EVERY_VERSIONS_IN_STORE: Final = 10
GRACE_S: Final = 3_600

_LAST: Final = "_last_checkpoint"

_WHOLE_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_VERSIONED = re.compile(r"(\d{20})\.(json|checkpoint.*\.parquet|crc)")
_TEMPORARY = re.compile(r"(_commit_.*\.tmp|\d{20}\.json#.*|.*\.tmp)")


@dataclass(frozen=True, slots=True)
class LogLength:
    """The number of a log's entries, and how many of these must be read to open the table.

    The entries after the last Delta log checkpoint must be read.
    """

    entries: int
    since_checkpoint: int


def log_length(folder: StoragePlace) -> LogLength:
    """Return the length of a table's log."""
    versions, last = log_versions(folder), _last_checkpoint(folder)
    return LogLength(len(versions), sum(version > last for version in versions))


def checkpoint_log(log: DeltaLog, every: int = EVERY_VERSIONS) -> bool:
    """Write a Delta log checkpoint if the last one is `every` versions old. Return whether this was the case.

    The storage is asked for the last Delta log checkpoint only once.
    """
    if log.checkpoint_at is None:
        in_folder = isinstance(log.folder.storage, Folder)
        log.checkpoint_at = _last_checkpoint(log.folder) if in_folder else _hinted_checkpoint(log.folder)
    if log.known().version() - log.checkpoint_at < every:
        return False
    table = log.loaded()
    table.create_checkpoint()
    _sync_log_checkpoints(log.folder)
    log.checkpoint_at = table.version()
    return True


def _sync_log_checkpoints(folder: StoragePlace) -> None:
    """Make the Delta log checkpoints durable. If one of them were truncated, the table could not be loaded."""
    if not isinstance(folder.storage, Folder):
        return
    log = log_of(folder)
    sync_files([log / each.name for each in log.entries() if LOG_CHECKPOINT.fullmatch(each.name) or each.name == _LAST])


def shorten(log: DeltaLog, *, now_s: float) -> None:
    """Write a Delta log checkpoint of one of Tidemark's own tables if due. Then delete files that no reader needs."""
    every = EVERY_VERSIONS if isinstance(log.folder.storage, Folder) else EVERY_VERSIONS_IN_STORE
    if not checkpoint_log(log, every):
        return
    checkpoints = log_versions(log.folder, LOG_CHECKPOINT)
    old = [version for version in checkpoints if version <= checkpoints[-1] - EVERY_VERSIONS]
    if old:
        _drop_log_before(old[-1], log.folder)
    _drop_old_files(log, now_s)
    if old:
        log.reopen()


def drop_older_versions(log: DeltaLog, *, now_s: float, kept_s: float) -> None:
    """Drop all older versions of one of Tidemark's own tables.

    Row files that the newest version does not name are deleted once they are `kept_s` seconds old.

    The caller must hold the job, and every reader of an older version must have ended.
    """
    table = log.loaded()
    table.create_checkpoint()
    _sync_log_checkpoints(log.folder)
    log.checkpoint_at = table.version()
    _drop_log_before(table.version(), log.folder)
    _drop_old_files(log, now_s, kept_s)
    log.reopen()


def drop_entries(folder: StoragePlace, floor: int, *, kept_s: float, now_s: float) -> bool:
    """Delete an output table's log entries before the newest Delta log checkpoint at or before `floor`.

    That Delta log checkpoint must be `kept_s` seconds old. Some log entries are the only place that names a removed
    file. Such an entry is kept as long as the file exists, so that the clean-up finds the file. The oldest entries are
    deleted first, so the log never has a gap. Return True if any entry was deleted.
    """
    while (start := _newest_start(folder, floor, now_s - kept_s)) is not None:
        blocking = _needed_by_cleanup(folder, start)
        if blocking is None:
            return _drop_log_before(start, folder)
        floor = blocking
    return False


def _newest_start(folder: StoragePlace, floor: int, before_s: float) -> int | None:
    """Return the newest version at which a log may begin, which must have a Delta log checkpoint in a single file."""
    for version in reversed(log_versions(folder, _WHOLE_CHECKPOINT)):
        if version <= floor and _is_older(entry_place(folder, version), before_s):
            return version
    return None


def _needed_by_cleanup(folder: StoragePlace, start: int) -> int | None:
    """Return the first log entry before `start` that removed a foreign file which is still in the folder."""
    for version in log_versions(folder):
        if version >= start:
            return None
        for action, path in file_actions(folder, version):
            if action == "remove" and not is_ours(path) and is_data_file(path) and (folder / path).exists():
                return version
    return None


def _last_checkpoint(folder: StoragePlace) -> int:
    """Return the version of the newest Delta log checkpoint, or -1 if there is none."""
    return max(log_versions(folder, LOG_CHECKPOINT), default=-1)


def _hinted_checkpoint(folder: StoragePlace) -> int:
    """Return the version in the log's hint at its newest Delta log checkpoint, or -1 without a hint.

    If the hint is older than the newest Delta log checkpoint, this only costs an additional Delta log checkpoint.
    """
    try:
        return int(json.loads((log_of(folder) / _LAST).read())["version"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return -1


def _drop_log_before(version: int, folder: StoragePlace) -> bool:
    found = (_VERSIONED.fullmatch(each.name) for each in log_of(folder).entries())
    gone = sorted((int(name[1]), name[0]) for name in found if name and int(name[1]) < version)
    for _, name in gone:
        (log_of(folder) / name).delete()
    return bool(gone)


def _drop_old_files(log: DeltaLog, now_s: float, kept_s: float = GRACE_S) -> None:
    folder, active = log.folder, frozenset(log.known().paths())
    for each in (folder / ROWS_FOLDER).entries():
        if f"{ROWS_FOLDER}/{each.name}" not in active:
            _drop_if_old(folder / ROWS_FOLDER, each, now_s, kept_s)
    for each in log_of(folder).entries():
        if _TEMPORARY.fullmatch(each.name):
            _drop_if_old(log_of(folder), each, now_s, kept_s)


def _drop_if_old(folder: StoragePlace, each: Listed, now_s: float, kept_s: float) -> None:
    with suppress(FileNotFoundError):
        if now_s - each.changed_ms / 1000 > kept_s:
            (folder / each.name).delete()


def _is_older(entry: StoragePlace, before_s: float) -> bool:
    try:
        return entry.described().changed_ms / 1000 <= before_s
    except FileNotFoundError:
        return False
