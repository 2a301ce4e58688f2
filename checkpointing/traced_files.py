"""Writes each file of a trace in full once. A line names files that a line before it has written by their numbers.

A trace numbers the files in its lists, in order. A list is written as parts: a file in full, or a run `[first, count]`
of numbers. A list that is one run gets no numbers of its own. All files of every other list get the next numbers, so
that the same list is one run in the lines that follow. A number of a `KeyedFile` stands for its `FileHandle` too.

So a line does not grow with the files that live, and a subtask whose files did not change costs one look-up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from pydantic import TypeAdapter

from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.job.setup import JobSetup
from checkpointing.messages import AppendRow, FileChanges, MicroBatchFinished, PublishTable, RunMicroBatch
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot

_File = TypeVar("_File", FileHandle, KeyedFile)
_Body = TypeVar("_Body")
_Part = list[int] | FileHandle | KeyedFile

_ADAPTERS: Final[dict[type, TypeAdapter[Any]]] = {kind: TypeAdapter(kind) for kind in (FileHandle, KeyedFile)}
_FILE: Final = attrgetter("file")
_REMEMBERED: Final = 4_096
"""Numbers that are remembered in any case, before lists that no longer live are forgotten."""


class UnknownFilesError(ValueError):
    """A list of files in a line that the lines before it do not explain. The message says which."""


@dataclass(slots=True)
class _Known:
    """A list that was written, its first number, and how many entries had been written when a line last named it."""

    first: int
    files: Sequence[FileHandle | KeyedFile]
    named: int


class FilesTakenOut:
    """Takes the files out of one trace's messages. It remembers those that live, by identity.

    A file that another object describes is written again.
    """

    def __init__(self) -> None:
        """Begin with the first line."""
        self._next = 0
        self._kept = (0, 0)
        """The next number when lists were last forgotten, and how many files the others had."""
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
        """Forget the lists that no line has named since the entry before, once they may be as many as the others."""
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
                found.append(_ADAPTERS[kind].validate_python(part))
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
    """Return how many numbers from this place on follow one another, in steps that double while they do."""
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
    """Return a message with each list of files as `change` gives it, always in the same order."""
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
