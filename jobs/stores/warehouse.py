"""Where a job's objects really are, and which clock and writer the stores sign with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpointing.metadata.paths import ProtocolPaths
from jobs.distribution import installed_version


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return this software and its version, as log entries name their writer."""
    found = installed_version()
    return "tidemark" if found is None else f"tidemark {found}"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A job's names bound to a folder; `root` must be one that all processes of the job can reach."""

    root: Path
    paths: ProtocolPaths
    now_ms: Callable[[], int] = system_clock_ms
    writer: str = installed_writer()

    def path(self, name: str) -> Path:
        """Return the absolute path of a warehouse-relative name."""
        return self.root / name
