"""A server that a test starts, kills and restarts on 127.0.0.1, with a port and a folder of its own."""

import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class LocalServer(ABC):
    """One server. Its data and its port stay the same after `kill` and `start`."""

    start_s = 60
    close_s = 30
    starts_after_death = False
    """True if a start may fail because the children of a killed server still hold resources that the new one needs."""

    def __init__(self, prefix: str) -> None:
        self.folder, self.port = Path(tempfile.mkdtemp(prefix=prefix)), free_port()

    @abstractmethod
    def launched(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start the process without waiting for it."""

    @abstractmethod
    def refusal(self) -> Exception | None:
        """Return the error of a client that connects, or None if the server lets it in."""

    def start(self) -> None:
        """Start the process, and wait until it lets clients in. Raises AssertionError with its log."""
        self._launch()
        deadline = time.monotonic() + self.start_s
        while (error := self.refusal()) is not None:
            died = self.process.poll() is not None
            if time.monotonic() > deadline or (died and not self.starts_after_death):
                raise AssertionError((self.folder / "log").read_text()) from error
            time.sleep(0.1)
            if died:
                self._launch()

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = self.launched(log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.ask_to_stop()
        try:
            self.process.wait(self.close_s)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask_to_stop(self) -> None:
        self.process.terminate()
