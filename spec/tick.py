"""One simulated tick: observe, decide, claim, recover, drive the real job door, release.

A tick is a generator: it yields the virtual time of its next turn, and between two turns it may be dropped
(a crash) or others may have theirs. What it does in a turn is what the driver does: tell the time, carry out
one effect, step the door with the answer, queue what the door asks for.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from typing import assert_never

from checkpointing.commit.fencing import HolderObserved, Refused, newest_checkpoint, newest_claim
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, publications
from checkpointing.coordinator.effects import AskHook, CloseHook, ResetHook, RestoreHook
from checkpointing.graph import JobGraph
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    JudgeSuites,
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
    StopRequested,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release
from spec.behind import bringing_back, restore_what_is_lost, standing
from spec.carrying_out import Hands
from spec.faults import Faults, Scenario, with_state_of_nobody
from spec.history import (
    CheckpointTriggered,
    DoorBroke,
    DoorStarted,
    SavepointAsked,
    TickOver,
    TickStuck,
)
from spec.pipeline import JOB, RENAMING, graph, is_renamed
from spec.renaming import Names, blocked, link, names_of
from spec.telling import events_of_effect, events_of_fact
from spec.world import World

NOBODY = Generation(0)
STEPS_MAX = 6_000
CLAIMS_MAX = 50
LEAVES_STATE_EVERY = 4
"""One tick in so many restores a cut with state that its graph does not take, and may leave it behind."""

Narrate = Callable[[str], None]
Turns = Generator[int, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPlan:
    """What differs from tick to tick."""

    number: int
    faults: Faults
    parallelism: int
    limits: TickLimits
    patient: bool
    take_over: bool
    stop: StopRequested | None = None
    stop_after_ms: int = 0
    release: int = 0
    """Which release of the pipeline it runs."""
    savepoints: tuple[tuple[int, SavepointRequested], ...] = ()
    """What is asked for, and how long after the start (ms), in order."""


@dataclass(slots=True)
class Tick:
    """A tick under way, or over. `door` and `outstanding` are what a crash drops."""

    world: World
    scenario: Scenario
    plan: TickPlan
    graph: JobGraph
    hands: Hands
    random: Random
    is_alive: Callable[[Generation], bool]
    narrate: Narrate | None = None
    generation: Generation = NOBODY
    end: EndTick | None = None
    outstanding: list[tuple[int, int, Effect]] = field(default_factory=list)
    _wake_ms: int | None = None
    _queued: int = 0
    _next_id: CheckpointId = NO_CHECKPOINT
    _at_version: int = 0

    def turns(self) -> Turns:
        """Yield the time of each next turn until the tick is over."""
        claimed = yield from self._claim()
        if claimed is None:
            return
        claim, plan, seen = claimed
        try:
            names = self._names(plan)
            yield from self._recover(plan, names)
            yield from self._drive(claim, seen, names)
        except Exception as error:  # noqa: BLE001 - whatever a door raises is a finding
            self.world.history.add(DoorBroke(self.generation, f"{type(error).__name__}: {error}"))
            self._say(f"BROKE {type(error).__name__}: {error}")
            return
        yield from self._release()

    # -------------------------------------------------------------- claim and recovery

    def _claim(self) -> Generator[int, None, tuple[Claim, RecoveryPlan, Observed] | None]:
        restore_what_is_lost(self.world)
        for _ in range(CLAIMS_MAX):
            seen = self._observe()
            decision = decide_recovery(seen, take_over=self.plan.take_over)
            if isinstance(decision, Refused):
                self._say(f"refused: {decision.why}")
                return None
            yield self._after(20)
            claim = self._claim_row(decision)
            answer = self.world.append(claim, seen.version)
            if isinstance(answer, RowAppended):
                self.generation = claim.generation
                self._at_version, self._next_id = answer.version, claim.first_id
                self._say(f"claimed at version {answer.version}, ids from {claim.first_id}")
                return claim, decision, seen
        return None

    def _observe(self) -> Observed:
        world = self.world
        newest = newest_claim(world.rows())
        alive = newest is not None and self.is_alive(newest.generation)
        return Observed(world.version, world.rows(), frozenset(world.cuts), HolderObserved(alive, None), world.now_ms)

    def _claim_row(self, plan: RecoveryPlan) -> Claim:
        holder = Holder(host="here", pid=self.plan.number, started="")
        claim = plan.claim.claim(holder, self.world.now_ms, f"nonce-{self.plan.number}")
        few = self.scenario.ids_per_claim
        return claim if few is None else claim.model_copy(update={"last_id": CheckpointId(claim.first_id + few - 1)})

    def _names(self, plan: RecoveryPlan) -> Names:
        """Return what is renamed; where a neighbour is in the way, the user goes on with the names that the cut has."""
        names = names_of(self.graph, plan.restore)
        if plan.restore is not None and blocked(self.world, self.graph, names):
            release = RENAMING if is_renamed(plan.restore) else 0
            self.graph = graph(self.plan.parallelism, release, self.graph.hooks)
            return names_of(self.graph, plan.restore)
        return names

    def _recover(self, plan: RecoveryPlan, names: Names) -> Turns:
        world, record = self.world, plan.roll_forward
        for _ in bringing_back(world):
            yield self._after(self.scenario.latency_ms["store"])
        if record is not None:
            versions = _versions_at_parent(world, names.then(self.graph), record)
            for publication in publications(record):
                yield self._after(self.scenario.latency_ms["store"])
                versions[publication.table] = world.publish(record.checkpoint, publication).version
            yield self._after(self.scenario.latency_ms["store"])
            world.record_cut(record.checkpoint, tuple(versions.items()))
            self._say(f"rolled checkpoint {record.checkpoint} forward")
        yield self._after(10)
        world.discard_leftovers(self.generation)

    # -------------------------------------------------------------- driving the door

    def _setup(self, claim: Claim, names: Names, seen: Observed) -> JobSetup:
        restored, renamed = link(self.world, self.graph, names, claim.generation)
        leaves_state = self.plan.number % LEAVES_STATE_EVERY == 0
        return JobSetup(
            graph=self.graph,
            config=self.scenario.checkpoint_config(patient=self.plan.patient),
            job=JOB,
            claim=claim,
            at_version=self._at_version,
            restored=with_state_of_nobody(restored) if restored and leaves_state else restored,
            allow_non_restored_state=leaves_state,
            retained=tuple(row for row in seen.rows if isinstance(row, CheckpointRecord)),
            versions=self.world.cuts[restored.checkpoint] if restored else {},
            renamed=renamed,
            rows_per_epoch=self.scenario.rows_per_epoch,
            limits=self.plan.limits,
            seed=self.plan.number,
            idle_poll_ms=self.scenario.idle_poll_ms,
            linger_ms=self.scenario.linger_ms,
            credit_bytes=self.scenario.credit_bytes,
        )

    def _drive(self, claim: Claim, seen: Observed, names: Names) -> Turns:
        setup = self._setup(claim, names, seen)
        door = JobDoor(setup)
        self.world.history.add(DoorStarted(self.generation, setup.graph, setup.restored))
        self.world.see_cuts(self.generation, standing(self.world).cuts)
        stop_ms = None if self.plan.stop is None else self.world.now_ms + self.plan.stop_after_ms
        asking = deque((self.world.now_ms + after_ms, asked) for after_ms, asked in self.plan.savepoints)
        self._take(door, door.start(self.world.now_ms))
        for _ in range(STEPS_MAX):
            if self.end is not None:
                self._ask_too_late(door, asking)
                return
            timers = [self._wake_ms, stop_ms, self.outstanding[0][0] if self.outstanding else None]
            timers.append(asking[0][0] if asking else None)
            due = min((at for at in timers if at is not None), default=None)
            if due is None:
                self._stuck("it waits for nothing")
                return
            yield max(due, self.world.now_ms)
            if self._wake_ms is not None and self._wake_ms <= self.world.now_ms:
                self._wake_ms = None
            self._tell(door, TimeAdvanced(self.world.now_ms))
            if stop_ms is not None and stop_ms <= self.world.now_ms and self.plan.stop is not None:
                stop_ms = None
                self._tell(door, self.plan.stop)
            while asking and asking[0][0] <= self.world.now_ms and self.end is None:
                self._tell(door, asking.popleft()[1])
            self._carry_out_due(door)
        if self.end is None:
            self._stuck(f"it has not ended after {STEPS_MAX} steps")

    def _ask_too_late(self, door: JobDoor, asking: Iterable[tuple[int, SavepointRequested]]) -> None:
        """Who asks after the end is answered too."""
        for _, asked in asking:
            self.world.history.add(SavepointAsked(self.generation, asked.request, asked.kind))
            self._take(door, door.step(asked))

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
        self._take(door, door.step(fact))

    def _take(self, door: JobDoor, effects: tuple[Effect, ...]) -> None:
        for checkpoint in range(self._next_id, door.next_id):
            self.world.history.add(CheckpointTriggered(self.generation, CheckpointId(checkpoint)))
        self._next_id = door.next_id
        for effect in effects:
            if self.narrate is not None:  # most runs are told to nobody, and the telling is dear
                self._say(f"-> {effect}")
            self.world.history.events.extend(events_of_effect(self.generation, effect))
            match effect:
                case WakeAt():
                    self._wake_ms = effect.at_ms
                case EndTick():
                    self._ended(effect)
                case CancelJudgement():
                    self._cancel(effect)
                case CloseHook() | NotifyComplete() | NotifyAborted() | SavepointTaken() | SavepointFailed():
                    """Somebody was told, which is noted."""
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
                ):
                    self._queued += 1
                    due_ms = self.world.now_ms + self._latency_ms(effect)
                    heappush(self.outstanding, (due_ms, self._queued, effect))
                case _:
                    assert_never(effect)

    def _cancel(self, cancelled: CancelJudgement) -> None:
        """Drop a judgement that still waits for a thread; one that has begun, as every other one has, answers late."""
        if cancelled.checkpoint % 2:
            return
        asked = JudgeSuites, cancelled.vertex, cancelled.checkpoint
        kept = [
            each
            for each in self.outstanding
            if not isinstance(each[2], JudgeSuites) or (JudgeSuites, each[2].vertex, each[2].checkpoint) != asked
        ]
        self.outstanding[:] = kept
        heapify(self.outstanding)

    def _latency_ms(self, effect: Effect) -> int:
        longest = self.scenario.latency_ms
        if isinstance(effect, PollSource):
            slow = effect.split == self.scenario.slow_split
            return self.random.randint(100, 400) if slow else self.random.randint(1, longest["poll"])
        return self.random.randint(1, longest["run" if isinstance(effect, RunMicroBatch) else "store"])

    def _ended(self, effect: EndTick) -> None:
        self.end = effect
        readable = tuple(self.hands.readable.items())
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, readable, newest))

    def _stuck(self, why: str) -> None:
        self.world.history.add(TickStuck(self.generation, why))

    # -------------------------------------------------------------- release

    def _release(self) -> Turns:
        yield self._after(10)
        if isinstance(self.world.append(self._release_row(), self._at_version), RowAppended):
            return
        yield self._after(10)
        if self.world.generation == self.generation:
            self.world.append(self._release_row(), self.world.version)

    def _release_row(self) -> Release:
        return Release(generation=self.generation, next_id=self._next_id, at_ms=0, nonce=f"release-{self.plan.number}")

    def _after(self, longest_ms: int) -> int:
        return self.world.now_ms + self.random.randint(1, longest_ms)

    def _say(self, what: str) -> None:
        if self.narrate is not None:
            self.narrate(f"{self.world.now_ms:>7} tick {self.plan.number} {what}")


def _versions_at_parent(world: World, names: Iterable[TableName], record: CheckpointRecord) -> dict[TableName, int]:
    parent = world.cuts.get(record.parent, {})
    touched = {table.table: table.parent_version for table in record.tables}
    return {name: parent.get(name, touched.get(name, 0)) for name in names}
