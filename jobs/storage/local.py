"""Files that a process writes bit by bit, such as a trace. No object of a store can be written that way."""

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace


def local_path(place: StoragePlace) -> Path:
    """Return where on this machine a file is written: in its place, or, for an object, in a folder of this process.

    Who writes such a file puts it into its place now and then (`is_copied`). The folder goes when the process ends.
    """
    folder = place.storage.root if isinstance(place.storage, Folder) else _working_copies()
    return folder / place.name


def is_copied(place: StoragePlace) -> bool:
    """Return whether a file that is written bit by bit must be put into its place."""
    return not isinstance(place.storage, Folder)


@lru_cache(maxsize=1)
def _working_copies() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
