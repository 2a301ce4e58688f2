"""Tests traces. A job writes its facts and effects while its files come, stay and go. Each line is read back.

Its reference is the lines themselves, as `checkpointing.trace` describes them. It looks at which files a line
has in full, and at how many numbers a line gives out.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, SplitId, TableName, VertexId
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    FileChanges,
    MicroBatchFinished,
    Publication,
    PublishTable,
    RowAppended,
    RunMicroBatch,
    SubtaskOutput,
    TimeAdvanced,
)
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    Release,
    Statistics,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from checkpointing.trace import (
    FORMAT,
    FilesPutBack,
    FilesTakenOut,
    TickBroken,
    TickStarted,
    Traced,
    TraceEntry,
    UnreadableTraceError,
    decode,
    encode,
    read,
)
from spec.machines.judging import BrokenRuleError, expect

COME_BACK: Final = "traces-come-back"
"""Each line of a trace is read back as the message that was written."""
STAY_SMALL: Final = "traces-stay-small"
"""A file is in full only if no line since the last entry but one has named it. A list that no line has named for long
is forgotten. Fields with default values are left out."""
REFUSED: Final = "false-traces-refused"
"""A line that is missing, out of place, or no line of a trace is refused, with its number. A last line that was cut off
is left out."""

_REMEMBERED: Final = 4_096
_MANY: Final = 1_400
_SHORT: Final = 1_000
"""A trace that has given out fewer numbers forgets nothing at the next entry, even if a list of many files comes."""
SUMS, TOTALS, STATE = VertexId("sums"), TableName("gold/totals"), TableName("_tidemark/numbers/state/sums")
KEPT = TableName("bronze/kept")
_TIMES: Final = (0, 7, 7)
_pick = st.integers(0, 20)
_Files = tuple[KeyedFile, ...]


class TraceMachine(RuleBasedStateMachine):
    """The trace of one tick.

    Python frees the objects of files that the job no longer needs, so their ids are used again.
    """

    def __init__(self) -> None:
        """Begin a trace."""
        super().__init__()
        self.number = 0
        self.made = 0
        self.now_ms = 10
        self.checkpoint = 0
        self.files, self.back = FilesTakenOut(), FilesPutBack()
        self.state: list[_Files] = [(), ()]
        self.given = 0
        """How many numbers the lines have given out."""
        self.named: dict[tuple[str, bool], int] = {}
        """The number of entries before the last line that named a file. The key is the path, and True if key groups
        came with it."""
        self.old: _Files | None = None
        """A list that no line has named since the last entry but one. By now the trace must have forgotten it."""

    # -------------------------------------------------------------- what the job does

    @rule(subtask=st.integers(0, 1), new=st.integers(0, 3), with_state=st.booleans())
    def finish_a_micro_batch(self, subtask: int, new: int, with_state: bool) -> None:  # noqa: FBT001
        """A subtask has written files."""
        files = tuple(self._file() for _ in range(new))
        outputs = [SubtaskOutput(), SubtaskOutput()]
        outputs[subtask] = SubtaskOutput(state=files if with_state else (), ranges=(RangeFiles(TOTALS, files),))
        self._write(MicroBatchFinished(SUMS, self.made, tuple(outputs)), files)
        self.state[subtask] = (*self.state[subtask], *files)

    @rule(subtask=st.integers(0, 1), gone=_pick, moved=st.booleans(), copied=st.booleans())
    def change(self, subtask: int, gone: int, moved: bool, copied: bool) -> None:  # noqa: FBT001
        """A file goes. The others may change places, or be described by other objects."""
        own = list(self.state[subtask])
        if own:
            del own[gone % len(own)]
        own = own[::-1] if moved else own
        self.state[subtask] = tuple(_copy(each) for each in own) if copied else tuple(own)
        self.named = {} if copied else self.named

    @rule()
    def run_a_micro_batch(self) -> None:
        """The job runs on all live files."""
        ranges = tuple((RangeFiles(TOTALS, own),) for own in self.state)
        self._write(RunMicroBatch(SUMS, self.made, 1, (), tuple(self.state), ranges), self._live())

    @rule(lists=st.integers(0, 3))
    def append(self, lists: int) -> None:
        """A checkpoint commits. Its entry has the live files, in the lists of some tables and subtasks."""
        self._write(AppendRow(self._record(lists), self.number), self._live() if lists else ())
        self.checkpoint += 1

    @rule(changed=st.booleans(), appends=st.booleans())
    def publish(self, changed: bool, appends: bool) -> None:  # noqa: FBT001
        """Publish the live files of a table, as all its files or as added files."""
        files = tuple(each.file for each in self._live())
        changes = FileChanges(1, new=files[-2:], gone=files[:1]) if changed else None
        adds, whole = (files, ()) if appends else ((), files)
        mode = TableMode.APPEND if appends else TableMode.STATE
        self._write(PublishTable(CheckpointId(3), Publication(STATE, mode, adds, whole, changes=changes)), files)

    @rule(kind=st.integers(0, 4))
    def say(self, kind: int) -> None:
        """A message has no files."""
        claim = _claim()
        release = Release(generation=claim.generation, next_id=CheckpointId(3), at_ms=1, nonce="r")
        said = (TimeAdvanced(self.now_ms), TickBroken("b\n"), RowAppended("n", 3), AppendRow(claim, 2))
        self._write((*said, AppendRow(release, 4))[kind], ())

    @rule(retained=st.integers(0, 2), restored=st.booleans())
    def start(self, retained: int, restored: bool) -> None:  # noqa: FBT001
        """A job is set up from entries. They share their lists of files."""
        entries = tuple(self._record(place) for place in range(1, retained + 1))
        source = Vertex(VertexId("numbers"), VertexKind.SOURCE, 1, splits=(SplitId("a"),))
        setup = JobSetup(
            graph=JobGraph((source,), ()),
            config=CheckpointConfig(every_rows=7),
            job=JobName("numbers"),
            claim=_claim(),
            at_version=4,
            restored=self._record(3) if restored else None,
            retained=entries,
        )
        self._write(TickStarted(setup, self.now_ms), self._live() if restored or retained else ())

    # -------------------------------------------------------------- long traces

    @precondition(lambda self: self.given < _SHORT)
    @rule()
    def go_on_for_long(self) -> None:
        """One list has many files, and changes often. Another one stays."""
        many = tuple(self._file() for _ in range(_MANY))
        kept, self.old = self.state[1], self.state[0]
        for _ in range(3):
            many = (*many[1:], self._file())
            self.state = [many, kept]
            self.run_a_micro_batch()
            self.append(2)
        self.state = [many[:3], kept]

    @rule()
    def come_again(self) -> None:
        """A list that has gone is named once more."""
        files, self.old = self.old, None
        if files:
            line = self._write(MicroBatchFinished(SUMS, 1, (SubtaskOutput(state=files),)), ())
            expect(len(_in_full(line)) == len(files), STAY_SMALL, f"at number {self.given} a dead list is still known")

    # -------------------------------------------------------------- what was damaged

    @rule(place=st.integers(0, 2), kind=st.integers(0, 12))
    def damage(self, place: int, kind: int) -> None:
        """A trace of three lines is damaged."""
        own = (self._file(), self._file())
        memory = FilesTakenOut()
        bodies: list[Traced] = [self._finished(own), self._finished(own), TimeAdvanced(1)]
        lines = [encode(at, _TIMES[at - 1], body, memory) for at, body in enumerate(bodies, start=1)]
        whole = [TraceEntry(at, _TIMES[at - 1], body) for at, body in enumerate(bodies, start=1)]
        entries, error = _read(lines)
        expect(entries == whole and error is None, COME_BACK, f"{entries} and {error} are read of {whole}")
        damaged, said = _damaged(lines, place, kind)
        entries, error = _read(damaged)
        expect(entries == whole[: len(entries)], REFUSED, f"{entries} are read of {damaged}")
        if said is None:
            expect(error is None and len(entries) == 2, REFUSED, f"{error} after {entries}")  # noqa: PLR2004
        else:
            told = error is not None and all(each in error for each in said)
            expect(told, REFUSED, f"{error} is said of {damaged}, due are {said}")

    # -------------------------------------------------------------- judging

    def _write(self, body: Traced, named: Iterable[KeyedFile | FileHandle]) -> bytes:
        """Write a message, and read it back. `named` are the live files in it."""
        self.number += 1
        self.now_ms += self.number % 2
        line = encode(self.number, self.now_ms, body, self.files)
        try:
            entry = decode(line, self.back)
        except UnreadableTraceError as error:
            raise BrokenRuleError(COME_BACK, str(error)) from error
        due = TraceEntry(self.number, self.now_ms, body)
        same = entry == due and type(entry.body) is type(body)
        expect(same, COME_BACK, "" if same else f"{entry} is read of {due}")  # a text of many files takes long
        full = _in_full(line)
        known = [each for each in full if self.named.get(each, -9) >= self.checkpoint - 1]
        expect(not known, STAY_SMALL, f"{known[:3]} are in full once more, at entry {self.checkpoint}")
        expect(len(full) == len({*full}), STAY_SMALL, f"a line has a file in full twice: {line[:300]!r}")
        expect(b'"since":' not in line, STAY_SMALL, f"a field that says nothing is written: {line[:300]!r}")
        for each in named:
            if isinstance(each, KeyedFile):
                self.named[each.file.path, True] = self.checkpoint
            self.named[each.file.path if isinstance(each, KeyedFile) else each.path, False] = self.checkpoint
        self.given += _numbers(line)
        return line

    def _live(self) -> _Files:
        return tuple(each for own in self.state for each in own)

    def _file(self) -> KeyedFile:
        self.made += 1
        handle = FileHandle(f"{TOTALS}/_data/1/{self.made}", self.made, 2, 3)
        return KeyedFile(handle, KeyedFileKind.BASE, 0, 7, Version(Generation(1), self.made))

    @staticmethod
    def _finished(files: _Files) -> MicroBatchFinished:
        return MicroBatchFinished(SUMS, 1, (SubtaskOutput(state=files),))

    def _record(self, lists: int) -> CheckpointRecord:
        """Return an entry with the live files: as state, as those of an upsert table, or both."""
        files = tuple(each.file for each in self._live())
        subtasks = tuple(
            SubtaskSnapshot(
                state=own if lists in (1, 3) else (), ranges=(RangeFiles(TOTALS, own),) if lists in (2, 3) else ()
            )
            for own in self.state
        )
        tables = (
            TableRecord(table=TOTALS, mode=TableMode.UPSERT, files=files if lists else (), parent_version=1),
            TableRecord(table=KEPT, mode=TableMode.APPEND, adds=files[:2] if lists else (), parent_version=1),
        )
        keys = (TableKeys(table=TOTALS, columns=("key",)),)
        vertex = VertexRecord(vertex=SUMS, micro_batch=self.checkpoint, subtasks=subtasks, table_keys=keys)
        return CheckpointRecord(
            job="numbers",
            checkpoint=CheckpointId(self.checkpoint + 1),
            parent=CheckpointId(self.checkpoint),
            generation=Generation(1),
            nonce=str(self.checkpoint),
            max_parallelism=8,
            vertices=(vertex,),
            tables=tables,
            statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
        )


def _claim() -> Claim:
    holder, first, last = Holder(host="h", pid=1, started="s"), CheckpointId(1), CheckpointId(9)
    return Claim(generation=Generation(3), holder=holder, first_id=first, last_id=last, at_ms=5, nonce="n")


def _copy(keyed: KeyedFile) -> KeyedFile:
    """Return an equal file that is another object."""
    own = keyed.file
    handle = FileHandle(own.path, own.rows, own.bytes, own.crc32)
    return KeyedFile(handle, keyed.kind, keyed.first_key_group, keyed.last_key_group, keyed.version)


def _lists(line: bytes) -> Iterator[list[Any]]:
    yield from json.loads(line).get("files", ())


def _in_full(line: bytes) -> list[tuple[str, bool]]:
    """Return the paths of the files that a line has in full, and whether it tells their key groups."""
    full = [part for parts in _lists(line) for part in parts if isinstance(part, dict)]
    return [(str(part.get("file", part)["path"]), "file" in part) for part in full]


def _numbers(line: bytes) -> int:
    """Return how many numbers a line gives out: one to each file of a list, unless the list is one run."""
    counts = ([part[1] if isinstance(part, list) else 1 for part in parts] for parts in _lists(line))
    return sum(sum(each) for each, parts in zip(counts, _lists(line), strict=True) if not _is_run(parts))


def _is_run(parts: list[Any]) -> bool:
    return len(parts) == 1 and isinstance(parts[0], list)


def _read(lines: Iterable[bytes]) -> tuple[list[TraceEntry], str | None]:
    """Return the entries before the first refused line, and the text of the refusal."""
    entries: list[TraceEntry] = []
    try:
        for entry in read(lines):
            entries.append(entry)  # noqa: PERF402 - those before the error count
    except UnreadableTraceError as error:
        return entries, str(error)
    return entries, None


def _damaged(lines: list[bytes], place: int, kind: int) -> tuple[list[bytes], tuple[str, ...] | None]:
    """Return damaged lines, and what the refusal must say. None means that the reader leaves the last line out."""
    line, at = lines[place], place + 1
    own, next_to = b'"number":%d' % at, b'"number":%d' % (at + 1)
    form, time = b'"format":%d' % FORMAT, b'"at_ms":%d' % _TIMES[place]
    changes = (
        (line, b"nonsense\n", "no JSON"),
        (line, b"[1]\n", "no entry"),
        (form, b'"format":%d' % (FORMAT - 1), "an older Tidemark"),
        (form, b'"format":%d' % (FORMAT + 1), "a newer Tidemark"),
        (form, b'"format":"%d"' % FORMAT, "no entry"),
        (b'"is":"', b'"is":"Other', "no entry"),
        (own, b'"number":"1"', "no number"),
        (time, b'"at_ms":"1"', "no time"),
        (own, next_to, f"line {at} is numbered {at + 1}"),
        (b'"body":{', b'"body":{"what":', "no "),
        *([(time, b'"at_ms":-1', f"line {at} is of -1 ms")] if place else []),
    )
    if kind < len(changes):
        before, after, why = changes[kind]
        return [*lines[:place], line.replace(before, after), *lines[at:]], (f"line {at}", why)
    if kind == len(changes):
        refers = lines[1].replace(b"[[0,2]]", (b"[[0,3]]", b"[[1,2]]", b"[[-1,1]]")[place])
        return [lines[0], refers, lines[2]], ("line 2: ", "MicroBatchFinished is not whole", "number 2 files")
    return [*lines[:2], lines[2][: -1 - place]], None
