"""The machine of one coordinator: requests of all kinds, and tasks and stores that are slow, silent or wrong."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.coordinator import CoordinatorShutDownError
from checkpointing.coordinator.pending import PendingPhase
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.coordinator.statistics import CheckpointStatistics, CheckpointStatus, StatisticsTracker
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.percentiles import Distribution
from spec.flink import messages as flink
from spec.machines.coordinator_driver import (
    DECLINES,
    INTERVAL_MS,
    JOB,
    PAUSE_MS,
    ROUNDS_MAX,
    TASKS,
    CoordinatorDriver,
)
from spec.machines.coordinator_model import ENDS_ONCE, OVER, STATISTICS_ADD_UP, CoordinatorModel, Fate, Known
from spec.machines.judging import expect, is_unwinding

# ------------------------------------------------------------------
# Judges a coordinator's statistics by the model: how checkpoints ended, and how long they took (E6).


_STATUS = {
    Fate.PENDING: CheckpointStatus.IN_PROGRESS,
    Fate.COMMITTING: CheckpointStatus.IN_PROGRESS,
    Fate.COMPLETED: CheckpointStatus.COMPLETED,
    Fate.ABORTED: CheckpointStatus.FAILED,
}


def statistics_agree(tracker: StatisticsTracker, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless the counters equal the model's, add up, and are not negative.

    A request that began no checkpoint counts as failed, unless it was refused in the queue.
    """
    counts, ended = tracker.counters, model.ended()
    agree = (counts.in_progress, counts.completed) == (len(model.pending()), ended[Fate.COMPLETED])
    adds_up = counts.total == counts.in_progress + counts.completed + counts.failed
    right = agree and adds_up and model.refused_by_store <= counts.failed - ended[Fate.ABORTED] <= model.refused
    expect(right, STATISTICS_ADD_UP, f"{counts}: {ended}, and {model.refused} requests began nothing")
    for known in tracker.history():
        _life_agrees(known, model.checkpoints[known.id])
    _newest_agree(tracker, model)
    took = [each.ended_ms - each.triggered_ms for each in tracker.history() if each.ended_ms is not None]
    summary_agrees(took)


def _life_agrees(known: CheckpointStatistics, due: Known) -> None:
    begun, status, reason = due.begun_ms, _STATUS[due.fate], due.reason
    expect(
        (known.triggered_ms, known.status) == (begun, status),
        STATISTICS_ADD_UP,
        f"{known}: begun at {begun}, {status}",
    )
    expect(
        known.failure is reason, STATISTICS_ADD_UP, f"checkpoint {known.id} failed for {known.failure}, not {reason}"
    )
    heard = len(due.states)
    expect(known.acknowledged_subtasks == heard, STATISTICS_ADD_UP, f"{known}: {heard} subtasks were heard")
    times = due.ended_ms
    if times is None or known.ended_ms is None:
        right = times is None and known.ended_ms is None
    else:
        right = times[0] <= known.ended_ms <= times[1]
    expect(right, STATISTICS_ADD_UP, f"checkpoint {known.id} ended at {known.ended_ms}, between {times} is due")


