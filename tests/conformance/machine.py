"""The machine of the whole job over real stores: the rules of `spec.machines.job`, and some for real stores alone.

It checks that Delta logs in a folder keep all promises of the simulator's stores. A witness records from outside what
happens there, and the same invariants judge this.
"""

from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import ClassVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from checkpointing.gate import GatePolicy
from checkpointing.identifiers import SplitId
from checkpointing.messages import AppendRow, Effect, EndTick, PublishTable, RecordCut, SavepointKind
from checkpointing.metadata.record import CheckpointRecord
from jobs.tick.engine import Engine
from jobs.warehouse.requests import AnswerStatus, RequestFolder
from spec.machines.job import ROWS_MAX, SPLITS, ResettingMachine
from spec.machines.judging import BrokenRuleError, expect, is_unwinding
from spec.world.faults import Faults
from spec.world.whole_job import DrivenJob, SmallJob
from tests.conformance.frame_engine import NUMBERS, FrameEngine, numbered_names
from tests.conformance.pipeline import TABLES
from tests.conformance.real_tick import RealJob
from tests.conformance.real_world import ROWS_COMMIT, DiedError, Strike, death

REQUESTS_MAX = 3
WORK_MAX = 60
_MOMENTS = ("before:", "before:LogCommit", "after:LogCommit", "after:")
_STORE_EFFECTS = (AppendRow, PublishTable, RecordCut)
_pick = st.integers(0, 30)
_split = st.sampled_from(SPLITS)
_parallelism = st.integers(1, 3)


