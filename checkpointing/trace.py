"""The trace of a tick: its start, every fact and every effect, a JSON line each, in order.

The lines of a real run can be replayed on the job door: the start builds it, the facts step it, and the effects are its
answers. Lines are numbered, so that a missing or misplaced line is found at once. The name of a class says what a line
holds. A line has its new files in full, and numbers of those that the lines before it have (`traced_files`). Fields
with their default values are left out. Nothing is pickled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from checkpointing.job.setup import JobSetup
from checkpointing.messages import Effect, Fact
from checkpointing.traced_files import FilesPutBack, FilesTakenOut, UnknownFilesError

FORMAT: Final = 10
"""Raise it with every change of a message, or of an entry in one. A trace replays only on the core that wrote it."""


@dataclass(frozen=True, slots=True)
class TickStarted:
    """The first line: what the door was built from, and when it was started."""

    setup: JobSetup
    now_ms: int


@dataclass(frozen=True, slots=True)
class TickBroken:
    """The last line of a tick that broke: an unexpected exception, as text."""

    error: str


Traced = TickStarted | Fact | Effect | TickBroken

_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Traced)}


class UnreadableTraceError(ValueError):
    """A line that is no entry of a trace, or that is misplaced. The message says which line, and why."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line, the `number`-th from 1: a fact or effect of the door, and when (ms since the epoch)."""

    number: int
    at_ms: int
    body: Traced


def encode(number: int, at_ms: int, body: Traced, files: FilesTakenOut | None = None) -> bytes:
    """Return the entry as one line of JSON, with its newline. `files` knows the lines before it; None: it is alone."""
    writer, name = FilesTakenOut() if files is None else files, type(body).__name__
    if isinstance(body, TickStarted):
        setup, lists = writer.take_out(body.setup)
        body = replace(body, setup=setup)
    else:
        body, lists = writer.take_out(body)
    return b'{"format":%d,"number":%d,"at_ms":%d,"is":"%s",%s"body":%s}\n' % (
        FORMAT,
        number,
        at_ms,
        name.encode(),
        b'"files":%s,' % to_json(lists) if any(lists) else b"",
        _ADAPTERS[name].dump_json(body, exclude_defaults=True),
    )


def decode(line: bytes, files: FilesPutBack | None = None) -> TraceEntry:
    """Return the entry of a line. Raise UnreadableTraceError for any other text.

    `files` has read the lines before it. Without it, a line that names their files is refused.
    """
    try:
        envelope = from_json(line)
    except ValueError as error:
        raise UnreadableTraceError(f"no JSON ({error}): {line[:200]!r}") from error
    written = envelope.get("format") if isinstance(envelope, dict) else None
    if isinstance(written, int) and written != FORMAT:
        raise UnreadableTraceError(
            f"written in format {written} by {'an older' if written < FORMAT else 'a newer'} Tidemark, this one reads "
            f"format {FORMAT}: a trace replays on the core that wrote it, so install that version to replay it"
        )
    if not isinstance(envelope, dict) or envelope.get("is") not in _ADAPTERS or written != FORMAT:
        raise UnreadableTraceError(f"no entry that this version knows: {line[:200]!r}")
    name, number, at_ms = envelope["is"], envelope.get("number"), envelope.get("at_ms")
    if not isinstance(at_ms, int) or not isinstance(number, int):
        raise UnreadableTraceError(f"no number or no time: {line[:200]!r}")
    try:
        body = _ADAPTERS[name].validate_json(_body(line))
        if isinstance(envelope.get("files"), list):
            body = _whole(body, envelope["files"], FilesPutBack() if files is None else files)
    except UnknownFilesError as error:
        raise UnreadableTraceError(f"this {name} is not whole: {error}") from error
    except (ValidationError, ValueError) as error:
        raise UnreadableTraceError(f"no {name}: {error}") from error
    return TraceEntry(number, at_ms, body)


def read(lines: Iterable[bytes]) -> Iterator[TraceEntry]:
    """Yield the entries of a trace's lines. A last line that a crash cut off is left out.

    Raises UnreadableTraceError, naming the line that is no entry, or the line before which one is missing.
    """
    told_ms, files = 0, FilesPutBack()
    for place, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            entry = decode(line, files)
        except UnreadableTraceError as error:
            raise UnreadableTraceError(f"line {place}: {error}") from error
        if entry.number != place:
            raise UnreadableTraceError(f"line {place} is numbered {entry.number}: a line is missing or out of place")
        if entry.at_ms < told_ms:
            raise UnreadableTraceError(f"line {place} is of {entry.at_ms} ms, before the line above it ({told_ms} ms)")
        told_ms = entry.at_ms
        yield entry


def _whole(body: Traced, lists: list[Any], files: FilesPutBack) -> Traced:
    if isinstance(body, TickStarted):
        return replace(body, setup=files.put_back(body.setup, lists))
    return files.put_back(body, lists)


def _body(line: bytes) -> bytes:
    """Return the bytes of the last field, so that its own type parses them directly from JSON."""
    return line.rstrip()[line.index(b'"body":') + len(b'"body":') : -1]
