"""Reads single entries of a Delta table's log: their writer, files, published checkpoint, and damage.

delta-rs is not used for this, because it would list the log and read several entries, and hold Python's lock (GIL)
meanwhile.

A log entry is a file of JSON lines. After a power cut it may be empty, and delta-rs then reads it as a commit without
changes. If a log entry is cut off, or is missing between two others, no engine can load the table.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise, takewhile
from typing import Any, Final
from urllib.parse import unquote

from checkpointing.commit.lost_publications import Entry
from checkpointing.identifiers import CheckpointId
from jobs.storage.place import AT_A_TIME, StoragePlace, together

METADATA_KEY: Final = "tidemark"
"""The key in commitInfo under which each of Tidemark's commits describes itself."""

ENTRY: Final = re.compile(r"(\d{20})\.json")
LOG_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of a table according to its commitInfo. `ours` is Tidemark's own note there, or None."""

    version: int
    operation: str
    ours: dict[str, Any] | None
    engine: str = ""
    """The name of the program that wrote the entry."""

    def __str__(self) -> str:
        """Return the entry's name in messages."""
        return f"{self.operation} at version {self.version}"


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """Why a log cannot be loaded: the entry of `version` is missing or truncated. `newest`: no entry follows."""

    version: int
    missing: bool
    newest: bool
    place: StoragePlace


def log_of(folder: StoragePlace) -> StoragePlace:
    """Return the folder of a table's log."""
    return folder / "_delta_log"


def entry_place(folder: StoragePlace, version: int) -> StoragePlace:
    """Return the place of a table version's log entry."""
    return log_of(folder) / f"{version:020d}.json"


def log_versions(folder: StoragePlace, named: re.Pattern[str] = ENTRY) -> list[int]:
    """Return in order the versions for which a table's log has files of this kind. Without a log there are none."""
    names = (named.fullmatch(each.name) for each in log_of(folder).entries())
    return sorted({int(found[1]) for found in names if found})


def newest_entries(folder: StoragePlace, version: int) -> Iterator[LogEntry]:
    """Yield the entries of a table's log backwards from a version, as far as they exist.

    Raises OSError and ValueError.

    One entry is read first, since that is enough most of the time, and then more and more entries at the same time. An
    entry without commitInfo is skipped, as in delta-rs.
    """
    for step in count():
        versions = range(version, version - min(8**step, AT_A_TIME, version + 1), -1)
        found = together(folder.storage, lambda each: _commit_info_at(folder, each), versions)
        for each, info in zip(versions, found, strict=True):
            if info is None:
                return
            if info:
                yield _log_entry(each, info)
        version = versions[-1] - 1
        if version < 0:
            return


def entries_after(folder: StoragePlace, newest: int, version: int) -> Iterator[LogEntry]:
    """Yield a log's entries from `newest` back to the entry after `version`. Raises like `newest_entries`."""
    return takewhile(lambda entry: entry.version > version, newest_entries(folder, newest))


def _commit_info_at(folder: StoragePlace, version: int) -> dict[str, Any] | None:
    """Return an entry's commitInfo, which may be empty, or None if the entry is gone, like old entries."""
    try:
        lines = _lines(entry_place(folder, version))
    except FileNotFoundError:
        return None
    return _commit_info(json.loads(line) for line in lines if line.startswith('{"commitInfo"'))


def _log_entry(version: int, info: dict[str, Any]) -> LogEntry:
    said = info.get(METADATA_KEY)
    ours = said if isinstance(said, dict) else None
    return LogEntry(version, str(info.get("operation", "a commit")), ours, str(info.get("engineInfo") or ""))


def file_actions(folder: StoragePlace, version: int) -> Iterator[tuple[str, str]]:
    """Yield the removes of one log entry, then its adds. Paths are relative to the table's folder. Raises OSError."""
    lines = entry_actions(folder, version)
    for action in ("remove", "add"):
        yield from ((action, unquote(line[action]["path"])) for line in lines if action in line)


def entry_actions(folder: StoragePlace, version: int) -> list[dict[str, Any]]:
    """Return the actions of one log entry. Raise OSError and ValueError."""
    return [json.loads(line) for line in _lines(entry_place(folder, version))]


def published_by(folder: StoragePlace, version: int, application: str) -> Entry | None:
    """Return the checkpoint that a log entry published under that transaction id, or None."""
    try:
        lines = _lines(entry_place(folder, version))
        actions = [json.loads(line) for line in lines if line.startswith(('{"txn"', '{"commitInfo"'))]
    except (OSError, ValueError):
        return None
    found = next((each["txn"] for each in actions if each.get("txn", {}).get("appId") == application), None)
    said = _commit_info(actions).get(METADATA_KEY)
    again = isinstance(said, dict) and said.get("again") is True
    return None if found is None else Entry(CheckpointId(found["version"]), again)


def broken_entry(folder: StoragePlace) -> BrokenEntry | None:
    """Return the first log entry that keeps the log from being loaded, or None if all needed entries are sound.

    The first needed entry is the one after the newest Delta log checkpoint.
    """
    versions = log_versions(folder)
    start = max(log_versions(folder, LOG_CHECKPOINT), default=-1) + 1
    needed = [version for version in versions if version >= start]
    for before, after in pairwise([start - 1, *needed]):
        if after != before + 1:
            return BrokenEntry(before + 1, missing=True, newest=False, place=entry_place(folder, before + 1))
    for version in needed:
        place = entry_place(folder, version)
        if not _is_json(place):
            return BrokenEntry(version, missing=False, newest=version == versions[-1], place=place)
    return None


def _commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((each["commitInfo"] for each in actions if "commitInfo" in each), {})


def _lines(entry: StoragePlace) -> list[str]:
    """Return the lines of an entry. `str.splitlines` would also split a line at U+2028 and U+0085 inside of a text."""
    return [line for line in entry.read().decode().split("\n") if line.strip()]


def _is_json(entry: StoragePlace) -> bool:
    try:
        for line in _lines(entry):
            json.loads(line)
    except (OSError, ValueError):
        return False
    return True
