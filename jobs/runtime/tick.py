"""One tick: drives the tick door, and carries out what it asks for.

The same steps in the same order whatever happened before, so that every start is a recovery and every tick tests it.
Refusals come before the claim and change nothing. After it the job is released in order whatever happens, unless the
process dies, and then the next tick finds the holder dead. The order is the door's (`checkpointing.tick`).
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.coordinator.restart import strategy_of
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation, TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, StopKind, StopRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord, Claim
from checkpointing.tick.door import TickDoor
from checkpointing.tick.errand import TICK, Terms
from checkpointing.tick.messages import (
    Failed,
    Finish,
    Question,
    Recovered,
    RestartDue,
    RolledForward,
    TickFact,
    Unsettled,
    Work,
)
from jobs.accidents import explained
from jobs.cleanup.log_keeping import LogKeeping
from jobs.holding.boundaries import Boundary, boundary_from_environment
from jobs.holding.failures import TickRefusedError
from jobs.holding.job_state import must_be_usable
from jobs.holding.job_stores import JobStores
from jobs.pipeline import InvalidPipelineError
from jobs.planner import JobPlan
from jobs.recovery.carrier import LEASE_MS, Carrier, refusal
from jobs.recovery.renaming import RenameFailedError, link_renamed
from jobs.runtime.beginning import Beginning
from jobs.runtime.cleaning import clean_up_after_tick, is_cleanup_due
from jobs.runtime.driver import Clock, Inbox
from jobs.runtime.engine import Engine, SparkEngine
from jobs.runtime.input_look import look_at_input
from jobs.runtime.interrupts import stopping_on_interrupt
from jobs.runtime.job_run import JobRun
from jobs.runtime.listener import (
    InputLooked,
    Narrator,
    OrderedListener,
    Recovery,
    Restarting,
    TickListener,
)
from jobs.runtime.notices import Notices
from jobs.runtime.request_watcher import RequestWatcher
from jobs.runtime.trace import DEFAULT_BOUNDS, TraceBounds
from jobs.settings import DEFAULT_READER_GRACE_MS, DEFAULT_TABLE_LOG_KEEP_MS
from jobs.sources.port import SourceError
from jobs.spark.programs import must_start_spark
from jobs.spark.session import SparkConfig
from jobs.stores.cuts import CutsNotRecordedError
from jobs.stores.holders import this_process
from jobs.stores.leftovers import staging_folders
from jobs.stores.output_tables import TableMismatchError
from jobs.stores.warehouse import Warehouse, system_clock_ms

DRAIN_MS: Final = 10_000
"""How long a tick's end waits for effects whose answers nobody needs any more."""

POLL_MS: Final = 50
"""How often a waiting tick looks whether it was asked to stop: a lock may not be waited for in a signal handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How a tick runs, whatever the pipeline. `warehouse` must be reachable by all processes of the job.

    `dagster_run` names the Dagster run that this tick is; `run_ended` says of another tick's whether it
    has ended (None: unknown). `reader_grace_ms` is how long unneeded files stay; None: this tick deletes none, and
    no log entries of output tables, which stay for `table_log_keep_ms` at least. `clock` gives ms since the epoch.
    """

    warehouse: Path
    limits: TickLimits = field(default_factory=TickLimits)
    take_over: bool = False
    allow_non_restored_state: bool = False
    spark: SparkConfig = field(default_factory=SparkConfig)
    dagster_run: str | None = None
    run_ended: Callable[[str], bool | None] | None = None
    reader_grace_ms: int | None = DEFAULT_READER_GRACE_MS
    table_log_keep_ms: int = DEFAULT_TABLE_LOG_KEEP_MS
    lease_ms: int = LEASE_MS
    trace: TraceBounds = DEFAULT_BOUNDS
    drain_ms: int = DRAIN_MS
    clock: Callable[[], int] = system_clock_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """How a tick went. `reason` and `message` say why it failed, with the way out.

    `completed` are the newest checkpoints that it completed, oldest first, one that was rolled forward among them.
    `generation` and `trace` are the last attempt's, `restarts` those before it, `counts` those of all attempts.
    """

    outcome: TickOutcome
    generation: Generation
    completed: tuple[CheckpointRecord, ...]
    message: str
    reason: CheckpointFailureReason | None
    seconds: float
    trace: Path
    restarts: int = 0
    counts: CheckpointCounts