def _newest_agree(tracker: StatisticsTracker, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless the newest checkpoint of each kind is the one of that kind with the highest id."""
    completed = [n for n, known in model.checkpoints.items() if known.fate is Fate.COMPLETED]
    savepoints = [n for n in completed if model.checkpoints[n].properties.is_savepoint]
    plain = [n for n in completed if n not in savepoints]
    aborted = [n for n, known in model.checkpoints.items() if known.fate is Fate.ABORTED]
    due = tuple(max(ids, default=None) for ids in (plain, savepoints, aborted))
    newest = (tracker.latest.completed, tracker.latest.savepoint, tracker.latest.failed)
    expect(newest == due, STATISTICS_ADD_UP, f"the newest are {newest}, due are {due}")


def summary_agrees(numbers: Sequence[int]) -> None:
    """Raise BrokenRuleError unless the summary lies within the numbers, with each percentile at its place."""
    summary = Distribution.of(numbers)
    if summary is None:
        expect(not numbers, STATISTICS_ADD_UP, f"{numbers} have no summary")
        return
    extent = (summary.count, summary.minimum, summary.maximum)
    right = extent == (len(numbers), min(numbers), max(numbers)) and min(numbers) <= summary.average <= max(numbers)
    for per_cent, value in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
        below, reached = sum(n < value for n in numbers), sum(n <= value for n in numbers)
        right = right and value in numbers and 100 * below < per_cent * len(numbers) <= 100 * reached
    expect(right, STATISTICS_ADD_UP, f"{sorted(numbers)}: {summary}")


_PROPERTIES = st.sampled_from(
    [
        CHECKPOINT,
        CHECKPOINT,
        savepoint(unaligned=False),
        CHECKPOINT,
        savepoint(unaligned=True),
        synchronous_savepoint(unaligned=False, terminate=True),
    ]
)
_OUTCOMES = st.sampled_from([told.CommitFailed, told.CommitSucceeded, flink.CommitUnknown])


class CoordinatorMachine(CoordinatorDriver):
    """One coordinator, its twin that keeps other statistics, its tasks and stores, and the model that judges it."""

    # -------------------------------------------------------------- somebody asks

    @rule(properties=_PROPERTIES, periodic=st.booleans())
    def request(self, properties: CheckpointProperties, periodic: bool) -> None:  # noqa: FBT001
        """Ask for a checkpoint or a savepoint."""
        name = f"request {len(self.model.requests) + 1}"
        self.model.requests[name] = properties
        if periodic and properties == CHECKPOINT:
            self.model.periodic.add(name)
        self._tell(told.CheckpointRequested(name, properties, name in self.model.periodic))

    @rule(properties=_PROPERTIES, hear=st.booleans())
    def trigger(self, properties: CheckpointProperties, hear: bool) -> None:  # noqa: FBT001
        """Ask, and let all stores and bystanders answer at once; perhaps all tasks as well."""
        self.request(properties, periodic=False)
        while self.fetching or self.questions:
            self._answer_one()
        if hear:
            self.take_snapshots(adds=True, drops=False, times=1)

    @rule(properties=_PROPERTIES, reason=DECLINES)
    def fail(self, properties: CheckpointProperties, reason: Reason) -> None:
        """Ask, let all stores and bystanders answer at once, and let a task decline."""
        self.trigger(properties, hear=False)
        if self.triggered:
            self._tell(told.TaskDeclined(JOB, TASKS[0], self.triggered[-1], reason))

    @precondition(lambda self: self.triggered)
    @rule()
    def complete_newest(self) -> None:
        """All tasks pass every barrier.

        Their acknowledgements of the newest checkpoint come first, and it is committed.
        """
        self._pass_all_barriers()
        newest = self.triggered[-1]
        for message in [each for each in self.messages if each.checkpoint == newest]:
            self.messages.remove(message)
            self._tell(message)
        if self.commits:
            self.answer_commit(told.CommitSucceeded)

    @rule(slow=_PROPERTIES)
    def overtake(self, slow: CheckpointProperties) -> None:
        """Let a checkpoint or savepoint be slow, so that a checkpoint that began later completes first."""
        self.trigger(slow, hear=False)
        self.trigger(CHECKPOINT, hear=False)
        if self.triggered:
            self.complete_newest()

    @rule(outcomes=st.lists(_OUTCOMES, min_size=2, max_size=4), waits_ms=st.sampled_from([0, 0, 400]))
    def commit_one_after_the_other(
        self,
        outcomes: list[type[told.CommitSucceeded] | type[told.CommitFailed] | type[flink.CommitUnknown]],
        waits_ms: int,
    ) -> None:
        """Let several checkpoints be fully acknowledged while the first commits. Each commit has its own outcome.

        The first commit may take longer than the timeout of a checkpoint.
        """
        for _ in outcomes:
            self.trigger(CHECKPOINT, hear=False)
            if waits_ms:
                self.advance(1)
        self._pass_all_barriers()
        while self.messages:
            self.acknowledge(0, 1, JOB)
        if waits_ms:
            self.advance(waits_ms)
        for outcome in outcomes:
            if self.commits:
                self.answer_commit(outcome)

    def _pass_all_barriers(self) -> None:
        for task in TASKS:
            while self._take_snapshot(task, adds=True, drops=True):
                pass

    @precondition(lambda self: not self.model.is_shut_down)
    @rule(seed=st.integers(0, 30), intervals=st.integers(2, 5))
    def leap(self, seed: int, intervals: int) -> None:
        """The clock leaps over several intervals. The timer then asks for one checkpoint, and keeps its rate."""
        self._tell(told.SchedulerStarted(seed))
        self._answer_all()
        first_ms, begun = self.coordinator.wake_at_ms, len(self.model.checkpoints)
        self.advance(intervals * INTERVAL_MS)
        due_ms = self.coordinator.wake_at_ms
        self._answer_all()
        if not self.coordinator.pending:
            begun = len(self.model.checkpoints) - begun
            self.timer.leapt(first_ms, begun, due_ms, self.coordinator.wake_at_ms)

    def _answer_all(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._answer_one():
                return

    @rule(crowd=st.lists(st.tuples(_PROPERTIES, st.booleans()), min_size=4, max_size=8))
    def crowd(self, crowd: list[tuple[CheckpointProperties, bool]]) -> None:
        """Many ask at once, more than may wait."""
        for properties, periodic in crowd:
            self.request(properties, periodic)

    @precondition(lambda self: not self.model.is_shut_down)
    @rule(seed=st.integers(0, 30), waits_ms=st.integers(0, PAUSE_MS - 1))
    def fire_in_the_pause(self, seed: int, waits_ms: int) -> None:
        """A checkpoint completes, and the timer fires before the pause behind it is over."""
        self._tell(told.SchedulerStarted(seed))
        self.trigger(CHECKPOINT, hear=True)
        while self.fetching or self.questions or self.commits or self.deletions:
            self._answer_one()
        completed_ms = self.model.completed_ms
        if completed_ms is not None and not self.coordinator.pending and not self.queue.waiting:
            self.advance(waits_ms)
            self._tell(flink.PeriodicTimerFired())
            if self.model.now_ms < completed_ms + PAUSE_MS and not self.fetching:
                self.timer.refused(self.coordinator.wake_at_ms, completed_ms + PAUSE_MS)

    @rule(steps=st.integers(1, 12), twice=st.booleans())
    def go_well(self, steps: int, twice: bool) -> None:  # noqa: FBT001
        """Answer some open questions with success, one after the other. With `twice`, each answer comes twice."""
        for _ in range(steps):
            self._answer_one()
            if twice and self.answers:
                self.answer_again(len(self.answers) - 1)

    @rule(
        fact=st.sampled_from(
            [flink.PeriodicTimerFired(), flink.PeriodicTimerFired(), told.SchedulerStarted(1), told.SchedulerStopped()]
        )
    )
    def schedule(self, fact: flink.FlinkFact) -> None:
        """The periodic timer fires, or is switched on or off."""
        if not (self.model.is_shut_down and isinstance(fact, told.SchedulerStarted)):
            self._tell(fact)
            return
        try:
            self.coordinator.tell(fact)
        except CoordinatorShutDownError:
            return
        expect(holds=False, invariant="coordinator-tells", what="it was started again after its shutdown")

    @rule(ms=st.sampled_from([1, 30, 120, 30, 1, 400]))
    def advance(self, ms: int) -> None:
        """Let time pass."""
        now_ms = self.model.now_ms + ms
        self._tell(told.CoordinatorTimeAdvanced(now_ms))
        self.model.now_ms = now_ms

    @rule(really=st.sampled_from([*[False] * 7, True]))
    def shut_down(self, really: bool) -> None:  # noqa: FBT001
        """Shut the coordinator down in one of eight cases. A second shutdown changes nothing."""
        if really:
            self._tell(told.ShutDown())
            self.model.is_shut_down = True
            self._tell(told.ShutDown())

    # -------------------------------------------------------------- judging

    @invariant()
    def books_agree(self) -> None:
        """The pending and kept checkpoints are those of the model. A fully acknowledged one waits only for a commit."""
        pending = [each.id for each in self.coordinator.pending]
        expect(pending == self.model.pending(), ENDS_ONCE, f"pending {pending}, model {self.model.pending()}")
        kept = [each.id for each in self.coordinator.store.checkpoints]
        expect(kept == self.model.kept, "retention", f"kept {kept}, model {self.model.kept}")
        full = [n for n, known in self.model.checkpoints.items() if known.is_full]
        expect(not full or bool(self.commits), "no-deadlock", f"{full} wait for a commit that nobody sent")
        expect(self.fetching <= 1, "ids-rise", "two ids are being fetched")
        statistics_agree(self.coordinator.statistics, self.model)
        self.telling.judge_statistics(self.coordinator.statistics)
        self.telling.judge_end(n for n, known in self.model.checkpoints.items() if known.fate in OVER)
        self.queue.judge_next(self.coordinator.next_due_ms, self.model.now_ms, runs=self.timer.is_running)
        under_way = any(each.phase is not PendingPhase.FINALISING for each in self.coordinator.pending)
        goes_on = under_way or self.coordinator.next_due_ms is not None
        expect(self.coordinator.goes_on == goes_on, "coordinator-tells", f"goes on: {not goes_on}")

    def teardown(self) -> None:
        """Let everybody answer well: every request has its answer, and nothing is pending.

        A periodic request waits out the minimum pause, until the next request looks at the queue (A3).
        """
        if is_unwinding():
            return
        for _ in range(self.settings.queue_max + 2):
            self._answer_all()
            if self.model.answered >= set(self.model.requests):
                break
            self.advance(self.settings.min_pause_ms)
            self.request(CHECKPOINT, periodic=False)
        waiting = set(self.model.requests) - self.model.answered
        expect(not waiting and not self.model.pending(), "no-deadlock", f"{waiting} wait, {self.model.pending()} pend")
