"""Reads single entries of a Delta table's log: the files they add, the checkpoint they publish, what keeps them unread.

An entry is a file of JSON lines. A power cut can leave it empty, and delta-rs then takes it for a commit that changes
nothing. An entry that is cut off, or missing between two others, keeps every engine from loading the table.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

from checkpointing.commit.behind import Entry
from checkpointing.identifiers import CheckpointId
from jobs.storage.place import StoragePlace

METADATA_KEY: Final = "tidemark"
"""Under this key each of our commits says in its commitInfo what it is."""

ENTRY: Final = re.compile(r"(\d{20})\.json")
LOG_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """Why a log cannot be loaded: `version` is missing or cut off; `newest`: no entry follows it."""

    version: int
    missing: bool
    newest: bool
    place: StoragePlace


def log_of(folder: StoragePlace) -> StoragePlace:
    """Return the folder in which a table's log lies."""
    return folder / "_delta_log"


def entry_place(folder: StoragePlace, version: int) -> StoragePlace:
    """Return where the entry of a version lies."""
    return log_of(folder) / f"{version:020d}.json"


def log_versions(folder: StoragePlace, named: re.Pattern[str] = ENTRY) -> list[int]:
    """Return the versions that a table's log has files of this kind for, in order; none if there is no log."""
    names = (named.fullmatch(each.name) for each in log_of(folder).entries())
    return sorted({int(found[1]) for found in names if found})


def file_actions(folder: StoragePlace, version: int) -> Iterator[tuple[str, str]]:
    """Yield the removes of one log entry, then its adds, each with its path inside the table; raise OSError."""
    lines = [json.loads(line) for line in _lines(entry_place(folder, version))]
    for action in ("remove", "add"):
        yield from ((action, unquote(line[action]["path"])) for line in lines if action in line)


def published_by(folder: StoragePlace, version: int, application: str) -> Entry | None:
    """Return the checkpoint that an entry published under that transaction id; None if none, or if it is unreadable."""
    try:
        lines = _lines(entry_place(folder, version))
        actions = [json.loads(line) for line in lines if line.startswith(('{"txn"', '{"commitInfo"'))]
    except (OSError, ValueError):
        return None
    found = next((each["txn"] for each in actions if each.get("txn", {}).get("appId") == application), None)
    info: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    said = info.get(METADATA_KEY)
    again = isinstance(said, dict) and said.get("again") is True
    return None if found is None else Entry(CheckpointId(found["version"]), again)


def broken_entry(folder: StoragePlace) -> BrokenEntry | None:
    """Return the first entry that keeps the log from being loaded; None if every entry that is needed is there.

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


def _lines(entry: StoragePlace) -> list[str]:
    return [line for line in entry.read().decode().splitlines() if line.strip()]


def _is_json(entry: StoragePlace) -> bool:
    try:
        for line in _lines(entry):
            json.loads(line)
    except (OSError, ValueError):
        return False
    return True