class RealStoresMachine(ResettingMachine):
    """One warehouse in a folder, ticks that run one after the other, and zombies beside them."""

    engine: ClassVar[Engine] = FrameEngine()
    driven: RealJob

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        self.root: Path | None = None

    def _new_job(self, job: SmallJob, *, in_order: bool) -> DrivenJob:
        del in_order  # a function that meets frames sees no order
        self.root = Path(mkdtemp(prefix="conformance-"))
        NUMBERS.again()
        return RealJob(job, self.root, self.engine)

    # -------------------------------------------------------------- work

    @precondition(lambda self: self.driven.door is not None and self.driven.end is None)
    @rule(until=st.sampled_from([*_STORE_EFFECTS, EndTick]))
    def work(self, until: type[Effect]) -> None:
        """The tick goes on without trouble, until it is about to do something of that kind."""
        for _ in range(WORK_MAX):
            if self.driven.outstanding:
                self.driven.answer(0)
            elif self.driven.end is None:
                self.driven.fire()
            if any(isinstance(effect, until) for effect in self.driven.outstanding):
                break
        self._judge()

    # -------------------------------------------------------------- death at a boundary

    @precondition(lambda self: self.driven.door is not None and self.driven.end is None)
    @rule(
        until=st.sampled_from(_STORE_EFFECTS),
        pick=_pick,
        moment=st.sampled_from(_MOMENTS),
        parallelism=_parallelism,
        split=_split,
    )
    def die(self, until: type[Effect], pick: int, moment: str, parallelism: int, split: SplitId) -> None:
        self.work(until)
        wishes = self.driven.last_wishes()
        if wishes:
            place = self.driven.outstanding.index(wishes[pick % len(wishes)])
            with self.driven.tick.boundaries.struck(death(moment)):
                self._until_death(lambda: self.driven.answer(place))
        self.driven.crash()
        self._start(parallelism, split)

    @precondition(lambda self: self.driven.end is not None)
    @rule(crossings=st.integers(0, 30), parallelism=_parallelism, split=_split)
    def die_at_the_start(self, crossings: int, parallelism: int, split: SplitId) -> None:
        """A tick dies while it claims or recovers, and the next one begins."""
        self._until_death(lambda: self.driven.start(death("", crossings)))
        self.driven.crash()
        self._start(parallelism, split)

    def _until_death(self, act) -> None:
        try:
            act()
        except DiedError:
            self.driven.world.watch("after:death")

    # -------------------------------------------------------------- others come first

    @precondition(lambda self: self._append_place() is not None)
    @rule()
    def come_second(self) -> None:
        """Another coordinator claims the job between an append's look at the log and its commit."""
        rival = Strike(f"before:{ROWS_COMMIT}", self.driven.world.claim_as_rival)
        with self.driven.tick.boundaries.struck(rival):
            self.driven.answer(self._append_place())
        self._judge()

    @precondition(lambda self: self._append_place() is not None)
    @rule(trouble=st.sampled_from([Faults(reply_lost=1.0), Faults(write_lost=1.0)]))
    def be_left_in_doubt(self, trouble: Faults) -> None:
        """An append has an unknown outcome: its entry is in the table, or it is not."""
        self.driven.answer(self._append_place(), trouble)
        self._judge()

    def _append_place(self) -> int | None:
        places = (at for at, effect in enumerate(self.driven.outstanding) if isinstance(effect, AppendRow))
        return next(places, None)

    @precondition(lambda self: self.driven.door and not self.driven.end and not self.zombies)
    @rule(until=st.sampled_from(_STORE_EFFECTS), parallelism=_parallelism, split=_split)
    def be_believed_dead(self, until: type[Effect], parallelism: int, split: SplitId) -> None:
        """The tick works until it is about to change the stores; the next one takes over, and this one goes on."""
        self.work(until)
        if self.driven.end is None:
            super().be_believed_dead(True, parallelism, split)
        else:
            self._start(parallelism, split)

    # -------------------------------------------------------------- savepoints, neighbours

    @precondition(lambda self: self.driven.door and not self.driven.end and len(self.requests) < REQUESTS_MAX)
    @rule(kind=st.sampled_from([SavepointKind.PLAIN, SavepointKind.PLAIN, SavepointKind.SUSPEND, SavepointKind.DRAIN]))
    def ask(self, kind: SavepointKind) -> None:
        """Somebody asks for a savepoint by a file in the job's folder."""
        self.requests.append(self.driven.ask(kind))
        self._judge()

    @precondition(lambda self: self.driven.door and not self.driven.end and len(self.requests) < REQUESTS_MAX)
    @rule(moment=st.sampled_from(_MOMENTS), parallelism=_parallelism, split=_split)
    def die_over_a_savepoint(self, moment: str, parallelism: int, split: SplitId) -> None:
        self.ask(SavepointKind.PLAIN)
        if self.driven.end is None:
            self.die(AppendRow, 0, moment, parallelism, split)

    @rule(table=st.sampled_from(sorted(TABLES)), vacuums=st.booleans())
    def meddle(self, table: str, vacuums: bool) -> None:
        neighbour = self.driven.world.foreign(table)
        if neighbour is not None:
            neighbour.optimize.compact()
        if neighbour is not None and vacuums:
            neighbour.vacuum(dry_run=False)
        self.driven.world.witness.look_at_files()
        self._judge()

    @rule(split=_split, rows=st.integers(1, 4))
    def offer(self, split: SplitId, rows: int) -> None:
        """More can be read of a split, while a tick runs or between two."""
        readable = self.driven.hands.readable
        readable[split] = min(ROWS_MAX, readable[split] + rows)

    # -------------------------------------------------------------- judging

    def _judge(self) -> None:
        judged = self.judged
        super()._judge()
        if self.judged > judged:
            for broken in self.driven.world.misread(all_cuts=False):
                raise BrokenRuleError(broken.invariant, broken.what)

    def teardown(self) -> None:
        """The last tick catches up. Zombies go on until they have nothing left to do, and change nothing."""
        try:
            if not is_unwinding():
                self._answer_all()
                super().teardown()
                self._read_all()
        finally:
            if self.root is not None:
                rmtree(self.root, ignore_errors=True)

    def _answer_all(self) -> None:
        folder = RequestFolder(self.driven.world.warehouse)
        if any(folder.is_waiting(request) for request in self.requests):
            self.driven.crash()
            self._be_patient()
            self._start(1)
            self._run_out()

    def _read_all(self) -> None:
        self.driven.world.witness.look_at_files()
        self._judge()
        for broken in self.driven.world.misread(all_cuts=True):
            raise BrokenRuleError(broken.invariant, broken.what)
        self._requests_are_answered()

    def _requests_are_answered(self) -> None:
        folder = RequestFolder(self.driven.world.warehouse)
        pinned = {
            row.checkpoint for row in self.driven.world.rows() if isinstance(row, CheckpointRecord) and row.pinned
        }
        for request in self.requests:
            answer = folder.answer_to(request)
            expect(answer is not None, "requests-are-answered", f"{request} waits for ever")
            if answer is not None and answer.status is AnswerStatus.TAKEN:
                expect(answer.checkpoint in pinned, "answers-are-true", f"{request} was told {answer.checkpoint}")


class CountingStoresMachine(RealStoresMachine):
    policy = GatePolicy.AT_LEAST_ONCE


class BufferingStoresMachine(RealStoresMachine):
    """Aligned, and little may wait for a slow input."""

    policy = GatePolicy.ALIGNED_BUFFERING


class UnalignedStoresMachine(RealStoresMachine):
    policy = GatePolicy.UNALIGNED


class AlternatingStoresMachine(RealStoresMachine):
    """Aligned until it takes too long."""

    policy = GatePolicy.ALTERNATING


MACHINES: dict[GatePolicy, type[RealStoresMachine]] = {
    machine.policy: machine
    for machine in (
        RealStoresMachine,
        CountingStoresMachine,
        BufferingStoresMachine,
        UnalignedStoresMachine,
        AlternatingStoresMachine,
    )
}


def run(machine: type[RealStoresMachine], *, examples: int, steps: int) -> None:
    """Run a machine over that many warehouses. Failures are not shrunk, because real stores are too slow for that."""
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, phases=[Phase.generate], report_multiple_bugs=False
    )
    with numbered_names():
        run_state_machine_as_test(machine, settings=chosen)
