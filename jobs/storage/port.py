"""Defines the six operations on a warehouse's files. A folder and an object store implement them.

A name is relative to the warehouse, with `/` between its parts. Every implementation promises:

- A file is whole or does not exist. A reader never sees a part of a file.
- A file that was written or replaced is durable on return, unless the caller waives that (`durable=False`).
- If several processes write one name at the same moment, exactly one succeeds.
- A read or list that begins after a write has returned sees that write.
- A list has no order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from jobs.storage.address import Root


class ChangedError(OSError):
    """A file was not replaced, because another process had changed it since it was read. The message names the file."""


class NotARegularFileError(OSError):
    """A named pipe, a folder or a device lies in the place of a file. The message names it."""


@dataclass(frozen=True, slots=True)
class Content:
    """The result of a read: the requested bytes, the file's size and time, and the tag of this content."""

    bytes: bytes
    size: int
    changed_ms: int
    tag: str


class Listed(Protocol):
    """A file or folder that a list found. A folder has no size and no time."""

    @property
    def name(self) -> str:
        """Return its name below the listed folder."""

    @property
    def is_folder(self) -> bool:
        """Return True for a folder. A list of all files below a folder has no folders."""

    @property
    def size(self) -> int:
        """Return the file's size in bytes. Raises FileNotFoundError if the file was deleted meanwhile."""

    @property
    def changed_ms(self) -> int:
        """Return the time of the last write, in ms since the epoch.

        Raises FileNotFoundError if the file was deleted meanwhile.
        """


class Located(Protocol):
    """The properties of a storage: where it lies, and how often a process may look for a file in it."""

    @property
    def root(self) -> Root:
        """Return the folder's absolute path, or the URL."""

    @property
    def look_ms(self) -> int:
        """Return the shortest interval, in ms, at which a process may look for a file for which it waits."""


class Storage(Located, Protocol):
    """The files of a warehouse. Each file is found by its name. Every operation can raise OSError."""

    def read(self, name: str, *, start: int = 0, most: int | None = None) -> Content:
        """Return at most `most` bytes of a file from `start` on. With `most` 0, the answer has only size and time.

        Raises FileNotFoundError, and NotARegularFileError for a named pipe or a folder.
        """

    def write(self, name: str, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new file. Raise FileExistsError if the name is taken."""

    def replace(
        self, name: str, content: bytes | memoryview, *, unchanged: str | None = None, durable: bool = True
    ) -> None:
        """Write a file. If a file of that name exists, replace it.

        `unchanged` is the tag of an earlier read. If this tag is given, raise ChangedError if the file was replaced or
        deleted since that read.
        """

    def list(self, name: str, *, deep: bool = False) -> Iterator[Listed]:
        """Yield the entries of a folder, or every file below it. A missing folder has no entries."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file to another name, and replace any file of that name. The copy is not durable.

        Raises FileNotFoundError.
        """
