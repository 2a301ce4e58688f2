"""A folder of input files, as a file source sees it: on a file system, or as a prefix in an object store.

No answer has hidden names, or names of files that are still being written (`folder_look.is_hidden`). An object store
has no folders, so a prefix counts as a folder if an object lies below it.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from jobs.sources.file_matching import FoundFile
from jobs.sources.folder_look import entries, files_below, is_hidden
from jobs.sources.port import SourceError
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace

_NANOSECONDS: Final = 1_000_000


class InputEntry(Protocol):
    """A file or a folder in a folder."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    @property
    def path(self) -> str:
        """Its path or URL."""

    def is_dir(self) -> bool:
        """Return True for a folder."""

    def is_file(self) -> bool:
        """Return True for a file that can be opened."""


class InputFolder(Protocol):
    """One folder of input files."""

    def entries(self) -> list[InputEntry]:
        """Return the files and folders in this folder. Raise OSError if it cannot be listed."""

    def files(self, suffixes: tuple[str, ...], glob: str | None) -> Iterator[FoundFile]:
        """Yield the files in the folder with these suffixes. With `glob`, yield the files below it that match instead.

        Raises OSError as `entries` does, and SourceError for a name that is not UTF-8.
        """

    def nested(self, name: str) -> Iterator[str]:
        """Yield the files below a subfolder. Their names are relative to this folder."""

    def found(self, name: str) -> FoundFile:
        """Return the present size and time of a file. Raises OSError."""


def input_folder(place: StoragePlace) -> InputFolder:
    """Return the folder of input files at that place."""
    if isinstance(place.storage, Folder):
        return _Local(place.storage.path(place.name))
    return _InStore(place)


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path

    def entries(self) -> list[InputEntry]:
        return [*entries(self.path)]

    def files(self, suffixes: tuple[str, ...], glob: str | None) -> Iterator[FoundFile]:
        for name in self._names(suffixes, glob):
            _must_be_text(self.path, name)
            with suppress(FileNotFoundError):  # the file was removed after it was listed
                yield self.found(name)

    def nested(self, name: str) -> Iterator[str]:
        return (os.path.relpath(each, self.path) for each in files_below(str(self.path / name)))

    def found(self, name: str) -> FoundFile:
        status = (self.path / name).stat()
        return FoundFile(name, status.st_size, status.st_mtime_ns)

    def _names(self, suffixes: tuple[str, ...], glob: str | None) -> Iterator[str]:
        there = entries(self.path)
        if glob is None:
            return (entry.name for entry in there if entry.name.endswith(suffixes) and entry.is_file())
        below = (path.relative_to(self.path) for path in self.path.glob(glob) if path.is_file())
        return (str(path) for path in below if not any(map(is_hidden, path.parts)))


@dataclass(frozen=True, slots=True)
class _StoreEntry:
    name: str
    path: str
    folder: bool

    def is_dir(self) -> bool:
        return self.folder

    def is_file(self) -> bool:
        return not self.folder


@dataclass(frozen=True, slots=True)
class _InStore:
    place: StoragePlace

    def entries(self) -> list[InputEntry]:
        there = [
            _StoreEntry(each.name, str(self.place / each.name), each.is_folder)
            for each in self.place.entries()
            if each.name and not is_hidden(each.name)
        ]
        if not there and not self.place.name:
            raise FileNotFoundError(errno.ENOENT, "no object lies below it", str(self.place))
        return [*there]

    def files(self, suffixes: tuple[str, ...], glob: str | None) -> Iterator[FoundFile]:
        pattern = None if glob is None else glob_pattern(glob)
        for each in self.place.entries(deep=glob is not None):
            if each.is_folder or not each.name or any(map(is_hidden, each.name.split("/"))):
                continue
            if each.name.endswith(suffixes) if pattern is None else pattern.fullmatch(each.name):
                yield FoundFile(each.name, each.size, each.changed_ms * _NANOSECONDS)

    def nested(self, name: str) -> Iterator[str]:
        below = (each.name for each in (self.place / name).entries(deep=True))
        return (f"{name}/{each}" for each in below if each and not any(map(is_hidden, each.split("/"))))

    def found(self, name: str) -> FoundFile:
        now = (self.place / name).described()
        return FoundFile(name, now.size, now.changed_ms * _NANOSECONDS)


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return the pattern of a glob. As in `Path.glob`, `**` stands for any number of folders."""
    parts = glob.split("/")
    last = len(parts) - 1
    return re.compile("".join(_of_part(part, is_last=place == last) for place, part in enumerate(parts)), re.DOTALL)


def _of_part(part: str, *, is_last: bool) -> str:
    if part == "**":
        return r"(?!)" if is_last else r"(?:[^/]+/)*"  # at the end, ** matches folders only
    signs = {"*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", part)
    shown = "".join(signs.get(piece) or _of_characters(piece) for piece in pieces)
    return shown if is_last else f"{shown}/"


def _of_characters(piece: str) -> str:
    if not (piece.startswith("[") and piece.endswith("]")):
        return re.escape(piece)
    inside = piece[1:-1].replace("\\", "\\\\")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"


def _must_be_text(folder: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{name!r} in {folder} is not UTF-8: rename the file") from None
