"""The machine of the whole job on the simulator's stores, for each policy of the gates.

It adds rules for which two ticks must share the stores: a coordinator takes over and dies, a savepoint is disposed of.
"""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from checkpointing.gate import GatePolicy
from spec.machines.job import JobMachine
from spec.machines.resetting import ResettingMachine
from spec.pipeline import HOOKS

_pick = st.integers(0, 30)


class InMemoryJobMachine(JobMachine):
    """One warehouse in memory. Another coordinator may overtake a tick, and savepoints may be disposed of."""

    policy: ClassVar[GatePolicy] = GatePolicy.ALIGNED_BLOCKING

    @precondition(lambda self: self.driven.door is not None and self.driven.end is None)
    @rule(really=st.sampled_from([False, False, True]))
    def overtake(self, really: bool) -> None:  # noqa: FBT001
        """Let another coordinator claim the job, recover and die, rarely. The tick goes on and does not know."""
        if really:
            self.driven.overtake()
        self._judge()

    @precondition(lambda self: self.driven.end is not None and self.driven.disposable())
    @rule(pick=_pick, parallelism=st.integers(1, 3))
    def dispose(self, pick: int, parallelism: int) -> None:
        """Dispose of a savepoint, and begin the next tick."""
        there = self.driven.disposable()
        self.driven.dispose(there[pick % len(there)])
        self._start(parallelism)


class BufferingJobMachine(InMemoryJobMachine):
    """Aligned. What comes behind a barrier is put aside, up to a limit."""

    policy = GatePolicy.ALIGNED_BUFFERING


class CountingJobMachine(InMemoryJobMachine):
    """At least once."""

    policy = GatePolicy.AT_LEAST_ONCE


class UnalignedJobMachine(InMemoryJobMachine):
    """Unaligned from the first barrier on."""

    policy = GatePolicy.UNALIGNED


class AlternatingJobMachine(InMemoryJobMachine):
    """Aligned, until the alignment takes too long."""

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


class HookedJobMachine(InMemoryJobMachine):
    """Aligned, with master hooks that answer in any order, fail, or are late."""

    hooks = HOOKS


class ResettingJobMachine(ResettingMachine, InMemoryJobMachine):
    """Aligned, with resets between the ticks."""


class UnalignedResettingJobMachine(ResettingMachine, UnalignedJobMachine):
    """Unaligned. A reset may move a source with rows in flight."""


RESETTING_MACHINES = (ResettingJobMachine, UnalignedResettingJobMachine)
