"""The trace of a tick: its start, every fact and every effect, a JSON line each, in order.

The lines of a real run can be replayed on the job door: the first line says how to build the door, the facts step it,
and the door must return the effects. Lines are numbered, so that a missing or misplaced line is found at once. A line
names the class of its content. It has new files in full. For files that earlier lines have, it has numbers (below).
Fields with their default values are left out. Nothing is pickled.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.job.setup import JobSetup
from checkpointing.messages import AppendRow, Effect, Fact, FileChanges, MicroBatchFinished, PublishTable, RunMicroBatch
from checkpointing.metadata.record import CheckpointRecord

# ------------------------------------------------------------------
# Writes each file of a trace in full once. If an earlier line has a file in full, later lines have only the file's
# number.
#
# The files in a trace's lists are numbered in order. A list is written as parts: a file in full, or a run `[first,
# count]` of numbers. A list that is one run gets no new numbers. All files of any other list get the next numbers, so
# that the same list is one run in the lines that follow. A number of a `KeyedFile` stands for its `FileHandle` too.
#
# So a line does not grow with the number of live files, and a subtask whose files did not change costs one look-up.


_File = TypeVar("_File", FileHandle, KeyedFile)
_Body = TypeVar("_Body")
_Part = list[int] | FileHandle | KeyedFile

_FILE_ADAPTERS: Final[dict[type, TypeAdapter[Any]]] = {kind: TypeAdapter(kind) for kind in (FileHandle, KeyedFile)}
_FILE: Final = attrgetter("file")
_REMEMBERED: Final = 4_096
"""Lists that are no longer in use are forgotten only after at least this many new numbers."""


class UnknownFilesError(ValueError):
    """A list of files in a line that does not fit the lines before it. The message says which list."""


@dataclass(slots=True)
class _Known:
    """A list that was written, its first number, and the number of entries written when a line last named the list."""

    first: int
    files: Sequence[FileHandle | KeyedFile]
    named: int


class FilesTakenOut:
    """Takes the files out of one trace's messages. It recognizes a file in use by the identity of its object.

    If another object describes the same file, the file is written in full again.
    """

    def __init__(self) -> None:
        """Begin with the first line."""
        self._next = 0
        self._kept = (0, 0)
        """The next number when lists were last forgotten, and how many numbers the lists that stayed had."""
        self._entries = 0
        self._lists: dict[int, _Known] = {}
        self._numbers: dict[int, int] = {}

    def take_out(self, body: _Body) -> tuple[_Body, list[list[_Part]]]:
        """Return a message without the files in its lists, and what to write of each list, in order."""
        lists: list[list[_Part]] = []

        def out(files: tuple[_File, ...], kind: type[_File]) -> tuple[_File, ...]:
            del kind
            lists.append(self._parts(files) if files else [])
            return ()

        bare = _changed(body, out)
        if isinstance(body, AppendRow) and isinstance(body.row, CheckpointRecord):
            self._entries += 1
            self._forget()
        return bare, lists

    def _parts(self, files: tuple[_File, ...]) -> list[_Part]:
        known = self._lists.get(id(files))
        if known is not None:
            known.named = self._entries
            return [[known.first, len(files)]]
        numbers = [*map(self._numbers.get, map(id, files))]
        parts: list[_Part] = []
        at = 0
        while at < len(files):
            first = numbers[at]
            count = 1 if first is None else _run(numbers, at, first)
            parts.append(files[at] if first is None else [first, count])
            at += count
        first = numbers[0]
        if len(parts) == 1 and first is not None:
            self._lists[id(files)] = _Known(first, files, self._entries)
        else:
            self._lists[id(files)] = _Known(self._next, files, self._entries)
            self._number(files, self._next)
            self._next += len(files)
        return parts

    def _number(self, files: Sequence[FileHandle | KeyedFile], first: int) -> None:
        if isinstance(files[0], KeyedFile):
            self._numbers.update(zip(map(id, map(_FILE, files)), range(first, first + len(files)), strict=True))
        self._numbers.update(zip(map(id, files), range(first, first + len(files)), strict=True))

    def _forget(self) -> None:
        """Forget the lists that no line has named since the entry before, once they may have half of all numbers."""
        then, files = self._kept
        if self._next - then < files + _REMEMBERED:
            return
        self._lists = {key: known for key, known in self._lists.items() if known.named >= self._entries - 1}
        self._numbers = {}
        for known in self._lists.values():
            self._number(known.files, known.first)
        self._kept = (self._next, len(self._numbers))


class FilesPutBack:
    """Puts the files back into the messages of one trace, line by line."""

    def __init__(self) -> None:
        """Begin with the first line."""
        self._numbered: list[FileHandle | KeyedFile] = []

    def put_back(self, body: _Body, lists: list[Any]) -> _Body:
        """Return the whole message. Raise UnknownFilesError if `lists` does not fit what the lines before wrote."""
        given = iter(lists)

        def back(files: tuple[_File, ...], kind: type[_File]) -> tuple[_File, ...]:
            if files:
                raise UnknownFilesError("it has files in two places")
            parts = next(given, None)
            if not isinstance(parts, list):
                raise UnknownFilesError(f"it has {len(lists)} lists of files, and its message has more")
            return self._files(parts, kind)

        whole: _Body = _changed(body, back)
        if next(given, None) is not None:
            raise UnknownFilesError(f"it has {len(lists)} lists of files, and its message has fewer")
        return whole

    def _files(self, parts: list[object], kind: type[_File]) -> tuple[_File, ...]:
        found: list[Any] = []
        for part in parts:
            if isinstance(part, list):
                found += self._of_run(part, kind)
            else:
                found.append(_FILE_ADAPTERS[kind].validate_python(part))
        if len(parts) != 1 or not isinstance(parts[0], list):
            self._numbered += found
        return tuple(found)

    def _of_run(self, run: list[Any], kind: type[_File]) -> list[Any]:
        known = len(self._numbered)
        if [type(each) for each in run] != [int, int] or run[0] < 0 or run[1] < 1 or sum(run) > known:
            raise UnknownFilesError(f"it names files {run}, and the lines before it number {known} files")
        files = self._numbered[run[0] : sum(run)]
        if kind is FileHandle:
            return [each.file if isinstance(each, KeyedFile) else each for each in files]
        if not all(isinstance(each, kind) for each in files):
            raise UnknownFilesError(f"it names files {run} where {kind.__name__} belongs")
        return files


def _run(numbers: list[int | None], at: int, first: int) -> int:
    """Return how many numbers from `at` on are consecutive. The steps double while they are."""
    count, step = 1, 1
    while step:
        begin = at + count
        follows = numbers[begin : begin + step] == [*range(first + count, first + count + step)]
        if follows:
            count += step
        step = step * 2 if follows else step // 2
    return count


# ------------------------------------------------------------------ the lists of a message


class _Change(Protocol):
    def __call__(self, files: tuple[_File, ...], kind: type[_File], /) -> tuple[_File, ...]: ...


def _changed(body: Any, change: _Change) -> Any:  # noqa: ANN401 - any message, and the same kind back
    """Return a message in which `change` has replaced each list of files. The lists always come in the same order."""
    match body:
        case MicroBatchFinished():
            outputs = tuple(
                replace(each, state=change(each.state, KeyedFile), ranges=_ranges(each.ranges, change))
                for each in body.outputs
            )
            return replace(body, outputs=outputs)
        case RunMicroBatch():
            state = tuple(map(change, body.state, repeat(KeyedFile)))
            return replace(body, state=state, ranges=tuple(_ranges(each, change) for each in body.ranges))
        case AppendRow() if isinstance(body.row, CheckpointRecord):
            return replace(body, row=_entry(body.row, change))
        case PublishTable():
            adds, files = change(body.publication.adds, FileHandle), change(body.publication.files, FileHandle)
            changes = _changes(body.publication.changes, change)
            return replace(body, publication=replace(body.publication, adds=adds, files=files, changes=changes))
        case JobSetup():
            restored = None if body.restored is None else _entry(body.restored, change)
            return replace(body, restored=restored, retained=tuple(_entry(each, change) for each in body.retained))
        case _:
            return body


def _changes(changes: FileChanges | None, change: _Change) -> FileChanges | None:
    if changes is None:
        return None
    return replace(changes, new=change(changes.new, FileHandle), gone=change(changes.gone, FileHandle))


def _entry(record: CheckpointRecord, change: _Change) -> CheckpointRecord:
    vertices = tuple(
        vertex.model_copy(update={"subtasks": tuple(_snapshot(each, change) for each in vertex.subtasks)})
        for vertex in record.vertices
    )
    tables = tuple(
        table.model_copy(update={"adds": change(table.adds, FileHandle), "files": change(table.files, FileHandle)})
        for table in record.tables
    )
    return record.model_copy(update={"vertices": vertices, "tables": tables})


def _snapshot(snapshot: SubtaskSnapshot, change: _Change) -> SubtaskSnapshot:
    state, ranges = change(snapshot.state, KeyedFile), _ranges(snapshot.ranges, change)
    if state is snapshot.state and ranges is snapshot.ranges:
        return snapshot
    return replace(snapshot, state=state, ranges=ranges)


def _ranges(ranges: tuple[RangeFiles, ...], change: _Change) -> tuple[RangeFiles, ...]:
    return tuple(replace(each, files=change(each.files, KeyedFile)) for each in ranges)


FORMAT: Final = 11
"""The format's number. Every change of a message, or of an entry in one, must raise it.

A trace replays only on the core that wrote it.
"""


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
    """A line is no entry of a trace, or is misplaced. The message says which line, and why."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line, the `number`-th from 1: a fact or effect of the door, and its time (ms since 1970)."""

    number: int
    at_ms: int
    body: Traced


def encode(number: int, at_ms: int, body: Traced, files: FilesTakenOut | None = None) -> bytes:
    """Return the entry as one line of JSON, with its newline. `files` knows the lines before it.

    None: the line stands alone.
    """
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

    `files` has read the lines before it. Without `files`, a line that names files of earlier lines is refused.
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
