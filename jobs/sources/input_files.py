"""Finds the input files under the root of a file source, and says to which split each of them belongs.

| `glob`  | `one_split` | a split is             | its files are                                           |
|---------|-------------|------------------------|---------------------------------------------------------|
| None    | False       | a folder below `root`  | those directly in the folder that end as the format says |
| a glob  | False       | a folder below `root`  | those below the folder that match                       |
| None    | True        | `root`, named `all`    | those directly in `root` that end as the format says    |
| a glob  | True        | `root`, named `all`    | those below `root` that match                           |

By Spark's convention, names that begin with `_` or `.` are hidden, and names that end in `.tmp` or `._COPYING_` are
files that are still being written. Such files and folders are no input, whatever the glob says.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from jobs.sources.file_matching import FoundFile
from jobs.sources.folder_look import FolderLook, Why, entries, files_below, is_hidden
from jobs.sources.port import SourceError

ALL: Final = SplitId("all")
"""The split of a source that has only one."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files under `root` (absolute) that a source reads. `title` and `suffixes` are those of its format."""

    root: Path
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

    def folder(self, split: SplitId) -> Path:
        """Return the folder to which the names of the split's files are relative."""
        return self.root if self.one_split else self.root / split

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits, sorted; raise SourceError."""
        if self.one_split:
            self._entries(self.root)
            return (ALL,)
        return tuple(sorted(self._folders()))

    def listed(self, split: SplitId) -> dict[str, FoundFile]:
        """Return the split's finished files, ordered by name. Raise SourceError."""
        folder = self.folder(split)
        found = {}
        for name in sorted(self._names(folder)):
            _must_be_text(folder, name)
            with suppress(FileNotFoundError):  # somebody removed it just now
                status = (folder / name).stat()
                found[name] = FoundFile(name, status.st_size, status.st_mtime_ns)
        return found

    def look(self) -> FolderLook:
        """Return how many files the source reads, and which ones it ignores. Raise SourceError."""
        found = FolderLook(self.root, self.pattern, (self.suffixes[0], self.title))
        if self.one_split:
            found.splits = 1
            self._look_into(self.root, "", found)
            return found
        for entry in self._entries(self.root):
            if entry.is_dir():
                found.splits += 1
                self._look_into(Path(entry.path), f"{entry.name}/", found)
            else:
                found.pass_over(Why.BESIDE, entry.name)
        return found

    def _folders(self) -> Iterator[SplitId]:
        for entry in self._entries(self.root):
            if entry.is_dir():
                yield self._as_split(entry.name)
            elif entry.name.endswith(self.suffixes):
                raise SourceError(f"{entry.path} lies beside the folders of splits: move it into one of them")

    def _as_split(self, name: str) -> SplitId:
        try:
            return split_id(name)
        except InvalidNameError as error:
            raise SourceError(f"folder {self.root / name} cannot be a split: {error}; rename the folder") from error

    def _names(self, folder: Path) -> Iterator[str]:
        if self.glob is None:
            return (entry.name for entry in self._entries(folder) if self._is_input(entry))
        self._entries(folder)  # names the folder if it cannot be listed
        below = (path.relative_to(folder) for path in folder.glob(self.glob) if path.is_file())
        return (str(path) for path in below if not any(map(is_hidden, path.parts)))

    def _is_input(self, entry: os.DirEntry[str]) -> bool:
        return entry.name.endswith(self.suffixes) and entry.is_file()

    def _look_into(self, folder: Path, shown: str, found: FolderLook) -> None:
        if self.glob is not None:  # with a glob, the user has chosen the files
            found.files += sum(1 for _ in self._names(folder))
            return
        for entry in self._entries(folder):
            if self._is_input(entry):
                found.files += 1
            elif entry.is_dir():
                for nested in files_below(entry.path):
                    found.pass_over(Why.NESTED, f"{shown}{os.path.relpath(nested, folder)}")
            else:
                found.pass_over(Why.SUFFIX if entry.is_file() else Why.NO_FILE, f"{shown}{entry.name}")

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            return entries(folder)
        except OSError as error:
            if folder != self.root and not folder.exists() and self.root.is_dir():
                raise SourceError(
                    f"{folder}, a folder that was a split of the source, is gone: put it back, or create it empty to "
                    "go on with the other splits (if it comes back later, what was read of it is not read again)"
                ) from error
            raise SourceError(
                f"{folder} cannot be listed ({error.strerror}): create the folder, or correct the source's root"
            ) from error


def _must_be_text(folder: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{name!r} in {folder} is not UTF-8: rename the file") from None
