"""Asks a storage several independent questions at the same time.

In an object store, each question takes a round trip, so they are asked in parallel. In a folder, an answer takes
microseconds, which is less than a thread costs. So there they are asked one after another.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar, cast

from jobs.storage.folder import Folder
from jobs.storage.port import Storage

AT_A_TIME: Final = 32
"""The number of requests of one client that a store answers at the same time without refusing any."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def together(storage: Storage, call: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
    """Return the answers of `call` in the order of the questions, or raise the first error.

    It returns or raises only after all calls have ended. Each call may run in another thread.
    """
    each = list(asked)
    return list(in_threads(1 if isinstance(storage, Folder) else len(each), call, each))


def in_threads(threads: int, call: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> Iterator[_Answer]:
    """Yield the answers of `call` in the order of `asked`. It uses this many threads, but at most `AT_A_TIME`.

    Raises the first error. After an error, or if the caller wants no further answer, no new call begins. Calls that
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
    """Return the answers of two calls. In a folder they run one after the other. Raise the first error."""
    calls: tuple[Callable[[], object], ...] = (one, other)
    first, second = together(storage, lambda call: call(), calls)
    return cast("tuple[_Asked, _Answer]", (first, second))


@contextmanager
def beside(call: Callable[[], _Answer]) -> Iterator[Callable[[], _Answer]]:
    """Run a call in another thread. Yield a function that waits for its end.

    That function returns the call's answer, or raises its error. The context ends only after the call has ended.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        yield pool.submit(call).result
