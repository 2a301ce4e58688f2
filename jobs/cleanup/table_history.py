"""Reads from a table's log which files it showed earlier: from which version to which, and when each was removed.

It reads the log's entries. If somebody else has deleted the oldest ones, a file that they removed counts as removed
at the latest when the first remaining entry was written.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from checkpointing.commit.cleanup import Shown

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_HEAD_BYTES: Final = 16
"""So many bytes at the beginning of a line name its action."""


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


def read_history(folder: Path) -> TableHistory:
    """Return a table's history. Raises OSError for an entry that cannot be read, ValueError for one that is no JSON."""
    entries = sorted((int(found[1]), path) for path, found in _entries(folder / "_delta_log"))
    history = TableHistory()
    if entries and entries[0][0] > 0:
        version, path = entries[0]
        history.before = Shown(0, version, _modified_ms(path))
    since: dict[str, int] = {}
    for version, path in entries:
        begun = history.whole.start if version == history.whole.stop else version
        history.whole = range(begun, version + 1)
        _take(version, path, since, history)
    return history


def _entries(log: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in log.iterdir():
        found = _ENTRY.fullmatch(path.name)
        if found:
            yield path, found


def _take(version: int, entry: Path, since: dict[str, int], history: TableHistory) -> None:
    adds, removes = _actions(entry)
    for path, removed_ms in removes.items():
        if path not in adds:  # else it only got other properties, such as a deletion vector
            shown = Shown(since.pop(path, 0), version, max(removed_ms, _modified_ms(entry)))
            history.removed[path] = (*history.removed.get(path, ()), shown)
    for path in adds:
        since.setdefault(path, version)


def _actions(entry: Path) -> tuple[set[str], dict[str, int]]:
    adds: set[str] = set()
    removes: dict[str, int] = {}
    with entry.open("rb") as lines:
        for line in lines:
            head = line[:_HEAD_BYTES]
            if b'"add"' in head:
                adds.add(_path(json.loads(line)["add"]))
            elif b'"remove"' in head:
                remove = json.loads(line)["remove"]
                removes[_path(remove)] = remove.get("deletionTimestamp") or 0
    return adds, removes


def _path(action: dict[str, Any]) -> str:
    return unquote(str(action["path"]))


def _modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000
