"""Removes files that a job has read, if its source asks for it, and only after a completed checkpoint has their rows.

The invariant: no job reads on from a position before a removed file, since the file's rows would be missing silently.
So each folder has a ledger, `_consumed.json`. It says up to which position files were removed. It is written before a
file is removed. A poll from an earlier position is refused. This happens after a rollback, and to another job that
begins at the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from checkpointing.identifiers import CheckpointId, SplitId
from jobs.sources.file_matching import FoundFile, is_as_read
from jobs.sources.file_position import FilePosition, SeenFile
from jobs.sources.port import SourceError
from jobs.storage.documents import document
from jobs.storage.place import StoragePlace
from jobs.storage.transfer import moved

LEDGER: Final = "_consumed.json"


class AfterReading(Enum):
    """Says what the source does with a file when a completed checkpoint has all its rows."""

    KEEP = "keep"
    ARCHIVE = "archive"
    DELETE = "delete"


class Ledger(BaseModel):
    """The position of a split up to which files were removed, and the checkpoint.

    `archive` is the folder that has them now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    checkpoint: CheckpointId
    before: NonNegativeInt
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumedFiles:
    """Removes the files of one source that were read. `archive` is the folder for them."""

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
        """Remove the files before `position`, the position of a completed checkpoint.

        `found` are the files that exist now. A file that changed since it was read stays. Raises SourceError.
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
    """Raise SourceError if files were removed from the folder that a job at `position` has not read."""
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
