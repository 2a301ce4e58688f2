"""A target with transactions gets each checkpoint once (F2)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

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
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.machines import judging
from spec.machines.judging import expect

OUTSIDE_ONCE: Final = "outside-once"
"""A target with transactions shows each checkpoint at most once, in order, and every published checkpoint.

If the rows are changes, they are the changes since the checkpoint that readers see.
"""
UNDISTURBED: Final = "outside-undisturbed"
"""A process that has read in the target that its checkpoint is already there shuts no other process out."""
PROCESSES_MAX: Final = 3


class ShutOutError(Exception):
    """Another process has taken the target over, or the transaction took too long."""


@dataclass(slots=True)
class Target:
    """A topic, and the number of a checkpoint. Readers see only committed rows."""

    shown: list[CheckpointId] = field(default_factory=list)
    """The checkpoints whose rows readers see, in order."""
    number: CheckpointId = NO_CHECKPOINT
    coming: CheckpointId = NO_CHECKPOINT
    """The number of the last commit. This replaces `number` when the target has processed the commit."""
    owner: int = 0
    sent: CheckpointId | None = None
    """The rows in the open transaction."""
    since: CheckpointId = NO_CHECKPOINT
    """The checkpoint since which these rows are changes."""

    def read(self, *, settled: bool) -> CheckpointId:
        """Return the number. If `settled`, the last commit arrives first."""
        if settled:
            self.settle()
        return self.number

    def settle(self) -> None:
        """Replace the number by the number of the last commit."""
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
        """Show the rows of the open transaction. The number follows later."""
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
    """A process that publishes one checkpoint. `at` is the next step."""

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
        """Continue with the next step, or end."""
        self.has_sent = False
        if isinstance(answer, TargetHas):
            self.has_read = answer.checkpoint
        try:
            self.at = self.steps.send(answer)
        except StopIteration as end:
            self.at, self.failed = None, end.value


class OutsideMachine(RuleBasedStateMachine):
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
    def lose(self, pick: int, arrives: bool) -> None:
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
        """Remove the processes that have ended. A success makes the next checkpoint due."""
        for process in [each for each in self.processes if each.at is None]:
            self.processes.remove(process)
            if process.failed is None:
                shown = self.target.shown
                expect(process.checkpoint in shown, OUTSIDE_ONCE, f"{process.checkpoint} is published: {shown}")
                self.due = max(self.due, CheckpointId(process.checkpoint + 1))


def test_a_target_with_transactions_gets_each_checkpoint_once():
    """Processes publish the same checkpoint, die, wake up late, and lose requests and replies."""
    run_state_machine_as_test(OutsideMachine, settings=judging.fitting(OutsideMachine, settings()))
