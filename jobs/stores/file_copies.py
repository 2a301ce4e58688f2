"""Copying a row's files between folders: each checked against its handle, each durable, or named in the refusal."""

import base64
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from checkpointing.handles import FileHandle
from jobs.stores.files import file_size, sync, write_durable
from jobs.stores.soundness import measured, misfit
from jobs.stores.warehouse import link_to

_WAY_OUT: Final = "Restore it from a backup, or name another savepoint"


class FileNotCopiedError(Exception):
    """A file that is missing, or is not what its handle says: names it and the way out."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How far a copy is, after each file."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int


Told = Callable[[Copied], None]
"""Called after each file that is copied."""


NO_LINKS: Final[Mapping[str, str]] = MappingProxyType({})


def nobody(copied: Copied) -> None:
    """Tell nobody how far a copy is."""
    del copied


def must_be_there(source: Path, files: Iterable[FileHandle]) -> None:
    """Raise FileNotCopiedError, before anything is copied, for the first file that is missing or of another size.

    A symbolic link in a table's folder is refused too: who made the folder may have it lead to anybody's files.
    """
    for file in files:
        if file.inline:
            continue
        if link_to(source, file.path) is not None or (source / file.path).is_symlink():
            raise FileNotCopiedError(
                f"{_named(source, file)} lies behind a symbolic link. Copy {source} with what its links lead to "
                "(cp -rL) if you trust it, and name the copy"
            )
        _must_fit(source, file, misfit(file, file_size(source / file.path)))


def copy_files(
    source: Path,
    target: Path,
    files: Iterable[FileHandle],
    *,
    link: bool = False,
    links: Mapping[str, str] = NO_LINKS,
    told: Told = nobody,
) -> dict[str, FileHandle]:
    """Copy the files to the same paths below `target`, durably; return their handles by path, checksums known.

    With `link`, files become hard links where the file system can. `links` has the paths that files have in the
    source, by the paths that they get. Raises FileNotCopiedError for a file that is missing or damaged, OSError for a
    target that cannot be written.
    """
    wanted = {file.path: file for file in files}
    bytes_all, copied_bytes = sum(file.bytes for file in wanted.values()), 0
    found: dict[str, FileHandle] = {}
    for number, (path, file) in enumerate(wanted.items(), start=1):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        old = replace(file, path=links.get(path, path))
        size, crc32 = _put(source, target / path, old, link=link)
        _must_fit(source, old, misfit(old, size, crc32))
        found[path] = replace(file, crc32=crc32)
        copied_bytes += file.bytes
        told(Copied(number, len(wanted), copied_bytes, bytes_all))
    for folder in {above for path in wanted for above in (target / path).parents if above.is_relative_to(target)}:
        sync(folder)
    return found


def link_files(root: Path, links: Mapping[str, str]) -> None:
    """Give files of a warehouse further paths: the old ones by the new ones.

    A file is copied where the file system has no hard links between the two. Nothing is synced: the row that names a
    file does that first. Raises FileNotCopiedError for a file that is missing, OSError for a folder that is read-only.
    """
    for folder in {(root / path).parent for path in links}:
        folder.mkdir(parents=True, exist_ok=True)
    for path, old in links.items():
        (root / path).unlink(missing_ok=True)
        try:
            os.link(root / old, root / path)
        except FileNotFoundError as error:
            raise FileNotCopiedError(f"file {old} in {root} is missing. {_WAY_OUT}") from error
        except OSError:
            _copy(root / old, root / path)


def _named(source: Path, file: FileHandle) -> str:
    return f"file {file.path} in {source}"


def _must_fit(source: Path, file: FileHandle, wrong: str) -> None:
    if wrong:
        raise FileNotCopiedError(f"{_named(source, file)} {wrong}. {_WAY_OUT}")


def _put(source: Path, there: Path, file: FileHandle, *, link: bool) -> tuple[int, int]:
    """Put one file there; return its size and checksum. What lies there already is replaced."""
    here = source / file.path
    there.unlink(missing_ok=True)
    if file.inline:
        content = base64.b64decode(file.inline)
        write_durable(there, content)
        return len(content), zlib.crc32(content)
    try:
        return _link(here, there) if link else _copy(here, there)
    except FileNotFoundError as error:
        if here.exists():
            raise
        raise FileNotCopiedError(f"{_named(source, file)} is missing. {_WAY_OUT}") from error


def _link(source: Path, target: Path) -> tuple[int, int]:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return _copy(source, target)
    with source.open("rb") as reader:
        seen = measured(reader)
    sync(source)
    return seen


def _copy(source: Path, target: Path) -> tuple[int, int]:
    with source.open("rb") as reader, target.open("xb") as writer:
        seen = measured(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())
    return seen
