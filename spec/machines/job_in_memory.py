"""The machine of the whole job over the simulator's stores, for each policy of the gates.

Besides the rules of `job` there is what needs stores that two ticks may share at will: a coordinator that is
believed dead and goes on, one that takes over and dies, a savepoint that is disposed of.
"""

from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from checkpointing.gate import GatePolicy
from checkpointing.identifiers import SplitId
from spec.machines.job import SPLITS, STEPS_MAX, JobMachine
from spec.machines.judging import is_unwinding

if TYPE_CHECKING:
    from spec.explore_job import DrivenJob

_pick = st.integers(0, 30)


class InMemoryJobMachine(JobMachine):
    """One warehouse in memory; a tick, perhaps a zombie beside it, and what dead ticks had asked for."""

    policy: ClassVar[GatePolicy] = GatePolicy.ALIGNED_BLOCKING

    def __init__(self) -> None:
        """Begin without a zombie."""
        self.zombies: list[DrivenJob] = []
        super().__init__()

    @precondition(lambda self: self.driven.door is not None and self.driven.end is None)
    @rule(really=st.sampled_from([False, False, True]))
    def overtake(self, really: bool) -> None:  # noqa: FBT001
        """Another coordinator claims the job, recovers and dies, seldom; the tick goes on and does not know."""
        if really:
            self.driven.overtake()
        self._judge()

    @precondition(lambda self: self.driven.outstanding and not self.zombies)
    @rule(parallelism=st.integers(1, 3), split=st.sampled_from(SPLITS))
    def be_believed_dead(self, parallelism: int, split: SplitId) -> None:
        """The next tick takes over, and this one goes on all the same."""
        self.zombies.append(self.driven.abandoned())
        self._start(parallelism, split)

    @precondition(lambda self: self.zombies)
    @rule(picks=st.lists(_pick, min_size=1, max_size=20))
    def go_on_as_a_zombie(self, picks: list[int]) -> None:
        """Effects of a tick that was fenced out are carried out, and its door hears of it."""
        zombie = self.zombies[0]
        zombie.fire()
        for pick in picks:
            if zombie.outstanding:
                zombie.answer(pick % len(zombie.outstanding))
        if zombie.end is not None:
            self.zombies.remove(zombie)
        self._judge()

    @precondition(lambda self: self.driven.end is not None and self.driven.disposable())
    @rule(pick=_pick, parallelism=st.integers(1, 3))
    def dispose(self, pick: int, parallelism: int) -> None:
        """A savepoint is disposed of, and the next tick begins."""
        there = self.driven.disposable()
        self.driven.dispose(there[pick % len(there)])
        self._start(parallelism)

    def teardown(self) -> None:
        """The last tick catches up; zombies go on until nothing is left of them, and change nothing."""
        if is_unwinding():
            return
        super().teardown()
        for zombie in self.zombies:
            for _ in range(STEPS_MAX):
                if zombie.end is not None or not (zombie.outstanding or zombie.wake_at_ms()):
                    break
                if zombie.outstanding:
                    zombie.answer(0)
                else:
                    zombie.fire()
        self._judge()


class BufferingJobMachine(InMemoryJobMachine):
    """Aligned, and what comes behind a barrier is put aside up to a limit."""

    policy = GatePolicy.ALIGNED_BUFFERING


class CountingJobMachine(InMemoryJobMachine):
    """At least once."""

    policy = GatePolicy.AT_LEAST_ONCE


class UnalignedJobMachine(InMemoryJobMachine):
    """Unaligned from the first barrier on."""

    policy = GatePolicy.UNALIGNED


class AlternatingJobMachine(InMemoryJobMachine):
    """Aligned until it takes too long."""

    policy = GatePolicy.ALTERNATING


JOB_MACHINES: dict[GatePolicy, type[InMemoryJobMachine]] = {
    machine.policy: machine
    for machine in (
        InMemoryJobMachine,
        BufferingJobMachine,
        CountingJobMachine,
        UnalignedJobMachine,
        AlternatingJobMachine,
    )
}
