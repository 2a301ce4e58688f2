"""Reads from a table's log which files it showed earlier: from which version to which, and when each was removed.

It reads the log's entries, and in a store many of them at the same time. If somebody else has deleted the oldest ones,
a file that they removed counts as removed at the latest when the first remaining entry was written.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote

from checkpointing.commit.cleanup import Shown
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace
from jobs.storage.port import Listed
from jobs.storage.together import in_threads
from jobs.stores.log_entries import ENTRY, log_of

_HEAD_BYTES: Final = 16
"""So many bytes at the beginning of a line name its action."""

_Actions = tuple[set[str], dict[str, int]]
"""The files that an entry adds, and those that it removes, with the time of removal that it says."""


@dataclass(slots=True)
class TableHistory:
    """The files that a log has removed, by path inside the table; `before` stands for the time before its entries."""

    removed: dict[str, tuple[Shown, ...]] = field(default_factory=dict)
    before: Shown | None = None
    whole: range = range(0)
    """The last versions of the log without a missing entry."""

    def tells_of(self, version: int, newest: int) -> bool:
        """Return whether the history is complete between these two versions."""
        return version in self.whole and newest in self.whole

    def removed_since(self, version: int) -> Iterator[str]:
        """Yield the files that the table showed at a known version and has removed since."""
        for path, times in self.removed.items():
            if any(shown.first <= version < shown.until for shown in times):
                yield path

    def shown(self, path: str) -> tuple[Shown, ...]:
        """Return the past periods in which the log showed a file that it does not show now."""
        if path in self.removed:
            return self.removed[path]
        return () if self.before is None else (self.before,)


def read_history(folder: StoragePlace) -> TableHistory:
    """Return a table's history. Raises OSError for an entry that cannot be read, ValueError for one that is no JSON."""
    log = log_of(folder)
    found = ((ENTRY.fullmatch(each.name), each) for each in log.entries())
    entries = sorted(((int(name[1]), each) for name, each in found if name), key=itemgetter(0))
    history = TableHistory()
    if entries and entries[0][0] > 0:
        version, first = entries[0]
        history.before = Shown(0, version, first.changed_ms)
    since: dict[str, int] = {}
    threads = 1 if isinstance(folder.storage, Folder) else len(entries)
    read = in_threads(threads, lambda entry: _actions((log / entry[1].name).read()), entries)
    for (version, each), actions in zip(entries, read, strict=True):
        begun = history.whole.start if version == history.whole.stop else version
        history.whole = range(begun, version + 1)
        _take(version, each, actions, since, history)
    return history


def _take(version: int, entry: Listed, actions: _Actions, since: dict[str, int], history: TableHistory) -> None:
    adds, removes = actions
    for path, removed_ms in removes.items():
        if path not in adds:  # else it only got other properties, such as a deletion vector
            shown = Shown(since.pop(path, 0), version, max(removed_ms, entry.changed_ms))
            history.removed[path] = (*history.removed.get(path, ()), shown)
    for path in adds:
        since.setdefault(path, version)


def _actions(entry: bytes) -> _Actions:
    adds: set[str] = set()
    removes: dict[str, int] = {}
    for line in entry.splitlines():
        head = line[:_HEAD_BYTES]
        if b'"add"' in head:
            adds.add(_path(json.loads(line)["add"]))
        elif b'"remove"' in head:
            remove = json.loads(line)["remove"]
            removes[_path(remove)] = remove.get("deletionTimestamp") or 0
    return adds, removes


def _path(action: dict[str, Any]) -> str:
    return unquote(str(action["path"]))
