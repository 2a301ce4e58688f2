"""The machine of publications into a target with transactions: ticks die, wake up late, and lose replies.

The target is as Kafka is. It knows which process took it over last, and refuses the others. A commit makes the rows
visible at once. The number beside them follows later, unless somebody waits for it. A transaction that stays open too
long is aborted, and its process is shut out.

The job publishes one checkpoint after the other. While one is due, several processes may publish it. A process that
goes on after the checkpoint is published is a zombie.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpointing.channel_items import ChannelState, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.commit.outside_transaction import (
    Publishing,
    ReadNewest,
    TakeOverTarget,
    TargetAnswer,
    TargetDone,
    TargetHas,
    TargetLost,
    TargetRefused,
    TargetStep,
    WriteInTransaction,
    published_once,
)
from checkpointing.commit.recovery import completion, has_finished
from checkpointing.graph import Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, EdgeId, Generation, SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, Statistics, VertexRecord
from spec.machines.judging import expect

OUTSIDE_ONCE: Final = "outside-once"
"""A target with transactions shows each checkpoint once and in order, and each one that a process has published.

If the rows are changes, they are those since the checkpoint that readers see.
"""
UNDISTURBED: Final = "outside-undisturbed"
"""A process whose checkpoint is in the target already, as it has read, shuts nobody out."""
PROCESSES_MAX: Final = 3


class ShutOutError(Exception):
    """Another process has taken the target over, or the transaction took too long."""


@dataclass(slots=True)
class Target:
    """A topic and a number: readers see only what is committed."""

    shown: list[CheckpointId] = field(default_factory=list)
    """The checkpoints whose rows readers see, in order."""
    number: CheckpointId = NO_CHECKPOINT
    coming: CheckpointId = NO_CHECKPOINT
    """The number of the last commit. It replaces `number` when the commit has reached it."""
    owner: int = 0
    sent: CheckpointId | None = None
    """The rows in the open transaction."""
    since: CheckpointId = NO_CHECKPOINT
    """The checkpoint since which these rows are changes."""

    def read(self, *, settled: bool) -> CheckpointId:
        """Return the number, perhaps after the commits that are on their way."""
        if settled:
            self.settle()
        return self.number

    def settle(self) -> None:
        """Let the last commit reach the number."""
        self.number = self.coming

    def take_over(self) -> int:
        """Abort the open transaction, and return the name that the target accepts from now on."""
        self.owner, self.sent = self.owner + 1, None
        return self.owner

    def send(self, owner: int, checkpoint: CheckpointId, since: CheckpointId) -> None:
        """Put rows and number into a transaction."""
        self._must_be(owner)
        self.sent, self.since = checkpoint, since

    def commit(self, owner: int) -> None:
        """Show the rows. The number follows."""
        self._must_be(owner)
        if self.sent is None:
            raise ShutOutError
        self.settle()
        before = self.shown[-1] if self.shown else NO_CHECKPOINT
        expect(self.since == before, OUTSIDE_ONCE, f"changes since {self.since} follow checkpoint {before}")
        self.shown.append(self.sent)
        self.coming, self.sent = self.sent, None

    def _must_be(self, owner: int) -> None:
        if owner != self.owner:
            raise ShutOutError


class Process:
    """A process that publishes one checkpoint. `at` is the step that it does next."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        """Begin before the first step."""
        self.checkpoint = checkpoint
        self.steps: Publishing = published_once(checkpoint)
        self.at: TargetStep | None = next(self.steps)
        self.failed: TargetLost | TargetRefused | None = None
        self.owner = 0
        self.has_sent = False
        self.has_read: CheckpointId | None = None

    def hear(self, answer: TargetAnswer) -> None:
        """Go on to the next step, or end."""
        self.has_sent = False
        if isinstance(answer, TargetHas):
            self.has_read = answer.checkpoint
        try:
            self.at = self.steps.send(answer)
        except StopIteration as end:
            self.at, self.failed = None, end.value


class OutsideTransactionMachine(RuleBasedStateMachine):
    """One target, the checkpoint that is due, and the processes that publish."""

    def __init__(self) -> None:
        """Begin with the first checkpoint."""
        super().__init__()
        self.target = Target()
        self.due = CheckpointId(1)
        self.processes: list[Process] = []

    @precondition(lambda self: len(self.processes) < PROCESSES_MAX)
    @rule()
    def start(self) -> None:
        """A process begins to publish the checkpoint that is due."""
        self.processes.append(Process(self.due))

    @precondition(lambda self: self.processes)
    @rule(pick=st.integers(0, 9), steps=st.integers(1, 5))
    def go_on(self, pick: int, steps: int) -> None:
        """A process does some steps, and nothing is lost."""
        process = self._picked(pick)
        for _ in range(steps):
            if process.at is not None:
                self._step(process, process.hear)

    @precondition(lambda self: self.processes)
    @rule(pick=st.integers(0, 9), arrives=st.booleans())
    def lose(self, pick: int, arrives: bool) -> None:  # noqa: FBT001 - drawn
        """A request or its reply is lost."""
        process = self._picked(pick)
        if arrives:
            self._step(process, lambda _: process.hear(TargetLost("no reply")))
        else:
            process.hear(TargetLost("no reply"))
        self._bury()

    @precondition(lambda self: self.processes)
    @rule(pick=st.integers(0, 9))
    def refuse(self, pick: int) -> None:
        """The target refuses a step for good, such as a row that is too large."""
        self._picked(pick).hear(TargetRefused("too large"))
        self._bury()

    @precondition(lambda self: self.processes)
    @rule(pick=st.integers(0, 9))
    def die(self, pick: int) -> None:
        """A process dies, perhaps in the middle of its transaction."""
        self.processes.remove(self._picked(pick))

    @rule()
    def settle(self) -> None:
        """The last commit reaches the number."""
        self.target.settle()

    @precondition(lambda self: self.target.sent is not None)
    @rule()
    def time_out(self) -> None:
        """The target ends a transaction that was open for too long."""
        self.target.take_over()

    @invariant()
    def judge(self) -> None:
        """Each checkpoint is shown once, in order."""
        due = [CheckpointId(each + 1) for each in range(len(self.target.shown))]
        expect(self.target.shown == due, OUTSIDE_ONCE, f"{self.target.shown} are shown")

    def _picked(self, pick: int) -> Process:
        return self.processes[pick % len(self.processes)]

    def _step(self, process: Process, hear: Callable[[TargetAnswer], None]) -> None:
        try:
            answer = self._done(process)
        except ShutOutError:
            answer = TargetLost("another process took over")
        if answer is not None:
            hear(answer)
        self._bury()

    def _done(self, process: Process) -> TargetAnswer | None:
        """Do a step, or the first half of it. Return the answer, if there is one."""
        match process.at:
            case ReadNewest(settled):
                return TargetHas(self.target.read(settled=settled))
            case TakeOverTarget():
                has = process.has_read
                expect(has is not None and has < process.checkpoint, UNDISTURBED, f"{has} of {process.checkpoint}")
                process.owner = self.target.take_over()
                return TargetDone()
            case WriteInTransaction() if process.has_sent:
                self.target.commit(process.owner)
                return TargetDone()
            case WriteInTransaction(since):
                self.target.send(process.owner, process.checkpoint, since)
                process.has_sent = True
            case None:
                pass
        return None

    def _bury(self) -> None:
        """Forget the processes that have ended. A success makes the next checkpoint due."""
        for process in [each for each in self.processes if each.at is None]:
            self.processes.remove(process)
            if process.failed is None:
                shown = self.target.shown
                expect(process.checkpoint in shown, OUTSIDE_ONCE, f"{process.checkpoint} is published: {shown}")
                self.due = max(self.due, CheckpointId(process.checkpoint + 1))


# ------------------------------------------------------------------
# Tests what a cut tells: the position before which all rows of a split are in, and whether rows are left (B4, F1).
#
# Its cuts hold slices in flight in any combination. Some combinations only come from a reset of a source. Such slices
# have a gap between them, or begin in different places and end in the same place.


TOLD: Final = "told-positions"
"""The notification of a cut tells for each split the position before which all its rows are in. This position is
where the slices in flight begin. It is left out if the slices do not lead from there to the cut's position."""
FINISHED: Final = "nothing-is-left"
"""A pipeline has no row left to read after a cut if the cut has finished, all its sources have an end, and the cut has
a split of each source and of each of its parts."""

