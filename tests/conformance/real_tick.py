"""One real tick in slow motion: the product's own code takes the steps, and carries out one effect at a time.

The product's code observes, decides, claims, recovers, sets up, carries out and releases, over the product's stores.
Only its clock, its threads and its loop are left out.
"""

import errno
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from checkpointing.commit.at_rest import Move
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import RecoveryPlan, completion
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, JobName, SplitId, TableName, VertexId
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    SuitesJudged,
)
from checkpointing.metadata.record import CheckpointRecord, Claim
from checkpointing.tick.messages import Finish, Work, WorkEnded
from jobs.operators.execute import MicroBatchError
from jobs.operators.spec import VertexPlan
from jobs.sinks.staged_files import StagedFileError, StagedFiles
from jobs.sources.position_words import START
from jobs.state.files import StateFileError
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.driver import Inbox
from jobs.tick.engine import Engine
from jobs.tick.listener import TickListener
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.tick.tick_carrier import TickCarrier
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import CarriedOut
from jobs.warehouse.job_stores import JobTables
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from spec.history import Begun, DoorBroke, DoorStarted, ResetAsked, TickOver
from spec.reference.pipeline import JOINED, SPLITS
from spec.world.carrier import QUALITY_MESSAGE
from spec.world.faults import NONE, Faults
from spec.world.whole_job import NEVER_MS, DrivenJob, SmallJob, TimedDoor
from tests.conformance.pipeline import RowSource, plan_of
from tests.conformance.real_world import (
    ROWS_COMMIT,
    TABLE_COMMIT,
    Boundaries,
    DiedError,
    RealWorld,
    Strike,
    death,
    lost_reply,
    silence,
)

APPEND_ONLY = "delta.appendOnly"


@dataclass(slots=True, eq=False)
class WatchedEngine:
    """Runs micro-batches in another engine. With `fails`, a micro-batch fails after all its files are written."""

    engine: Engine
    world: RealWorld
    fails: bool = False

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        try:
            finished = self.engine.run(plan, effect, warehouse, job)
        except (FileNotFoundError, StateFileError) as error:
            if effect.generation >= self.world.witness.generation:
                self.world.missed(str(error), f"micro-batch {effect.micro_batch} of {effect.vertex}")
            raise
        if self.fails:
            raise MicroBatchError(effect.vertex, effect.micro_batch, "a task died")
        return finished

    def close(self) -> None:
        """Leave the other engine open, because it serves all ticks."""


class RollForwardListener(TickListener):
    """Reports to the witness each cut that a recovery records."""

    def __init__(self, world: RealWorld) -> None:
        self._world = world

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        self._world.witness.note_cut(record.checkpoint, dict(versions))


class SlowCarrier(TickCarrier):
    """The product's carrier without its threads: it keeps no lease, and looks for requests only when asked to."""

    def begins(self, claim: Claim, plan: RecoveryPlan) -> None:
        self._claim, self._begins, self._lease_ms = claim, True, None

    def clean_up(self) -> None:
        """Do nothing, because the machine's ticks clean up nothing."""


