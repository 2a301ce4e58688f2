"""A vertex runs each row once, and splits are polled while their epoch has room (A10, A11, B4)."""

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from checkpointing.channel_items import Barrier, RangeFiles, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.gate import GateConfig, GatePolicy, InputGate
from checkpointing.gate.messages import TriggerCheckpoint
from checkpointing.graph import Table, TableMode, Vertex, VertexKind
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
from checkpointing.job.operator_run import InputEnd, LiveFiles, OperatorRun
from checkpointing.job.polling import (
    CutGroups,
    Pacing,
    SourceReaders,
    SplitKey,
    UnknownSplitError,
)
from checkpointing.messages import MicroBatchFinished, PollSource, RunMicroBatch, SubtaskOutput
from spec.machines import judging
from spec.machines.judging import expect

ROWS: Final = "rows-run-once"
"""Each row that the gate lets through runs in one micro-batch, in order.

Only the last micro-batch gets the end of data. A snapshot is taken after the last micro-batch before its barrier."""
FILES: Final = "dead-files-go"
"""A file is dead when no subtask has it and no snapshot has named it. A snapshot names the files that a subtask has."""

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
        triggers: bool,
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

    def _collect(self, left: bool, rows: int) -> None:
        """The gate lets a segment through."""
        channel = _LEFT if left else _RIGHT
        if channel not in self.ended and self.due is None:
            number = next(self.numbers)
            self.waiting.append((channel, number))
            file = FileHandle(f"rows-{number}", rows, 1, 1)
            self.run.collect(channel, StagedSegment((file,)), number)

    def _end(self, left: bool) -> None:
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
        snapshots = self.run.take_snapshot(Barrier(CheckpointId(self.barrier)))
        for own, snapshot in enumerate(snapshots):
            expect(self._paths(snapshot) == (self.state[own], self.ranges[own]), FILES, f"{snapshot} of subtask {own}")
        passed = self.run.passed
        expect(passed == self.barrier and len(snapshots) == len(self.state), ROWS, f"{passed} is the last barrier")
        self.named |= {path for files in (*self.state, *self.ranges) for path in files}
        self.due = None

    # -------------------------------------------------------------- micro-batches

    def _start(self, rows_max: int) -> bool:
        """Run the waiting rows, or the last micro-batch without rows. Return whether there was anything to run."""
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
        """The micro-batch is done. After the last micro-batch, the door sends the end of data on."""
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
        """Return what a subtask writes, and record the files that it has from now on."""
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
        """Judge the vertex's properties that the door reads."""
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


# ------------------------------------------------------------------
# Tests which splits are asked, and for how many rows: caps, credit, pauses, failures, parts and ends (A11, B4). The
# reference keeps what each split has sent, and the results of its last polls. Cuts of other jobs are the subject of the
# next machine.


ASKED: Final = "splits-are-asked"
"""A split is polled if it has credit, its pause is over, and its epoch has room for rows.

Splits under the same limit share the room. Each split is asked for its share, but for no more rows than a slice may
have. Together these splits never exceed the room. A source that has reached its own cap takes no share.
"""
KNOWN: Final = "splits-are-known"
"""The readers keep what each split reported last: its position, its rows, its failures, and whether it is idle or has
ended."""

_IDLE_MS: Final = 100
_ORDERS, _PAYMENTS = VertexId("orders"), VertexId("payments")
_NAMES: Final = {_ORDERS: ("a1", "a2", "b1"), _PAYMENTS: ("p1",)}
_maybe = st.sampled_from([None, None, 2, 5])
_KINDS: Final = (
    "rows",
    "rows",
    "rows",
    "idle",
    "idle",
    "end",
    "end",
    "fail",
    "fail",
    "barrier",
    "time",
    "credit",
    "late",
    "sooner",
)
_event = st.tuples(
    st.sampled_from(_KINDS),
    st.integers(0, 9),
    st.integers(1, 6),
)


@dataclass
class _Split:
    """What the reference knows about one split."""

    source: VertexId
    name: SplitId
    index: int
    position: str | None = None
    asked: int = 0
    idle: bool = False
    ended: bool = False
    failures: int = 0
    until_ms: int = 0
    has_credit: bool = True


