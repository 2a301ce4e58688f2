"""Builds what a simulated tick begins with: the graph of its release, and the cut under that release's names."""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from checkpointing.commit.fencing import IDS_PER_CLAIM, Refused, newest_checkpoint
from checkpointing.coordinator import messages as told_by
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, SplitId
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CompactFiles,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    JudgeSuites,
    LookForRival,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    PublishTable,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    SavepointFailed,
    SavepointRequested,
    SavepointTaken,
    SourceIdle,
    TickOutcome,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder
from checkpointing.tick.attempts import TICK, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendRelease,
    CleanUp,
    CorrectCuts,
    DiscardLeftovers,
    Done,
    Failed,
    Finish,
    Observe,
    PublishAgain,
    RolledForward,
    TakeHold,
    TickEffect,
    TickFact,
    Wait,
    Waited,
    Work,
    WorkEnded,
)
from spec.history import (
    Begun,
    CheckpointTriggered,
    DoorBroke,
    DoorStarted,
    SavepointAnswered,
    SavepointAsked,
    TickOver,
    TickStuck,
    attempts_told,
    process_began,
)
from spec.reference.pipeline import (
    JOB,
    ORDERS,
    RENAMING,
    graph,
    is_renamed,
    must_audit,
    with_broadcast,
    with_counts,
    with_sinks,
    with_times,
)
from spec.world.carrier import Hands, UnderWay, events_of_effect, events_of_fact, latency_ms
from spec.world.draw import TickPlan
from spec.world.faults import Scenario, with_state_of_nobody
from spec.world.stores import FileGoneError, StoreBrokeError, World, late_ms
from spec.world.tick_door import CHANGES, NOBODY, Carrier, Clock, cleaning_while_held, found_finished, standing
from spec.world.visits import (
    Names,
    blocked,
    link,
    names_of,
    taken,
)

LEAVES_STATE_EVERY = 4
"""One tick in this many restores a cut with state of a vertex that its graph lacks, and may leave that state behind."""


def setup_of(world: World, scenario: Scenario, plan: TickPlan, hands: Hands, work: Work) -> JobSetup:
    """Return the setup of the tick's job. Link the files of renamed tables to their new names."""
    built, names = _graph_and_names(world, scenario, plan, work.plan.restore)
    restored, renamed = link(world, built, names, work.claim.generation)
    leaves_state = plan.number % LEAVES_STATE_EVERY == 0
    return JobSetup(
        graph=built,
        config=scenario.checkpoint_config(patient=plan.patient),
        job=JOB,
        claim=work.claim,
        at_version=work.at_version,
        restored=with_state_of_nobody(restored) if restored and leaves_state else restored,
        allow_non_restored_state=leaves_state or not plan.audited,
        retained=tuple(row for row in work.seen.rows if isinstance(row, CheckpointRecord)),
        versions=world.cuts.get(restored.checkpoint, {}) if restored else {},
        renamed=renamed,
        rows_per_epoch=scenario.rows_per_epoch,
        cut_groups=hands.cut_groups(built),
        limits=work.limits,
        seed=plan.number,
        idle_poll_ms=scenario.idle_poll_ms,
        linger_ms=scenario.linger_ms,
        credit_bytes=scenario.credit_bytes,
    )


def _graph_and_names(
    world: World, scenario: Scenario, plan: TickPlan, restored: CheckpointRecord | None
) -> tuple[JobGraph, Names]:
    """Return the graph and its renames. If a neighbour's file blocks a rename, the user keeps the cut's names."""
    built = _graph(world, scenario, plan, restored, plan.release)
    names = names_of(built, restored)
    if restored is not None and blocked(world, built, names):
        built = _graph(world, scenario, plan, restored, RENAMING if is_renamed(restored) else 0)
        return built, names_of(built, restored)
    return built, names


def _graph(
    world: World, scenario: Scenario, plan: TickPlan, restored: CheckpointRecord | None, release: int
) -> JobGraph:
    """Return the pipeline of this release. A source keeps every split of which the restored cut has a position."""
    stood = (each.splits for each in restored.vertices if each.vertex == ORDERS) if restored else ()
    missing = (SplitId(split) for splits in stood for split in splits if split not in plan.orders)
    known, bounded = (*plan.orders, *missing), scenario.bounded
    audits = (plan.audited and not taken(world, restored)) or must_audit(restored)
    built = graph(
        plan.parallelism,
        release,
        scenario.hooks,
        known,
        audited=audits,
        bounded=bounded,
        parted=scenario.parted,
        overwrites=scenario.overwrites,
    )
    built = with_broadcast(built) if scenario.broadcasts else built
    built = with_times(built, plan.parallelism, closes=scenario.closes) if scenario.times else built
    built = with_counts(built) if scenario.counts else built
    return with_sinks(built, voters=scenario.voters) if scenario.outside else built


