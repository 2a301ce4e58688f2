"""An entry has the measurements of its epoch, and each line of a trace is read back as it was written (J1, J2)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from checkpointing.channel_items import AlignmentType, Barrier, RangeFiles, SourceSlice, SubtaskSnapshot, TaskWork
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    JobName,
    SplitId,
    SubtaskId,
    TableName,
    VertexId,
)
from checkpointing.job.drafts import EpochLog
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
    TableKeys,
    TableRecord,
    VertexRecord,
    VertexStatistics,
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
from spec.machines import judging
from spec.machines.judging import BrokenRuleError, expect
from tests.unit.full_entry import plain_entry

MEASURED: Final = "epochs-are-measured"
"""For each vertex, an entry has the work since its last barrier, and the times of its barriers and answers."""

_SOURCE, _VERTEX = VertexId("orders"), VertexId("totals")
_TABLE: Final = TableName("gold/totals")
_EDGE: Final = EdgeId(_SOURCE, _VERTEX)
_MINE: Final = Generation(2)
_pick = st.integers(0, 20)
_few = st.integers(0, 3)
_tasks = st.lists(st.builds(TaskWork, task_ms=_few, sync_ms=_few, rows=_few), min_size=2, max_size=2)
_Done = tuple[int, int, list[tuple[int, int, int]], list[TaskWork]]
"""A micro-batch: its rows, its duration, what each subtask wrote (rows, bytes, bytes of state), and its tasks' work."""


