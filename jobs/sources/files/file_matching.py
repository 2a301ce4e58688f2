"""Finds out which files of a folder were read already, even if they were touched or renamed since.

The invariant: along one line of checkpoints, each row of each file is read exactly once. This holds whatever files
arrive late, are touched, are removed after they were read, come back, or are renamed. So a file that was read is
recognized:

- by its name, size and modification time: the usual case, and no file is opened;
- if it was touched, so that only the time differs: by its name and contents;
- if it was renamed: by its size, modification time and contents, if its old name is gone. A copy beside the original is
  a new file.

Contents are compared by size and by the digest of their footer (see `file_footer`). A file with a known name and other
contents is refused, since its old rows are in the tables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from checkpointing.identifiers import CheckpointId, SplitId
from jobs.sources.files.file_footer import Footer
from jobs.sources.files.file_position import FilePosition, SeenFile
from jobs.sources.port import SourceError
from jobs.storage.copy_folder import moved
from jobs.storage.json_files import document
from jobs.storage.place import StoragePlace


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in a split's folder as the file system describes it."""

    name: str
    size: int
    modified_ns: int


Footers = Callable[[str], Footer | None]
"""Returns the present footer of the file with that name, or None if the file cannot be read."""


@dataclass(frozen=True, slots=True)
class Matched:
    """The position with the present names and times of its files, and the names of new files, in order."""

    position: FilePosition
    unseen: tuple[str, ...]


class FileChangedError(Exception):
    """A file that was read has other contents now."""

    def __init__(self, read: SeenFile, now: FoundFile) -> None:
        super().__init__(read.name)
        self.read = read
        self.now = now


def matched(position: FilePosition, found: Mapping[str, FoundFile], footers: Footers) -> Matched:
    """Match the files with the position. Raise FileChangedError.

    The last file may have changed if none of its rows was read. The file is new then.
    """
    known = {file.name for file in position.files}
    differing = {file.name for file in position.files if file.name in found and not is_as_read(file, found[file.name])}
    candidates = (file for file in found.values() if file.name not in known or file.name in differing)
    renamed = _renamed(position, found, differing, candidates, footers)
    taken = frozenset(renamed.values())
    files: list[SeenFile] = []
    skipped = 0
    for file in position.files:
        now = found.get(renamed.get(file.name, file.name))
        if file.name in taken and file.name not in renamed and file is not position.files[-1]:
            skipped += file.skipped + file.rows  # a renamed file replaced it, so nothing is left to recognize
            continue
        if now is not None and file.name not in renamed and file.name in differing and not is_same(file, now, footers):
            if file is position.files[-1] and not position.consumed:
                return _matched_without_last(position, tuple(files), found)
            raise FileChangedError(file, now)
        files.append(_as_now(file, now, skipped))
        skipped = 0
    return _matched(position.model_copy(update={"files": tuple(files)}), found)


def is_same(read: SeenFile, now: FoundFile, footers: Footers) -> bool:
    """Return True if a file has the contents that were read. Format 1 compares only size and number of rows."""
    if read.size != now.size:
        return False
    footer = footers(now.name)
    return footer is not None and footer.rows == read.rows and read.contents in ("", footer.contents)


def _renamed(
    position: FilePosition,
    found: Mapping[str, FoundFile],
    differing: set[str],
    candidates: Iterator[FoundFile],
    footers: Footers,
) -> dict[str, str]:
    """Return a dict from old to new names of renamed files."""
    missing: dict[tuple[int, int], list[SeenFile]] = {}
    for file in position.files:
        if file.name not in found or file.name in differing:
            missing.setdefault((file.size, file.modified_ns), []).append(file)
    renamed = {}
    for now in candidates if missing else ():
        alike = missing.get((now.size, now.modified_ns), [])
        read = next((file for file in alike if is_same(file, now, footers)), None)
        if read is not None:
            alike.remove(read)
            renamed[read.name] = now.name
    return renamed


def is_as_read(read: SeenFile, now: FoundFile) -> bool:
    """Return True if a file still has the size and the time that it had when it was read."""
    return (read.size, read.modified_ns) == (now.size, now.modified_ns)


def _as_now(read: SeenFile, now: FoundFile | None, skipped: int) -> SeenFile:
    """Return a file with its present name and time. A missing file stays unchanged."""
    update: dict[str, object] = {"skipped": read.skipped + skipped} if skipped else {}
    if now is not None and (read.name, read.modified_ns) != (now.name, now.modified_ns):
        update |= {"name": now.name, "modified_ns": now.modified_ns}
    return read.model_copy(update=update) if update else read


