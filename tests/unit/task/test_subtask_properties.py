"""A subtask answers barriers, aborts and completions as the table of its module says (C1)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
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

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    CancelMarker,
    ChannelState,
    SourceSlice,
    SubtaskSnapshot,
)
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, SubtaskId, TableName, VertexId
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing, UnseenCheckpointError
from spec.machines import judging
from spec.machines.judging import expect

ANSWERED = "subtask-answers"
"""A subtask answers each call as the table in its module's docstring says."""
REFUSED = "subtask-refuses"
"""A subtask refuses the completion of a checkpoint exactly if no snapshot was requested for it, and stays unchanged."""
STAGED = "staged-until-complete"
"""A staged file is in each snapshot from the next barrier on, until one of those checkpoints is complete."""

FORGOTTEN = 128
"""An id that is lower than an aborted id by more than this is treated as aborted, too."""
TABLE = TableName("bronze/orders")
CHANNEL = ChannelId(EdgeId(VertexId("orders"), VertexId("sink"), 0), 0)

_steps = st.sampled_from([1, 1, 1, 2, 3, 0, -1, FORGOTTEN, FORGOTTEN + 1, FORGOTTEN + 2])
_near = st.sampled_from([0, 0, 0, -1, -2, 1])


@dataclass(slots=True)
class Asked:
    """A snapshot in progress: what was staged and reported when it was requested, and what has come since."""

    staged: tuple[StagedFile, ...]
    finished: bool
    in_flight: tuple[ChannelState, ...] | None
    snapshot: SubtaskSnapshot | None = None


@dataclass(slots=True)
class Reference:
    """What a subtask has been told so far, as the reference records it."""

    last: int
    """The newest id whose barrier was seen or aborted."""
    completed: int
    finished: bool = False
    staged: list[StagedFile] = field(default_factory=list)
    asked: dict[int, Asked] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    """The ids that were reported as aborted before their barrier."""

    def is_aborted(self, checkpoint: int) -> bool:
        """Return whether a checkpoint whose barrier comes now was aborted before."""
        return checkpoint in self.aborted or any(checkpoint + FORGOTTEN < each for each in self.aborted)

    def owed(self) -> list[StagedFile]:
        """Return the files that no complete checkpoint has.

        A file that was staged after barrier m is in checkpoint m + 1.
        """
        return [file for file in self.staged if not self.completed > file.after]


