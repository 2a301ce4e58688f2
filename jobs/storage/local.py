"""Places files of an object store's warehouse on this machine: a trace, which is written bit by bit, and copies."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, local


def local_path(place: StoragePlace) -> Path:
    """Return the path on this machine at which a process writes a file bit by bit.

    In a folder this is the file's own place. For an object it lies in a temporary folder, which goes when the process
    ends. The process then copies the file to its place from time to time (`is_copied`).
    """
    folder = place.storage.root if isinstance(place.storage, Folder) else _working_copies()
    return folder / place.name


def is_copied(place: StoragePlace) -> bool:
    """Return True if the process must copy the file to its place."""
    return not isinstance(place.storage, Folder)


@lru_cache(maxsize=1)
def _working_copies() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def scratch_folder() -> Iterator[StoragePlace]:
    """Lend an empty folder of this machine, and delete it at the end."""
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        yield local(Path(folder))
