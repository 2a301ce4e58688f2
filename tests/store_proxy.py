"""A proxy between a store's client and its server, which simulates the effects of a network and of a busy store.

Each request takes at least the proxy's latency. A `Fault` determines which requests are disturbed, and how. `seen` has
every request with its kind, key and times. From it, `longest_chain` computes how many requests waited for each other.
The proxy is a process of its own, because delta-rs keeps Python's lock while it waits for a store: a thread of the
tick's process would never answer it.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import unquote
from urllib.request import urlopen

from tests.local_server import free_port
from tests.object_store import Server, kind_of

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message></Error>"
)
SLOW_PARTS = 5
START_S = 30
MESSAGE_BYTES = 1 << 20


class Harm(Enum):
    BUSY = "the store answers 503 SlowDown, and does nothing"
    CUT_BEFORE = "the connection breaks before the server has the request"
    CUT_AFTER = "the server has done it, and the connection breaks before the reply"
    HALF = "the connection breaks in the middle of the reply's body"
    SLOW = "the reply's body comes in parts, with pauses between them"


@dataclass
class Fault:
    """Disturbs the requests of a kind and key from the n-th one on, for this number of `times`."""

    harm: Harm
    kind: str = ""
    key: str = ""
    """A regular expression that is searched in the key."""
    nth: int = 1
    times: int = 1
    pause_s: float = 0.2
    met: int = field(default=0)
    """How many requests of this kind and key have arrived."""

    def strikes(self, kind: str, key: str) -> bool:
        if (self.kind and kind != self.kind) or not re.search(self.key, key):
            return False
        self.met += 1
        return self.nth <= self.met < self.nth + self.times


@dataclass(frozen=True)
class Request:
    """A request: its key, and when it began and ended, in seconds since the Unix epoch."""

    kind: str
    key: str
    began: float
    ended: float


def longest_chain(requests: list[Request]) -> int:
    chain, free = 0, 0.0
    for each in sorted(requests, key=lambda request: request.ended):
        if each.began >= free:
            chain, free = chain + 1, each.ended
    return chain


@dataclass(frozen=True)
class _Head:
    """The start line and the headers of a request."""

    method: str
    target: str
    headers: dict[str, str]
    raw: list[bytes]

    @property
    def kind(self) -> str:
        path, _, query = self.target.partition("?")
        return kind_of(self.method, path, query, self.headers)

    @property
    def key(self) -> str:
        path, _, query = self.target.partition("?")
        prefix = next((part.partition("=")[2] for part in query.split("&") if part.startswith("prefix=")), "")
        return unquote(f"{path}{prefix and '/'}{prefix}".lstrip("/"))


class Proxy:
    """A proxy in front of a server. Clients reach the proxy with `environment`."""

    def __init__(self, server: Server, *, latency_ms: int = 0) -> None:
        self._port = free_port()
        self._command = [sys.executable, __file__, server.endpoint.rpartition(":")[2], str(latency_ms), str(self._port)]
        self.server = replace(server, endpoint=f"http://127.0.0.1:{self._port}")
        """The server, with the addresses of a client that goes through the proxy."""
        self.environment = self.server.environment

    def __enter__(self) -> Self:
        root = str(Path(__file__).resolve().parents[1])
        self._process = subprocess.Popen(self._command, env=os.environ | {"PYTHONPATH": root})
        until = time.monotonic() + START_S
        while True:
            try:
                self.seen()
            except URLError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def harm(self, *faults: Fault) -> None:
        self._ask("faults", [asdict(fault) | {"harm": fault.harm.name} for fault in faults])

    def struck(self) -> list[bool]:
        return [fault["met"] >= fault["nth"] for fault in self._ask("faults")]

    def seen(self) -> list[Request]:
        return [Request(**each) for each in self._ask("seen")]

    def _ask(self, what: str, content: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        data = None if content is None else json.dumps(content).encode()
        with urlopen(f"http://127.0.0.1:{self._port}/{what}", data) as answer:
            return json.load(answer)


class Serving:
    """The proxy in its own process."""

    def __init__(self, server_port: int, latency_s: float) -> None:
        self._server_port = server_port
        self._latency_s = latency_s
        self._faults: list[Fault] = []
        self._seen: list[Request] = []

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=MESSAGE_BYTES)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(await _head(reader), reader, writer):
                pass
        with suppress(OSError, RuntimeError):
            writer.close()

    async def _exchange(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if "expect" in head.headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(head.headers.get("content-length", 0)))
        if head.target in ("/seen", "/faults"):
            writer.write(_answer(b"HTTP/1.1 200 OK", [], self._told(head, body)))
            await writer.drain()
            return True
        began = time.time()
        try:
            return await self._answered(head, body, began, writer)
        finally:
            self._seen.append(Request(head.kind, head.key, began, time.time()))

    def _told(self, head: _Head, body: bytes) -> bytes:
        if head.target == "/seen":
            return json.dumps([asdict(each) for each in self._seen]).encode()
        if head.method == "POST":
            self._faults = [Fault(**{**each, "harm": Harm[each["harm"]]}) for each in json.loads(body)]
        return json.dumps([asdict(each) | {"harm": each.harm.name} for each in self._faults]).encode()

    async def _answered(self, head: _Head, body: bytes, began: float, writer: asyncio.StreamWriter) -> bool:
        fault = next((each for each in self._faults if each.strikes(head.kind, head.key)), None)
        harm = None if fault is None else fault.harm
        if harm is Harm.BUSY:
            status, headers, content = b"HTTP/1.1 503 Slow Down", [b"Content-Type: application/xml"], SLOW_DOWN
        elif harm is not Harm.CUT_BEFORE:
            status, headers, content = await self._forwarded(head, body)
        await asyncio.sleep(max(0.0, began + self._latency_s - time.time()))
        if harm in (Harm.CUT_BEFORE, Harm.CUT_AFTER):
            return False
        answer = _answer(status, headers, b"" if head.method == "HEAD" else content, length_of=content)
        if head.method == "HEAD" and harm is not Harm.BUSY:
            answer = b"\r\n".join([status, *headers, b"", b""])
        start = len(answer) - (0 if head.method == "HEAD" else len(content))
        if harm is Harm.HALF:
            writer.write(answer[: start + max(0, len(content) // 2)] if content else b"")
            await writer.drain()
            return False
        if harm is Harm.SLOW and fault is not None:
            step = max(1, (len(answer) - start) // SLOW_PARTS)
            writer.write(answer[:start])
            for at in range(start, len(answer), step):
                await writer.drain()
                await asyncio.sleep(fault.pause_s)
                writer.write(answer[at : at + step])
        else:
            writer.write(answer)
        await writer.drain()
        return True

    async def _forwarded(self, head: _Head, body: bytes) -> tuple[bytes, list[bytes], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        kept = [line for line in head.raw[1:] if line.partition(b":")[0].lower() not in (b"connection", b"expect")]
        writer.write(b"\r\n".join([head.raw[0], *kept, b"Connection: close", b"", b""]) + body)
        answer = await reader.read()
        writer.close()
        first, _, content = answer.partition(b"\r\n\r\n")
        status, *headers = first.split(b"\r\n")
        if any(line.lower().replace(b" ", b"") == b"transfer-encoding:chunked" for line in headers):
            content = b"".join(_chunks(content))
        dropped = [b"connection", b"date", b"server", b"transfer-encoding"]
        dropped += [] if head.method == "HEAD" else [b"content-length"]
        kept = [line for line in headers if line.partition(b":")[0].lower() not in dropped]
        return b"HTTP/1.1 " + status.partition(b" ")[2], kept, content


def _answer(status: bytes, headers: list[bytes], content: bytes, *, length_of: bytes | None = None) -> bytes:
    length = len(content if length_of is None else length_of)
    return b"\r\n".join([status, *headers, b"Content-Length: %d" % length, b"", content])


def _chunks(content: bytes) -> Iterator[bytes]:
    while content:
        size, _, rest = content.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        content = rest[length + 2 :] if length else b""


async def _head(reader: asyncio.StreamReader) -> _Head:
    raw = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    method, target, _ = raw[0].decode().split(" ")
    fields = (line.decode("latin-1").partition(":") for line in raw[1:])
    return _Head(method, target, {name.lower(): value.strip() for name, _, value in fields}, raw)


if __name__ == "__main__":
    _server_port, _latency_ms, _port = (int(word) for word in sys.argv[1:])
    asyncio.run(Serving(_server_port, _latency_ms / 1000).serve(_port))
