"""Tests one vertex at work: which rows each micro-batch takes, when its snapshot is due, and which files are dead.

Its reference keeps the numbers of the segments that wait, and the paths of the files that a subtask has.
"""

from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from checkpointing.channel_items import Barrier, RangeFiles, StagedSegment, SubtaskSnapshot
from checkpointing.gate import GateConfig, GatePolicy, InputGate
from checkpointing.gate.messages import TriggerCheckpoint
from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.job.operator_run import InputEnd, LiveFiles, OperatorRun
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from spec.machines.judging import expect

ROWS: Final = "rows-run-once"
"""Each row that the gate lets through runs in one micro-batch, in order. Only the last micro-batch learns that the data
has ended. A snapshot is taken after the last micro-batch before its barrier."""
FILES: Final = "dead-files-go"
"""A file is dead once no subtask has it and no snapshot has named it. A snapshot names the files that a subtask has."""

_UPSERT: Final = TableName("gold/sums")
_LEFT, _RIGHT = (ChannelId(EdgeId(VertexId(name), VertexId("sums"), place), 0) for place, name in enumerate("lr"))
_VERSION: Final = Version(Generation(3), 1)
_output = st.fixed_dictionaries(
    {
        "state": st.lists(st.sampled_from([KeyedFileKind.DELTA, KeyedFileKind.BASE]), max_size=2),
        "ranges": st.sampled_from([None, None, "new", "kept"]),
    }
)
_outputs = st.lists(_output, min_size=2, max_size=2)


