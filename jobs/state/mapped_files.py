"""Keeps a second, uncompressed copy of the rows of large state files on a local disk, where all workers map it (D5).

Spark's tasks take turns among Python workers. So a worker often lacks a file that another worker has written. Decoding
it takes longer than the rest of the micro-batch's work. A mapped file needs no decoding, and the workers of an executor
share its pages. The operating system can drop these pages, so they do not count as a worker's memory.

Spark names folders for such files, and deletes these folders when the executor ends. Without such a folder, no file is
mapped. If the disk is full or fails, no file is written there for a minute.
"""

import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final
from uuid import uuid4
from weakref import WeakSet

import polars as pl
import pyarrow as pa

from jobs.state.files import frame_of

MAPPED_BYTES_MIN: Final = 4 * 1024 * 1024
"""Rows that take less memory than this are decoded as fast as they are mapped."""
PAUSE_S: Final = 60.0
"""For so many seconds after an error of the disk, no file is written there."""
_FOLDERS: Final = "SPARK_LOCAL_DIRS"
_log = logging.getLogger(__name__)  # a worker of Spark's prints its warnings into the executor's log


@dataclass(slots=True, eq=False)
class MappedFiles:
    """The mapped files in one folder. Each belongs to a range of state or of an upsert table, and has its name."""

    folder: Path | None
    bytes_min: int = MAPPED_BYTES_MIN
    clock: Callable[[], float] = time.monotonic
    _rests_until: float | None = field(default=None)
    _in_use: "WeakSet[mmap.mmap]" = field(default_factory=WeakSet)

    def read(
        self, of: object, path: str, schema: pl.Schema, decoded: Callable[[], pl.DataFrame]
    ) -> tuple[pl.DataFrame, bool]:
        """Return the rows of a file with these columns, and whether they are mapped.

        If they are not yet mapped, get them from `decoded`, and keep them.
        """
        found = self.find(of, path, schema)
        return (found, True) if found is not None else self.keep(of, path, decoded())

    def keep(self, of: object, path: str, rows: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
        """Keep the rows of a file, and return them mapped, with True.

        If the rows are few or keeping fails, return them as they are, with False.
        """
        with self.keeping(of) as kept:
            kept.add(rows)
            found = kept.named(path)
        return (rows, False) if found is None else (found, True)

    @contextmanager
    def keeping(self, of: object) -> "Iterator[RowsToMap]":
        """Yield an object that keeps the rows of a file, piece by piece. If the disk has just failed, it keeps nothing.

        The rows can be read once they have the name of the file's path (`named`). Rows without a name are deleted at
        the end.
        """
        place = None if self.folder is None or self._rests() else self._place(of)
        kept = RowsToMap(self, of, None if place is None else place / f"{uuid4()}.part")
        try:
            yield kept
        finally:
            kept.close()

    def keep_only(self, of: object, paths: tuple[str, ...]) -> None:
        """Delete all files of the range except these. A worker that has mapped a deleted file can still read it."""
        if self.folder is None:
            return
        known = {_name(path) for path in paths}
        with suppress(OSError):
            for file in self._place(of).iterdir():
                if file.name not in known and file.suffix == _SUFFIX:
                    file.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Give the pages of all files back to the operating system, which caches them if there is memory.

        Otherwise each worker would hold the pages of every range, because its tasks take turns among all ranges.
        """
        for mapped in self._in_use:
            mapped.madvise(mmap.MADV_DONTNEED)

    def failed(self, error: OSError) -> None:
        """Write nothing for a while, since the disk has failed."""
        if self.folder is not None:
            self._rest(self.folder, error)

    def find(self, of: object, path: str, schema: pl.Schema) -> pl.DataFrame | None:
        """Return the kept rows of a file. None: there are none with these columns."""
        if self.folder is None:
            return None
        with suppress(OSError, pa.ArrowException), self.place(of, path).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._in_use.add(mapped)
            rows = frame_of(pa.ipc.open_file(pa.py_buffer(mapped)).read_all())
            return rows if rows.schema == schema else None
        return None

    def place(self, of: object, path: str) -> Path:
        """Return the path of the mapped file for a state file."""
        return self._place(of) / _name(path)

    def _rests(self) -> bool:
        return self._rests_until is not None and self.clock() < self._rests_until

    def _rest(self, folder: Path, error: OSError) -> None:
        """Write nothing for a while. The first time, write the reason to the process's log."""
        if self._rests_until is None:
            _log.warning(
                "large state files are decoded by each Python worker, which takes longer: they cannot be written into "
                "%s (%s). Free space there, or let spark.local.dir name another folder. Each worker tries again after "
                "%d s, and says this once.",
                folder,
                error,
                PAUSE_S,
            )
        self._rests_until = self.clock() + PAUSE_S

    def _place(self, of: object) -> Path:
        return (self.folder or Path()) / "tidemark-mapped" / _digest(repr(of))


@dataclass(slots=True)
class RowsToMap:
    """Writes the rows of a file to `part`. Without `part`, or once the disk has failed, no rows are kept.

    No rows are kept either if the first piece is small, because it is then the only piece.
    """

    files: MappedFiles
    of: object
    part: Path | None
    _file: pa.OSFile | None = None
    _writer: pa.ipc.RecordBatchFileWriter | None = None
    _schema: pl.Schema = field(default_factory=pl.Schema)

    def add(self, rows: pl.DataFrame) -> None:
        """Keep these rows too, and all that their columns share (`jobs.state.files.of_its_own`)."""
        if self._writer is None and rows.estimated_size() < self.files.bytes_min:
            self.part = None
        if self.part is None:
            return
        content = rows.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
        try:
            if self._writer is None:
                self.part.parent.mkdir(parents=True, exist_ok=True)
                self._file = pa.OSFile(str(self.part), "wb")
                self._writer, self._schema = pa.ipc.new_file(self._file, content.schema), rows.schema
            self._writer.write_table(content)
        except OSError as error:
            self._give_up(error)

    def named(self, path: str) -> pl.DataFrame | None:
        """Give the kept rows the name of the file with this path, and return them mapped. None: no rows were kept."""
        if self.part is None or self._writer is None:
            return None
        try:
            self._end()
            self.part.rename(self.files.place(self.of, path))
        except OSError as error:
            self._give_up(error)
            return None
        return self.files.find(self.of, path, self._schema)

    def close(self) -> None:
        """Delete the rows if they have no name."""
        with suppress(OSError):
            self._end()
        if self.part is not None:
            with suppress(OSError):
                self.part.unlink(missing_ok=True)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        file, self._file = self._file, None
        if file is not None:
            with file:
                if writer is not None:
                    writer.close()

    def _give_up(self, error: OSError) -> None:
        self.files.failed(error)
        self.close()
        self.part = None


_SUFFIX: Final = ".arrow"


def _name(path: str) -> str:
    return _digest(path) + _SUFFIX


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _folder() -> Path | None:
    """Return the first of the folders that Spark names for its executor."""
    named = os.environ.get(_FOLDERS, "").split(",")[0]
    return Path(named) if named else None


MAPPED: Final = MappedFiles(_folder())
"""The mapped files of this process's executor."""
