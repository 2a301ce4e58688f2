"""One simulated tick: observe, decide, claim, recover, drive the real job door, release.

A tick is a generator of the virtual times of its turns. Between two turns it may be dropped (a crash), or others have
theirs. In a turn it does as the driver: tells the time, carries out an effect, steps the door, queues the new effects.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import assert_never

from checkpointing.commit.fencing import IDS_PER_CLAIM, Refused, newest_checkpoint
from checkpointing.coordinator.messages import AskHook, CloseHook, ResetHook, RestoreHook
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, SplitId
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    JudgeSuites,
    LookForRival,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    PublishTable,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    SavepointFailed,
    SavepointRequested,
    SavepointTaken,
    TickOutcome,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder
from checkpointing.tick.door import TickDoor
from checkpointing.tick.errand import TICK, Terms
from checkpointing.tick.messages import (
    AppendClaim,
    AppendRelease,
    CleanUp,
    CorrectCuts,
    DiscardLeftovers,
    Done,
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
from spec.at_the_door import NOBODY, Carrier
from spec.attempt_events import attempts_told, process_began
from spec.behind import found_finished, standing
from spec.carrying_out import Hands, drop_judgement
from spec.cleaning import cleaning_while_held
from spec.clocks import Clock
from spec.faults import Scenario, with_state_of_nobody
from spec.history import (
    CheckpointTriggered,
    DoorBroke,
    DoorStarted,
    SavepointAsked,
    TickOver,
    TickStuck,
)
from spec.pipeline import JOB, ORDERS, RENAMING, graph, is_renamed, must_audit
from spec.renaming import Names, blocked, link, names_of, taken
from spec.steps import Begun
from spec.telling import events_of_effect, events_of_fact
from spec.tick_plan import TickPlan
from spec.world import World

STEPS_MAX = 6_000
LEAVES_STATE_EVERY = 4
"""One tick in this many restores a cut with state of no vertex of its graph, and may leave that state behind."""

Narrate = Callable[[str], None]
Turns = Generator[int, None, None]


@dataclass(slots=True)
class Tick:
    """A tick that runs or is over. A crash drops `door` and `outstanding`."""

    world: World
    scenario: Scenario
    plan: TickPlan
    hands: Hands
    random: Random
    is_alive: Callable[[Generation], bool]
    narrate: Narrate | None = None
    generation: Generation = NOBODY
    end: EndTick | None = None
    outstanding: list[tuple[int, int, Effect]] = field(default_factory=list)
    graph: JobGraph = field(init=False)
    _wake_ms: int | None = None
    """In the time of its own clock."""
    _queued: int = 0
    _next_id: CheckpointId = NO_CHECKPOINT
    _at_version: int = 0
    _completed: int = 0
    _asking: deque[tuple[int, SavepointRequested]] | None = None
    """The requests still to be made. A request is made once, even if the job restarts meanwhile."""

    def turns(self) -> Turns:
        """Yield the time of each next turn until the tick is over."""
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
                waiting.extend(door.step(fact, carrier.moment()))
            before = effect

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

    def _names(self, restored: CheckpointRecord | None) -> Names:
        """Return what is renamed. If a neighbour is in the way, the user keeps the cut's names."""
        self.graph = self._graph(restored, self.plan.release)
        names = names_of(self.graph, restored)
        if restored is not None and blocked(self.world, self.graph, names):
            self.graph = self._graph(restored, RENAMING if is_renamed(restored) else 0)
            return names_of(self.graph, restored)
        return names

    def _graph(self, restored: CheckpointRecord | None, release: int) -> JobGraph:
        """Return the pipeline of this release. A source never loses a split in which a cut has a position."""
        stood = (each.splits for each in restored.vertices if each.vertex == ORDERS) if restored else ()
        missing = (SplitId(split) for splits in stood for split in splits if split not in self.plan.orders)
        known, hooks = (*self.plan.orders, *missing), self.scenario.hooks
        audits = (self.plan.audited and not taken(self.world, restored)) or must_audit(restored)
        bounded, parted = self.scenario.bounded, self.scenario.parted
        return graph(self.plan.parallelism, release, hooks, known, audited=audits, bounded=bounded, parted=parted)

    def _takes_time(self, effect: TickEffect, before: TickEffect | None) -> Turns:
        """Let others have their turns while the stores work. Find out why a release was refused."""
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
            case _:
                """It takes no time."""

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
            case _:
                """Nobody asks."""

    # -------------------------------------------------------------- driving the door

    def _setup(self, work: Work) -> JobSetup:
        names = self._names(work.plan.restore)
        restored, renamed = link(self.world, self.graph, names, work.claim.generation)
        leaves_state = self.plan.number % LEAVES_STATE_EVERY == 0
        return JobSetup(
            graph=self.graph,
            config=self.scenario.checkpoint_config(patient=self.plan.patient),
            job=JOB,
            claim=work.claim,
            at_version=work.at_version,
            restored=with_state_of_nobody(restored) if restored and leaves_state else restored,
            allow_non_restored_state=leaves_state or not self.plan.audited,
            retained=tuple(row for row in work.seen.rows if isinstance(row, CheckpointRecord)),
            versions=self.world.cuts[restored.checkpoint] if restored else {},
            renamed=renamed,
            rows_per_epoch=self.scenario.rows_per_epoch,
            cut_groups=self.hands.cut_groups(self.graph),
            limits=work.limits,
            seed=self.plan.number,
            idle_poll_ms=self.scenario.idle_poll_ms,
            linger_ms=self.scenario.linger_ms,
            expects_barriers=self.scenario.expects_barriers,
            credit_bytes=self.scenario.credit_bytes,
        )

    def _drive(self, work: Work) -> Generator[int, None, WorkEnded]:
        """Run the job until it ends. Return how it ended."""
        self._begin_anew(work)
        yield from self._run(self._setup(work))
        stuck = EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, "it is stuck")
        return WorkEnded(self.end or stuck, self._next_id, self._at_version, self._completed)

    def _begin_anew(self, work: Work) -> None:
        """Forget the last attempt."""
        self.end, self._wake_ms, self._at_version, self._completed = None, None, work.at_version, 0
        self.outstanding.clear()

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
        for _ in range(STEPS_MAX):
            if self.end is not None:
                self._ask_too_late(door, asking)
                return
            wake_ms = None if self._wake_ms is None else self._wake_ms - self.plan.eyes.skew_ms
            timers = [wake_ms, stop_ms, jump_ms, self.outstanding[0][0] if self.outstanding else None]
            timers.append(asking[0][0] if asking else None)
            due = min((at for at in timers if at is not None), default=None)
            if due is None:
                self._stuck("it waits for nothing")
                return
            yield max(due, self.world.now_ms)
            if jump_ms is not None and self.plan.clock_jump is not None and jump_ms <= self.world.now_ms:
                jump_ms = None
                self._say(clock.jump(self.plan.clock_jump))
            if self._wake_ms is not None and self._wake_ms <= clock.now_ms():
                self._wake_ms = None
            self._tell(door, TimeAdvanced(clock.now_ms()))
            if stop_ms is not None and stop_ms <= self.world.now_ms and self.plan.stop is not None:
                stop_ms = None
                self._tell(door, self.plan.stop)
            while asking and asking[0][0] <= self.world.now_ms and self.end is None:
                self._tell(door, asking.popleft()[1])
            self._carry_out_due(door)
        if self.end is None:
            self._stuck(f"it has not ended after {STEPS_MAX} steps")

    def _ask_too_late(self, door: JobDoor, asking: deque[tuple[int, SavepointRequested]]) -> None:
        """Answer users who ask after the end."""
        while asking:
            _, asked = asking.popleft()
            self.world.history.add(SavepointAsked(self.generation, asked.request, asked.kind))
            self._take(door, asked, door.step(asked))

    def _carry_out_due(self, door: JobDoor) -> None:
        if self.end is None and self.outstanding and self.outstanding[0][0] <= self.world.now_ms:
            _, _, effect = heappop(self.outstanding)
            fact = self.hands.carry_out(effect, self.generation, self.plan.faults)
            if fact is not None:
                self._tell(door, fact)

    def _tell(self, door: JobDoor, fact: Fact) -> None:
        if self.end is not None:
            return
        if self.narrate is not None and not isinstance(fact, TimeAdvanced):
            self._say(f"<- {fact}")
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
            if self.narrate is not None:  # most runs are told to nobody, and telling takes time
                self._say(f"-> {effect}")
            self.world.history.events.extend(events_of_effect(self.generation, effect))
            match effect:
                case WakeAt():
                    self._wake_ms = effect.at_ms
                case EndTick():
                    self._ended(effect)
                case CancelJudgement():
                    drop_judgement(self.outstanding, effect)
                case NotifyComplete():
                    self._completed += 1
                case CloseHook() | NotifyAborted() | SavepointTaken() | SavepointFailed():
                    """It is a message to somebody, and was noted."""
                case (
                    PollSource()
                    | RunMicroBatch()
                    | JudgeSuites()
                    | AskHook()
                    | RestoreHook()
                    | ResetHook()
                    | CheckTables()
                    | AppendRow()
                    | PublishTable()
                    | RecordCut()
                    | DiscardFiles()
                    | LookForRival()
                ):
                    self._queued += 1
                    self.hands.begin(effect, self.generation)
                    due_ms = self.world.now_ms + self._latency_ms(effect)
                    heappush(self.outstanding, (due_ms, self._queued, effect))
                case _:
                    assert_never(effect)

    def _latency_ms(self, effect: Effect) -> int:
        longest = self.scenario.latency_ms
        if isinstance(effect, PollSource):
            slow = effect.split == self.scenario.slow_split
            return self.random.randint(100, 400) if slow else self.random.randint(1, longest["poll"])
        return self.random.randint(1, longest["run" if isinstance(effect, RunMicroBatch) else "store"])

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
