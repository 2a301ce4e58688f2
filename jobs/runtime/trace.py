"""The trace of a tick: its start, every fact and every effect, one JSON line each, in the order of the door.

The lines of a real run replay on the job door: the start builds it, the facts step it, the effects are
what it answered. A class's name says what a line holds; nothing is pickled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from checkpointing.identifiers import Generation
from checkpointing.job.setup import JobSetup
from checkpointing.messages import Effect, Fact
from checkpointing.metadata.paths import ProtocolPaths

FORMAT: Final = 1

TRACES_KEPT: Final = 20
"""Traces of this many generations stay."""

BUFFER_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class TickStarted:
    """The first line: what the door was built from, and the time at which it was started."""

    setup: JobSetup
    now_ms: int


@dataclass(frozen=True, slots=True)
class TickBroken:
    """The last line of a tick that broke: an exception where none may come from, as text."""

    error: str


Traced = TickStarted | Fact | Effect | TickBroken

_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Traced)}


class UnreadableTraceError(ValueError):
    """A line that is no entry of a trace: says which line and why."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line: what the door was told or answered, and when (ms since the epoch)."""

    at_ms: int
    body: Traced


def encode(at_ms: int, body: Traced) -> bytes:
    """Return the entry as one line of JSON, its newline included."""
    name = type(body).__name__
    return b'{"format":%d,"at_ms":%d,"is":"%s","body":%s}\n' % (
        FORMAT,
        at_ms,
        name.encode(),
        _ADAPTERS[name].dump_json(body),
    )


def decode(line: bytes) -> TraceEntry:
    """Return the entry of a line; raise UnreadableTraceError for anything else."""
    try:
        envelope = from_json(line)
    except ValueError as error:
        raise UnreadableTraceError(f"no JSON ({error}): {line[:200]!r}") from error
    if not isinstance(envelope, dict) or envelope.get("is") not in _ADAPTERS or envelope.get("format") != FORMAT:
        raise UnreadableTraceError(f"no entry that this version knows: {line[:200]!r}")
    name, at_ms = envelope["is"], envelope.get("at_ms")
    if not isinstance(at_ms, int):
        raise UnreadableTraceError(f"no time: {line[:200]!r}")
    try:
        return TraceEntry(at_ms, _ADAPTERS[name].validate_json(_body(line)))
    except ValidationError as error:
        raise UnreadableTraceError(f"no {name}: {error}") from error


def read_trace(path: Path) -> Iterator[TraceEntry]:
    """Yield the entries of a trace. A last line that a crash cut off is left out.

    Raises UnreadableTraceError naming the line, and OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decode(line)
            except UnreadableTraceError as error:
                raise UnreadableTraceError(f"{path}, line {number}: {error}") from error


class TraceWriter:
    """Writes one generation's trace. Buffered: what matters after a failure is flushed by whoever knows of it.

    Not for several threads.
    """

    def __init__(self, path: Path) -> None:
        """Begin the file, its folder included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("wb", buffering=BUFFER_BYTES)

    def write(self, at_ms: int, entries: Iterable[Traced]) -> None:
        """Append the entries."""
        for body in entries:
            self._file.write(encode(at_ms, body))

    def flush(self) -> None:
        """Hand what is buffered to the operating system: the end of the process does not lose it."""
        self._file.flush()

    def __enter__(self) -> Self:
        """Return the writer; leaving the block closes the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        del kind, error, trace
        self._file.close()


def drop_old_traces(folder: Path, paths: ProtocolPaths, generation: Generation) -> None:
    """Delete the traces of generations that lie `TRACES_KEPT` or more behind."""
    if not folder.is_dir():
        return
    kept = {Path(paths.trace(Generation(g))).name for g in range(generation - TRACES_KEPT + 1, generation + 1)}
    for path in folder.glob("*.ndjson"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _body(line: bytes) -> bytes:
    """The bytes of the last field, so that it is parsed by its own type, straight from JSON."""
    return line.rstrip()[line.index(b'"body":') + len(b'"body":') : -1]
