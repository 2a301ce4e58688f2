"""Keeps Spark's log and temporary folders in a private folder of this user, outside the warehouse.

The private folder lies among temporary files, where others may write too. So it must be a real folder that this user
owns and nobody else can open. Spark removes its own folders when it ends in order. Those of a killed tick stay until
the next tick that starts Spark. A note beside each names its process. A folder is removed only if that process is
certainly dead.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from checkpointing.metadata.record import Holder
from jobs.holding.failures import TickRefusedError
from jobs.storage.documents import document, read_document
from jobs.storage.place import local
from jobs.stores.holders import is_alive, this_process

LOG_BYTES_MAX: Final = 10 * 1024 * 1024
"""A log of Spark that is larger when it is opened is renamed, and a new one begins."""

_OWNER_SUFFIX: Final = ".owner.json"
_OPEN_TO_OTHERS: Final = 0o077


class UnsafeFolderError(TickRefusedError):
    """The private folder is not private. The message names it and the way out."""


def private_path() -> Path:
    """Return the path of this user's private folder. It creates nothing."""
    return Path(tempfile.gettempdir()) / f"tidemark-{os.getuid()}"


def private_folder() -> Path:
    """Return this user's private folder, and create it if it is missing.

    Raise UnsafeFolderError if others could use it.
    """
    folder = private_path()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OPEN_TO_OTHERS:
        raise UnsafeFolderError(
            f"{folder} is not a folder that this user alone can open, and Spark's log and temporary files belong "
            "there: delete it, or name another folder for temporary files in TMPDIR"
        )
    return folder


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log file. Raise OSError for a link, which could lead anywhere.

    A log that is too large first becomes `<name>.1`, which replaces an older one.
    """
    if path.exists() and path.lstat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def spark_folder() -> Path:
    """Return a new folder for the temporary files of a Spark that this process starts.

    It first removes the folders of dead processes. Raises UnsafeFolderError.
    """
    remove_dead()
    folder = private_folder() / f"spark-{uuid4().hex[:12]}"  # short, for it holds sockets (`jobs.spark.sockets`)
    local(_owner(folder)).write(document(this_process()))
    folder.mkdir(mode=0o700)
    return folder


def remove_dead() -> tuple[Path, ...]:
    """Remove the temporary Spark folders of processes that are certainly dead, and return them."""
    gone = tuple(_dead(private_folder()))
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            _owner(folder).unlink(missing_ok=True)
    return gone


def _dead(private: Path) -> Iterator[Path]:
    for note in private.glob(f"spark-*{_OWNER_SUFFIX}"):
        owner = read_document(Holder, local(note))
        if owner is not None and is_alive(owner) is False:  # otherwise nobody could tell whose folder it is
            yield note.with_name(note.name.removesuffix(_OWNER_SUFFIX))


def _owner(folder: Path) -> Path:
    """Return the path of the note that names a folder's process."""
    return folder.with_name(f"{folder.name}{_OWNER_SUFFIX}")