_SOURCES: Final = (VertexId("numbers"), VertexId("others"))
_SPLITS: Final = ("first-a", "second-b")
_Slice = tuple[int, int, int, int]
"""Source, split, start and end."""
_At = dict[tuple[int, int], int | None]
"""The position of each split. The key is (source, split)."""
_place = st.integers(0, 1)
_slices = st.lists(
    st.one_of(
        st.tuples(_place, _place, st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just(0), st.just(0), st.integers(0, 2), st.integers(1, 3)),
    ),
    max_size=4,
)


class NotifyingMachine(RuleBasedStateMachine):
    """Draws one cut after the other. A cut has two sources and two vertices that read them."""

    @rule(
        slices=_slices, positions=st.lists(st.sampled_from([None, 0, 1, 2, 3, 3]), min_size=4, max_size=4), twice=_place
    )
    def complete(self, slices: list[_Slice], positions: list[int | None], twice: int) -> None:
        """A checkpoint completes. Both readers may hold the same slices."""
        held = [each for each in slices if each[2] < each[3]]
        at = dict(zip(product((0, 1), (0, 1)), positions, strict=True))
        told = completion(_record(at, [held, held[:twice]]))
        due = []
        for (source, split), position in at.items():
            own = {(start, end) for of, part, start, end in held if (of, part) == (source, split)}
            before = _before(position, own)
            if before is not None:
                due.append((_SOURCES[source], SplitId(_SPLITS[split]), str(before)))
        expect(told.checkpoint == 1, TOLD, f"{told} of checkpoint 1")
        expect(told.positions == tuple(due), TOLD, f"{told.positions} of {at} with {held}, due are {due}")

    @rule(
        ended=st.lists(st.sampled_from([True, True, True, False]), min_size=5, max_size=5),
        flying=st.sampled_from([False, False, True]),
        sources=st.lists(
            st.tuples(
                st.sampled_from(["numbers", "numbers", "others", "new"]),
                st.sampled_from([None, "numbers", "others", "gone"]),
                st.sampled_from([True, True, False]),
                st.sampled_from([(), ("first",), ("first", "second"), ("first", "second", "third")]),
            ),
            max_size=2,
        ),
        is_there=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        *,
        ended: list[bool],
        flying: bool,
        sources: list[tuple[str, str | None, bool, tuple[str, ...]]],
        is_there: bool,
    ) -> None:
        """A pipeline begins at a cut, and perhaps has nothing to do."""
        vertices = [
            Vertex(
                VertexId(name),
                VertexKind.SOURCE,
                1,
                renamed_from=VertexId(was) if was is not None else None,
                bounded=bounded,
                parts=parts,
            )
            for name, was, bounded, parts in sources
        ]
        at: _At = dict.fromkeys(product((0, 1), (0, 1)), 3)
        cut = _record(at, [[(0, 0, 1, 3)]] if flying else [[]], ended) if is_there else None
        due = is_there and all(ended) and not flying
        for name, was, bounded, parts in sources:
            known = name in _SOURCES or was in _SOURCES
            due = due and bounded and known and "third" not in parts
        made = has_finished(cut, vertices)
        expect(made == due, FINISHED, f"{made} of {sources} after {ended}, flying: {flying}")