class MeasuringMachine(RuleBasedStateMachine):
    """A source of two splits and a vertex of two subtasks. Checkpoints begin, end, and are forgotten in any order."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        super().__init__()
        source = Vertex(_SOURCE, VertexKind.SOURCE, 2, splits=(SplitId("a"), SplitId("b")))
        graph = JobGraph((source, Vertex(_VERTEX, VertexKind.KEYED, 2)), (_EDGE,))
        self.log, self.tracker = EpochLog(graph, _MINE), StatisticsTracker(200)
        self.now_ms, self.files = 1_000, 0
        self.micro_batches = 0
        older = (KeyedFile(FileHandle("before", 5, 5, 7), KeyedFileKind.BASE, 0, 3, Version(Generation(1), 1)),)
        self.ranges: list[tuple[KeyedFile, ...]] = [older, older]
        """The files of each subtask's range of an upsert table. The first ones are of an older generation."""
        self.sent: list[list[tuple[int, int]]] = [[], []]
        """What each split has sent since it last acknowledged a checkpoint: rows and bytes."""
        self.rows, self.estimated = 0, 0
        self.done: list[_Done] = []
        """The micro-batches since the vertex's last barrier."""
        self.triggered: dict[CheckpointId, tuple[int, int, int]] = {}
        """Per checkpoint: the time of its trigger, the rows sent until then, and how many of these are estimates."""
        self.ended: set[CheckpointId] = set()
        self.barriers: dict[CheckpointId, list[tuple[int, int]]] = {}
        """The channel and time of each barrier."""
        self.passed: dict[CheckpointId, tuple[int, TriggerCheckpoint, list[_Done], int | None]] = {}
        """Maps a checkpoint to what was seen when its barrier passed the vertex.

        This is the time, the barrier's trigger, the micro-batches since the previous barrier, and the time from trigger
        to first barrier.
        """
        self.in_time: set[CheckpointId] = set()
        """The checkpoints that had not ended when their barriers passed the vertex."""
        self.late: dict[CheckpointId, InFlightComplete] = {}
        self.answered: dict[tuple[CheckpointId, VertexId], int] = {}
        """Maps a checkpoint and a vertex to the time of the vertex's last acknowledgement."""
        self.out: dict[CheckpointId, list[tuple[int, int]]] = {}
        """Maps a checkpoint to what the source's splits had sent before they acknowledged it: rows and bytes."""
        self.verdicts: dict[CheckpointId, list[str]] = {}
        self.told: dict[tuple[CheckpointId, SubtaskId], SnapshotMetrics] = {}
        """What each acknowledgement measured."""

    # -------------------------------------------------------------- work

    @rule(split=st.integers(0, 1), rows=_few, estimated=st.booleans())
    def send(self, split: int, rows: int, estimated: bool) -> None:
        """A split sends rows."""
        name = SplitId("ab"[split])
        each = SourceSlice(_SOURCE, name, "0", "1", "{}", rows, 10 * rows, rows_estimated=estimated)
        self.log.read(SubtaskId(_SOURCE, split), each)
        self.sent[split].append((rows, 10 * rows))
        self.rows += rows
        self.estimated += rows * estimated

    @rule(
        rows=_few,
        took_ms=_few,
        wrote=st.lists(st.tuples(_few, _few, _few), min_size=2, max_size=2),
        tasks=_tasks,
        upserts=st.booleans(),
    )
    def work(
        self,
        rows: int,
        took_ms: int,
        wrote: list[tuple[int, int, int]],
        tasks: list[TaskWork],
        upserts: bool,
    ) -> None:
        """A micro-batch ends. Both subtasks write a file of rows, and a file of state.

        The rows are emitted and staged, or they come into a range that keeps all its files.
        """
        self.micro_batches += 1
        outputs = tuple(self._output(subtask, *each, upserts=upserts) for subtask, each in enumerate(wrote))
        self.log.worked(MicroBatchFinished(_VERTEX, self.micro_batches, outputs, took_ms, tuple(tasks)), rows)
        self.done.append((rows, took_ms, wrote, tasks))

    def _output(self, subtask: int, rows: int, size: int, state: int, *, upserts: bool) -> SubtaskOutput:
        self.files += 1
        file = FileHandle(f"{_TABLE}/_data/1/totals-1-{self.files:032x}.parquet", rows, size, 7)
        version = Version(_MINE, self.micro_batches)
        held = (KeyedFile(FileHandle(f"state-{self.files}", rows, state, 7), KeyedFileKind.DELTA, 0, 3, version),)
        if not upserts:
            return SubtaskOutput((file,), ((_TABLE, file),), held)
        self.ranges[subtask] += (KeyedFile(file, KeyedFileKind.BASE, 0, 3, version),)
        return SubtaskOutput(state=held, ranges=(RangeFiles(_TABLE, self.ranges[subtask]),))

    # -------------------------------------------------------------- checkpoints

    @rule(after_ms=_few)
    def trigger(self, after_ms: int) -> None:
        """A checkpoint begins."""
        self.now_ms += after_ms
        checkpoint = CheckpointId(len(self.triggered) + 1)
        self.log.triggered(checkpoint, self.now_ms, self.rows)
        self.tracker.began(checkpoint, CheckpointProperties(), self.now_ms)
        self.triggered[checkpoint] = self.now_ms, self.rows, self.estimated

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, channel=st.integers(0, 1), after_ms=_few)
    def receive(self, pick: int, channel: int, after_ms: int) -> None:
        """A barrier reaches the vertex, perhaps after its checkpoint has ended."""
        self.now_ms += after_ms
        checkpoint = self._one(pick)
        self.log.received(_VERTEX, BarrierReceived(ChannelId(_EDGE, channel), Barrier(checkpoint), self.now_ms))
        if checkpoint not in self.ended:
            self.barriers.setdefault(checkpoint, []).append((channel, self.now_ms))

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, way=st.sampled_from(AlignmentType), numbers=st.tuples(_few, _few, _few))
    def take_barrier(self, pick: int, way: AlignmentType, numbers: tuple[int, int, int]) -> None:
        """The vertex passes a barrier, perhaps after the checkpoint has ended."""
        checkpoint = self._one(pick)
        if checkpoint in self.passed:
            return
        trigger = TriggerCheckpoint(Barrier(checkpoint, alignment=way), way is AlignmentType.UNALIGNED, *numbers)
        self.log.passed(_VERTEX, trigger, self.now_ms)
        came = [at_ms for _, at_ms in self.barriers.get(checkpoint, ())]
        delay_ms = min(came) - self.triggered[checkpoint][0] if came else None
        self.passed[checkpoint] = self.now_ms, trigger, self.done, delay_ms
        self.done = []
        if checkpoint not in self.ended:
            self.in_time.add(checkpoint)

    @precondition(lambda self: self.passed)
    @rule(pick=_pick, took_ms=_few, size=_few)
    def overtake(self, pick: int, took_ms: int, size: int) -> None:
        """The last barrier of an unaligned checkpoint comes."""
        self._overtake([*self.passed][pick % len(self.passed)], took_ms, size)

    def _overtake(self, checkpoint: CheckpointId, took_ms: int, size: int) -> None:
        late = InFlightComplete(checkpoint, (), took_ms, size)
        self.log.overtaken(_VERTEX, late)
        if checkpoint not in self.ended:
            self.late[checkpoint] = late

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, index=st.integers(0, 1), of_source=st.booleans(), after_ms=_few)
    def acknowledge(self, pick: int, index: int, of_source: bool, after_ms: int) -> None:
        """A split or a subtask acknowledges a checkpoint."""
        self.now_ms += after_ms
        checkpoint, vertex = self._one(pick), _SOURCE if of_source else _VERTEX
        if not of_source and checkpoint not in self.passed:
            return
        made = self.log.acknowledged(SubtaskId(vertex, index), checkpoint, self.now_ms)
        due = SnapshotMetrics()
        if checkpoint not in self.ended:
            self.answered[checkpoint, vertex] = self.now_ms
            due = self._sent(checkpoint, index) if of_source else _worked(self.passed[checkpoint][2], index)
        expect(made == due, MEASURED, f"{made} of {vertex} {index} at checkpoint {checkpoint}, due is {due}")
        self.tracker.acknowledged(checkpoint, SubtaskId(vertex, index), made)
        self.told[checkpoint, SubtaskId(vertex, index)] = due

    def _sent(self, checkpoint: CheckpointId, split: int) -> SnapshotMetrics:
        sent, self.sent[split] = self.sent[split], []
        self.out.setdefault(checkpoint, []).extend(sent)
        return SnapshotMetrics(checkpointed_bytes=0, rows_out=_sum(sent, 0), bytes_out=_sum(sent, 1))

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, report=st.sampled_from(["{}", "[]"]))
    def judge(self, pick: int, report: str) -> None:
        """A suite gives its verdict."""
        checkpoint = self._one(pick)
        self.log.judged(checkpoint, report)
        if checkpoint not in self.ended:
            self.verdicts.setdefault(checkpoint, []).append(report)

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, passes=st.booleans())
    def forget(self, pick: int, passes: bool) -> None:
        """A checkpoint is aborted. Its barrier may pass the vertex afterwards."""
        checkpoint = self._one(pick)
        self.log.forget(checkpoint)
        self.ended.add(checkpoint)
        if passes:
            self.take_barrier(pick, AlignmentType.ALIGNED, (0, 0, 0))

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, way=st.sampled_from(AlignmentType), numbers=st.tuples(_few, _few, _few), all_answer=st.booleans())
    def complete(self, pick: int, way: AlignmentType, numbers: tuple[int, int, int], all_answer: bool) -> None:
        """A checkpoint passes the vertex, if it has not yet, and completes. Its entry tells what was measured."""
        checkpoint = self._one(pick)
        if checkpoint in self.ended:
            return
        self.take_barrier(pick, way, numbers)
        if way is AlignmentType.UNALIGNED:
            self._overtake(checkpoint, *numbers[1:])
        for index in (0, 1) if all_answer else ():
            self.acknowledge(pick, index, of_source=False, after_ms=index)
            self.acknowledge(pick, index, of_source=True, after_ms=index)
        self._judge_entry(checkpoint)
        self.ended.add(checkpoint)

    def _one(self, pick: int) -> CheckpointId:
        """Return one of the last three checkpoints."""
        last = [*self.triggered][-3:]
        return last[pick % len(last)]

    # -------------------------------------------------------------- judging

    def _judge_entry(self, checkpoint: CheckpointId) -> None:
        made = self.log.ended(checkpoint, self.tracker)
        begun = made.triggered_ms, made.rows, made.rows_estimated
        expect(begun == self.triggered[checkpoint], MEASURED, f"{begun}, due is {self.triggered[checkpoint]}")
        expect([*made.verdicts] == self.verdicts.get(checkpoint, []), MEASURED, f"{made.verdicts} of {checkpoint}")
        found = {each.vertex: each for each in made.vertices}
        due = {vertex for of, vertex in self.answered if of == checkpoint}
        due |= {_VERTEX} if checkpoint in self.in_time else set()
        expect(found.keys() == due, MEASURED, f"{sorted(found)} are measured at {checkpoint}, due are {sorted(due)}")
        for vertex, each in found.items():
            told = [self.told.get((checkpoint, SubtaskId(vertex, index)), SnapshotMetrics()) for index in (0, 1)]
            for name, column in each.subtasks:
                numbers = tuple(getattr(metrics, name) for metrics in told)
                whole = () if numbers == (None, None) else numbers
                expect(column == whole, MEASURED, f"{name} is {column} at {vertex}, the subtasks told {numbers}")
            at_ms = self.answered.get((checkpoint, vertex), 0)
            async_ms = at_ms - each.aligned_ms if at_ms else None
            answered = each.acknowledged_ms, each.async_ms
            expect(answered == (at_ms, async_ms), MEASURED, f"{each}, it answered at {at_ms}")
        if _SOURCE in found:
            out = found[_SOURCE].rows_out, found[_SOURCE].bytes_out
            sent = self.out.get(checkpoint, ())
            expect(out == (_sum(sent, 0), _sum(sent, 1)), MEASURED, f"{out}, the source had sent {sent}")
        if _VERTEX in found:
            self._judge_vertex(checkpoint, found[_VERTEX])

    def _judge_vertex(self, checkpoint: CheckpointId, made: VertexStatistics) -> None:
        at_ms, trigger, done, delay_ms = self.passed[checkpoint]
        late = self.late.get(checkpoint)
        wrote = [each for _, _, outputs, _ in done for each in outputs]
        due = {
            "aligned_ms": at_ms,
            "alignment": trigger.barrier.alignment,
            "alignment_ms": late.alignment_ms if late is not None else trigger.alignment_ms,
            "bytes_processed": late.bytes_processed if late is not None else trigger.bytes_processed,
            "bytes_held": trigger.bytes_held,
            "micro_batches": len(done),
            "rows_in": sum(rows for rows, _, _, _ in done),
            "busy_ms": sum(took_ms for _, took_ms, _, _ in done),
            "rows_out": sum(rows for rows, _, _ in wrote),
            "bytes_out": sum(size for _, size, _ in wrote),
            "start_delay_ms": delay_ms,
        }
        found = {name: getattr(made, name) for name in due}
        expect(found == due, MEASURED, f"{found} at checkpoint {checkpoint}, due is {due}")
        came = [(each.channel, each.at_ms) for each in made.barriers]
        barriers = [(f"{_EDGE}[{channel}]", at_ms) for channel, at_ms in self.barriers.get(checkpoint, ())]
        expect(came == barriers, MEASURED, f"the barriers {came} came at {checkpoint}, due are {barriers}")


