"""Makes a savepoint's copy whole or not at all, and deletes one.

A folder is made beside its place, and renamed into it when everything in it is durable. An object store cannot rename.
There the copy is made in place, and until it is whole a note in it names the process that makes it.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from jobs.storage.address import Root
from jobs.storage.folder import sync
from jobs.storage.location import place_in, storage_of
from jobs.storage.place import StoragePlace, delete_folder
from jobs.storage.port import Storage

_MAKER: Final = "maker.json"

IsDead = Callable[[StoragePlace], bool]
"""Takes the note of a process that makes a copy. Returns True if the process is certainly dead."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An unfinished copy. `durable` has the names of files that need no further sync."""

    root: Root
    durable: set[str] = field(default_factory=set)

    @property
    def storage(self) -> Storage:
        """Return the storage into which the copy is written."""
        return storage_of(self.root)


@contextmanager
def made_whole(to: Root, maker: bytes) -> Iterator[Unfinished]:
    """Lend an empty storage that becomes `to` when the block ends. `maker` says which process writes it.

    If the block raises, no file is left. Raises OSError.
    """
    made = Unfinished(to.with_name(f".{to.name}.{uuid4()}.partial") if isinstance(to, Path) else to)
    try:
        made.storage.write(_MAKER, maker)
        yield made
        made.storage.delete(_MAKER)
        if isinstance(made.root, Path) and isinstance(to, Path):
            _sync_all(made.root, made.durable)
            made.root.rename(to)
            sync(to.parent)
    except BaseException:
        with suppress(OSError):
            delete_folder(place_in(made.root, ""), _MAKER)
        raise


def drop_unfinished_copies(to: Root, is_dead: IsDead) -> None:
    """Delete the unfinished copies of killed processes, at `to` and beside it. `is_dead` decides about each process."""
    others = to.parent.glob(f".{to.name}.*.partial") if isinstance(to, Path) else (to,)
    for each in others:
        if is_dead(place_in(each, _MAKER)):
            delete_folder(place_in(each, ""), _MAKER)  # until it is gone, it says that the other files are left over


def is_free(to: Root, is_dead: IsDead) -> bool:
    """Return True if nothing lies there, or only the unfinished copy of a killed process."""
    if isinstance(to, Path):
        return not to.exists() or (to.is_dir() and not any(to.iterdir()))
    return not place_in(to, "").is_folder() or is_dead(place_in(to, _MAKER))


def delete_at_once(root: Root) -> None:
    """Delete a savepoint's copy. A folder disappears in one step."""
    if isinstance(root, Path):
        gone = root.with_name(f".{root.name}.{uuid4()}.claimed")
        root.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        delete_folder(place_in(root, ""))


def free_bytes(root: Root) -> int | None:
    """Return the free space of the disk on which a folder lies or would lie. An object store has None."""
    if not isinstance(root, Path):
        return None
    there = root.absolute()
    return shutil.disk_usage(next(each for each in (there, *there.parents) if each.exists())).free


def _sync_all(root: Path, durable: set[str]) -> None:
    sync(root)
    for path in root.rglob("*"):
        if str(path.relative_to(root)) not in durable:
            sync(path)
