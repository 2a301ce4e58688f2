"""Where a job's objects really are, and which clock and writer the stores sign with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from checkpointing.metadata.paths import ProtocolPaths


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return this software and its version as a user would install it."""
    try:
        return f"tidemark {version('tidemark')}"
    except PackageNotFoundError:
        return "tidemark"


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