def _worked(done: Sequence[_Done], index: int) -> SnapshotMetrics:
    """Return what one subtask has done in these micro-batches."""
    wrote, tasks = [outputs[index] for _, _, outputs, _ in done], [each[index] for _, _, _, each in done]
    return SnapshotMetrics(
        checkpointed_bytes=sum(state for _, _, state in wrote),
        sync_ms=sum(each.sync_ms for each in tasks),
        task_ms=sum(each.task_ms for each in tasks),
        rows_in=sum(each.rows for each in tasks),
        rows_out=sum(rows for rows, _, _ in wrote),
        bytes_out=sum(size for _, size, _ in wrote),
    )


def _sum(sent: Sequence[tuple[int, int]], column: int) -> int:
    return sum(each[column] for each in sent)


# ------------------------------------------------------------------
# Tests traces. A job writes its facts and effects while its files come, stay and go. Each line is read back. Its
# reference is the lines themselves, as `checkpointing.trace` describes them. The machine checks which files a line
# describes in full, and how many numbers a line assigns.


COME_BACK: Final = "traces-come-back"
"""Each line of a trace is read back as the message that was written."""
STAY_SMALL: Final = "traces-stay-small"
"""A line describes a file in full only if no line since the last entry but one has named it.

The trace forgets a list that no line has named for long. Fields with default values are left out."""
REFUSED: Final = "false-traces-refused"
"""If a line is missing, out of place, or no line of a trace, reading fails with the line's number.

A last line that was cut off is ignored."""

