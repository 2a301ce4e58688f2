"""Ctrl-C and SIGTERM end a tick in order; a second Ctrl-C ends the process at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM, and let a second SIGINT kill the process, within this block.

    `stop` runs inside a signal handler. Only the main thread can be interrupted: elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        del frame
        if asked and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        asked = True
        stop()

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