def _before(position: int | None, slices: set[tuple[int, int]]) -> int | None:
    """Return where the missing rows begin, or None if the slices, in any order, do not lead to the position."""
    if not slices:
        return position
    for order in permutations(slices):
        ends = [end for _, end in order]
        starts = [start for start, _ in order]
        if ends[-1] == position and ends[:-1] == starts[1:]:
            return starts[0]
    return None


def _record(at: _At, held: list[list[_Slice]], ended: list[bool] | None = None) -> CheckpointRecord:
    """Return a cut with the splits of both sources at these positions, and these slices held by the readers."""
    ends = ended or [False] * 5
    sources = [
        VertexRecord(
            vertex=name,
            micro_batch=1,
            subtasks=tuple(
                SubtaskSnapshot(position=_text(at[place, split]), finished=ends[2 * place + split]) for split in (0, 1)
            ),
            splits=_SPLITS,
        )
        for place, name in enumerate(_SOURCES)
    ]
    readers = [
        VertexRecord(
            vertex=VertexId(f"reader-{place}"),
            micro_batch=1,
            subtasks=(SubtaskSnapshot(in_flight=_in_flight(own), finished=ends[4]),),
        )
        for place, own in enumerate(held)
    ]
    return CheckpointRecord(
        job="small",
        checkpoint=CheckpointId(1),
        parent=CheckpointId(0),
        generation=Generation(1),
        nonce="n",
        max_parallelism=8,
        vertices=(*sources, *readers),
        tables=(),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


def _in_flight(held: list[_Slice]) -> tuple[ChannelState, ...]:
    """Return slices as a reader's channels hold them, one channel for each source. Files lie between them."""
    files = StagedSegment((FileHandle("a", 1, 1, 1),))
    channels = []
    for place, name in enumerate(_SOURCES):
        own = [
            SourceSlice(name, SplitId(_SPLITS[split]), str(start), str(end), "", 1, 1)
            for source, split, start, end in held
            if source == place
        ]
        if own:
            channels.append(ChannelState(ChannelId(EdgeId(name, VertexId("reader")), 0), (files, *own)))
    return tuple(channels)


def _text(position: int | None) -> str | None:
    return None if position is None else str(position)
