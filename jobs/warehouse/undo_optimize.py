"""Finds out how to undo another writer's OPTIMIZE of an append table, if a rollback needs this (K2).

OPTIMIZE merges the rows of several files into one file. If a merged file has rows of the job from before and after a
checkpoint, the rollback to that checkpoint cannot separate them. So the files from before OPTIMIZE replace the merged
files again, in a commit that changes no row. After that, the rollback proceeds as if no files had been merged.

OPTIMIZE cannot be undone if another writer has changed a merged file since, or if a file from before no longer exists.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.transaction import AddAction

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from checkpointing.identifiers import TableName
from jobs.warehouse.delta_log import add, remove
from jobs.warehouse.file_checks import LoggedFile, is_ours, logged_files
from jobs.warehouse.log_entries import LogEntry, entries_after, entry_actions
from jobs.warehouse.table_snapshot import Action, active_paths, delta_table, paths_with_deletion_vectors
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Undo:
    """The merges to undo, newest first, and the actions of the commit that undoes them at once."""

    merges: tuple[LogEntry, ...]
    actions: tuple[Action, ...]

    def back(self, name: TableName) -> dict[str, FileHandle]:
        """Return a dict from paths in the warehouse to the files that the table shows again."""
        adds = (each for each in self.actions if isinstance(each, AddAction))
        handles = (FileHandle(f"{name}/{each.path}", _rows(each), each.size, UNKNOWN_CRC32) for each in adds)
        return {handle.path: handle for handle in handles}

    def __str__(self) -> str:
        """Return the merges' names in messages."""
        return ", ".join(f"foreign {each}" for each in self.merges)


def _rows(action: AddAction) -> int:
    return int(json.loads(action.stats).get("numRecords") or 0)


@dataclass(frozen=True, slots=True)
class _Merge:
    entry: LogEntry
    adds: frozenset[str]
    removes: frozenset[str]


def to_undo(warehouse: Warehouse, name: TableName, table: DeltaTable, after: int, stay: Collection[str]) -> Undo | None:
    """Return how to undo merges of files of the job that the rollback must remove from the table.

    Only merges after version `after` are undone. The job's files in `stay` need not be removed. Paths lie inside the
    table's folder. The result is None if there is no such merge, or if it cannot be undone. Raises OSError if an entry
    of the log is gone.
    """
    folder = warehouse.place(name)
    mixed: list[_Merge] = []
    outcome = set[str]()
    for entry in reversed(list(entries_after(folder, table.version(), after))):
        adds, removes, rearranges = _files(entry_actions(folder, entry.version))
        leaves = any(path in outcome or (is_ours(path) and path not in stay) for path in removes)
        if entry.ours is None and rearranges and leaves:
            mixed.append(_Merge(entry, adds, removes))
            outcome |= adds
    now = frozenset(active_paths(table))
    then = _before(mixed, now, paths_with_deletion_vectors(table))
    if not mixed or then is None:
        return None
    known = _logged(warehouse, name, mixed)
    back = sorted(then - now)
    if any(path not in known or not (folder / path).exists() for path in back):
        return None
    at_ms = warehouse.now_ms()
    gone = tuple(remove(path, at_ms, data_change=False) for path in sorted(now - then))
    again = tuple(_again(known[path], at_ms) for path in back)
    return Undo(tuple(each.entry for each in reversed(mixed)), (*gone, *again))


def _before(merges: list[_Merge], now: frozenset[str], marked: Collection[str]) -> frozenset[str] | None:
    """Return the files that the table would show without these merges, or None if a merged file was changed since."""
    files = now
    for merge in reversed(merges):
        if not merge.adds <= files or not merge.adds.isdisjoint(marked):
            return None
        files = (files - merge.adds) | merge.removes
    return files


def _files(actions: list[dict[str, Any]]) -> tuple[frozenset[str], frozenset[str], bool]:
    """Return the files that an entry adds and removes, and whether it changes no row."""
    adds, removes = ([each[kind] for each in actions if kind in each] for kind in ("add", "remove"))
    rearranges = bool(adds) and not any(each.get("dataChange", True) for each in (*adds, *removes))
    added, removed = (frozenset(unquote(each["path"]) for each in files) for files in (adds, removes))
    return added, removed, rearranges


def _logged(warehouse: Warehouse, name: TableName, merges: list[_Merge]) -> Mapping[str, LoggedFile]:
    """Return the properties of the files in the log right before each of these merges."""
    found: dict[str, LoggedFile] = {}
    for merge in merges:
        before = delta_table(warehouse.place(name), merge.entry.version - 1)
        found |= logged_files(before)
    return found


def _again(file: LoggedFile, at_ms: int) -> Action:
    return add(file.path, file.bytes, file.statistics, at_ms, file.partition, data_change=False)
