"""Reads single entries of a table's log: which checkpoint each published, and which entry keeps the table from loading.

An entry is a file of JSON lines. A power cut can leave it empty, and delta-rs then takes it for a commit that changes
nothing. An entry that is cut off, or missing between two others, keeps every engine from loading the table.
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from checkpointing.commit.behind import Entry
from checkpointing.identifiers import CheckpointId
from jobs.stores.delta_log import METADATA_KEY

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_LOG_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """Why a log cannot be loaded: `version` is missing or cut off; `newest`: no entry follows it."""

    version: int
    missing: bool
    newest: bool
    path: Path


def entry_versions(folder: Path) -> list[int]:
    """Return the versions of which a table's log has an entry, in order; none if there is no log."""
    log = folder / "_delta_log"
    names = (_ENTRY.fullmatch(path.name) for path in (log.iterdir() if log.is_dir() else ()))
    return sorted(int(found[1]) for found in names if found)


def entry_path(folder: Path, version: int) -> Path:
    """Return where the entry of a version lies."""
    return folder / "_delta_log" / f"{version:020d}.json"


def published_by(folder: Path, version: int, application: str) -> Entry | None:
    """Return which checkpoint an entry published under that transaction id; None: none, or it cannot be read."""
    try:
        lines = entry_path(folder, version).read_text(encoding="utf-8").splitlines()
        actions = [json.loads(line) for line in lines if line.startswith(('{"txn"', '{"commitInfo"'))]
    except (OSError, ValueError):
        return None
    found = next((each["txn"] for each in actions if each.get("txn", {}).get("appId") == application), None)
    info: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    said = info.get(METADATA_KEY)
    again = isinstance(said, dict) and said.get("again") is True
    return None if found is None else Entry(CheckpointId(found["version"]), again)


def broken_entry(folder: Path) -> BrokenEntry | None:
    """Return the first entry that keeps the log from being loaded; None if every entry that is needed is there."""
    versions = entry_versions(folder)
    start = _loaded_from(folder)
    needed = [version for version in versions if version >= start]
    for before, after in pairwise([start - 1, *needed]):
        if after != before + 1:
            return BrokenEntry(before + 1, missing=True, newest=False, path=entry_path(folder, before + 1))
    for version in needed:
        path = entry_path(folder, version)
        if not _is_json(path):
            return BrokenEntry(version, missing=False, newest=version == versions[-1], path=path)
    return None


def _loaded_from(folder: Path) -> int:
    """Return the first version whose entry is read to load the table: the one after the newest Delta log checkpoint."""
    log = folder / "_delta_log"
    names = (_LOG_CHECKPOINT.fullmatch(path.name) for path in (log.iterdir() if log.is_dir() else ()))
    return max((int(found[1]) for found in names if found), default=-1) + 1


def _is_json(path: Path) -> bool:
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                json.loads(line)
    except (OSError, ValueError):
        return False
    return True