def _matched_without_last(
    position: FilePosition, files: tuple[SeenFile, ...], found: Mapping[str, FoundFile]
) -> Matched:
    """Match the files without the last one, of which no row was read.

    The last file is discovered again with its present contents.
    """
    consumed = files[-1].rows if files else 0
    then = {"files": files, "consumed": consumed, "before": position.before - consumed}
    return _matched(position.model_copy(update=then), found)


def _matched(position: FilePosition, found: Mapping[str, FoundFile]) -> Matched:
    seen = {file.name for file in position.files}
    return Matched(position, tuple(name for name in found if name not in seen))


# ------------------------------------------------------------------
# If the source's settings say so, files that a job has read are removed after a completed checkpoint has their rows.
#
# The invariant: no job continues from a position before a removed file, since the file's rows would be missing
# silently. So each folder has a ledger, `_consumed.json`. The ledger says up to which position files were removed, and
# is written before a file is removed. A poll from an earlier position is refused. A job has such a position after a
# rollback, or if it is another job that begins at the start.


LEDGER: Final = "_consumed.json"


class AfterReading(Enum):
    """What the source does with a file after a completed checkpoint has all rows of the file."""

    KEEP = "keep"
    ARCHIVE = "archive"
    DELETE = "delete"


class Ledger(BaseModel):
    """The number of rows before the position up to which a split's files were removed, and the checkpoint.

    `archive` is the folder that has these files now, or None if they were deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    checkpoint: CheckpointId
    before: NonNegativeInt
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumedFiles:
    """Deletes or archives the files of one source that were read. `archive` is the folder for archived files."""

    after: AfterReading
    archive: StoragePlace | None = None

    def remove(
        self,
        folder: StoragePlace,
        split: SplitId,
        position: FilePosition,
        found: Mapping[str, FoundFile],
        checkpoint: CheckpointId,
    ) -> None:
        """Remove the files of which all rows lie before `position`, the position of a completed checkpoint.

        `found` are the files that exist now. A file that changed since it was read is not removed. Raises SourceError
        if a file cannot be removed.
        """
        whole = [
            file for file in _consumed(position) if (now := found.get(file.name)) is not None and is_as_read(file, now)
        ]
        if self.after is AfterReading.KEEP or not whole:
            return
        before = position.before + (position.consumed if position.rest is None else 0)
        archive = None if self.archive is None else str(self.archive)
        (folder / LEDGER).replace(document(Ledger(checkpoint=checkpoint, before=before, archive=archive)))
        for file in whole:
            self._remove(folder, file.name, split)

    def _remove(self, folder: StoragePlace, name: str, split: SplitId) -> None:
        path = folder / name
        try:
            if self.archive is None:
                path.delete()
            else:
                _move(path, self.archive / split / name)
        except OSError as error:
            raise SourceError(
                f"{path} has been read, and cannot be removed ({error.strerror or error}): correct its rights"
            ) from error


def must_be_behind_removed(folder: StoragePlace, position: FilePosition) -> None:
    """Raise SourceError if files that a job at `position` has not read were removed from the folder."""
    path = folder / LEDGER
    try:
        ledger = Ledger.model_validate_json(path.read())
    except FileNotFoundError:
        return
    except (OSError, ValidationError) as error:
        raise SourceError(
            f"{path}, which says which files were removed after they were read, cannot be read "
            f"({type(error).__name__}): put it back, or delete it if no file is missing"
        ) from error
    if position.before + position.consumed >= ledger.before:
        return
    back = "bring them back" if ledger.archive is None else f"bring them back from {ledger.archive}"
    raise SourceError(
        f"{folder}: a job read files here and removed them after its checkpoint {ledger.checkpoint}, and this position "
        f"lies before their end: {back} and delete {path}; or delete only {path} to go on without their rows"
    )


def _consumed(position: FilePosition) -> tuple[SeenFile, ...]:
    return position.files if position.rest is None else position.files[:-1]


def _move(path: StoragePlace, to: StoragePlace) -> None:
    if to.exists():
        raise SourceError(f"{path} has been read, and cannot be archived: there is {to} already; rename or remove it")
    moved(path, to)