_REMEMBERED: Final = 4_096
_MANY: Final = 1_400
_SHORT: Final = 1_000
"""A trace that has assigned fewer numbers keeps all of them at the next entry, even if a list of many files follows."""
SUMS, TOTALS, STATE = VertexId("sums"), TableName("gold/totals"), TableName("_tidemark/numbers/state/sums")
KEPT = TableName("bronze/kept")
_TIMES: Final = (0, 7, 7)
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
        """How many numbers the lines have assigned."""
        self.named: dict[tuple[str, bool], int] = {}
        """Maps a file to the number of entries before the last line that named it.

        The key is the path, and True if the line had the file's key groups."""
        self.old: _Files | None = None
        """A list that no line has named since the last entry but one. The trace must have forgotten this list."""

    # -------------------------------------------------------------- what the job does

    @rule(subtask=st.integers(0, 1), new=st.integers(0, 3), with_state=st.booleans())
    def finish_a_micro_batch(self, subtask: int, new: int, with_state: bool) -> None:
        """A subtask has written files."""
        files = tuple(self._file() for _ in range(new))
        outputs = [SubtaskOutput(), SubtaskOutput()]
        outputs[subtask] = SubtaskOutput(state=files if with_state else (), ranges=(RangeFiles(TOTALS, files),))
        self._write(MicroBatchFinished(SUMS, self.made, tuple(outputs)), files)
        self.state[subtask] = (*self.state[subtask], *files)

    @rule(subtask=st.integers(0, 1), gone=_pick, moved=st.booleans(), copied=st.booleans())
    def change(self, subtask: int, gone: int, moved: bool, copied: bool) -> None:
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
    def publish(self, changed: bool, appends: bool) -> None:
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
    def start(self, retained: int, restored: bool) -> None:
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
            expect(error is None and len(entries) == 2, REFUSED, f"{error} after {entries}")
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
        expect(same, COME_BACK, "" if same else f"{entry} is read of {due}")  # a text of many files is slow to make
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
        """Return an entry that lists the live files as state, as the files of an upsert table, or as both."""
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
        return plain_entry(
            job="numbers",
            checkpoint=CheckpointId(self.checkpoint + 1),
            parent=CheckpointId(self.checkpoint),
            nonce=str(self.checkpoint),
            vertices=(vertex,),
            tables=tables,
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
    """Return the paths of the files that a line describes in full, and for each whether the line has its key groups."""
    full = [part for parts in _lists(line) for part in parts if isinstance(part, dict)]
    return [(str(part.get("file", part)["path"]), "file" in part) for part in full]


def _numbers(line: bytes) -> int:
    """Return how many numbers a line assigns: one to each file of a list, unless the list is one run."""
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
    """Return damaged lines, and what the error must say. None means that the reader ignores the last line."""
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


def test_an_entry_tells_what_was_measured_of_its_epoch():
    """Checkpoints overtake each other and are aborted, and their barriers come late."""
    run_state_machine_as_test(MeasuringMachine, settings=judging.fitting(MeasuringMachine, settings()))


def test_each_line_of_a_trace_comes_back():
    """Files come, stay and go, lines name them by number, and damaged lines are refused."""
    run_state_machine_as_test(TraceMachine, settings=judging.fitting(TraceMachine, settings()))


def test_a_trace_of_a_long_tick_forgets_the_files_that_went_and_no_others():
    """Otherwise the trace would need more and more memory."""
    machine = TraceMachine()
    for subtask in (0, 1):
        machine.finish_a_micro_batch(subtask, 2, with_state=True)
    machine.go_on_for_long()
    machine.run_a_micro_batch()
    machine.come_again()
