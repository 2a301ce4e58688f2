"""Writing a tick's trace: one file a generation, of which the newest stay (the lines: `checkpointing.trace`)."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from checkpointing.identifiers import Generation
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.trace import Traced, encode

TRACES_KEPT: Final = 20
"""Traces of this many generations stay."""

BUFFER_BYTES: Final = 256 * 1024


class TraceWriter:
    """Writes one generation's trace. Buffered: what matters after a failure is flushed by whoever knows of it.

    Not for several threads.
    """

    def __init__(self, path: Path) -> None:
        """Begin the file, its folder included. What lies there goes: to open a named pipe could take for ever."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.path = path
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._written = 0

    def write(self, at_ms: int, entries: Iterable[Traced]) -> None:
        """Append the entries."""
        for body in entries:
            self._written += 1
            self._file.write(encode(self._written, at_ms, body))

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
    """Delete the traces of generations that lie `TRACES_KEPT` or more behind."""
    if not folder.is_dir():
        return
    kept = {Path(paths.trace(Generation(g))).name for g in range(generation - TRACES_KEPT + 1, generation + 1)}
    for path in folder.glob("*.ndjson"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
