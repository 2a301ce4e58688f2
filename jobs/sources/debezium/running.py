"""Starts Debezium's engine in a separate process, reads what the engine delivers, and always ends the process.

An engine inside this process could make a tick hang, and a process can have only one JVM of JPype. A separate process
can be killed. It ends by itself when this process has ended.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from jobs.sources.debezium.connect_types import ConnectType, of_json_block
from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.secrets import without
from jobs.spark.jars import DEBEZIUM, JarsError, jar_set, jars_of

_log = structlog.get_logger(__name__)

SILENT_S: Final = 180.0
"""An engine that writes no line for this many seconds is given up. Its first line comes after 3 to 20 seconds."""
_CLOSE_S: Final = 6.0
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an engine needs. `secrets` are the values in `properties` that no message may contain.

    `certificates` are the certificates that the engine trusts, as the text of a PEM file. If they are empty, the engine
    trusts Java's own.
    """

    connector: str
    properties: Mapping[str, str]
    offset: Mapping[str, object]
    history: Sequence[str]
    secrets: Sequence[str]
    certificates: str = ""

    def __repr__(self) -> str:
        """Return only the connector, because some properties are secret."""
        return f"EngineSettings({self.connector})"

    def text(self, jars: Sequence[str]) -> str:
        """Return the line that the engine's process reads first."""
        return json.dumps(
            {
                "connector": self.connector,
                "properties": dict(self.properties),
                "offset": dict(self.offset),
                "history": list(self.history),
                "certificates": self.certificates,
                "jars": list(jars),
            }
        )


class Said(NamedTuple):
    """A line of the engine: its kind (see `engine`), its text, and the offset of the line, as JSON."""

    kind: str
    text: str
    offset: str = ""
    types: ConnectType | None = None


class EngineFailedError(Exception):
    """The engine ended. The message is Debezium's, without secrets."""


class RunningEngine:
    """An engine's process."""

    def __init__(self, settings: EngineSettings) -> None:
        """Start the process. Raises SourceError if the engine's jars are missing."""
        try:
            jars = jars_of(jar_set(DEBEZIUM))
        except JarsError as error:
            raise SourceError(str(error)) from None
        self._secrets = settings.secrets
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the tick, which closes its engine
        )
        self._told: deque[str] = deque(maxlen=20)
        self._types: dict[str, ConnectType | None] = {}
        self._pending = b""
        threading.Thread(target=self._listen, daemon=True).start()
        self._write(settings.text([str(jar) for jar in jars]))

    def read_to(self, file: str, position: int) -> None:
        """Ask the engine to answer `I` once it has delivered everything before this place of the server's log.

        The answer to an earlier request may still come first, so each answer names its place.
        """
        self._write(f"{file} {position}")

    def said(self) -> Iterator[Said]:
        """Yield the engine's lines. A later call continues behind the line that was yielded last.

        Raises EngineFailedError if the engine ends, and SourceAwayError if it writes no line for `SILENT_S` seconds.
        """
        while True:
            line, end, rest = self._pending.partition(b"\n")
            if not end:
                self._pending += self._more()
                continue
            self._pending = rest
            if line[:1] == b"F":
                raise EngineFailedError(self._without_secrets(line[1:].decode()))
            found = self._parsed(line.decode())
            if found is not None:
                yield found

    def close(self) -> None:
        """End the process. A second call changes nothing."""
        process = self._process
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        drain = threading.Thread(target=self._drain, daemon=True)  # so that it does not wait for its reader
        drain.start()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        drain.join()
        with suppress(OSError):
            if process.stdout is not None:
                process.stdout.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _drain(self) -> None:
        with suppress(OSError, ValueError):
            while self._process.stdout is not None and os.read(self._process.stdout.fileno(), _CHUNK):
                pass

    def _parsed(self, line: str) -> Said | None:
        kind, text = line[:1], line[1:]
        match kind:
            case "S":
                number, _, schema = text.partition(" ")
                types = of_json_block(json.loads(schema))
                self._types[number] = types
                return None
            case "E":
                number, _, event = text.partition(" ")
                return Said(kind, event, types=self._types[number])
            case "T" | "D" | "N":
                offset, _, event = text.partition("\t")
                return Said(kind, event, offset)
            case "C":
                return Said(kind, "", text)
            case _:
                return Said(kind, text)

    def _more(self) -> bytes:
        out = self._process.stdout
        if out is None:
            raise EngineFailedError("it was closed")
        ready, _, _ = select.select([out], [], [], SILENT_S)
        if not ready:
            self._process.kill()
            raise SourceAwayError(
                f"Debezium's engine has said nothing for {SILENT_S:.0f} s, and was ended. The next tick goes on where "
                f"this one stopped. It said last: {self._last_words()}"
            )
        found = os.read(out.fileno(), _CHUNK)
        if not found:
            raise EngineFailedError(f"its process ended. It said last: {self._last_words()}")
        return found

    def _write(self, line: str) -> None:
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(f"{line}\n".encode())
        except OSError:
            deadline = time.monotonic() + 1
            while not self._told and time.monotonic() < deadline:
                time.sleep(0.05)
            raise EngineFailedError(f"its process ended. It said last: {self._last_words()}") from None

    def _listen(self) -> None:
        errors = self._process.stderr
        with suppress(OSError, ValueError):
            for line in errors or ():
                text = self._without_secrets(line.decode(errors="replace").rstrip())
                if text and not text.startswith(("\t", " ")):
                    self._told.append(text)
                    _log.debug("debezium", said=text)

    def _last_words(self) -> str:
        return " | ".join(self._told)[-500:] or "nothing"

    def _without_secrets(self, text: str) -> str:
        return without(text, self._secrets)