class RunsMachine(RuleBasedStateMachine):
    """One vertex with two inputs and two subtasks."""

    def __init__(self) -> None:
        """Begin without rows."""
        super().__init__()
        self.numbers = count(1)
        self.begin(VertexKind.KEYED)

    @initialize(kind=st.sampled_from([VertexKind.KEYED, VertexKind.KEYED, VertexKind.STATELESS]))
    def begin(self, kind: VertexKind) -> None:
        """Draw whether the vertex keeps state."""
        gate = InputGate(GateConfig(GatePolicy.ALIGNED_BLOCKING), (_LEFT, _RIGHT))
        vertex = Vertex(VertexId("sums"), kind, 2, tables=(Table(_UPSERT, TableMode.UPSERT),))
        self.run = OperatorRun(vertex, gate, Generation(3), [LiveFiles(), LiveFiles()])
        self.waiting: list[tuple[ChannelId, int]] = []
        self.taken: list[tuple[ChannelId, int]] = []
        self.ended: set[ChannelId] = set()
        self.is_over = self.is_busy = self.must_wait = False
        self.barrier = 0
        self.due: int | None = None
        self.ran = 0
        self.state: list[list[str]] = [[], []]
        self.ranges: list[list[str]] = [[], []]
        self.named: set[str] = set()

    @property
    def all_ended(self) -> bool:
        """Whether no more rows come, and the last micro-batch is still to run."""
        return len(self.ended) == len({_LEFT, _RIGHT}) and not self.is_over

    @rule(
        rows=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=5),
        ends=st.lists(st.booleans(), max_size=2),
        turns=st.lists(st.tuples(st.integers(1, 6), _outputs, st.integers(0, 3)), max_size=3),
        triggers=st.booleans(),
    )
    def work(
        self,
        rows: list[tuple[bool, int]],
        ends: list[bool],
        turns: list[tuple[int, list[dict[str, object]], int]],
        triggers: bool,  # noqa: FBT001 - drawn
    ) -> None:
        """Rows come, channels end, a barrier comes, and the vertex runs some micro-batches. Some cannot be staged."""
        for one in rows:
            self._collect(*one)
        for left in ends[: len(rows) // 2]:
            self._end(left)
        if triggers and self.due is None:
            self._trigger()
        for rows_max, outputs, luck in turns:
            if not self.must_wait and self._start(rows_max):
                self._is_as_it_says()
                if luck:
                    self._finish(outputs)
                else:
                    self._fail_to_stage()
            self._is_as_it_says()
        if self.run.snapshot_due is not None:
            self._take_snapshot()

    # -------------------------------------------------------------- rows and barriers

    def _collect(self, left: bool, rows: int) -> None:  # noqa: FBT001 - drawn
        """The gate lets a segment through."""
        channel = _LEFT if left else _RIGHT
        if channel not in self.ended and self.due is None:
            number = next(self.numbers)
            self.waiting.append((channel, number))
            file = FileHandle(f"rows-{number}", rows, 1, 1)
            self.run.collect(channel, StagedSegment((file,)), number)

    def _end(self, left: bool) -> None:  # noqa: FBT001 - drawn
        """No more rows come on a channel."""
        channel = _LEFT if left else _RIGHT
        if channel not in self.ended and self.due is None:
            self.ended.add(channel)
            self.run.data_ended(channel)

    def _trigger(self) -> None:
        """The gate triggers a checkpoint."""
        self.barrier += 1
        self.due, self.must_wait = self.barrier, False
        self.run.triggered(TriggerCheckpoint(Barrier(CheckpointId(self.barrier))))

    def _take_snapshot(self) -> None:
        """The vertex takes its snapshot."""
        expect(self.due is not None, ROWS, "a snapshot is due, and no barrier has come")
        snapshots = self.run.take_snapshot(CheckpointId(self.barrier))
        for own, snapshot in enumerate(snapshots):
            expect(self._paths(snapshot) == (self.state[own], self.ranges[own]), FILES, f"{snapshot} of subtask {own}")
        passed = self.run.passed
        expect(passed == self.barrier and len(snapshots) == len(self.state), ROWS, f"{passed} is the last barrier")
        self.named |= {path for files in (*self.state, *self.ranges) for path in files}
        self.due = None

    # -------------------------------------------------------------- micro-batches

    def _start(self, rows_max: int) -> bool:
        """Run what waits, or the last micro-batch without rows. Return whether there was anything to run."""
        if not self.waiting and not self.all_ended:
            return False
        rows = [segment.rows for _, segment in self.run.collected]
        many = next((place + 1 for place in range(len(rows)) if sum(rows[: place + 1]) >= rows_max), len(rows))
        self.taken, self.waiting = self.waiting[:many], self.waiting[many:]
        command = self.run.start(rows_max)
        self.ran += 1
        self.is_busy = True
        self._judge(command)
        return True

    def _judge(self, command: RunMicroBatch) -> None:
        found = [
            (
                channel.input,
                [file.path for each in channel.segments if isinstance(each, StagedSegment) for file in each.files],
            )
            for channel in command.inputs
        ]
        due = [
            (channel.edge.input, [f"rows-{number}" for of, number in self.taken if of == channel])
            for channel in (_LEFT, _RIGHT)
            if any(of == channel for of, _ in self.taken)
        ]
        expect(found == due, ROWS, f"{found} run, due are {due}")
        is_last = self.all_ended and not self.waiting
        expect(command.end_of_input is is_last, ROWS, f"it is told that it is the last: {not is_last}")
        said = command.vertex, command.micro_batch, command.generation
        expect(said == ("sums", self.ran, 3), ROWS, f"{said} is micro-batch {self.ran}")
        files = [
            ([keyed.file.path for keyed in state], [keyed.file.path for each in ranges for keyed in each.files])
            for state, ranges in zip(command.state, command.ranges, strict=True)
        ]
        expect(files == [*zip(self.state, self.ranges, strict=True)], FILES, f"{files} are given to the subtasks")

    def _finish(self, outputs: list[dict[str, object]]) -> None:
        """The micro-batch is done. The door hands the end of the data on after the last one."""
        before = {path for files in (*self.state, *self.ranges) for path in files}
        made = tuple(self._written(own, drawn) for own, drawn in enumerate(outputs))
        dead = self.run.finish(MicroBatchFinished(VertexId("sums"), self.ran, made))
        there = {path for files in (*self.state, *self.ranges) for path in files}
        due = before - there - self.named
        expect({*dead} == due and len(dead) == len(due), FILES, f"{dead} are dead, due are {due}")
        self.is_busy = False
        if self.all_ended and not self.waiting:
            self.is_over = True
            self.run.input_end = InputEnd.HANDED_ON

    def _fail_to_stage(self) -> None:
        """The files of the micro-batch could not be written. Its rows wait for the next barrier."""
        aborted = self.run.not_staged()
        expect(aborted == self.due, ROWS, f"{aborted} is aborted, {self.due} waits")
        self.waiting, self.due = [*self.taken, *self.waiting], None
        self.is_busy, self.must_wait = False, True

    def _written(self, own: int, drawn: dict[str, object]) -> SubtaskOutput:
        """Return what a subtask writes, and note what it has from now on."""
        state = tuple(self._keyed(kind) for kind in drawn["state"])  # type: ignore[attr-defined]
        for keyed in state:
            kept = [] if keyed.kind is KeyedFileKind.BASE else self.state[own]
            self.state[own] = [*kept, keyed.file.path]
        if drawn["ranges"] is None:
            return SubtaskOutput(state=state)
        new = self._keyed(KeyedFileKind.BASE)
        now = self.run.live[own].of(_UPSERT) if drawn["ranges"] == "kept" else ()
        self.ranges[own] = [*(keyed.file.path for keyed in now), new.file.path]
        return SubtaskOutput(state=state, ranges=(RangeFiles(_UPSERT, (*now, new)),))

    def _keyed(self, kind: KeyedFileKind) -> KeyedFile:
        return KeyedFile(FileHandle(f"file-{next(self.numbers)}", 1, 1, 1), kind, 0, 7, _VERSION)

    # -------------------------------------------------------------- at any time

    def _is_as_it_says(self) -> None:
        """Judge what the door reads of the vertex."""
        owes = bool(self.waiting) or self.all_ended
        due = None if owes or self.is_busy else self.due
        found = self.run.snapshot_due.barrier.checkpoint if self.run.snapshot_due is not None else None
        expect(found == due, ROWS, f"the snapshot of {found} is due, and not of {due}")
        expect(self.run.has_input is owes, ROWS, f"it has input: {not owes}")
        works = owes or self.is_busy or self.due is not None
        expect(self.run.at_work is works, ROWS, f"it is at work: {not works}")
        idle = self.all_ended and not self.is_busy and not self.waiting
        ends = idle and self.run.vertex.kind is VertexKind.STATELESS
        expect(self.run.ends_without_work is ends, ROWS, f"it ends without work: {not ends}")
        expect(self.run.waits_for_barrier is self.must_wait, ROWS, f"it waits for a barrier: {not self.must_wait}")
        running = [number for _, number in self.taken] if self.is_busy else []
        held = [file.path for _, each in self.run.running if isinstance(each, StagedSegment) for file in each.files]
        expect(held == [f"rows-{number}" for number in running], ROWS, f"{held} are running, and not {running}")

    @staticmethod
    def _paths(snapshot: SubtaskSnapshot) -> tuple[list[str], list[str]]:
        ranges = [keyed.file.path for each in snapshot.ranges for keyed in each.files]
        return [keyed.file.path for keyed in snapshot.state], ranges
