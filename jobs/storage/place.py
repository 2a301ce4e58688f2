"""Names a file or folder of a warehouse: its storage, and its name there."""

import atexit
import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar, cast
from uuid import uuid4

from jobs.storage.address import Root, parsed
from jobs.storage.folder import Folder, sync
from jobs.storage.objects import ObjectStore
from jobs.storage.port import ChangedError, Content, Listed, NotARegularFileError, Storage

CHUNK_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A file or folder, which need not exist. Its `str()` is the path or URL by which other libraries open it."""

    storage: Storage
    name: str = ""

    def __str__(self) -> str:
        """Return the absolute path or the URL."""
        return f"{self.storage.root}/{self.name}" if self.name else str(self.storage.root)

    def __truediv__(self, part: str) -> "StoragePlace":
        """Return the place with that name below this one."""
        return StoragePlace(self.storage, f"{self.name}/{part}" if self.name else part)

    @property
    def last(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition("/")[2]

    def read(self, most: int | None = None) -> bytes:
        """Read at most `most` bytes of the file. Raises OSError as the storage port does."""
        return self.storage.read(self.name, most=most).bytes

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes in parts, so that a large file need not fit into memory; raises OSError."""
        start, size = 0, 1
        while start < size:
            part = self.storage.read(self.name, start=start, most=CHUNK_BYTES)
            size, start = part.size, start + len(part.bytes)
            if not part.bytes:
                return
            yield part.bytes

    def size(self) -> int | None:
        """Return the size of the file in bytes, or None if a folder, a named pipe or nothing lies there."""
        try:
            return self.storage.read(self.name, most=0).size
        except (FileNotFoundError, NotADirectoryError, NotARegularFileError):
            return None

    def exists(self) -> bool:
        """Return True if a file or folder has this name."""
        try:
            self.storage.read(self.name, most=0)
        except NotARegularFileError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def described(self) -> Content:
        """Return the file's size and time, without its bytes. Raises OSError as the storage port does."""
        return self.storage.read(self.name, most=0)

    def write(self, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new file. Raises FileExistsError if there is one."""
        self.storage.write(self.name, content, durable=durable)

    def replace(self, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write the file in one step. It replaces an existing file."""
        self.storage.replace(self.name, content, durable=durable)

    def delete(self) -> None:
        """Delete the file if it exists."""
        self.storage.delete(self.name)

    def entries(self, *, deep: bool = False) -> Iterator[Listed]:
        """Yield the entries of this folder."""
        return self.storage.list(self.name, deep=deep)

    def is_folder(self) -> bool:
        """Return True if this is an existing folder."""
        if isinstance(self.storage, Folder):
            return self.storage.path(self.name).is_dir()
        return any(True for _ in self.entries(deep=True))  # the first LIST of a thousand tells it

    def folders(self) -> list["StoragePlace"]:
        """Return the folders in this folder, ordered by name."""
        return [self / name for name in sorted(each.name for each in self.entries() if each.is_folder)]


def local(path: Path) -> StoragePlace:
    """Return the place of a file or folder on this machine's file system."""
    return StoragePlace(Folder(path))


def delete_folder(folder: StoragePlace, last: str = "") -> None:
    """Delete a folder of a storage with all files below it. In an object store, the file `last` is deleted last."""
    if isinstance(folder.storage, Folder):
        shutil.rmtree(folder.storage.path(folder.name))
        return
    found = [each.name for each in folder.entries(deep=True)]
    for name in sorted(found, key=lambda name: name == last):
        (folder / name).delete()


def drop_if_empty(folder: StoragePlace) -> None:
    """Delete a folder if it is empty. An object store has no such folders."""
    if isinstance(folder.storage, Folder):
        with suppress(OSError):  # not empty, or deleted already
            folder.storage.path(folder.name).rmdir()


def drop_unfinished(folder: StoragePlace, *, before_ms: int) -> None:
    """Delete unfinished files of dead processes that are older than `before_ms`."""
    for each in folder.entries():
        if each.name.startswith(".") and each.name.endswith(".tmp"):
            with suppress(OSError):
                if each.changed_ms < before_ms:
                    (folder / each.name).delete()


# ------------------------------------------------------------------
# Sends a storage several independent requests at the same time.
#
# In an object store, each request takes a round trip, so requests are sent in parallel. In a folder, an answer takes
# microseconds, which is less than a thread costs. So there the requests are made one after another.


AT_A_TIME: Final = 32
"""The number of requests of one client that a store answers at the same time without refusing any."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def together(storage: Storage, call: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
    """Return the results of `call` in the order of the arguments, or raise the first error.

    This returns or raises only after all calls have ended. Each call can run in another thread.
    """
    each = list(asked)
    return list(in_threads(1 if isinstance(storage, Folder) else len(each), call, each))


def in_threads(threads: int, call: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> Iterator[_Answer]:
    """Yield the results of `call` in the order of `asked`. This many threads are used, but at most `AT_A_TIME`.

    Raises the first error. After an error, or if the caller wants no further result, no new call begins. Calls that
    have begun run to their end.
    """
    if threads <= 1:
        yield from map(call, asked)
        return
    pool = ThreadPoolExecutor(min(AT_A_TIME, threads), thread_name_prefix="storage")
    try:
        for future in [pool.submit(call, each) for each in asked]:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def both(storage: Storage, one: Callable[[], _Asked], other: Callable[[], _Answer]) -> tuple[_Asked, _Answer]:
    """Return the results of two calls. In a folder they run one after the other. Raise the first error."""
    calls: tuple[Callable[[], object], ...] = (one, other)
    first, second = together(storage, lambda call: call(), calls)
    return cast("tuple[_Asked, _Answer]", (first, second))


@contextmanager
def beside(call: Callable[[], _Answer]) -> Iterator[Callable[[], _Answer]]:
    """Run a call in another thread. Yield a function that waits for its end.

    That function returns the call's result, or raises its error. The context ends only after the call has ended.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        yield pool.submit(call).result


# ------------------------------------------------------------------
# Finds the sizes of many files at once.


LISTED_FROM: Final = 20
"""If this many files of one folder are to be looked up, the folder is listed instead.

One LIST returns a thousand sizes, but costs more money than one lookup.
"""


def sizes_of(storage: Storage, names: Collection[str]) -> dict[str, int | None]:
    """Return the bytes of each file, or None for a missing file. Raises OSError."""
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    folders = [folder for folder, inside in by_folder.items() if len(inside) >= LISTED_FROM]
    listed = {
        f"{folder}/{name}": size
        for folder, found in together(storage, lambda folder: (folder, _files_in(storage, folder)), folders)
        for name, size in found.items()
    }
    single = [name for folder, inside in by_folder.items() if len(inside) < LISTED_FROM for name in inside]
    asked = together(storage, lambda name: StoragePlace(storage, name).size(), single)
    return {name: listed.get(name) for name in names} | dict(zip(single, asked, strict=True))


def _files_in(storage: Storage, folder: str) -> dict[str, int]:
    return {each.name: each.size for each in storage.list(folder) if not each.is_folder}


# ------------------------------------------------------------------
# Finds the storage of a warehouse's address.


def storage_of(root: Root) -> Storage:
    """Return the storage of a warehouse."""
    return Folder(root) if isinstance(root, Path) else ObjectStore(root)


@lru_cache(maxsize=64)
def storage_at(address: str) -> Storage:
    """Return the storage of an address. A task gets the address as a warehouse's absolute path or its URL."""
    return storage_of(parsed(address))


def place_in(root: Root | str, name: str) -> StoragePlace:
    """Return the place of a file or folder in the warehouse with that root or address."""
    return StoragePlace(storage_at(str(root)), name)


# ------------------------------------------------------------------
# Makes files of a folder durable that other programs wrote into it.
#
# Several threads sync at the same time, because the file system then writes its journal once for many files. A name is
# durable once its folder is synced.


THREADS: Final = 16


class SyncedNames:
    """Syncs files, and remembers the folders whose names are durable. It does nothing for an object store."""

    def __init__(self, storage: Storage) -> None:
        """Begin without any folder whose name is durable."""
        self._folder = storage if isinstance(storage, Folder) else None
        self._named: set[Path] = set()

    def sync(self, names: Collection[str]) -> None:
        """Make these files durable, and the names that lead to them. Ignore a missing file."""
        if self._folder is None or not names:
            return
        root, paths = self._folder.root, [self._folder.path(name) for name in names]
        folders = {path.parent for path in paths}
        above = {each for new in folders - self._named for each in new.parents if each.is_relative_to(root)}
        with ThreadPoolExecutor(THREADS) as pool:
            for each in (paths, [*folders | above]):
                list(pool.map(_sync_all, [each[thread::THREADS] for thread in range(min(THREADS, len(each)))]))
        self._named |= folders


def sync_files(places: Iterable[StoragePlace]) -> None:
    """Make files of one folder and their names durable, one after another."""
    above: set[Path] = set()
    for place in places:
        if isinstance(place.storage, Folder):
            path = place.storage.path(place.name)
            sync(path)
            above.add(path.parent)
    sync_folders(above)


def new_folders(folder: StoragePlace) -> tuple[Path, ...]:
    """Return this folder, the missing folders above it, and the first existing folder.

    Their names are not durable yet.
    """
    if not isinstance(folder.storage, Folder):
        return ()
    path = folder.storage.path(folder.name)
    there = next(above for above in path.parents if above.is_dir())
    return (path, *(above for above in path.parents if above.is_relative_to(there)))


def sync_above(storage: Storage, names: Iterable[str]) -> None:
    """Make the names of files that were just written durable, from the root of their storage down."""
    if isinstance(storage, Folder):
        root = storage.root
        for folder in {above for name in names for above in storage.path(name).parents if above.is_relative_to(root)}:
            sync(folder)


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable. The folders exist now."""
    for folder in folders:
        sync(folder)


def _sync_all(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            sync(path)


# ------------------------------------------------------------------
# Locks a name in a warehouse, so that one process at a time works there. Safety never depends on this lock.


_COUNTS_MS: Final = 30_000
"""How long a lock in an object store is valid. It lapses because its holder may have died."""
_LOOK_S: Final = 0.2


@contextmanager
def locked(place: StoragePlace) -> Iterator[None]:
    """Hold the lock of that name until the block ends. Wait while another process holds it. Raises OSError.

    In an object store, the lock is an object that is written only if it is absent. The lock is valid for 30 s.
    """
    if isinstance(place.storage, Folder):
        path = place.storage.path(place.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        return
    mine = uuid4().hex.encode()
    while not _took(place, mine):
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        if place.exists() and place.read() == mine:
            place.delete()


def _took(place: StoragePlace, mine: bytes) -> bool:
    """Take the lock if it is free or has lapsed. Return True if this process has the lock now."""
    try:
        place.write(mine)
    except FileExistsError:
        try:
            there = place.described()
            if time.time() * 1000 - there.changed_ms < _COUNTS_MS:
                return False
            place.storage.replace(place.name, mine, unchanged=there.tag)
        except (FileNotFoundError, ChangedError):
            return False
    return True


# ------------------------------------------------------------------
# Puts files of a warehouse in an object store on this machine: a trace, which is written bit by bit, and copies.


def local_path(place: StoragePlace) -> Path:
    """Return the path on this machine at which a process writes a file bit by bit.

    In a folder this is the file's own place. For an object, this path lies in a temporary folder, which is deleted when
    the process ends. The process then copies the file to its place from time to time (`is_copied`).
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
    """Yield an empty folder of this machine, and delete it at the end."""
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        yield local(Path(folder))