class RealTick:
    """A tick from its claim on. Every step may raise DiedError if a strike is armed there."""

    def __init__(self, world: RealWorld, job: SmallJob, engine: Engine) -> None:
        self._world = world
        self.boundaries = Boundaries(world.watch)
        self.sources = {name: RowSource(name, world.readable) for name in SPLITS}
        self._engine = WatchedEngine(engine, world)
        plan = plan_of(job.graph.vertex(JOINED).parallelism, job.config, self.sources)
        settings = RuntimeSettings(warehouse=world.root, limits=job.limits, take_over=True, clock=lambda: world.now_ms)
        self._inbox = Inbox()
        self._carrier = SlowCarrier(plan, settings, RollForwardListener(world), self._inbox, self.boundaries)
        self._door = self._carrier.door()
        self._credit_bytes = job.credit_bytes

    # -------------------------------------------------------------- its life

    def begin(self) -> JobSetup:
        carrier, waiting = self._carrier, deque(self._door.start(self._carrier.moment()))
        while not isinstance(effect := waiting.popleft(), Work | Finish):
            fact = carrier.carry_out(effect)
            if fact is not None:
                waiting.extend(self._door.step(fact, carrier.moment()))
        if isinstance(effect, Finish):
            raise TypeError(f"the start was refused: {effect.outcome}")
        job = replace(carrier.job(effect), keeping=None)
        self.claim, self._at_version, setup = effect.claim, effect.at_version, job.setup()
        self._handlers = job.handlers(self._engine)
        if setup.restored is not None:
            self._handlers.carry_out(completion(setup.restored))
        seed = self.claim.generation  # the product's is drawn from the nonce, which no run repeats
        return replace(setup, seed=seed, idle_poll_ms=NEVER_MS, linger_ms=0, credit_bytes=self._credit_bytes)

    def release(self, end: EndTick, next_id: CheckpointId, at_version: int | None) -> None:
        ended = WorkEnded(end, next_id, at_version or self._at_version)
        waiting = deque(self._door.step(ended, self._carrier.moment()))
        while not isinstance(effect := waiting.popleft(), Finish):
            fact = self._carrier._answered(effect)
            if fact is not None:
                waiting.extend(self._door.step(fact, self._carrier.moment()))
        self._carrier.requests._tell_the_end()

    # -------------------------------------------------------------- its effects

    def carry_out(self, effect: CarriedOut, faults: Faults = NONE) -> Fact | None:
        """Carry out an effect over the real stores. With `faults`, it fails in a way of its kind."""
        if isinstance(effect, JudgeSuites) and faults.suite_fails:
            return SuitesJudged(effect.vertex, effect.checkpoint, passed=False, report="[]", message=QUALITY_MESSAGE)
        if isinstance(effect, JudgeSuites) and faults.judge_fails:
            return JudgementFailed(effect.vertex, effect.checkpoint, "the judge is ill")
        with self._trouble(effect, faults):
            fact = self._handlers.carry_out(effect)
        self._world.watch("after:trouble")
        match effect:
            case RecordCut():
                self._world.witness.note_cut(effect.checkpoint, dict(effect.versions))
            case PublishTable() if isinstance(fact, PublishFailed):
                self._miss_files(effect)
            case _:
                """The witness has seen this effect already."""
        return fact

    def _miss_files(self, effect: PublishTable) -> None:
        """Find out whether a publication failed because a file that it names was deleted."""
        publication = effect.publication
        for file in (*publication.adds, *publication.files):
            if not (self._world.root / file.path).exists():
                wanted_by = f"publishing checkpoint {effect.checkpoint} of {publication.table}"
                self._world.witness.miss(file.path, wanted_by)

    @contextmanager
    def _trouble(self, effect: CarriedOut, faults: Faults) -> Iterator[None]:
        match effect:
            case PollSource() if faults.poll_fails:
                with self._broken(effect.source):
                    yield
            case RunMicroBatch() if faults.micro_batch_fails:
                with self._failing():
                    yield
            case RunMicroBatch() if faults.micro_batch_not_staged:
                with patch.object(StagedFiles, "write", side_effect=StagedFileError("can't write: the disk is full")):
                    yield
            case CheckTables() if faults.check_fails:
                with self._unreadable():
                    yield
            case CheckTables() if faults.table_problem:
                with self._append_only(effect.tables):
                    yield
            case AppendRow() if faults.write_lost:
                with self.boundaries.struck(silence(f"before:{ROWS_COMMIT}")):
                    yield
            case AppendRow() if faults.reply_lost:
                with lost_reply(self.boundaries, self._world.root / self._world.warehouse.paths.checkpoints):
                    yield
            case PublishTable() if faults.publish_fails:
                with self.boundaries.struck(silence(f"before:{TABLE_COMMIT}", stays=True)):
                    yield
            case _:
                yield

    @contextmanager
    def _broken(self, source: VertexId) -> Iterator[None]:
        self.sources[source].broken = True
        try:
            yield
        finally:
            self.sources[source].broken = False

    @contextmanager
    def _failing(self) -> Iterator[None]:
        self._engine.fails = True
        try:
            yield
        finally:
            self._engine.fails = False

    @contextmanager
    def _unreadable(self) -> Iterator[None]:
        """Let the check of the tables fail, as if the disk did not answer."""
        with patch.object(JobTables, "check", side_effect=OSError(errno.EIO, "Input/output error")):
            yield

    @contextmanager
    def _append_only(self, tables: tuple[TableName, ...]) -> Iterator[None]:
        """Forbid replacing files in an upsert table, and allow it again later, as another user may."""
        upserts = [each.name for each in self._carrier.plan.graph.tables() if each.mode is TableMode.UPSERT]
        mine = [table for table in upserts if table in tables]
        self._set_append_only(mine, "true")
        try:
            yield
        finally:
            self._set_append_only(mine, "false")

    def _set_append_only(self, tables: list[TableName], value: str) -> None:
        for name in tables:
            table = self._world.foreign(name)
            if table is not None:
                table.alter.set_table_properties({APPEND_ONLY: value})
        self._world.watch("after:foreign")

    # -------------------------------------------------------------- requests

    def ask(self, kind: SavepointKind) -> str:
        """Write a request for a savepoint into the job's folder, as another process would. Return its name."""
        return RequestFolder(self._world.warehouse).ask(kind, this_process()).request

    def asked(self) -> Iterator[SavepointRequested]:
        """Yield the requests in the folder that the door has not got yet."""
        self._carrier.requests._look()
        while (fact := self._inbox.get(0)) is not None:
            if isinstance(fact, SavepointRequested):
                yield fact

    def answer(self, effect: SavepointTaken | SavepointFailed) -> None:
        """Write the door's answer where the requesting command looks for it."""
        self._carrier.requests.answer(effect)


# ------------------------------------------------------------------
# A whole job over real stores that the caller's choices drive, as `spec.world.whole_job` is in memory.


CROSSINGS = 3
"""About how many boundaries an effect crosses."""
PATIENCE_MS = 60_000
"""How much time must pass before the next claim, because the holder is this very process, which lives.

It is longer than a lease.
"""


