"""Renews a lease or a reservation from a thread of its own, before it expires."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

RENEWALS_PER_LEASE: Final = 3


@contextmanager
def renewed(what: str, renew: Callable[[], bool], lease_ms: int, *, at_once: bool = False) -> Iterator[None]:
    """Call `renew` three times in `lease_ms` until the block ends or `renew` returns False. With `at_once`, begin now.

    If `renew` raises an OSError, the error is logged, and the next call tries again.
    """
    ended = threading.Event()

    def goes_on() -> bool:
        try:
            return renew()
        except OSError as failed:
            _log.warning("%s not renewed", what, error=str(failed))
            return True

    def keep() -> None:
        while not ended.wait(lease_ms / RENEWALS_PER_LEASE / 1000) and goes_on():
            pass

    thread = threading.Thread(target=keep, name=f"{what}-keeper", daemon=True)
    if not at_once or goes_on():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
