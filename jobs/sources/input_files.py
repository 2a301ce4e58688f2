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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from jobs.sources.file_matching import FoundFile
from jobs.sources.folder_look import FolderLook, Why
from jobs.sources.input_folder import InputEntry, InputFolder, input_folder
from jobs.sources.port import SourceError
from jobs.storage.address import Root
from jobs.storage.failures import StoreError
from jobs.storage.location import place_in
from jobs.storage.place import StoragePlace

ALL: Final = SplitId("all")
"""The split of a source that has only one."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Which files under `root` (a URL or absolute) a source reads; `title` and `suffixes` are those of its format."""

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
        """Return the splits, sorted; raise SourceError."""
        if self.one_split:
            self._entries(place_in(self.root, ""))
            return (ALL,)
        return tuple(sorted(self._folders()))

    def listed(self, split: SplitId) -> dict[str, FoundFile]:
        """Return the split's finished files, ordered by name. Raise SourceError."""
        folder = self.folder(split)
        try:
            found = sorted(self._files(folder), key=lambda file: file.name)
        except OSError as error:
            raise self._not_listed(folder, error) from error
        return {file.name: file for file in found}

    def found(self, split: SplitId, name: str) -> FoundFile:
        """Return a file of the split as it is now; raise OSError."""
        return input_folder(self.folder(split)).found(name)

    def look(self) -> FolderLook:
        """Return how many files the source reads, and which ones it ignores. Raise SourceError."""
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
