"""Writes a tick's trace, one file for each generation, and deletes old ones (the lines: `checkpointing.trace`).

A trace has a bound. When it is full, the tick ends its attempt and goes on as the next generation. So each file begins
with the set-up of a door at a completed checkpoint, and can be replayed without the earlier files.
"""

import gzip
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, cast

from checkpointing.identifiers import Generation
from checkpointing.messages import CutRecorded
from checkpointing.trace import FilesTakenOut, TickStarted, Traced, encode
from jobs.storage.place import StoragePlace

TRACES_KEPT: Final = 20
"""The traces of at most so many generations are kept."""

TRACES_BYTES_MAX: Final = 64 * 1024 * 1024
"""If the traces are larger than this together, the oldest are deleted."""

COMPRESSED_FROM_BYTES: Final = 1024 * 1024
"""A larger trace is compressed (gzip) when its attempt ends. This reduces it to about a tenth."""

_GZIP: Final = b"\x1f\x8b"
_LEVEL: Final = 4


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """A trace is full after so many bytes or checkpoints. The rest of the attempt is still written.

    The set-up at the beginning is not included. If the set-up is larger than `bytes`, as many bytes as the set-up has
    may follow, so that an attempt makes progress however large the retained entries are.
    """

    bytes: int = 32 * 1024 * 1024
    checkpoints: int = 500


DEFAULT_BOUNDS: Final = TraceBounds()

BUFFER_BYTES: Final = 256 * 1024

COPIED_EVERY_S: Final = 60.0

_SUFFIX: Final = ".ndjson"


class TraceWriter:
    """Writes one generation's trace, for one thread. The trace is buffered.

    The driver flushes what must survive a crash.
    """

    def __init__(self, path: Path, bounds: TraceBounds = DEFAULT_BOUNDS, copy: StoragePlace | None = None) -> None:
        """Create the file and its folder. An existing file is deleted first, because opening a named pipe could hang.

        With `copy`, the file is copied there every minute and at the end.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.path = path
        self._bounds = bounds
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._written = 0
        self._files = FilesTakenOut()
        self._bytes = 0
        self._most = bounds.bytes
        self._checkpoints = 0
        self._copy = copy
        self._copied_s = time.monotonic()

    @property
    def is_full(self) -> bool:
        """Whether the tick should go on in another trace."""
        return self._bytes >= self._most or self._checkpoints >= self._bounds.checkpoints

    def write(self, at_ms: int, entries: Iterable[Traced]) -> None:
        """Append the entries."""
        for body in entries:
            self._written += 1
            self._checkpoints += isinstance(body, CutRecorded)
            size = self._file.write(encode(self._written, at_ms, body, self._files))
            if isinstance(body, TickStarted):
                self._most = max(self._bounds.bytes, size)
            else:
                self._bytes += size

    def flush(self) -> None:
        """Write the buffer to the operating system, so that its content survives the process."""
        self._file.flush()
        if self._copy is not None and time.monotonic() - self._copied_s > COPIED_EVERY_S:
            self._put(self._copy)

    def __enter__(self) -> Self:
        """Return the writer. Leaving the block closes the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        del kind, error, trace
        size = self._file.tell()
        self._file.close()
        if size >= COMPRESSED_FROM_BYTES:
            with suppress(OSError):  # a full disk: the trace stays as it is
                _compress(self.path)
        if self._copy is not None:
            self._put(self._copy)

    def _put(self, copy: StoragePlace) -> None:
        copy.replace(self.path.read_bytes())
        self._copied_s = time.monotonic()


def open_trace(path: Path) -> BinaryIO:
    """Open a trace to read its lines, compressed or not. Raises OSError if there is no trace."""
    file = path.open("rb")
    compressed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file


def _compress(path: Path) -> None:
    """Write the trace compressed to another file, and rename that file to the trace's name."""
    beside = path.with_suffix(".gz")
    with path.open("rb") as plain, gzip.open(beside, "wb", compresslevel=_LEVEL) as compressed:
        shutil.copyfileobj(plain, compressed, BUFFER_BYTES)
    beside.replace(path)


def drop_old_traces(folder: StoragePlace, generation: Generation) -> None:
    """Delete the traces beyond TRACES_KEPT generations or TRACES_BYTES_MAX bytes, oldest first."""
    kept = [f"{g}{_SUFFIX}" for g in range(generation, generation - TRACES_KEPT, -1)]
    sizes = {each.name: each.size for each in folder.entries() if each.name.endswith(_SUFFIX)}
    left = TRACES_BYTES_MAX
    for name in kept:
        left -= sizes.get(name, 0)
        if left >= 0:
            sizes.pop(name, None)
    for name in sizes:
        (folder / name).delete()
