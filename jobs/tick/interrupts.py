"""Ctrl-C and SIGTERM end a tick in order. A second Ctrl-C ends the process at once.

After SIGTERM the process ends within a time limit, even if it waits for a server that does not answer, a lock, or a
user's function. If the process ends before its tick has released the job, this is like any other death of a process.
What was committed stays, and the next tick takes over.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

END_WITHIN_S: Final = 8.0
"""A process gets this long to end in order after SIGTERM."""
_SAYING_S: Final = 1.0
"""A process that did not end in order has this long to print its message."""
_LEAVING_S: Final = 2.0
"""A process whose work is done gets at least this long to exit."""


class Deadline:
    """Ends this process some seconds after a signal, if it still runs. Only the main thread may create or close one.

    Python runs a signal handler between two steps of the main thread. So if a call hangs in the main thread, no handler
    runs. But the interpreter writes the signal's number into a socket at once, and another thread reads it.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        within_s: float = END_WITHIN_S,
        signals: Collection[signal.Signals] = (signal.SIGTERM,),
    ) -> None:
        """Begin to watch.

        `say` shows the user the message that the process ends although its tick could not end in order.
        """
        self._say = say
        self._within_s = within_s
        self._signals = signals
        self._code: int | None = None
        self._closed, self._leaving = threading.Event(), threading.Event()
        self._read, self._written = socket.socketpair()
        self._written.settimeout(0)
        self._former = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="sigterm-deadline", daemon=True).start()

    def done(self, code: int) -> None:
        """Record that the command is done, and that the process only has to exit with this code."""
        self._code = code

    def close(self) -> None:
        """Stop watching, because the work has ended.

        After a signal, end the process even if other threads still run.
        """
        signal.set_wakeup_fd(self._former)
        with suppress(AttributeError, RuntimeError):  # not public; and not while the interpreter ends
            threading._register_atexit(self._leaving.set)  # type: ignore[attr-defined]  # noqa: SLF001 - before pools are joined
        self._closed.set()
        self._written.close()

    def _watch(self) -> None:
        number = 0
        while number not in self._signals:
            heard = self._read.recv(1)
            if not heard:
                return
            number = heard[0]
        late_at = time.monotonic() + self._within_s
        if self._closed.wait(self._within_s):
            self._leaving.wait()
            time.sleep(max(late_at - time.monotonic(), _LEAVING_S))
            os._exit(128 + number)
        if self._code is None:
            self._say_in_time(
                f"ended by {signal.Signals(number).name}: something did not stop within {self._within_s:.0f} s, so its "
                "tick could not end in order. What was committed stays, and the next tick takes over"
            )
        os._exit(128 + number if self._code is None else self._code)

    def _say_in_time(self, said: str) -> None:
        thread = threading.Thread(target=self._say, args=(said,), name="sigterm-said", daemon=True)
        thread.start()
        thread.join(_SAYING_S)


@contextmanager
def ending_in_time(say: Callable[[str], None]) -> Iterator[None]:
    """End this process some seconds after SIGINT or SIGTERM, unless this block has ended. See `Deadline`.

    Only the main thread can be interrupted: elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deadline = Deadline(say, signals=(signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        deadline.close()


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