def run_tick(
    plan: JobPlan,
    settings: RuntimeSettings,
    listener: TickListener | None = None,
    *,
    spark: SparkSession | None = None,
    engine: Engine | None = None,
    inbox: Inbox | None = None,
    boundary: Boundary | None = None,
) -> TickReport:
    """Run one tick of the job, from the main thread if Ctrl-C and SIGTERM are to end it in order.

    `spark` is a session to use instead of one of its own, and to leave alone; `engine` runs the micro-batches
    instead of Spark, and is closed at the end; `inbox` takes a StopRequested from elsewhere. A job that fails
    restarts as the plan's configuration says; the limits hold for all attempts together.

    Raises, having changed nothing: UnfitProgramError for a machine on which Spark cannot start;
    UnusableWarehouseError for a warehouse that cannot be written; JobHeldError,
    ClaimUnsettledError and TablesAheadError; DamagedCheckpointError if
    what it would begin from is not whole; CutDoesNotFitError for a pipeline that the newest checkpoint cannot be
    restored into; SourceError and InvalidPipelineError if splits cannot be listed; what the codec raises for rows of
    another version. Raises DoorFailedError for a bug of the protocol.
    """
    inbox = inbox or Inbox()
    with ExitStack() as stack:
        stack.enter_context(stopping_on_interrupt(lambda: inbox.put(StopRequested(StopKind.NOW))))
        ordered = OrderedListener(listener or TickListener())
        stack.callback(ordered.close)
        carrier = TickCarrier(plan, settings, ordered, inbox, boundary or boundary_from_environment())
        if engine is None and spark is None and settings.spark.connect_url is None:
            must_start_spark()
        return carrier.run(engine or SparkEngine(settings.spark, ordered, spark))


