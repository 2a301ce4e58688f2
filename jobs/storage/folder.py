"""A warehouse in a folder: the storage port on a local file system.

A file is written under a temporary name, and then linked or renamed to its own name. That is atomic, even for delta-rs
and Spark, which see the same folder. Files that must survive a power cut are synced, and so are the folders that hold
their names. A folder has some operations that an object store lacks. Callers get them by `folder_of`.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from jobs.storage.port import ChangedError, Content, Listed, NotARegularFileError, Storage

_OWNERS_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class Folder:
    """The files below an existing or future folder."""

    root: Path

    def __post_init__(self) -> None:
        """Make the root absolute, so that it stays the same folder if the process changes its working directory."""
        object.__setattr__(self, "root", self.root.absolute())

    @property
    def look_ms(self) -> int:
        """Return a quarter of a second."""
        return 250

    def path(self, name: str) -> Path:
        """Return the absolute path of a name; an empty name is the folder itself."""
        return self.root / name

    def read(self, name: str, *, start: int = 0, most: int | None = None) -> Content:
        """Read a file; see the port.

        For a named pipe this raises at once, where a plain open would wait for a writer.
        """
        path = self.root / name
        if most == 0:
            return _described(b"", _regular(path, os.stat(path)))  # noqa: PTH116 - one system call
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = _regular(path, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                if start:
                    file.seek(start)
                return _described(file.read(-1 if most is None else most), status)
        finally:
            os.close(descriptor)

    def write(self, name: str, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new file; see the port."""
        path = self.root / name
        made = _new_folders(path, durable=durable)
        beside = _written_beside(path, content, durable=durable)
        try:
            os.link(beside, path)
        finally:
            os.unlink(beside)  # noqa: PTH108 - one system call
        _sync_names(path, made, durable=durable)

    def replace(
        self, name: str, content: bytes | memoryview, *, unchanged: str | None = None, durable: bool = True
    ) -> None:
        """Replace a file by renaming another one; see the port."""
        path = self.root / name
        made = _new_folders(path, durable=durable)
        beside = _written_beside(path, content, durable=durable)
        try:
            if unchanged is None:
                beside.replace(path)
            else:
                _replace_unchanged(beside, path, unchanged)
        except OSError:
            beside.unlink()
            raise
        _sync_names(path, made, durable=durable)

    def list(self, name: str, *, deep: bool = False) -> Iterator[Listed]:
        """Yield the entries of a folder; see the port.

        The state of the files is not read. If the listing goes deep, it follows no symbolic links.
        """
        for inner, entry in _walked(self.root / name, deep=deep):
            yield _Entry(inner, entry)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        (self.root / name).unlink(missing_ok=True)

    def copy(self, source: str, target: str) -> None:
        """Give a file another name by a hard link, or copy the file if no such link is possible."""
        old, new = self.root / source, self.root / target
        new.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        try:
            os.link(old, new)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(old, new)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a listed folder. The file's state is read only when a caller needs it."""

    name: str
    entry: "os.DirEntry[str]"

    @property
    def is_folder(self) -> bool:
        return self.entry.is_dir()

    @property
    def size(self) -> int:
        return self.entry.stat(follow_symlinks=False).st_size

    @property
    def changed_ms(self) -> int:
        return self.entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000


def link_to(storage: Storage, name: str) -> str | None:
    """Return the symbolic link inside a table's folder through which a name leads, or None.

    The first two parts of a name, a schema and a table, may be links, so that a table can lie on another disk. Only
    Tidemark makes folders below them, so a link there leads to files that are not the job's. An object store has no
    links.
    """
    if not isinstance(storage, Folder):
        return None
    parts = name.split("/")
    folders = ("/".join(parts[:end]) for end in range(_OWNERS_PARTS + 1, len(parts)))
    return next((folder for folder in folders if storage.path(folder).is_symlink()), None)


def is_link(storage: Storage, name: str) -> bool:
    """Return True if a file of a table is a symbolic link, or lies behind one."""
    return link_to(storage, name) is not None or (isinstance(storage, Folder) and storage.path(name).is_symlink())


def sync(path: Path) -> None:
    """Make a file's bytes durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walked(folder: Path, *, deep: bool) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not deep or not entry.is_dir(follow_symlinks=False):
            yield entry.name, entry
        else:
            yield from ((f"{entry.name}/{inner}", below) for inner, below in _walked(Path(entry.path), deep=True))


def _new_folders(path: Path, *, durable: bool) -> list[Path]:
    """Make the folders above a file. Return the folders whose names must be made durable together with the file."""
    new = [folder for folder in path.parents if not folder.exists()] if durable else []
    path.parent.mkdir(parents=True, exist_ok=True)
    return new


def _written_beside(path: Path, content: bytes | memoryview, *, durable: bool) -> Path:
    """Return a new file with this content, under a temporary name in the folder of `path`."""
    beside = path.with_name(f".{path.name}.{uuid4()}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return beside


def _sync_names(path: Path, new: list[Path], *, durable: bool) -> None:
    for each in (path, *new) if durable else ():
        sync(each.parent)


def _replace_unchanged(beside: Path, path: Path, tag: str) -> None:
    """Replace a file by renaming another one, if the file still has this tag.

    The folder's lock excludes other processes meanwhile.
    """
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            now = _tag(os.stat(path))  # noqa: PTH116 - one system call
        except FileNotFoundError:
            now = None
        if now != tag:
            raise ChangedError(f"{path} was changed by another process")
        beside.replace(path)
    finally:
        os.close(descriptor)


def _regular(path: Path, status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise NotARegularFileError(f"{path} is no file but a named pipe, a folder or a device")
    return status


def _described(content: bytes, status: os.stat_result) -> Content:
    return Content(content, status.st_size, status.st_mtime_ns // 1_000_000, _tag(status))


def _tag(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