# ------------------------------------------------------------------
# One simulated tick: observe, decide, claim, recover, drive the real job door, release.
#
# A tick is a generator of the virtual times of its turns. Between two turns, it may be dropped (a crash), or other
# processes have their turns. In a turn it does what the driver does: it reports the time, carries out an effect, steps
# the door, and queues the new effects.


STEPS_MAX = 3_000
"""The most steps of an attempt. A turn without a result, such as an idle poll, counts as a tenth of a step."""
NOTHING = (SourceIdle, PollFailed)

Narrate = Callable[[str], None]
Turns = Generator[int, None, None]


@dataclass(slots=True)
class Tick:
    """A tick that runs or is over. A crash drops `door` and what is `under_way`."""

    world: World
    scenario: Scenario
    plan: TickPlan
    hands: Hands
    random: Random
    is_alive: Callable[[Generation], bool]
    narrate: Narrate | None = None
    generation: Generation = NOBODY
    end: EndTick | None = None
    under_way: UnderWay = field(default_factory=UnderWay)
    graph: JobGraph = field(init=False)
    _wake_ms: int | None = None
    """When the door wants to be woken, by the tick's own clock."""
    _next_id: CheckpointId = NO_CHECKPOINT
    _at_version: int = 0
    _completed: int = 0
    _asking: deque[tuple[int, SavepointRequested]] | None = None
    """The requests for savepoints still to be made. A request is made once, even if the job restarts meanwhile."""
    _open: set[str] = field(default_factory=set)
    """The requests that the door has not answered yet."""
    _is_broken: bool = False
    """True if a failed effect has ended the attempt without the door."""

    def turns(self) -> Turns:
        """Run the tick. Yield the time of each next turn until it is over."""
        try:
            yield from self._held()
        except Exception as error:  # noqa: BLE001 - whatever a door raises is a finding
            self.world.history.add(DoorBroke(self.generation, f"{type(error).__name__}: {error}"))
            self._say(f"BROKE {type(error).__name__}: {error}")

    # -------------------------------------------------------------- holding the job

    def _held(self) -> Turns:
        """Drive the tick door to its end."""
        carrier = Carrier(self.world, self._is_held, self._name, self.plan.eyes)
        door, events = TickDoor(TICK, self._terms()), self.world.history.events
        events.append(process_began(self._terms(), self._clock_ms()))
        waiting = deque(door.start(carrier.moment()))
        before: TickEffect | None = None
        while waiting:
            effect = waiting.popleft()
            events.extend(attempts_told(self.plan.number, effect, self._clock_ms()))
            carrier.begin(effect)
            yield from self._takes_time(effect, before)
            match effect:
                case CleanUp() if self.plan.grace_ms is not None:
                    fact: TickFact | None = yield from self._cleaned(effect, self.plan.grace_ms)
                case Work():
                    fact = yield from self._drive(effect)
                case Wait():
                    yield self.world.now_ms + effect.delay_ms
                    fact = Waited()
                case _:
                    self._note(effect)
                    fact = carrier.carry_out(effect)
            if fact is not None:
                yield from self._comes_late(effect)
                waiting.extend(door.step(fact, carrier.moment()))
            before = effect

    def _comes_late(self, effect: TickEffect) -> Turns:
        late = self.world.faults.late_ms() if self.world.faults and isinstance(effect, CHANGES) else 0
        if late:
            yield self.world.now_ms + late

    def _is_held(self, claim: Claim | None) -> bool:
        return claim is not None and self.is_alive(claim.generation)

    def _cleaned(self, effect: CleanUp, grace_ms: int) -> Generator[int, None, Done]:
        """Delete unneeded files, as the last act."""
        for _ in cleaning_while_held(self.world, effect.generation, grace_ms):
            yield self._after(self.scenario.latency_ms["store"])
        return Done()

    def _terms(self) -> Terms:
        few = self.scenario.ids_per_claim
        return Terms(
            holder=Holder(host="here", pid=self.plan.number, started=""),
            take_over=self.plan.take_over,
            limits=self.plan.limits,
            strategy=self.plan.strategy,
            ids=IDS_PER_CLAIM if few is None else few,
            sources=graph(1, self.plan.release, bounded=self.scenario.bounded, parted=self.scenario.parted).sources(),
        )

    def _takes_time(self, effect: TickEffect, before: TickEffect | None) -> Turns:
        """Give other processes their turns while the stores work, and while the tick checks a refused release."""
        match effect:
            case AppendClaim():
                yield self._after(20)
            case PublishAgain() | CorrectCuts() | PublishTable() | RecordCut():
                yield self._after(self.scenario.latency_ms["store"])
            case DiscardLeftovers():
                yield self._after(10)
            case AppendRelease() if not isinstance(before, Observe):
                yield self._after(10)
            case Observe() if isinstance(before, AppendRelease):
                yield self._after(10)

    def _note(self, effect: TickEffect) -> None:
        match effect:
            case TakeHold():
                self.generation = effect.claim.generation
                self._next_id = effect.claim.first_id
                self._say(f"claimed, ids from {effect.claim.first_id}")
            case RolledForward():
                self._say(f"rolled checkpoint {effect.record.checkpoint} forward")
            case Finish() if isinstance(effect.outcome, Refused):
                self._say(f"refused: {effect.outcome.why}")
            case Finish(EndTick(TickOutcome.FINISHED) as end) if self.end is not end:
                self.end = end
                self.world.history.add(found_finished(self.world))

    # -------------------------------------------------------------- driving the door

    def _drive(self, work: Work) -> Generator[int, None, WorkEnded | Failed]:
        """Run the job until it ends.

        Return how it ended. If another process has taken the job, files to link may be missing.
        """
        self._begin_anew(work)
        try:
            setup = setup_of(self.world, self.scenario, self.plan, self.hands, work)
        except FileGoneError as gone:
            return Failed(EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, f"{gone} is missing"))
        self.graph = setup.graph
        yield from self._run(setup)
        end = self.end or EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, "it is stuck")
        votes = self.scenario.outside and bool(self.scenario.voters)
        return WorkEnded(end, self._next_id, self._at_version, self._completed, votes=votes)

    def _begin_anew(self, work: Work) -> None:
        """Drop what is left of the last attempt."""
        self.end, self._wake_ms, self._at_version, self._completed = None, None, work.at_version, 0
        self.under_way.clear()
        self._open.clear()
        self._is_broken = False

    def _run(self, setup: JobSetup) -> Turns:
        door = JobDoor(setup)
        self.world.history.add(DoorStarted(self.generation, setup.graph, setup.restored, setup.cut_groups))
        self.world.see_cuts(self.generation, standing(self.world).cuts)
        stop_ms = None
        if self._asking is None:
            stop_ms = None if self.plan.stop is None else self.world.now_ms + self.plan.stop_after_ms
            self._asking = deque((self.world.now_ms + after_ms, asked) for after_ms, asked in self.plan.savepoints)
        asking = self._asking
        clock = Clock(self.world, self.plan.eyes)
        jump_ms = self.world.now_ms + self.plan.clock_jump.after_ms if self.plan.clock_jump else None
        self._take(door, Begun(setup, clock.now_ms()), door.start(clock.now_ms()))
        left = 10 * STEPS_MAX
        while left > 0:
            if self.end is not None:
                self._ask_too_late(door, asking)
                return
            wake_ms = None if self._wake_ms is None else self._wake_ms - self.plan.eyes.skew_ms
            timers = (wake_ms, stop_ms, jump_ms, self.under_way.due_ms, asking[0][0] if asking else None)
            due = min([at for at in timers if at is not None], default=None)
            if due is None:
                self._stuck("it waits for nothing")
                return
            yield max(due, self.world.now_ms)
            if jump_ms is not None and self.plan.clock_jump is not None and jump_ms <= self.world.now_ms:
                jump_ms = None
                self._say(clock.jump(self.plan.clock_jump))
            clock_ms = clock.now_ms()
            if self._wake_ms is not None and self._wake_ms <= clock_ms:
                self._wake_ms = None
            self._tell(door, TimeAdvanced(clock_ms))
            if stop_ms is not None and stop_ms <= self.world.now_ms and self.plan.stop is not None:
                stop_ms = None
                self._tell(door, self.plan.stop)
            while asking and asking[0][0] <= self.world.now_ms and self.end is None:
                self._tell(door, asking.popleft()[1])
            told = self._tell_due(door)
            left -= 1 if told is None or isinstance(told, NOTHING) else 10
        if self.end is None:
            self._stuck(f"it has not ended after {STEPS_MAX} steps")

    def _ask_too_late(self, door: JobDoor, asking: deque[tuple[int, SavepointRequested]]) -> None:
        """Let the door answer savepoint requests that come after its end."""
        while asking and not self._is_broken:
            _, asked = asking.popleft()
            self.world.history.add(SavepointAsked(self.generation, asked.request, asked.kind))
            self._take(door, asked, door.step(asked))

    def _tell_due(self, door: JobDoor) -> Fact | None:
        """Step the door with the next answer that is due, if there is one, and return this answer."""
        fact = self.under_way.next_answer(self.world.now_ms) or self._carried_out()
        if fact is not None:
            self._tell(door, fact)
        return fact

    def _carried_out(self) -> Fact | None:
        """Carry out the next effect that is due. Return its answer, or None if there is no answer yet."""
        effect = self.under_way.next_due(self.world.now_ms) if self.end is None else None
        if effect is None:
            return None
        try:
            fact = self.hands.carry_out(effect, self.generation, self.plan.faults)
        except StoreBrokeError as error:
            self._broke(effect, error)
            return None
        late = late_ms(self.world.faults, effect)
        if fact is None or not late:
            return fact
        self.under_way.answer_later(fact, self.world.now_ms + late)
        return None

    def _broke(self, effect: Effect, error: StoreBrokeError) -> None:
        """End as the driver does if an effect fails and no fact can report that. Fail all open savepoint requests."""
        reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        for request in sorted(self._open):
            self.world.history.add(SavepointAnswered(self.generation, request, None))
        self._is_broken = True
        self._ended(EndTick(TickOutcome.FAILED, reason, f"{type(effect).__name__}: {error}"))

    def _tell(self, door: JobDoor, fact: Fact) -> None:
        if self.end is not None:
            return
        if self.narrate is not None and not isinstance(fact, TimeAdvanced):
            self._say(f"<- {fact}")
        if isinstance(fact, SavepointRequested):
            self._open.add(fact.request)
        if isinstance(fact, RowAppended):
            self._at_version = fact.version
        elif not isinstance(fact, TimeAdvanced):
            self.world.history.events.extend(events_of_fact(self.generation, fact))
        self._take(door, fact, door.step(fact))

    def _take(self, door: JobDoor, told: Begun | Fact, effects: tuple[Effect, ...]) -> None:
        self.world.history.stepped(self.generation, told, effects, door.next_id)
        for checkpoint in range(self._next_id, door.next_id):
            self.world.history.add(CheckpointTriggered(self.generation, CheckpointId(checkpoint)))
        self._next_id = door.next_id
        for effect in effects:
            if self.narrate is not None:  # most runs need no transcript, and formatting it takes time
                self._say(f"-> {effect}")
            self.world.history.events.extend(events_of_effect(self.generation, effect))
            match effect:
                case WakeAt():
                    self._wake_ms = effect.at_ms
                case (
                    PollSource()
                    | RunMicroBatch()
                    | JudgeSuites()
                    | told_by.AskOperatorCoordinator()
                    | told_by.ResetOperatorCoordinator()
                    | told_by.AskHook()
                    | told_by.RestoreHook()
                    | told_by.ResetHook()
                    | CheckTables()
                    | AppendRow()
                    | PublishTable()
                    | RecordCut()
                    | CompactFiles()
                    | DiscardFiles()
                    | LookForRival()
                ):
                    self.hands.begin(effect, self.generation)
                    self.under_way.begin(effect, self.world.now_ms + latency_ms(effect, self.scenario, self.random))
                case EndTick():
                    self._ended(effect)
                case CancelJudgement():
                    self.under_way.cancel(effect)
                case NotifyComplete():
                    self._completed += 1
                case SavepointTaken() | SavepointFailed():
                    self._open.discard(effect.request)
                case told_by.CloseHook() | NotifyAborted():
                    """The effect is only a message, and its events are recorded."""
                case _:
                    assert_never(effect)

    def _ended(self, effect: EndTick) -> None:
        self.end = effect
        readable = self.hands.offered(self.graph, self.generation, still=self.plan.patient)
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, readable, newest))

    def _stuck(self, why: str) -> None:
        self.world.history.add(TickStuck(self.generation, why))

    def _clock_ms(self) -> int:
        return self.plan.eyes.at(self.world.now_ms)

    def _after(self, longest_ms: int) -> int:
        return self.world.now_ms + self.random.randint(1, longest_ms)

    @property
    def _name(self) -> str:
        return f"tick-{self.plan.number}"

    def _say(self, what: str) -> None:
        if self.narrate is not None:
            self.narrate(f"{self.world.now_ms:>7} tick {self.plan.number} {what}")
