"""Kills a server of a test (SIGKILL) while a tick is at work, and starts it again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

AFTER_S = 0.3
AWAY_S = 1.0
LOOK_S = 0.05


class Server(Protocol):
    """A server whose data survives a kill."""

    def kill(self) -> None:
        """Kill its processes."""

    def start(self) -> None:
        """Start it again, at the same address."""


@contextmanager
def dying(server: Server, warehouse: Path) -> Iterator[threading.Event]:
    """Kill the server soon after a tick in the block has claimed its job. At the end, start the server again.

    If the server died earlier, the tick could not reach its source, and would be refused. The event is set once the
    server was killed.
    """
    before, left, died = traces(warehouse), threading.Event(), threading.Event()

    def strike() -> None:
        while traces(warehouse) == before:
            if left.wait(LOOK_S):
                return
        if left.wait(AFTER_S):
            return
        server.kill()
        died.set()
        left.wait(AWAY_S)
        server.start()

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        yield died
    finally:
        left.set()
        striker.join()


def traces(warehouse: Path) -> set[Path]:
    return set(warehouse.glob("_tidemark/*/traces/*.ndjson"))
