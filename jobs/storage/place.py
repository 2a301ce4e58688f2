"""Names a file or folder of a warehouse: its storage, and its name there."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.storage.folder import Folder
from jobs.storage.port import Content, Listed, NotARegularFileError, Storage

CHUNK_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A file or folder, which need not exist. Its text is the path or URL by which other libraries open it."""

    storage: Storage
    name: str = ""

    def __str__(self) -> str:
        """Return the absolute path or the URL."""
        return f"{self.storage.root}/{self.name}" if self.name else str(self.storage.root)

    def __truediv__(self, part: str) -> "StoragePlace":
        """Return the place with that name below this one."""
        return StoragePlace(self.storage, f"{self.name}/{part}" if self.name else part)

    @property
    def last(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition("/")[2]

    def read(self, most: int | None = None) -> bytes:
        """Read at most `most` bytes of the file. Raises OSError as the port says."""
        return self.storage.read(self.name, most=most).bytes

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes in parts, so that a large file need not fit into memory; raises OSError."""
        start, size = 0, 1
        while start < size:
            part = self.storage.read(self.name, start=start, most=CHUNK_BYTES)
            size, start = part.size, start + len(part.bytes)
            if not part.bytes:
                return
            yield part.bytes

    def size(self) -> int | None:
        """Return the size of the file in bytes, or None if a folder, a named pipe or nothing lies there."""
        try:
            return self.storage.read(self.name, most=0).size
        except (FileNotFoundError, NotADirectoryError, NotARegularFileError):
            return None

    def exists(self) -> bool:
        """Return True if a file or folder has this name."""
        try:
            self.storage.read(self.name, most=0)
        except NotARegularFileError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def described(self) -> Content:
        """Return the file's size and time, without its bytes; raises OSError as the port says."""
        return self.storage.read(self.name, most=0)

    def write(self, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new file. Raises FileExistsError if there is one."""
        self.storage.write(self.name, content, durable=durable)

    def replace(self, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write the file in one step. It replaces an existing file."""
        self.storage.replace(self.name, content, durable=durable)

    def delete(self) -> None:
        """Delete the file if it exists."""
        self.storage.delete(self.name)

    def entries(self, *, deep: bool = False) -> Iterator[Listed]:
        """Yield the entries of this folder."""
        return self.storage.list(self.name, deep=deep)

    def is_folder(self) -> bool:
        """Return True if this is an existing folder."""
        if isinstance(self.storage, Folder):
            return self.storage.path(self.name).is_dir()
        return any(True for _ in self.entries(deep=True))  # the first LIST of a thousand tells it

    def folders(self) -> list["StoragePlace"]:
        """Return the folders in this folder, ordered by name."""
        return [self / name for name in sorted(each.name for each in self.entries() if each.is_folder)]


def local(path: Path) -> StoragePlace:
    """Return the place of a file or folder on this machine's file system."""
    return StoragePlace(Folder(path))


def delete_folder(folder: StoragePlace, last: str = "") -> None:
    """Delete a folder of a storage with all files below it. In an object store, the file `last` is deleted last."""
    if isinstance(folder.storage, Folder):
        shutil.rmtree(folder.storage.path(folder.name))
        return
    found = [each.name for each in folder.entries(deep=True)]
    for name in sorted(found, key=lambda name: name == last):
        (folder / name).delete()


def drop_if_empty(folder: StoragePlace) -> None:
    """Delete a folder if it is empty. An object store has no such folders."""
    if isinstance(folder.storage, Folder):
        with suppress(OSError):  # not empty, or deleted already
            folder.storage.path(folder.name).rmdir()


def drop_unfinished(folder: StoragePlace, *, before_ms: int) -> None:
    """Delete unfinished files of dead processes that are older than `before_ms`."""
    for each in folder.entries():
        if each.name.startswith(".") and each.name.endswith(".tmp"):
            with suppress(OSError):
                if each.changed_ms < before_ms:
                    (folder / each.name).delete()
