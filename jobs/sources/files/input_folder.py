"""A folder of input files of a file source: on a file system, or as a prefix in an object store.

No method returns hidden names, or names of files that are still being written (`folder_look.is_hidden`). An object
store has no folders, so a prefix is treated as a folder if an object lies below it.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from jobs.sources.files.file_matching import FoundFile
from jobs.sources.folder_look import FolderLook, Why, entries, files_below, is_hidden
from jobs.sources.port import SourceError
from jobs.storage.address import Root
from jobs.storage.folder import Folder
from jobs.storage.objects import StoreError
from jobs.storage.place import StoragePlace, place_in

_NANOSECONDS: Final = 1_000_000


class InputEntry(Protocol):
    """A file or a folder in a folder."""

    @property
    def name(self) -> str:
        """The name of the file or folder in its folder."""

    @property
    def path(self) -> str:
        """The path or URL of the file or folder."""

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


# ------------------------------------------------------------------
# Finds the input files under the root of a file source, and assigns each of them to a split.
#
# | `glob`  | `one_split` | a split is             | its files are                                           |
# |---------|-------------|------------------------|---------------------------------------------------------|
# | None    | False       | a folder below `root`  | those directly in the folder that end as the format says |
# | a glob  | False       | a folder below `root`  | those below the folder that match                       |
# | None    | True        | `root`, named `all`    | those directly in `root` that end as the format says    |
# | a glob  | True        | `root`, named `all`    | those below `root` that match                           |
#
# By Spark's convention, names that begin with `_` or `.` are hidden, and names that end in `.tmp` or `._COPYING_` are
# files that are still being written. Such files and folders are never read, whatever the glob says.


ALL: Final = SplitId("all")
"""The split of a source that has only one split."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Which files under `root` (a URL or absolute) a source reads. `title` and `suffixes` are those of its format."""

    root: Root
    title: str
    suffixes: tuple[str, ...]
    glob: str | None = None
    one_split: bool = False

    def __post_init__(self) -> None:
        """Raise SourceError for a glob that leads out of a split's folder."""
        if self.glob is not None and (not self.glob or self.glob.startswith("/") or ".." in self.glob.split("/")):
            raise SourceError(f"glob {self.glob!r}: write a pattern of paths below the folder, such as '**/*.csv'")

    @property
    def pattern(self) -> str:
        """Return the pattern of the files' paths, for a message."""
        parts = [str(self.root), *([] if self.one_split else ["SPLIT"]), self.glob or f"*{self.suffixes[0]}"]
        return "/".join(parts)

    def folder(self, split: SplitId) -> StoragePlace:
        """Return the folder to which the names of the split's files are relative."""
        return place_in(self.root, "" if self.one_split else split)

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits, sorted. Raise SourceError if the root cannot be listed or a folder cannot be a split."""
        if self.one_split:
            self._entries(place_in(self.root, ""))
            return (ALL,)
        return tuple(sorted(self._folders()))

    def listed(self, split: SplitId) -> dict[str, FoundFile]:
        """Return the split's finished files, ordered by name. Raise SourceError if they cannot be listed."""
        folder = self.folder(split)
        try:
            found = sorted(self._files(folder), key=lambda file: file.name)
        except OSError as error:
            raise self._not_listed(folder, error) from error
        return {file.name: file for file in found}

    def found(self, split: SplitId, name: str) -> FoundFile:
        """Return a file of the split as it is now. Raise OSError if the file is missing."""
        return input_folder(self.folder(split)).found(name)

    def look(self) -> FolderLook:
        """Return how many files the source reads, and which it ignores.

        Raises SourceError if a folder cannot be listed.
        """
        found = FolderLook(self.root, self.pattern, (self.suffixes[0], self.title))
        root = place_in(self.root, "")
        if self.one_split:
            found.splits = 1
            self._look_into(root, "", found)
            return found
        for entry in self._entries(root):
            if entry.is_dir():
                found.splits += 1
                self._look_into(root / entry.name, f"{entry.name}/", found)
            else:
                found.pass_over(Why.BESIDE, entry.name)
        return found

    def _folders(self) -> Iterator[SplitId]:
        for entry in self._entries(place_in(self.root, "")):
            if entry.is_dir():
                yield self._as_split(entry)
            elif entry.name.endswith(self.suffixes):
                raise SourceError(
                    f"{entry.path} lies beside the folders of splits: move it into one of them, or let the "
                    "root itself be the only split (one_split=True)"
                )

    def _as_split(self, entry: InputEntry) -> SplitId:
        try:
            return split_id(entry.name)
        except InvalidNameError as error:
            raise SourceError(f"folder {entry.path} cannot be a split: {error}; rename the folder") from error

    def _files(self, folder: StoragePlace) -> Iterator[FoundFile]:
        return input_folder(folder).files(self.suffixes, self.glob)

    def _look_into(self, place: StoragePlace, shown: str, found: FolderLook) -> None:
        if self.glob is not None:  # the user has said which files are meant
            found.files += sum(1 for _ in self._files(place))
            return
        folder: InputFolder = input_folder(place)
        for entry in self._entries(place):
            if entry.name.endswith(self.suffixes) and entry.is_file():
                found.files += 1
            elif entry.is_dir():
                for nested in folder.nested(entry.name):
                    found.pass_over(Why.NESTED, f"{shown}{nested}")
            else:
                found.pass_over(Why.SUFFIX if entry.is_file() else Why.NO_FILE, f"{shown}{entry.name}")

    def _entries(self, folder: StoragePlace) -> list[InputEntry]:
        try:
            return input_folder(folder).entries()
        except OSError as error:
            raise self._not_listed(folder, error) from error

    def _not_listed(self, folder: StoragePlace, error: OSError) -> SourceError:
        root = place_in(self.root, "")
        if folder != root and not folder.exists() and root.is_folder():
            return SourceError(
                f"{folder}, a folder that was a split of the source, is gone: put it back, or create it empty to "
                "go on with the other splits (if it comes back later, what was read of it is not read again)"
            )
        if isinstance(error, StoreError):
            return SourceError(str(error))
        return SourceError(
            f"{folder} cannot be listed ({error.strerror}): create the folder, or correct the source's root"
        )
