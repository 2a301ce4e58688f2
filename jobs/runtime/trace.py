"""Writing a tick's trace: one file a generation, of which the newest stay (the lines: `checkpointing.trace`).

A trace has a bound. A tick whose trace is full ends its attempt in order and goes on as its next generation, so each
file is whole: it begins with the set-up of a door at a completed checkpoint, and replays without the files before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from checkpointing.identifiers import Generation
from checkpointing.messages import CutRecorded
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.trace import TickStarted, Traced, encode

TRACES_KEPT: Final = 20
"""Traces of this many generations stay at most."""

TRACES_BYTES_MAX: Final = 256 * 1024 * 1024
"""What the traces of older generations take together; beyond it the oldest go."""


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """When a trace is full: after so many bytes, or checkpoints. What is on its way then is still written.

    The set-up at its beginning does not count, and of a larger set-up as many bytes may follow as it has: however much
    the retained rows hold, an attempt gets on.
    """

    bytes: int = 32 * 1024 * 1024
    checkpoints: int = 500


DEFAULT_BOUNDS: Final = TraceBounds()

BUFFER_BYTES: Final = 256 * 1024


class TraceWriter:
    """Writes one generation's trace. Buffered: what matters after a failure is flushed by whoever knows of it.

    Not for several threads.
    """

    def __init__(self, path: Path, bounds: TraceBounds = DEFAULT_BOUNDS) -> None:
        """Begin the file, its folder included. What lies there goes: to open a named pipe could take for ever."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.path = path
        self._bounds = bounds
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._written = 0
        self._bytes = 0
        self._most = bounds.bytes
        self._checkpoints = 0

    @property
    def is_full(self) -> bool:
        """Whether the tick should go on in another trace."""
        return self._bytes >= self._most or self._checkpoints >= self._bounds.checkpoints

    def write(self, at_ms: int, entries: Iterable[Traced]) -> None:
        """Append the entries."""
        for body in entries:
            self._written += 1
            self._checkpoints += isinstance(body, CutRecorded)
            size = self._file.write(encode(self._written, at_ms, body))
            if isinstance(body, TickStarted):
                self._most = max(self._bounds.bytes, size)
            else:
                self._bytes += size

    def flush(self) -> None:
        """Hand what is buffered to the operating system: the end of the process does not lose it."""
        self._file.flush()

    def __enter__(self) -> Self:
        """Return the writer; leaving the block closes the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        del kind, error, trace
        self._file.close()


def drop_old_traces(folder: Path, paths: ProtocolPaths, generation: Generation) -> None:
    """Delete the traces of generations that lie `TRACES_KEPT` or more behind, and the oldest beyond the bytes kept."""
    if not folder.is_dir():
        return
    kept = [Path(paths.trace(Generation(g))).name for g in range(generation, generation - TRACES_KEPT, -1)]
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.ndjson")}
    left = TRACES_BYTES_MAX
    for name in kept:
        left -= sizes.get(name, 0)
        if left >= 0:
            sizes.pop(name, None)
    for name in sizes:
        (folder / name).unlink(missing_ok=True)
