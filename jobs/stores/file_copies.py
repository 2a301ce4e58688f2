"""Copies the files of an entry between storages. Each file is compared with its handle, and is durable at the end."""

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from checkpointing.handles import FileHandle
from jobs.storage.folder import is_link
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage
from jobs.storage.synced import sync_above
from jobs.storage.transfer import transferred
from jobs.stores.soundness import misfit

_WAY_OUT: Final = "Restore it from a backup, or name another savepoint"


class FileNotCopiedError(Exception):
    """A file is missing, or differs from its handle. The message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The progress of a copy, after each file."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int


Told = Callable[[Copied], None]
"""A function that is called after each copied file."""


NO_LINKS: Final[Mapping[str, str]] = MappingProxyType({})


def nobody(copied: Copied) -> None:
    """Ignore the progress of a copy."""
    del copied


def must_be_there(source: Storage, files: Iterable[FileHandle]) -> None:
    """Raise FileNotCopiedError for the first file that is missing or has another size. Nothing has been copied then.

    A symbolic link in a table's folder is refused too. The person who made the folder could have pointed it at any
    file.
    """
    for file in files:
        if file.inline:
            continue
        if is_link(source, file.path):
            raise FileNotCopiedError(
                f"{_named(source, file)} lies behind a symbolic link. Copy {source.root} with what its links lead to "
                "(cp -rL) if you trust it, and name the copy"
            )
        _must_fit(source, file, misfit(file, StoragePlace(source, file.path).size()))


def copy_files(
    source: Storage,
    target: Storage,
    files: Iterable[FileHandle],
    *,
    link: bool = False,
    links: Mapping[str, str] = NO_LINKS,
    told: Told = nobody,
) -> dict[str, FileHandle]:
    """Copy the files durably to the same paths below `target`. Return their handles by path, all with checksums.

    With `link`, files become hard links where the file system can. `links` maps the paths that files get to their paths
    in the source. Raises FileNotCopiedError for a file that is missing or damaged, and OSError for a target that cannot
    be written.
    """
    wanted = {file.path: file for file in files}
    bytes_all, copied_bytes = sum(file.bytes for file in wanted.values()), 0
    found: dict[str, FileHandle] = {}
    for number, (path, file) in enumerate(wanted.items(), start=1):
        old = replace(file, path=links.get(path, path))
        size, crc32 = _put(StoragePlace(source, old.path), StoragePlace(target, path), old, link=link)
        _must_fit(source, old, misfit(old, size, crc32))
        found[path] = replace(file, crc32=crc32)
        copied_bytes += file.bytes
        told(Copied(number, len(wanted), copied_bytes, bytes_all))
    sync_above(target, wanted)
    return found


def link_files(storage: Storage, links: Mapping[str, str]) -> None:
    """Give files of a warehouse further names. `links` maps each new name to the old one.

    If the storage cannot link the two places, the file is copied. Nothing is synced here. The append of an entry that
    names a file syncs the file first. Raises FileNotCopiedError for a missing file, and OSError for a read-only folder.
    """
    for path, old in links.items():
        try:
            storage.copy(old, path)
        except FileNotFoundError as error:
            raise FileNotCopiedError(f"file {old} in {storage.root} is missing. {_WAY_OUT}") from error


def _named(source: Storage, file: FileHandle) -> str:
    return f"file {file.path} in {source.root}"


def _must_fit(source: Storage, file: FileHandle, wrong: str) -> None:
    if wrong:
        raise FileNotCopiedError(f"{_named(source, file)} {wrong}. {_WAY_OUT}")


def _put(here: StoragePlace, there: StoragePlace, file: FileHandle, *, link: bool) -> tuple[int, int]:
    """Put one file there. Return its size and checksum. A file of that name is replaced."""
    if file.inline:
        content = base64.b64decode(file.inline)
        there.replace(content)
        return len(content), zlib.crc32(content)
    try:
        return transferred(here, there, link=link)
    except FileNotFoundError as error:
        if here.exists():
            raise
        raise FileNotCopiedError(f"{_named(here.storage, file)} is missing. {_WAY_OUT}") from error
