"""Tests what is measured of each epoch on its way through a job (C7, E6).

The reference keeps everything that happened, in order. A vertex's work in an epoch is all of its micro-batches between
its last two barriers, also if the checkpoint of the first one has ended.
"""

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from checkpointing.channel_items import AlignmentType, Barrier, RangeFiles, SourceSlice, TaskWork
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    SplitId,
    SubtaskId,
    TableName,
    VertexId,
)
from checkpointing.job.drafts import EpochLog
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import VertexStatistics
from spec.machines.judging import expect

MEASURED: Final = "epochs-are-measured"
"""An entry tells of each vertex what it did since its last barrier, when its barriers came, and when it answered."""

_SOURCE, _VERTEX = VertexId("orders"), VertexId("totals")
_TABLE: Final = TableName("gold/totals")
_EDGE: Final = EdgeId(_SOURCE, _VERTEX)
_MINE: Final = Generation(2)
_pick = st.integers(0, 20)
_few = st.integers(0, 3)
_tasks = st.lists(st.builds(TaskWork, task_ms=_few, sync_ms=_few, rows=_few), min_size=2, max_size=2)
_Done = tuple[int, int, list[tuple[int, int, int]], list[TaskWork]]
"""A micro-batch: its rows, its time, what each subtask wrote (rows, bytes, bytes of state), and its tasks' work."""


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
        """What each split has sent since its last answer: rows and bytes."""
        self.rows, self.estimated = 0, 0
        self.done: list[_Done] = []
        """The micro-batches since the vertex's last barrier."""
        self.triggered: dict[CheckpointId, tuple[int, int, int]] = {}
        """When each checkpoint was triggered, how many rows had been sent, and how many of them are estimates."""
        self.ended: set[CheckpointId] = set()
        self.barriers: dict[CheckpointId, list[tuple[int, int]]] = {}
        """The channel and time of each barrier."""
        self.passed: dict[CheckpointId, tuple[int, TriggerCheckpoint, list[_Done], int | None]] = {}
        """Maps a checkpoint to the time at which the vertex passed its barrier, how it passed, the micro-batches since
        the barrier before, and how long after the trigger the first barrier came."""
        self.in_time: set[CheckpointId] = set()
        """The checkpoints that had not ended when the vertex passed their barriers."""
        self.late: dict[CheckpointId, InFlightComplete] = {}
        self.answered: dict[tuple[CheckpointId, VertexId], int] = {}
        """Maps a checkpoint and a vertex to the time of the vertex's last acknowledgement."""
        self.out: dict[CheckpointId, list[tuple[int, int]]] = {}
        """What the source's splits had sent: rows and bytes."""
        self.verdicts: dict[CheckpointId, list[str]] = {}
        self.told: dict[tuple[CheckpointId, SubtaskId], SnapshotMetrics] = {}
        """What each acknowledgement measured."""

    # -------------------------------------------------------------- work

    @rule(split=st.integers(0, 1), rows=_few, estimated=st.booleans())
    def send(self, split: int, rows: int, estimated: bool) -> None:  # noqa: FBT001
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
        upserts: bool,  # noqa: FBT001
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
        self.tracker.began(checkpoint, CheckpointProperties(), self.now_ms, 0)
        self.triggered[checkpoint] = self.now_ms, self.rows, self.estimated

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, channel=st.integers(0, 1), after_ms=_few)
    def receive(self, pick: int, channel: int, after_ms: int) -> None:
        """A barrier reaches the vertex, perhaps after its checkpoint has ended."""
        self.now_ms += after_ms
        checkpoint = self._one(pick)
        self.log.received(_VERTEX, BarrierReceived(ChannelId(_EDGE, channel), checkpoint, self.now_ms))
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
    def acknowledge(self, pick: int, index: int, of_source: bool, after_ms: int) -> None:  # noqa: FBT001
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
    def forget(self, pick: int, passes: bool) -> None:  # noqa: FBT001
        """A checkpoint is aborted. Its barrier may pass the vertex afterwards."""
        checkpoint = self._one(pick)
        self.log.forget(checkpoint)
        self.ended.add(checkpoint)
        if passes:
            self.take_barrier(pick, AlignmentType.ALIGNED, (0, 0, 0))

    @precondition(lambda self: self.triggered)
    @rule(pick=_pick, way=st.sampled_from(AlignmentType), numbers=st.tuples(_few, _few, _few), all_answer=st.booleans())
    def complete(self, pick: int, way: AlignmentType, numbers: tuple[int, int, int], all_answer: bool) -> None:  # noqa: FBT001
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
