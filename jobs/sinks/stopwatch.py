"""Measures a Spark task from inside: how long it runs, and how long of that it writes files (E6)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from checkpointing.snapshots import TaskWork

_NS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


def _now_ns() -> int:
    return time.monotonic_ns()


@dataclass(slots=True)
class Stopwatch:
    """Runs from its creation. Not for several threads."""

    _started_ns: int = field(default_factory=_now_ns)
    _writing_ns: int = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time inside this block as time in which the task wrote files."""
        began = _now_ns()
        try:
            yield
        finally:
            self._writing_ns += _now_ns() - began

    def work(self, rows: int) -> TaskWork:
        """Return what the task has measured until now; `rows` it received."""
        ran_ns = _now_ns() - self._started_ns
        return TaskWork(task_ms=ran_ns // _NS, sync_ms=self._writing_ns // _NS, rows=rows)