class RealHands:
    """Carries out the effects of all ticks, each on the stores that its tick has opened."""

    def __init__(self, readable: dict[SplitId, int]) -> None:
        self.readable = readable
        self.ticks: dict[Generation, RealTick] = {}

    def carry_out(self, effect: Effect, generation: Generation, faults: Faults) -> Fact | None:
        return self.ticks[generation].carry_out(effect, faults)


class RealJob(DrivenJob):
    """One warehouse in a folder, and its ticks, one after the other or side by side."""

    def __init__(self, job: SmallJob, root: Path, engine: Engine) -> None:
        super().__init__(job)
        self.world = RealWorld(root, job)
        self.hands = RealHands(self.world.readable)
        self.tick: RealTick | None = None
        self._engine = engine
        self._at_version: int | None = None

    # -------------------------------------------------------------- a tick

    def start(self, *strikes: Strike) -> None:
        self.door, self.outstanding, self.end, self._at_version = None, [], None, None
        tick = self.tick = RealTick(self.world, self.job, self._engine)
        with tick.boundaries.struck(*strikes):
            try:
                setup = tick.begin()
            except Exception as error:  # noqa: BLE001 - nothing forbids that a tick begins here
                what = f"a tick could not begin: {type(error).__name__}: {error}"
                self.world.history.add(DoorBroke(self.world.witness.generation, what))
                return
        self.generation, self._next_id = tick.claim.generation, tick.claim.first_id
        self.hands.ticks[self.generation] = tick
        self.door = TimedDoor(setup)
        self.world.history.add(DoorStarted(self.generation, setup.graph, setup.restored))
        self._take(Begun(setup, self.world.now_ms), self.door.start(self.world.now_ms))
        self.hear()

    def abandoned(self) -> "RealJob":
        """Drop the tick. Return it as a zombie, which goes on with its own stores in the same warehouse."""
        zombie = copy(self)
        self.crash()
        return zombie

    def tell(self, fact: Fact) -> None:
        if isinstance(fact, RowAppended):
            self._at_version = fact.version
        super().tell(fact)

    def _carry_on(self, effects: tuple[Effect, ...]) -> None:
        super()._carry_on(())
        for effect in effects:
            match effect:
                case DiscardFiles():
                    self._carry_out(effect)
                    continue
                case NotifyComplete() | NotifyAborted():
                    self._carry_out(effect)
                case SavepointTaken() | SavepointFailed():
                    self.hands.ticks[self.generation].answer(effect)
                case _:
                    """The effect is carried out when the caller chooses it."""
            super()._carry_on((effect,))
        if self.end is not None and self.tick is not None and self.door is not None:
            self.tick.release(self.end, self.door.next_id, self._at_version)
            self.tick = None

    def _carry_out(self, effect: DiscardFiles | NotifyComplete | NotifyAborted) -> None:
        self.hands.ticks[self.generation].carry_out(effect)

    def _over(self, effect: EndTick) -> None:
        self.end, self.outstanding = effect, []
        seen: Mapping[SplitId, int] = {
            split: far
            for source in self.hands.ticks[self.generation].sources.values()
            for split, far in source.seen.items()
        }
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, tuple(seen.items()), newest))

    # -------------------------------------------------------------- rollbacks and resets

    def others(self) -> tuple[CheckpointId, ...]:
        return self.world.others()

    def roll_back(self, checkpoint: CheckpointId, effects_max: int) -> None:
        """Roll back to that entry as the product does, and die after about `effects_max` effects. It may be refused."""
        boundaries = Boundaries(self.world.watch)
        self.world.now_ms += PATIENCE_MS
        with boundaries.struck(death("", effects_max * CROSSINGS, stays=True)), suppress(DiedError):
            try:
                roll_back(self.world.warehouse, checkpoint, boundary=boundaries)
            except (RollbackRefusedError, TableNotRolledBackError):
                """Another writer may have merged files that must leave a table with files that stay."""
        self.world.watch("after:death")

    def reset(self, move: Move, effects_max: int) -> None:
        """Reset a source as the product does, and die after about `effects_max` effects."""
        boundaries = Boundaries(self.world.watch)
        self.world.now_ms += PATIENCE_MS
        self.world.history.add(ResetAsked(tuple(move.positions.items())))
        (position,) = set(move.positions.values())
        split = next(iter(move.positions)) if len(move.positions) < len(SPLITS[move.source]) else None
        asked = Reset(move.source, position or START, split)
        sources = {name: RowSource(name, self.world.readable) for name in SPLITS}
        with boundaries.struck(death("", effects_max * CROSSINGS, stays=True)), suppress(DiedError):
            reset(self.world.warehouse, sources, asked, boundary=boundaries)
        self.world.watch("after:death")

    # -------------------------------------------------------------- savepoints

    def ask(self, kind: SavepointKind) -> str:
        if self.tick is None:
            raise TypeError("no tick is running that could be asked")
        request = self.tick.ask(kind)
        self.hear()
        return request

    def hear(self) -> None:
        for fact in self.tick.asked() if self.tick is not None else ():
            self.tell(fact)
