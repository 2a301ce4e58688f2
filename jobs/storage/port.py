"""Six operations on the files of a warehouse: all that Tidemark needs of a folder or an object store.

A name is relative to the warehouse, with `/` between its parts. Every implementation promises:
- A file is whole or it is not there. A reader never sees a part of one.
- What was written, replaced or copied is durable on return, unless the caller does without (`durable=False`).
- Of several processes that write one name at the same moment, exactly one succeeds.
- A read or list that begins after a write has returned sees what was written.
- A list has no order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from jobs.storage.address import Root


class ChangedError(OSError):
    """A file was to be replaced only if nobody had changed it, and somebody had. The message names it."""


class NotARegularFileError(OSError):
    """A named pipe, a folder or a device lies where a file should be. The message names it."""


@dataclass(frozen=True, slots=True)
class Content:
    """A file as it was read: the bytes that were asked for, its size, when it was written, and the tag of this content."""

    bytes: bytes
    size: int
    changed_ms: int
    tag: str


class Listed(Protocol):
    """A file or folder that a list found. A folder knows no size and no time."""

    @property
    def name(self) -> str:
        """Its name below the listed folder."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder. A list that goes deep has files alone."""

    @property
    def size(self) -> int:
        """Its bytes. Raises FileNotFoundError if it was deleted meanwhile."""

    @property
    def changed_ms(self) -> int:
        """When it was written, in ms since the epoch. Raises FileNotFoundError if it was deleted meanwhile."""


class Located(Protocol):
    """Where a storage lies, and how dear a look into it is."""

    @property
    def root(self) -> Root:
        """The folder's absolute path, or the URL."""

    @property
    def look_ms(self) -> int:
        """How often a process that waits for a file may look for it."""


class Storage(Located, Protocol):
    """The files of a warehouse, by name. Every operation may raise OSError."""

    def read(self, name: str, *, start: int = 0, most: int | None = None) -> Content:
        """Return a file's bytes from `start` on, `most` at most; with 0 only its size and time are asked for.

        Raises FileNotFoundError, and NotARegularFileError for a named pipe or a folder.
        """

    def write(self, name: str, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new file; raise FileExistsError if the name is taken."""

    def replace(
        self, name: str, content: bytes | memoryview, *, unchanged: str | None = None, durable: bool = True
    ) -> None:
        """Write a file in place of the one of that name, if there is one.

        With `unchanged`, the tag of what was read, raise ChangedError if the file was replaced or deleted since.
        """

    def list(self, name: str, *, deep: bool = False) -> Iterator[Listed]:
        """Yield what lies in a folder, or every file below it; nothing if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""

    def copy(self, source: str, target: str) -> None:
        """Give a file another name, in place of a file that has it. Raises FileNotFoundError. It is not durable."""
