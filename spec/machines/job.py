"""The machine of the whole job: the real door, with Hypothesis choosing what comes next.

In the simulator, random times decide the order. Here any outstanding effect may be carried out next, and any timer may
fire at any moment. A shrunk failure is a short list of choices. The same invariants judge this machine, the simulator
and real runs.
"""

from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.config import UNLIMITED, CheckpointConfig, CheckpointingMode
from checkpointing.gate import GatePolicy
from checkpointing.graph import Hook
from checkpointing.identifiers import SplitId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    Effect,
    JudgeSuites,
    PollSource,
    PublishTable,
    RecordCut,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    StopKind,
    StopRequested,
    TickOutcome,
)
from spec.history import CALLS
from spec.machines.judging import BrokenRuleError, expect, is_unwinding
from spec.reference.pipeline import HOOKS, MAX_PARALLELISM, graph
from spec.reference.pipeline import SPLITS as SOURCES
from spec.rules.invariants import violations
from spec.world.faults import NONE, Faults
from spec.world.visits import to_row
from spec.world.whole_job import TELLING, DrivenJob, SmallJob

SPLITS = (SplitId("a"), SplitId("b"), SplitId("c"))
ROWS_MAX = 12
REQUESTS_MAX = 6
STEPS_MAX = 3_000
LONGEST_MS = 600_000
_pick = st.integers(0, 30)
_parallelism = st.integers(1, 3)
_seldom = st.sampled_from([False, False, True])
"""Rules that end a tick act rarely, because no second checkpoint would fit into a tick of three or four steps."""
_split = st.sampled_from(SPLITS)
_ALL = {"micro_batch_fails": 1.0, "poll_fails": 1.0, "suite_fails": 1.0, "table_problem": 1.0, "publish_fails": 1.0}
_ALL |= {"hook_fails": 1.0, "hook_restore_fails": 1.0}
_OF_POLICY = {
    GatePolicy.ALTERNATING: {"alignment_timeout_ms": 50},
    GatePolicy.ALIGNED_BUFFERING: {"max_alignment_bytes": 60},
}
_KINDS: tuple[tuple[type[Effect], ...], ...] = (
    (PollSource,),
    (RunMicroBatch,),
    (JudgeSuites, CheckTables, AppendRow, PublishTable, RecordCut, *CALLS),
)
_DECLINED = {"micro_batch_not_staged": 1.0, "judge_fails": 1.0, "check_fails": 1.0, "reply_lost": 1.0}
_TROUBLE = st.sampled_from([Faults(reply_lost=1.0, **_ALL), Faults(write_lost=1.0, **_ALL), Faults(**_DECLINED)])


