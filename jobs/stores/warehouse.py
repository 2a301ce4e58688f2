"""Where a job's objects really are, and which clock and writer the stores sign with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpointing.metadata.paths import ProtocolPaths
from jobs.distribution import installed_version
from jobs.engine_paths import must_suit_delta


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return this software and its version, as log entries name their writer."""
    found = installed_version()
    return "tidemark" if found is None else f"tidemark {found}"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A job's names bound to a folder; `root` must be one that all processes of the job can reach.

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
