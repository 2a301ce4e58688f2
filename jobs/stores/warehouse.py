"""Binds a job's names to a folder, and to the clock and the writer's name that the stores use."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpointing.metadata.paths import ProtocolPaths
from jobs.distribution import installed_version
from jobs.engine_paths import must_suit_delta

_OWNERS_PARTS: Final = 2


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return this software and its version, as log entries name their writer."""
    found = installed_version()
    return "tidemark" if found is None else f"tidemark {found}"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A job's names bound to a folder. All processes of the job must be able to reach `root`.

    Raises UnusableFolderError for a folder whose name delta-rs cannot open.
    """

    root: Path
    paths: ProtocolPaths
    now_ms: Callable[[], int] = system_clock_ms
    writer: str = installed_writer()

    def __post_init__(self) -> None:
        """Refuse a folder that cannot hold tables, before anything is claimed or written."""
        must_suit_delta(self.root)

    def path(self, name: str) -> Path:
        """Return the absolute path of a warehouse-relative name."""
        return (self.root / name).absolute()

    def delete(self, name: str) -> bool:
        """Delete a file if it exists; return False, deleting nothing, if it lies behind a symbolic link.

        Raises OSError if the operating system refuses.
        """
        if link_to(self.root, name) is not None:
            return False
        self.path(name).unlink(missing_ok=True)
        return True


def link_to(root: Path, name: str) -> Path | None:
    """Return the symbolic link inside a table's folder through which a warehouse-relative name leads, if one does.

    The first two parts of a name, a schema and a table, may be links, so that a table can lie on another disk. Below
    them only Tidemark makes folders, so a link there leads to files that are not the job's.
    """
    parts = name.split("/")
    folders = (root.joinpath(*parts[:end]) for end in range(_OWNERS_PARTS + 1, len(parts)))
    return next((folder for folder in folders if folder.is_symlink()), None)