class JobMachine(RuleBasedStateMachine):
    """One warehouse, a tick, perhaps a zombie beside it, and outstanding effects of dead ticks."""

    policy: ClassVar[GatePolicy] = GatePolicy.ALIGNED_BLOCKING
    hooks: ClassVar[tuple[Hook, ...]] = ()
    judged_by: ClassVar[frozenset[str] | None] = None
    """The ids of the invariants that may stop the machine. None means all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.open(100, 3, 1, 1, LONGEST_MS)

    @initialize(
        tolerable=st.sampled_from([100, 100, 0]),
        slice_rows=st.sampled_from([2, 5]),
        retained=st.sampled_from([1, 2]),
        concurrent=st.sampled_from([2, 1]),
        timeout_ms=st.sampled_from([150, LONGEST_MS]),
    )
    def open(self, tolerable: int, slice_rows: int, retained: int, concurrent: int, timeout_ms: int) -> None:
        """Draw what is configured, and start the first tick."""
        overtakes = self.policy in (GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)
        at_least_once = self.policy is GatePolicy.AT_LEAST_ONCE
        config = CheckpointConfig.model_validate(
            {
                "interval_ms": 100,
                "min_pause_ms": 0 if concurrent > 1 else 30,
                "timeout_ms": timeout_ms,
                "max_concurrent": 1 if overtakes else concurrent,
                "tolerable_failures": tolerable,
                "retained": retained,
                "slice_rows_max": slice_rows,
                "max_parallelism": MAX_PARALLELISM,
                "unaligned": overtakes,
                "mode": CheckpointingMode.AT_LEAST_ONCE if at_least_once else CheckpointingMode.EXACTLY_ONCE,
                **_OF_POLICY.get(self.policy, {}),
            }
        )
        rows = dict.fromkeys(SPLITS, 4)
        self.driven = self._new_job(
            SmallJob(graph=graph(1, hooks=self.hooks), config=config, rows=rows), in_order=not at_least_once
        )
        self.ghosts: list[Effect] = []
        self.zombies: list[DrivenJob] = []
        self.requests: list[str] = []
        self.judged = 0
        self.driven.start()

    def _new_job(self, job: SmallJob, *, in_order: bool) -> DrivenJob:
        """Return the warehouse with its ticks. The conformance machine replaces it by real stores."""
        return DrivenJob(job, in_order=in_order)

    # -------------------------------------------------------------- the tick goes on

    @precondition(lambda self: self.driven.outstanding)
    @rule(picks=st.lists(_pick, min_size=1, max_size=8))
    def answer(self, picks: list[int]) -> None:
        """Carry out some of the outstanding effects, in any order."""
        for pick in picks:
            if self.driven.outstanding:
                self.driven.answer(pick % len(self.driven.outstanding))
        self._judge()

    @precondition(lambda self: self.driven.outstanding)
    @rule(steps=st.integers(5, 40))
    def answer_in_order(self, steps: int) -> None:
        """Carry out the oldest outstanding effects, one after the other."""
        for _ in range(steps):
            if self.driven.outstanding:
                self.driven.answer(0)
        self._judge()

    @precondition(lambda self: self.driven.outstanding)
    @rule(kind=st.sampled_from(_KINDS), steps=st.integers(1, 20))
    def answer_only(self, kind: tuple[type[Effect], ...], steps: int) -> None:
        """For a while, carry out only effects of one kind, the oldest first: sources, workers or stores are fast."""
        for _ in range(steps):
            places = (at for at, effect in enumerate(self.driven.outstanding) if isinstance(effect, kind))
            place = next(places, None)
            if place is None:
                break
            self.driven.answer(place)
        self._judge()

    @precondition(lambda self: self.driven.outstanding)
    @rule(pick=_pick, trouble=_TROUBLE, really=st.sampled_from([False, True, False]))
    def answer_badly(self, pick: int, trouble: Faults, really: bool) -> None:  # noqa: FBT001
        """Let an effect fail, in a way of its kind."""
        self.driven.answer(pick % len(self.driven.outstanding), trouble if really else NONE)
        self._judge()

    @precondition(lambda self: self.driven.wake_at_ms() is not None)
    @rule(times=st.integers(1, 5))
    def fire(self, times: int) -> None:
        """Fire the next timers of the job, while no effect is answered."""
        for _ in range(times):
            self.driven.fire()
        self._judge()

    @precondition(lambda self: self.driven.outstanding)
    @rule(kind=st.sampled_from([StopKind.AFTER_CHECKPOINT, StopKind.NOW]), really=_seldom)
    def stop(self, kind: StopKind, really: bool) -> None:  # noqa: FBT001
        """Ask the tick to stop, rarely."""
        if really:
            self.driven.tell(StopRequested(kind))
        self._judge()

    @precondition(lambda self: self.driven.door is not None and len(self.requests) < REQUESTS_MAX)
    @rule(kind=st.sampled_from([SavepointKind.PLAIN, SavepointKind.PLAIN, SavepointKind.SUSPEND, SavepointKind.DRAIN]))
    def ask(self, kind: SavepointKind) -> None:
        """Ask for a savepoint, also when the tick is over."""
        self.requests.append(f"request {len(self.requests) + 1}")
        self.driven.tell(SavepointRequested(self.requests[-1], kind))
        self._judge()

    # -------------------------------------------------------------- ticks end, and others begin

    @precondition(lambda self: self.driven.door is not None and self.driven.end is None)
    @rule(really=_seldom, come_true=st.integers(0, 15), later=st.booleans(), parallelism=_parallelism, split=_split)
    def crash(self, really: bool, come_true: int, later: bool, parallelism: int, split: SplitId) -> None:  # noqa: FBT001
        """Let the tick die, rarely. Its outstanding effects happen at once, later or never.

        The next tick may be rescaled.
        """
        if not really:
            return
        wishes = self.driven.last_wishes()
        if later:
            self.ghosts += [wish for place, wish in enumerate(wishes) if come_true >> place & 1]
        self.driven.crash(0 if later else come_true)
        self._start(parallelism, split)

    @precondition(lambda self: self.driven.end is not None)
    @rule(parallelism=st.integers(1, 3), split=_split)
    def start(self, parallelism: int, split: SplitId) -> None:
        """Begin the next tick, perhaps rescaled, with more to read."""
        self._start(parallelism, split)

    @precondition(lambda self: self.ghosts)
    @rule(pick=_pick)
    def come_late(self, pick: int) -> None:
        """Carry out an outstanding effect of a dead tick."""
        ghost = self.ghosts.pop(pick % len(self.ghosts))
        self.driven.hands.carry_out(ghost, self.driven.generation, NONE)
        self._judge()

    @precondition(lambda self: self.driven.outstanding and not self.zombies)
    @rule(really=_seldom, parallelism=_parallelism, split=_split)
    def be_believed_dead(self, really: bool, parallelism: int, split: SplitId) -> None:  # noqa: FBT001
        """Let the next tick take over, rarely, while this one goes on."""
        if not really:
            return
        self.zombies.append(self.driven.abandoned())
        self._start(parallelism, split)

    @precondition(lambda self: self.zombies)
    @rule(picks=st.lists(_pick, min_size=1, max_size=20))
    def go_on_as_a_zombie(self, picks: list[int]) -> None:
        """Carry out effects of a fenced tick, and step its door."""
        zombie = self.zombies[0]
        zombie.fire()
        for pick in picks:
            if zombie.outstanding:
                zombie.answer(pick % len(zombie.outstanding))
        if zombie.end is not None:
            self.zombies.remove(zombie)
        self._judge()

    @precondition(lambda self: self.driven.others())
    @rule(really=_seldom, pick=_pick, effects=st.integers(1, 30), parallelism=_parallelism)
    def roll_back(self, really: bool, pick: int, effects: int, parallelism: int) -> None:  # noqa: FBT001
        """End the tick and go back to another entry, rarely. The process may die meanwhile. Another tick follows."""
        if not really:
            return
        self.driven.crash()
        others = self.driven.others()
        self.driven.roll_back(others[pick % len(others)], effects)
        self._judge()
        self._start(parallelism)

    def _start(self, parallelism: int, split: SplitId = SPLITS[0]) -> None:
        rows = self.driven.hands.readable
        rows[split] = min(ROWS_MAX, rows[split] + 3)
        self.driven.job = replace(self.driven.job, graph=graph(parallelism, hooks=self.hooks), limits=TickLimits())
        self.driven.start()
        self._judge()

    # -------------------------------------------------------------- judging

    def _judge(self) -> None:
        """Judge the run after each change of the stores, and after each message to a listener."""
        history = self.driven.world.history
        told = any(isinstance(event, TELLING) for event in history.events[self.judged :])
        self.judged = len(history.events)
        if not told:
            return
        for broken in violations(history):
            if self.judged_by is None or broken.invariant in self.judged_by:
                raise BrokenRuleError(broken.invariant, broken.what)

    def _be_patient(self) -> None:
        """Remove the limit of the buffer, because one slow input might abort every checkpoint."""
        if self.driven.job.config.max_alignment_bytes is not None:
            config = self.driven.job.config.model_copy(update={"max_alignment_bytes": UNLIMITED})
            self.driven.job = replace(self.driven.job, config=config)

    def teardown(self) -> None:
        """Let a last tick catch up without trouble. Then late effects, also of zombies, must change nothing."""
        if is_unwinding():
            return
        self.driven.crash()
        self._be_patient()
        self._start(1)
        self._run_out()
        end = self.driven.end
        expect(end is not None and end.outcome is TickOutcome.CAUGHT_UP, "doors-hold", f"the last tick ended {end}")
        while self.ghosts:
            self.come_late(0)
        for zombie in self.zombies:
            self._run_out_of_work(zombie)
        self._judge()

    def _run_out(self) -> None:
        """Let the tick run to its end, without trouble."""
        for _ in range(STEPS_MAX):
            if self.driven.end is not None:
                break
            if self.driven.outstanding:
                self.driven.answer(0)
            else:
                expect(self.driven.wake_at_ms() is not None, "no-deadlock", "nothing is outstanding, no timer is set")
                self.driven.fire()
        self._judge()

    @staticmethod
    def _run_out_of_work(zombie: DrivenJob) -> None:
        """Let a zombie go on until it has nothing left.

        The zombie may wait for ever for an answer that was lost with its sender.
        """
        for _ in range(STEPS_MAX):
            if zombie.end is not None or not (zombie.outstanding or zombie.wake_at_ms()):
                break
            if zombie.outstanding:
                zombie.answer(0)
            else:
                zombie.fire()


# ------------------------------------------------------------------
# The machine of the whole job with resets: between two ticks, the position of a source moves.
#
# It is a machine of its own, because each rule takes a share of the steps. When resets were among the other rules, a
# profile's runs missed bugs in the order of other events.


_splits = st.sampled_from([*((split,) for split in SPLITS), *SOURCES.values()])


class ResettingMachine(JobMachine):
    """One warehouse. After a tick, somebody may reset a source."""

    @precondition(lambda self: self.driven.end is not None and self.driven.can_be_reset())
    @rule(pick=st.integers(0, ROWS_MAX), effects=st.integers(1, 8), splits=_splits, parallelism=st.integers(1, 3))
    def reset(self, pick: int, effects: int, splits: tuple[SplitId, ...], parallelism: int) -> None:
        """Reset a source after a tick. The process that does it may die. A tick follows."""
        self.driven.crash()
        source = next(vertex for vertex, own in SOURCES.items() if splits[0] in own)
        row = pick % (min(self.driven.hands.readable[split] for split in splits) + 1)
        self.driven.reset(to_row(source, splits, row), effects)
        self._judge()
        self._start(parallelism)


# ------------------------------------------------------------------
# The machine of the whole job on the simulator's stores, for each policy of the gates.
#
# It adds rules for which two ticks must share the stores: a coordinator takes over and dies, or a savepoint is disposed
# of.


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
