"""One real tick in slow motion: the product's own steps, its effects carried out one at a time by its driver.

Observe, decide, claim, recover, set up, carry out, release are the product's code over the product's stores. What is
left out is its clock, its threads and its loop.
"""

import errno
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from checkpointing.commit.recovery import RecoveryPlan, completion
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    EndTick,
    Fact,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    PollSource,
    PublishFailed,
    PublishTable,
    RecordCut,
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
from jobs.state.files import StateFileError
from jobs.tick.driver import Inbox
from jobs.tick.engine import Engine
from jobs.tick.listener import TickListener
from jobs.tick.tick_carrier import TickCarrier
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import CarriedOut
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import RequestFolder
from spec.reference.pipeline import JOINED, SPLITS
from spec.world.carrier import QUALITY_MESSAGE
from spec.world.faults import NONE, Faults
from spec.world.whole_job import NEVER_MS, SmallJob
from tests.conformance.pipeline import RowSource, plan_of
from tests.conformance.real_world import RealWorld
from tests.conformance.strikes import ROWS_COMMIT, TABLE_COMMIT, Boundaries, lost_reply, silence

APPEND_ONLY = "delta.appendOnly"


@dataclass(slots=True, eq=False)
class WatchedEngine:
    """Runs micro-batches in another engine; one that is told to fails when all its files are written."""

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
        """Leave the other engine open: it serves all ticks."""


class RollForwardListener(TickListener):
    """Tells the witness of a cut that a recovery recorded."""

    def __init__(self, world: RealWorld) -> None:
        self._world = world

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        self._world.witness.note_cut(record.checkpoint, dict(versions))


class SlowCarrier(TickCarrier):
    """The product's carrier without its threads: no lease is kept, and requests are looked for when somebody says."""

    def begins(self, claim: Claim, plan: RecoveryPlan) -> None:
        self._claim, self._begins, self._lease_ms = claim, True, None

    def clean_up(self) -> None:
        """Nobody cleans up between two steps."""


class RealTick:
    """A tick from its claim on. Every step may raise DiedError where a strike says so."""

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
        """Carry out an effect over the real stores, going wrong in the way of its kind."""
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
                """The witness has seen what there was to see."""
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
        """The disk does not answer while the tables are looked at."""
        with patch.object(JobStores, "check", side_effect=OSError(errno.EIO, "Input/output error")):
            yield

    @contextmanager
    def _append_only(self, tables: tuple[TableName, ...]) -> Iterator[None]:
        """Somebody forbids replacing files in an upsert table, and allows it again later."""
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
        """Write a request for a savepoint into the job's folder, as another process would; return its name."""
        return RequestFolder(self._world.warehouse).ask(kind, this_process()).request

    def asked(self) -> Iterator[SavepointRequested]:
        """Yield what is asked for in the folder and was not handed over yet."""
        self._carrier.requests._look()
        while (fact := self._inbox.get(0)) is not None:
            if isinstance(fact, SavepointRequested):
                yield fact

    def answer(self, effect: SavepointTaken | SavepointFailed) -> None:
        """Write the door's answer where the command that asked looks for it."""
        self._carrier.requests.answer(effect)