class SplitsMachine(RuleBasedStateMachine):
    """A source of three splits, in one part or in two, and a source of one split."""

    def __init__(self) -> None:
        """Begin without limits."""
        super().__init__()
        self.begin(5, None, {}, frozenset(), 0, parted=False, bounded=False, restored=set())

    @initialize(
        slice_max=st.integers(1, 6),
        every=_maybe,
        caps=st.fixed_dictionaries({}, optional={_ORDERS: st.integers(1, 6), _PAYMENTS: st.integers(1, 4)}),
        counted=st.sampled_from([frozenset(), frozenset({_ORDERS})]),
        failures_max=st.integers(0, 2),
        parted=st.booleans(),
        bounded=st.booleans(),
        restored=st.sets(st.sampled_from(["a1", "a2", "p1"]), max_size=2),
    )
    def begin(
        self,
        slice_max: int,
        every: int | None,
        caps: dict[VertexId, int],
        counted: frozenset[VertexId],
        failures_max: int,
        *,
        parted: bool,
        bounded: bool,
        restored: set[str],
    ) -> None:
        """Begin a tick. The splits in `restored` had ended before, if they have an end."""
        self.slice_max, self.every, self.caps, self.counted = slice_max, every, caps, counted or {*_NAMES}
        self.failures_max, self.parted, self.bounded = failures_max, parted, bounded
        self.now_ms = 0
        self.sent = dict.fromkeys(_NAMES, 0)
        self.before = 0
        self.stopped = self.after_stop = self.barrier_asked = False
        self.splits = [
            _Split(source, SplitId(name), index) for source, names in _NAMES.items() for index, name in enumerate(names)
        ]
        for split in self.splits:
            split.ended = split.idle = split.name in restored and (bounded or (parted and split.name[0] == "a"))
        sources = tuple(
            Vertex(
                source,
                VertexKind.SOURCE,
                len(names),
                splits=tuple(map(SplitId, names)),
                bounded=bounded,
                parts=("a", "b") if parted and source == _ORDERS else (),
            )
            for source, names in _NAMES.items()
        )
        positions = {SubtaskId(split.source, split.index): None for split in self.splits}
        ended = {SubtaskId(split.source, split.index) for split in self.splits if split.ended}
        pacing = Pacing(slice_max, every, counted, caps, _IDLE_MS, failures_max)
        self.readers = SourceReaders(sources, positions, pacing, ended)

    # -------------------------------------------------------------- the job

    @rule(events=st.lists(_event, max_size=8), stops=st.sampled_from([None, None, None, "tick", "barrier"]))
    def read(self, events: list[tuple[str, int, int]], stops: str | None) -> None:
        """Splits are asked and answer, barriers are sent, and at the end the tick may stop reading."""
        for kind, pick, number in events:
            self._ask()
            self._happens(kind, pick, number)
            self._judge()
        if stops == "tick":
            self.stopped = self.readers.stopped = True
        elif stops == "barrier":
            self._send_barrier(last=True)
        self._ask()
        self._judge()

    @rule(first=st.sampled_from([*_NAMES]), rows=st.integers(1, 3))
    def read_beyond_a_barrier(self, first: VertexId, rows: int) -> None:
        """One source sends rows before and after a barrier, while the other one reads. Then that other one sends."""
        for source in (first, None, first, *(other for other in _NAMES if other != first)):
            self._ask()
            if source is None:
                self._send_barrier(last=False)
            for split in self.splits:
                if split.source == source and split.asked:
                    self._sends(split, min(rows, split.asked))
            self._judge()
        self._ask()
        self._judge()

    def _happens(self, kind: str, pick: int, number: int) -> None:
        asked = [split for split in self.splits if split.asked]
        split = asked[pick % len(asked)] if asked else None
        any_split = self.splits[pick % len(self.splits)]
        match kind:
            case "time":
                self.now_ms += number * _IDLE_MS // 4
            case "credit":
                any_split.has_credit = not any_split.has_credit
            case "barrier":
                self._send_barrier(last=False)
            case "sooner" if any_split.idle and not any_split.ended and not any_split.asked:
                any_split.until_ms = self.now_ms + number
                self.readers.ask_sooner(any_split.source, any_split.name, any_split.until_ms)
            case "late" if not any_split.asked:
                self._answers_unasked(any_split)
            case "rows" if split is not None:
                self._sends(split, min(number, split.asked))
            case "idle" if split is not None:
                self.readers.found_idle(split.source, split.name, self.now_ms)
                split.asked, split.idle, split.failures, split.until_ms = 0, True, 0, self.now_ms + _IDLE_MS
            case "end" if split is not None and (self.bounded or (self.parted and split.name[0] == "a")):
                subtask = self.readers.found_ended(split.source, split.name)
                expect(subtask == SubtaskId(split.source, split.index), KNOWN, f"{subtask} ends with {split.name}")
                split.asked, split.idle, split.ended, split.failures = 0, True, True, 0
            case "fail" if split is not None:
                split.asked, split.idle, split.until_ms = 0, False, self.now_ms + _IDLE_MS
                split.failures += 1
                too_often = self.readers.failed(split.source, split.name, self.now_ms)
                expect(too_often is (split.failures > self.failures_max), KNOWN, f"{split} has failed too often")
            case _:
                """No split was asked."""

    def _sends(self, split: _Split, rows: int) -> None:
        position = f"{split.name}@{rows}"
        sender = self.readers.offered(SourceSlice(split.source, split.name, "0", position, "{}", rows, rows))
        split.asked = 0
        due = None if self.after_stop else SubtaskId(split.source, split.index)
        expect(sender == due, KNOWN, f"{sender} sends the rows of {split.name}, due is {due}")
        if due is not None:
            self.sent[split.source] += rows
            split.position, split.idle, split.failures, split.until_ms = position, False, 0, 0

    def _answers_unasked(self, split: _Split) -> None:
        try:
            self.readers.found_idle(split.source, split.name, self.now_ms)
        except UnknownSplitError:
            return
        expect(holds=False, invariant=KNOWN, what=f"{split.name} was not asked, and answers")

    def _send_barrier(self, *, last: bool) -> None:
        self.readers.barrier_sent(last=last)
        self.before += sum(self.sent.values())
        self.sent = dict.fromkeys(_NAMES, 0)
        self.barrier_asked = False
        self.after_stop |= last
        self.stopped |= last

    # -------------------------------------------------------------- judging

    def _ask(self) -> None:
        """Let the job poll. Judge which splits it polls, and for how many rows."""
        able = [split for split in self.splits if self._may_be_asked(split)]
        polls = {(poll.source, poll.split): poll for poll in self.readers.polls(self.now_ms, self._has_credit)}
        fit = polls.keys() & {(split.source, split.name) for split in able}
        expect(fit == polls.keys(), ASKED, f"{sorted(polls.keys() - fit)} are asked, and may not be")
        by_key = {(split.source, split.name): split for split in able}
        for key, poll in polls.items():
            self._is_asked(by_key[key], poll)
        for split in able:
            expect(
                split.asked > 0 or self._room_of(split.source) <= 0, ASKED, f"{split} is not asked, and there is room"
            )
        for source in _NAMES:
            expect(self._room_of(source) >= 0, ASKED, f"{source} may send more than its epoch has room for")

    def _is_asked(self, split: _Split, poll: PollSource) -> None:
        room = self._room_of(split.source)
        able = [other for other in self.splits if self._may_be_asked(other) and self._room_of(other.source) > 0]
        sharers = sum(self._shares(split, other) for other in able)
        expect(sharers > 0, ASKED, f"{poll}, and there is no room")
        due = min(self.slice_max, -(-room // sharers))
        expect(0 < poll.max_rows == due, ASKED, f"{poll}, there is room for {room}, which {sharers} share")
        expect(poll.position == split.position, KNOWN, f"{poll} begins elsewhere than {split.position}")
        split.asked = poll.max_rows

    def _may_be_asked(self, split: _Split) -> bool:
        over = self.stopped or self.after_stop or split.ended or self._is_held(split)
        return not over and not split.asked and self.now_ms >= split.until_ms and split.has_credit

    def _has_credit(self, subtask: SubtaskId) -> bool:
        return next(each.has_credit for each in self.splits if (each.source, each.index) == subtask)

    def _is_held(self, split: _Split) -> bool:
        earlier = [each for each in self.splits if each.source == split.source and each.name[0] < split.name[0]]
        return self.parted and any(not each.ended for each in earlier)

    def _room_of(self, source: VertexId) -> int:
        """Return how many more rows a source may be asked for in this epoch."""

        def used(of: set[VertexId] | frozenset[VertexId]) -> int:
            return sum(self.sent[each] for each in of) + sum(each.asked for each in self.splits if each.source in of)

        own = self.caps.get(source, 1_000) - used({source})
        return own if self.every is None or source not in self.counted else min(own, self.every - used({*self.counted}))

    def _shares(self, one: _Split, other: _Split) -> bool:
        both = self.every is not None and one.source in self.counted and other.source in self.counted
        return one.source == other.source or both

    def _judge(self) -> None:
        """Judge what the readers report about the splits."""
        of_epoch = sum(self.sent.values())
        counted = sum(self.sent[each] for each in self.counted)
        waiting = [split for split in self.splits if not split.idle and not self._is_held(split)]
        later = [
            split.until_ms
            for split in self.splits
            if split.until_ms > self.now_ms and not split.asked
            if not (self.stopped or split.ended or self._is_held(split))
        ]
        due: dict[str, Any] = {
            "rows": of_epoch,
            "rows_sent": self.before + of_epoch,
            "polling": any(split.asked and not split.idle for split in self.splits),
            "all_idle": all(split.idle or split.failures or self._is_held(split) for split in self.splits),
            "all_ended": self.bounded and all(split.ended for split in self.splits),
            "failing": any(split.failures for split in self.splits),
            "quota_spent": any(self._room_of(split.source) <= 0 for split in waiting),
            "barrier_due": self.every is not None and counted >= self.every and not self.barrier_asked,
        }
        found = {name: getattr(self.readers, name) for name in due}
        expect(found == due, KNOWN, f"{found}, due are {due}")
        next_ms = self.readers.next_poll_ms(self.now_ms)
        expect(next_ms == min(later, default=None), KNOWN, f"the next poll is at {next_ms}, not at {later}")
        for split in self.splits:
            position = self.readers.position(SubtaskId(split.source, split.index))
            expect(position == split.position, KNOWN, f"{split.name} stands at {position}, not at {split.position}")
        for source in _NAMES:
            reads = any(split.asked for split in self.splits if split.source == source)
            expect(self.readers.is_polling(source) is reads, KNOWN, f"{source} is polled: {not reads}")
        if due["barrier_due"]:
            self.readers.barrier_asked()
            self.barrier_asked = True


# ------------------------------------------------------------------
# The machine of splits that read cuts of other jobs. Splits are restored at any position and answer in any order, with
# barriers in between.
#
# Its reference notes for each split the newest cut that it has reached. A group is *even* if all its splits have
# reached the same cut, or none has reached any. A barrier may be sent only while every group is even (A10).


EVEN_AT_BARRIERS = "even-at-barriers"
"""A barrier is held back exactly while the splits of some group stand at different cuts."""
ONE_CUT_AT_A_TIME = "one-cut-at-a-time"
"""A group reads up to one cut, which its first split finds. Only splits that have not reached this cut read on."""
CUTS_ANNOUNCED = "cuts-announced"
"""A barrier is requested exactly while all splits of some group have reached a cut and no barrier has followed."""
SHOP, BANK, OTHER = VertexId("shop"), VertexId("bank"), VertexId("numbers")
GROUPS = {SHOP: "upstream", BANK: "elsewhere"}
SPLITS: dict[str, tuple[SplitKey, ...]] = {
    "upstream": tuple((SHOP, SplitId(name)) for name in ("a", "b", "c")),
    "elsewhere": ((BANK, SplitId("d")),),
}
FREE: SplitKey = (OTHER, SplitId("e"))
_KNOWN = {split: name for name, splits in SPLITS.items() for split in splits}
_pick = st.integers(0, 20)


class CutGroupsMachine(RuleBasedStateMachine):
    """Three tables of one upstream job, one of another job, and a split of another kind."""

    def __init__(self) -> None:
        """Begin before the first cut."""
        super().__init__()
        self.restore([False, False, False, False])

    @initialize(read=st.lists(st.booleans(), min_size=4, max_size=4))
    def restore(self, read: list[bool]) -> None:
        """Begin at a cut. Splits that were added since then have not been read."""
        splits = (*_KNOWN, FREE)
        self.at: dict[SplitKey, int | None] = {
            split: 0 if was_read else None for split, was_read in zip(_KNOWN, read, strict=True)
        }
        positions = {split: None if self.at.get(split) is None else "0" for split in splits}
        self.groups = CutGroups(GROUPS, positions)
        self.newest = dict.fromkeys(SPLITS, 1)
        self.target: dict[str, int | None] = dict.fromkeys(SPLITS)
        self.polled: dict[SplitKey, str | None] = {}

    # -------------------------------------------------------------- what happens

    @rule(name=st.sampled_from(sorted(SPLITS)))
    def publish(self, name: str) -> None:
        """An upstream job publishes another cut."""
        self.newest[name] += 1

    @rule(pick=_pick)
    def poll(self, pick: int) -> None:
        """Ask a split that may be asked. While a group seeks a cut, one split at a time is asked."""
        free = [split for split in _KNOWN if split not in self.polled and not self._has_arrived(split)]
        for split in free[pick % (len(free) or 1) :][:1]:
            name = _KNOWN[split]
            others = any(other in self.polled for other in SPLITS[name])
            seeks = self.groups.seeks(split, iter(self.polled))
            due = self.target[name] is None and others
            expect(seeks == due, ONE_CUT_AT_A_TIME, f"{split} waits for another one: {seeks}")
            if not seeks:
                self.polled[split] = self.groups.cut_for(split)

    @precondition(lambda self: self.polled)
    @rule(pick=_pick, reaches=st.sampled_from([True, True, False]))
    def answer(self, pick: int, reaches: bool) -> None:
        """A split brings rows, perhaps up to the cut."""
        split = [*self.polled][pick % len(self.polled)]
        name, asked = _KNOWN[split], self.polled.pop(split)
        begins = self.target[name] is None
        cut = self.newest[name] if asked is None else int(asked)
        if begins and self.at[split] == cut:
            return  # it is idle
        slice_ = SourceSlice(*split, str(self.at[split] or 0), str(cut), "", 1, 1, cut=str(cut), at_cut=reaches)
        others = self.groups.offered(split, slice_)
        self.target[name] = cut
        if reaches:
            self.at[split] = cut
        due = frozenset(SPLITS[name]) - {split} if begins else frozenset()
        expect(others == due, ONE_CUT_AT_A_TIME, f"{sorted(others)} read on, due are {sorted(due)}")

    @precondition(lambda self: not self.groups.hold_barrier)
    @rule()
    def send_barrier(self) -> None:
        """A checkpoint's barrier follows all rows."""
        self.groups.barrier_sent()
        self.target = dict.fromkeys(SPLITS)

    # -------------------------------------------------------------- the reference

    def _has_arrived(self, split: SplitKey) -> bool:
        target = self.target[_KNOWN[split]]
        return target is not None and self.at[split] == target

    def _is_even(self, name: str) -> bool:
        """Return whether all splits are at one cut. A split that has sent rows beyond its cut is at no cut."""
        target, splits = self.target[name], SPLITS[name]
        if target is not None:
            return all(self.at[split] == target for split in splits)
        return len({self.at[split] is None for split in splits}) == 1

    @invariant()
    def barriers_wait_for_uneven_groups(self) -> None:
        """Compare the groups with the reference."""
        uneven = [name for name in SPLITS if not self._is_even(name)]
        held = self.groups.hold_barrier
        expect(held == bool(uneven), EVEN_AT_BARRIERS, f"held: {held}, uneven are {uneven}: {self.at}, {self.target}")
        full = [name for name in SPLITS if self.target[name] is not None and self._is_even(name)]
        due = self.groups.barrier_due
        expect(due == bool(full), CUTS_ANNOUNCED, f"asked for: {due}, at a cut are {full}")

    @invariant()
    def splits_read_up_to_one_cut(self) -> None:
        """Compare what is said of each split with the reference."""
        for split, name in _KNOWN.items():
            target = self.target[name]
            waits, arrived = self.groups.waits_at_cut(split), self._has_arrived(split)
            expect(waits == arrived, ONE_CUT_AT_A_TIME, f"{split} waits: {waits}, at {self.at[split]} of {target}")
            said = self.groups.cut_for(split)
            expect(said == (None if target is None else str(target)), ONE_CUT_AT_A_TIME, f"{split} reads up to {said}")
            behind = self.groups.is_behind(split)
            due = not self._is_even(name) and not arrived
            expect(behind == due, EVEN_AT_BARRIERS, f"a barrier waits for {split}: {behind}")
        alone = self.groups.is_behind(FREE) or self.groups.waits_at_cut(FREE) or self.groups.cut_for(FREE)
        expect(not alone, ONE_CUT_AT_A_TIME, f"{FREE} reads no cuts")


# ------------------------------------------------------------------
# The machine of the splits' turns. Sources have few rows in an epoch, and splits answer, are idle, fail and end. The
# reference expects no order. A split is *ready* if it is not being read, has not ended, has waited long enough, and has
# credit. In each turn, every ready split is polled while its limits leave rows, and no limit is exceeded. A split is
# *passed over* in a turn if it is ready, all its limits leave rows when the turn begins, and it gets none because other
# splits use them up. Turns in which its limits leave no rows do not count, however many an epoch has.


TAKES_TURNS = "takes-turns"
"""Before a split is polled again, it is passed over in fewer turns than there are splits, in one epoch or in many."""
POLLS_ALL = "polls-all"
"""In each turn, every ready split is polled until a limit is used up. No other split is polled."""
LIMITS_HOLD = "limits-hold"
"""In an epoch, the rows that were sent and the rows that are being read stay within each limit."""
SOURCES = tuple(
    Vertex(VertexId(name), VertexKind.SOURCE, splits, splits=tuple(SplitId(str(each)) for each in range(splits)))
    for name, splits in (("left", 2), ("right", 2))
)
IDLE_MS = 20
_SplitOfReading = tuple[VertexId, SplitId]
SPLITS_OF_READING: tuple[_SplitOfReading, ...] = tuple(
    (source.id, split) for source in SOURCES for split in source.splits
)
_limits = st.sampled_from([None, 1, 1, 2, 3, 7])


class ReadersMachine(RuleBasedStateMachine):
    """Two sources of two splits each, the rows that were asked for, and the rows that were sent."""

    def __init__(self) -> None:
        """Begin without limits: `configure` draws them."""
        super().__init__()
        self.configure(None, None, 10, counts_all=True)

    @initialize(every=_limits, cap=_limits, slice_rows_max=st.sampled_from([1, 2, 10]), counts_all=st.booleans())
    def configure(self, every: int | None, cap: int | None, slice_rows_max: int, counts_all: bool) -> None:
        """Begin an epoch with limits for both sources together, or for one of them."""
        left, right = (source.id for source in SOURCES)
        counted = frozenset({left, right}) if counts_all else frozenset({left})
        caps = {} if cap is None else {right: cap}
        self.limits: list[tuple[frozenset[VertexId], int]] = [
            (frozenset({source}), rows) for source, rows in caps.items()
        ]
        self.limits += [] if every is None else [(counted, every)]
        self.slice_rows_max = slice_rows_max
        pacing = Pacing(slice_rows_max, every, counted, caps, IDLE_MS, failures_max=100)
        self.readers = SourceReaders(SOURCES, {}, pacing)
        self.now_ms = 0
        self.asked: dict[_SplitOfReading, PollSource] = {}
        self.waits_until: dict[_SplitOfReading, int] = {}
        self.ended: set[_SplitOfReading] = set()
        self.at: Counter[_SplitOfReading] = Counter()
        self.sent: Counter[VertexId] = Counter()
        self.passed_over: Counter[_SplitOfReading] = Counter()

    # -------------------------------------------------------------- turns

    @rule(without_credit=st.lists(st.sampled_from(SPLITS_OF_READING), max_size=2))
    def take_a_turn(self, without_credit: list[_SplitOfReading]) -> None:
        """Ask whom to poll, while some splits have no credit."""
        blocked = {SubtaskId(source, int(split)) for source, split in without_credit}
        ready = {split for split in SPLITS_OF_READING if self._is_ready(split) and split not in without_credit}
        asked: set[_SplitOfReading] = set()
        spent = [self._used(sources) >= rows for sources, rows in self.limits]
        for poll in self.readers.polls(self.now_ms, lambda subtask: subtask not in blocked):
            split = (poll.source, poll.split)
            expect(split in ready - asked, POLLS_ALL, f"{split} is polled, ready are {ready - asked}")
            expect(0 < poll.max_rows <= self.slice_rows_max, LIMITS_HOLD, f"{poll} of {self.slice_rows_max} rows")
            expect(int(poll.position or 0) == self.at[split], POLLS_ALL, f"{poll}, the split is at {self.at[split]}")
            asked.add(split)
            self.asked[split] = poll
        self._judge(ready - asked, asked, spent)

    @rule(epochs=st.integers(1, 6), turns=st.integers(1, 4), barriers=st.booleans())
    def read_on(self, epochs: int, turns: int, barriers: bool) -> None:
        """Take turns in which each split brings a row at once. An epoch perhaps ends behind so many of them."""
        for _ in range(epochs):
            for _ in range(turns):
                self.take_a_turn([])
                while self.asked:
                    self.answer(0, 0)
            if barriers:
                self.send_barrier()

    def _is_ready(self, split: _SplitOfReading) -> bool:
        return split not in self.asked and split not in self.ended and self.now_ms >= self.waits_until.get(split, 0)

    def _judge(self, passed: set[_SplitOfReading], asked: set[_SplitOfReading], spent: list[bool]) -> None:
        for sources, rows in self.limits:
            expect(self._used(sources) <= rows, LIMITS_HOLD, f"{self._used(sources)} rows of {sources}, {rows} may")
        for split in asked:
            self.passed_over[split] = 0
        for split in passed:
            self.passed_over[split] += not any(spent[limit] for limit in self._limiting(split))
            turns = self.passed_over[split]
            expect(
                turns < len(SPLITS_OF_READING),
                TAKES_TURNS,
                f"{split} was passed over in {turns} turns, {asked} were asked",
            )
        for split in passed:
            full = any(self._used(sources) >= rows for sources, rows in self.limits if split[0] in sources)
            expect(full, POLLS_ALL, f"{split} is ready and has rows left, asked are {asked}")

    def _limiting(self, split: _SplitOfReading) -> frozenset[int]:
        return frozenset(place for place, (sources, _) in enumerate(self.limits) if split[0] in sources)

    def _used(self, sources: frozenset[VertexId]) -> int:
        asked = sum(poll.max_rows for (source, _), poll in self.asked.items() if source in sources)
        return asked + sum(self.sent[source] for source in sources)

    # -------------------------------------------------------------- answers

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, fewer=st.integers(0, 3))
    def answer(self, pick: int, fewer: int) -> None:
        """A split sends rows, perhaps fewer than it may."""
        split, poll = self._answering(pick)
        rows, at = max(1, poll.max_rows - fewer), self.at[split]
        self.at[split] += rows
        self.sent[poll.source] += rows
        self.waits_until.pop(split, None)
        self.readers.offered(SourceSlice(poll.source, poll.split, str(at), str(at + rows), "{}", rows, rows))

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, fails=st.booleans())
    def answer_nothing(self, pick: int, fails: bool) -> None:
        """A split has no rows now, or cannot be read."""
        split, poll = self._answering(pick)
        self.waits_until[split] = self.now_ms + IDLE_MS
        (self.readers.failed if fails else self.readers.found_idle)(poll.source, poll.split, self.now_ms)

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, really=st.sampled_from([False, False, True]))
    def end(self, pick: int, really: bool) -> None:
        """A split ends, seldom."""
        if really:
            split, poll = self._answering(pick)
            self.ended.add(split)
            self.readers.found_ended(poll.source, poll.split)

    def _answering(self, pick: int) -> tuple[_SplitOfReading, PollSource]:
        split = [*self.asked][pick % len(self.asked)]
        return split, self.asked.pop(split)

    @rule()
    def send_barrier(self) -> None:
        """Begin the next epoch. What is being read belongs to it."""
        self.readers.barrier_sent()
        self.sent.clear()

    @rule(ms=st.sampled_from([1, IDLE_MS - 1, IDLE_MS]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms


def test_each_row_runs_once_and_only_dead_files_go():
    """Rows, ends and barriers come in any order, and some micro-batches cannot be staged."""
    run_state_machine_as_test(RunsMachine, settings=judging.fitting(RunsMachine, settings()))


def test_splits_are_asked_as_their_epoch_has_room():
    """Splits send rows, are idle, fail and end. Credit, caps and parts hold them back."""
    run_state_machine_as_test(SplitsMachine, settings=judging.fitting(SplitsMachine, settings()))


def test_barriers_find_all_splits_at_one_cut():
    """Splits are restored at any position, find cuts, and reach these in any order."""
    run_state_machine_as_test(CutGroupsMachine, settings=judging.fitting(CutGroupsMachine, settings()))


def test_splits_take_turns_within_their_limits():
    """Splits answer, are idle, fail and end, with and without credit, in small epochs."""
    run_state_machine_as_test(ReadersMachine, settings=judging.fitting(ReadersMachine, settings()))