class SubtaskMachine(RuleBasedStateMachine):
    """One subtask, and the reference for it."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        super().__init__()
        self.made = 0
        self.begin(last=0)

    @initialize(last=st.sampled_from([0, 5]))
    def begin(self, last: int) -> None:
        """Begin at the start of a job, or at a cut."""
        self.known = Reference(last, last)
        self.own = SubtaskCheckpointing(SubtaskId(VertexId("sink"), 0), last=CheckpointId(last))

    # -------------------------------------------------------------- a barrier

    @rule(step=_steps, unaligned=st.booleans())
    def request(self, step: int, unaligned: bool) -> None:
        """Ask for a snapshot: mostly of the next checkpoint, sometimes of one that was seen."""
        known, checkpoint = self.known, CheckpointId(max(1, self.known.last + step))
        barrier = Barrier(checkpoint, 7, AlignmentType.UNALIGNED if unaligned else AlignmentType.ALIGNED)
        due: Barrier | CancelMarker | None = None
        if checkpoint > known.last:
            known.last = checkpoint
            due = CancelMarker(checkpoint) if known.is_aborted(checkpoint) else barrier
        if due is barrier:
            known.asked[checkpoint] = Asked(tuple(known.staged), known.finished, None if unaligned else ())
        _answered(f"request {checkpoint}", self.own.request(barrier, unaligned=unaligned), due)

    @rule(near=_near, finished=st.booleans())
    def take(self, near: int, finished: bool) -> None:
        """Let the snapshot be taken."""
        checkpoint, self.made = self._some(near), self.made + 1
        snapshot = SubtaskSnapshot(position=str(self.made), finished=finished)
        due = self._whole(checkpoint, snapshot=snapshot)
        _answered(f"taken {checkpoint}", self.own.taken(checkpoint, snapshot), due)

    @rule(near=_near)
    def store(self, near: int) -> None:
        """Let the rows in flight be stored."""
        checkpoint, self.made = self._some(near), self.made + 1
        slice_ = SourceSlice(VertexId("orders"), SplitId("a"), str(self.made), str(self.made + 1), "", 1, 1)
        channels = (ChannelState(CHANNEL, (slice_,)),)
        due = self._whole(checkpoint, in_flight=channels)
        _answered(f"stored {checkpoint}", self.own.stored(checkpoint, channels), due)

    def _whole(self, checkpoint: CheckpointId, **came: object) -> SubtaskSnapshot | None:
        """Return the snapshot if it is now complete, and otherwise None."""
        asked = self.known.asked.get(checkpoint)
        if asked is None:
            return None
        for name, value in came.items():
            setattr(asked, name, value)
        if asked.snapshot is None or asked.in_flight is None:
            return None
        del self.known.asked[checkpoint]
        owed = tuple(file for file in asked.staged if file in self.known.owed())
        finished = asked.snapshot.finished or asked.finished
        return replace(asked.snapshot, staged=owed, in_flight=asked.in_flight, finished=finished)

    @rule(
        files=st.sampled_from([0, 1, 2]),
        unaligned=st.booleans(),
        stored_first=st.booleans(),
        finished=st.booleans(),
        completes=st.sampled_from([None, None, 0, -1]),
    )
    def go_well(
        self,
        files: int,
        unaligned: bool,
        stored_first: bool,
        finished: bool,
        completes: int | None,
    ) -> None:
        """Let files be staged before and after the barrier. Perhaps a checkpoint completes in between."""
        self.stage(files)
        self.request(1, unaligned)
        self.stage(files)
        if completes is not None:
            self.complete(completes)
        if unaligned and stored_first:
            self.store(0)
        self.take(0, finished)
        if unaligned and not stored_first:
            self.store(0)

    # -------------------------------------------------------------- a checkpoint ends

    @rule(near=_near)
    def fail(self, near: int) -> None:
        """Let the snapshot fail."""
        checkpoint = self._some(near)
        due = self.known.asked.pop(checkpoint, None) is not None
        _answered(f"failed {checkpoint}", self.own.failed(checkpoint), due)

    @rule(near=_near)
    def abort_at_the_gate(self, near: int) -> None:
        """Let the gate abort a checkpoint, perhaps one whose barrier the subtask never saw."""
        checkpoint = self._some(near)
        self.known.asked.pop(checkpoint, None)
        self.known.last = max(self.known.last, checkpoint)
        self.own.abort_at_gate(checkpoint)

    @rule(step=_steps, completed=st.sampled_from([0, 0, -1, -2, 1]))
    def abort(self, step: int, completed: int) -> None:
        """Tell that a checkpoint is aborted, perhaps before its barrier, and which one was completed last."""
        known, checkpoint = self.known, CheckpointId(max(1, self.known.last + step))
        latest = CheckpointId(max(0, known.last + completed)) if completed else CheckpointId(known.completed)
        if self._is_refused(latest, lambda: self.own.abort(checkpoint, latest)):
            return
        known.completed = max(known.completed, latest)
        if checkpoint > known.last:
            known.aborted.append(checkpoint)
        known.asked.pop(checkpoint, None)

    @rule(near=_near)
    def complete(self, near: int) -> None:
        """Tell that a checkpoint is complete. Nobody can complete one for which the subtask was never asked."""
        checkpoint = CheckpointId(max(1, self.known.last + near))
        if not self._is_refused(checkpoint, lambda: self.own.complete(checkpoint)):
            self.known.completed = max(self.known.completed, checkpoint)

    # -------------------------------------------------------------- work

    @rule(count=st.integers(1, 2))
    def stage(self, count: int) -> None:
        """Let a micro-batch stage files after the newest barrier."""
        files = []
        for _ in range(count):
            self.made += 1
            files.append(StagedFile(TABLE, FileHandle(f"{TABLE}/{self.made}", 1, 1, 1), CheckpointId(self.known.last)))
        self.known.staged += files
        self.own.stage(tuple(files))

    @precondition(lambda self: self.made > 3)
    @rule()
    def finish(self) -> None:
        """Let the subtask process its last input."""
        self.known.finished = True
        self.own.finish()

    @invariant()
    def what_no_complete_checkpoint_holds_is_kept(self) -> None:
        """The subtask keeps exactly the staged files that the next snapshots owe, and knows what it takes."""
        expect(list(self.own.staged) == self.known.owed(), STAGED, f"{self.own.staged}, due {self.known.owed()}")
        takes = [each for each in range(1, self.known.last + 3) if self.own.takes(CheckpointId(each))]
        expect(takes == sorted(self.known.asked), ANSWERED, f"takes {takes}, asked for {sorted(self.known.asked)}")

    # -------------------------------------------------------------- judging

    def _some(self, near: int) -> CheckpointId:
        """Return a checkpoint: mostly one whose snapshot is in progress."""
        newest = max(self.known.asked, default=self.known.last)
        return CheckpointId(max(1, newest + near))

    def _is_refused(self, complete: CheckpointId, tell: Callable[[], None]) -> bool:
        """Pass on a completion. It must be refused exactly if its checkpoint was never seen. Return whether it was."""
        try:
            tell()
        except UnseenCheckpointError as error:
            expect(complete > self.known.last, REFUSED, f"{complete} was seen: {error}")
            return True
        expect(complete <= self.known.last, REFUSED, f"{complete} was told complete after {self.known.last}")
        return False


def _answered(what: str, answer: object, due: object) -> None:
    expect(answer == due, ANSWERED, f"{what}: {answer}, due is {due}")


def test_a_subtask_answers_as_its_table_says():
    """The ids of requests may be old, or far ahead."""
    run_state_machine_as_test(SubtaskMachine, settings=judging.fitting(SubtaskMachine, settings()))


@pytest.mark.parametrize(("passed", "answer"), [(0, Barrier), (150, CancelMarker)])
def test_of_too_many_aborted_checkpoints_the_one_told_first_is_forgotten(passed, answer):
    """Checkpoints that the gate has passed no longer count."""
    own = SubtaskCheckpointing(SubtaskId(VertexId("sink"), 0))
    for checkpoint in (200, *range(1, FORGOTTEN)):
        own.abort(checkpoint, 0)
    own.abort_at_gate(passed)
    own.abort(201, 0)
    assert isinstance(own.request(Barrier(200, 7, AlignmentType.ALIGNED)), answer)