class TickCarrier(Carrier):
    """Carries out what the door of one tick asks for.

    Each attempt of the tick calls these methods, in this order:

    | method      | does                                                                                   |
    |-------------|----------------------------------------------------------------------------------------|
    | `observe`   | reads the entries of `checkpoints`, the cuts and who holds the job                     |
    | `examine`   | refuses a start from damaged files, or with a pipeline that does not fit               |
    | `begins`    | the claim is in: the tick hears requests from here on                                  |
    | `ensure`    | creates missing tables; then the door repairs, publishes and deletes what is left over |
    | `recovered` | tells what was recovered                                                               |
    | `work`      | runs the job until it ends                                                             |
    | `clean_up`  | deletes what nobody needs any more; then the door releases the job                     |
    | `wait`      | waits until the next attempt is due, if one is                                         |
    """

    def __init__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener, inbox: Inbox, boundary: Boundary
    ) -> None:
        """Nothing has begun. The tick's time is its settings' clock, which never goes back here."""
        warehouse = Warehouse(settings.warehouse.absolute(), ProtocolPaths(plan.job), now_ms=settings.clock)
        super().__init__(warehouse, boundary, lease_ms=settings.lease_ms)
        self._started = time.monotonic()
        self._beginning = Beginning(plan, settings.allow_non_restored_state)
        self._settings = settings
        self._listener = listener
        self._inbox = inbox
        self._clock = Clock(settings.clock)
        self.requests = RequestWatcher(self.warehouse, inbox.put)
        self._narrator = Narrator(listener, self.requests.answer)
        self._notices = Notices(plan.sources, plan.listeners, listener)
        self._engine: Engine
        self._claim: Claim | None = None
        """The newest claim of this tick that was in."""
        self._begins = True
        """The next look at the rows begins an attempt, with stores of its own."""

    @property
    def plan(self) -> JobPlan:
        """The pipeline's plan as it is known by now."""
        return self._beginning.plan

    def run(self, engine: Engine) -> TickReport:
        """Make attempts until none follows; the engine serves them all."""
        self._engine = engine
        try:
            finish = self.drive(self.door())
            return self._report(finish)
        finally:
            self.requests.close()
            engine.close()

    def door(self) -> TickDoor:
        """Return the door of this tick."""
        return TickDoor(
            TICK,
            Terms(
                holder=this_process(self._settings.dagster_run),
                take_over=self._settings.take_over,
                limits=self._settings.limits,
                strategy=strategy_of(self.plan.config),
                waits_ms=self._settings.lease_ms,
            ),
        )

    def moment(self) -> Stamp:
        """Return now, and whether somebody has asked the tick to stop."""
        return Stamp(self._clock.now_ms(), uuid4().hex, self._inbox.stop_requested)

    # -------------------------------------------------------------- before the claim

    def tables(self) -> tuple[TableName, ...]:
        """Return the tables of the pipeline, and those that they are renamed from."""
        return self._beginning.tables()

    def observe(self) -> Observed:
        """Return what a start must know; an attempt begins with stores of its own."""
        if self._begins:
            must_be_usable(self.warehouse)
            self.stores, self._begins = JobStores(self.warehouse, self.boundary), False
        return self._beginning.observe(self.stores, self._settings.run_ended)

    def examine(self, question: Question, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise unless the tick may begin where the plan says."""
        self._beginning.examine(question, self.stores, seen, plan)

    def is_refusal(self, error: Exception) -> bool:
        """Return whether a later attempt that meets this error has failed; any other error ends the tick by itself."""
        return isinstance(error, (TickRefusedError, SourceError, InvalidPipelineError))

    # -------------------------------------------------------------- holding the job

    def begins(self, claim: Claim, plan: RecoveryPlan) -> None:
        """The job is held: tell who listens, and hear who asks for something."""
        if self._claim is None:
            for seen in look_at_input(self.plan.sources, plan.restore):
                self._listener.progress(InputLooked(seen))
        self._claim, self._begins = claim, True
        self._listener.claimed(claim, plan.claim.why)
        self._held.enter_context(self.requests.attempt())
        self._attempt_inbox = self._held.enter_context(self._inbox.attempt())

    def ensure(self, plan: RecoveryPlan, unsettled: frozenset[TableName]) -> None:
        """Create the output tables that are missing, and compare the others with the newest row."""
        del plan  # the newest row has other names, if its tables are renamed
        tables, renaming = self.plan.graph.tables(), self._beginning.renaming
        renamed = renaming.tables.values()
        self.stores.ensure(tables, self.plan.table_schemas, renaming.record, unsettled=unsettled, renamed=renamed)

    def folders(self) -> Iterable[TableName]:
        """Return every folder into which a vertex stages files."""
        return staging_folders(self.plan.graph, self.warehouse.paths)

    def told(self, effect: RolledForward | RestartDue) -> None:
        """Tell who listens."""
        match effect:
            case RolledForward():
                self._narrator.rolled_forward(effect.record, effect.notes, dict(effect.versions))
            case RestartDue():
                end = effect.end
                self._listener.progress(Restarting(effect.restart, end.reason, end.message, effect.delay_ms))

    def recovered(self, done: Recovered, repaired: tuple[str, ...]) -> None:
        """Keep the logs short while nobody waits, and tell who listens."""
        self.stores.maintain((table.name for table in self.plan.graph.tables()), self._keeping())
        restored, pending = done.plan.restore, done.plan.roll_forward
        self._listener.recovered(
            Recovery(
                restored.checkpoint if restored else None,
                pending.checkpoint if pending else None,
                done.leftovers,
                repaired,
            )
        )

    def work(self, work: Work) -> TickFact:
        """Run the job until it ends."""
        settings = self._settings
        return self.job(work).ended(self._engine, self._attempt_inbox, self._clock, settings.trace, settings.drain_ms)

    def job(self, work: Work) -> JobRun:
        """Return the job that this attempt runs; renamed tables have their files from here on."""
        linked = link_renamed(self.stores, self.plan, self._beginning.renaming, work.claim.generation, self.boundary)
        self._beginning.plan = linked.plan
        return JobRun(
            linked=linked,
            work=work,
            stores=self.stores,
            boundary=self.boundary,
            notices=self._notices,
            narrator=self._narrator,
            keeping=self._keeping(),
            allow_non_restored_state=self._settings.allow_non_restored_state,
        )

    def clean_up(self) -> None:
        """Delete what nobody needs any more, while the job is still held and nobody waits for this tick to end."""
        grace_ms = self._settings.reader_grace_ms
        if grace_ms is None or self._claim is None:
            return
        if self._narrator.count or is_cleanup_due(self.warehouse, grace_ms):
            clean_up_after_tick(self.stores, self._claim.generation, grace_ms, self.boundary)

    def _keeping(self) -> LogKeeping | None:
        """Return how long log entries of tables stay; None: for ever."""
        grace_ms = self._settings.reader_grace_ms
        return None if grace_ms is None else LogKeeping(grace_ms, self._settings.table_log_keep_ms)

    def failure(self, error: Exception) -> TickFact:
        """Return how an attempt ends by an error: what goes wrong with tables is an end like any other."""
        if isinstance(error, (TableMismatchError, RenameFailedError)):
            return Failed(EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, str(error)))
        if isinstance(error, (CutsNotRecordedError, OSError)):
            return Failed(EndTick(TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error)))
        return super().failure(error)

    # -------------------------------------------------------------- the end

    def wait(self, delay_ms: int) -> None:
        """Wait so long, or until somebody asks the tick to stop."""
        until = time.monotonic() + delay_ms / 1000
        while not self._inbox.stop_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_MS / 1000))

    def _report(self, finish: Finish) -> TickReport:
        """Return how the tick ended; raise what ended it before its first claim, or is a fault of Tidemark."""
        end = finish.outcome
        if isinstance(end, BaseException):
            raise end
        if isinstance(end, (Refused, Unsettled)):
            error = refusal(self.warehouse, end)
            if self._claim is None:
                raise error
            end = EndTick(TickOutcome.FAILED, CheckpointFailureReason.FENCED, str(error))
        if self._claim is None or not isinstance(end, EndTick):
            raise TypeError(f"a tick ended as {end}")
        generation = self._claim.generation
        return TickReport(
            outcome=end.outcome,
            generation=generation,
            completed=self._narrator.completed,
            message=end.message if end.reason is CheckpointFailureReason.TASK_FAILURE else explained(end.message),
            reason=end.reason,
            seconds=time.monotonic() - self._started,
            trace=self.warehouse.path(self.warehouse.paths.trace(generation)),
            counts=self._narrator.counts,
            restarts=finish.restarts,
        )
