"""One tick: observe, decide, claim, recover, drive the job until it ends, release.

The same steps in the same order whatever happened before, so that every start is a recovery and every
tick tests it. Refusals come before the claim and change nothing; after it the job is released in order
whatever happens, unless the process dies, and then the next tick finds the holder dead. A tick that
restarts a failed job (G4) goes through all of them again, as the next generation.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

import structlog
from pyspark.sql import SparkSession

from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.coordinator.restart import strategy_of
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation, TableName
from checkpointing.job.door import JobDoor
from checkpointing.job.restoring import check_fits
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import EndTick, StopKind, StopRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord, Claim
from jobs.accidents import explained
from jobs.cleanup.log_keeping import LogKeeping
from jobs.holding import claiming
from jobs.holding.boundaries import ENSURE_TABLES, LEASE, Boundary, around, boundary_from_environment
from jobs.holding.claiming import Claimed
from jobs.holding.failures import ClaimUnsettledError, JobHeldError, RollForwardError, TickRefusedError
from jobs.holding.hold import Hold
from jobs.holding.job_state import must_be_usable
from jobs.holding.job_stores import JobStores
from jobs.holding.lease_keeper import LeaseKeeper
from jobs.pipeline import InvalidPipelineError
from jobs.planner import JobPlan
from jobs.recovery.recovering import discard_leftovers, roll_forward
from jobs.recovery.renaming import Linked, RenameFailedError, Renaming, link_renamed, renamed_plan
from jobs.recovery.restore_damage import must_be_sound, observe_sound
from jobs.recovery.state_migration import plan_with_migrations
from jobs.recovery.tables_ahead import must_not_be_ahead
from jobs.recovery.tables_behind import mend, must_be_mendable
from jobs.runtime.cleaning import clean_up_after_tick, is_cleanup_due
from jobs.runtime.driver import Clock, Driver, Inbox
from jobs.runtime.effects import EffectHandlers
from jobs.runtime.engine import Engine, SparkEngine
from jobs.runtime.input_look import look_at_input
from jobs.runtime.interrupts import stopping_on_interrupt
from jobs.runtime.listener import InputLooked, Narrator, OrderedListener, Recovery, SilentListener, TickListener
from jobs.runtime.notices import Notices
from jobs.runtime.request_watcher import RequestWatcher
from jobs.runtime.restarting import Restarts
from jobs.runtime.trace import DEFAULT_BOUNDS, TraceBounds, TraceWriter, drop_old_traces
from jobs.settings import DEFAULT_READER_GRACE_MS, DEFAULT_TABLE_LOG_KEEP_MS
from jobs.sources.port import SourceError
from jobs.spark.programs import must_start_spark
from jobs.spark.session import SparkConfig
from jobs.stores.cuts import CutsNotRecordedError
from jobs.stores.holders import this_process
from jobs.stores.lease import LeaseStore
from jobs.stores.output_tables import TableMismatchError
from jobs.stores.warehouse import Warehouse, system_clock_ms

_log = structlog.get_logger(__name__)

LEASE_MS: Final = 30_000

DRAIN_MS: Final = 10_000
"""How long a tick's end waits for effects whose answers nobody needs any more."""

HELD_POLL_S: Final = 0.25
"""How often a tick that goes on in another trace looks whether the job is free again."""


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
        ordered = OrderedListener(listener or SilentListener())
        stack.callback(ordered.close)
        tick = _Tick(plan, settings, ordered, inbox, boundary or boundary_from_environment())
        if engine is None and spark is None and settings.spark.connect_url is None:
            must_start_spark()
        return tick.run(engine or SparkEngine(settings.spark, ordered, spark))


class _Tick:
    """The steps of one tick, in order."""

    def __init__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener, inbox: Inbox, boundary: Boundary
    ) -> None:
        self._started = time.monotonic()
        self._plan = plan
        self._settings = settings
        self._listener = listener
        self._inbox = inbox
        self._boundary = boundary
        paths = ProtocolPaths(plan.job)
        self._warehouse = Warehouse(settings.warehouse.absolute(), paths, now_ms=settings.clock)
        self._requests = RequestWatcher(self._warehouse, inbox.put)
        self._narrator = Narrator(listener, self._requests.answer)
        self._notices = Notices(plan.sources, plan.listeners, listener)
        self._restarts = Restarts(strategy_of(plan.config), settings.limits, inbox, listener)
        self._renaming = Renaming()
        self._renews = False
        """The last attempt ended because its trace was full."""
        self._inherited = 0
        """Checkpoints that this tick publishes for an older one."""

    def run(self, engine: Engine) -> TickReport:
        """Go on until no attempt follows on the last one; the engine serves them all."""
        try:
            claimed = self._claim(None)
            self._inherited = int(claimed.plan.roll_forward is not None)
            for seen in look_at_input(self._plan.sources, claimed.plan.restore):
                self._listener.progress(InputLooked(seen))
            end = self._attempt(claimed, engine)
            while (last := self._last(claimed, end)) is None:
                try:
                    claimed = self._claim_next(claimed.claim.generation)
                    end = self._attempt(claimed, engine)
                except JobHeldError as held:
                    end = EndTick(TickOutcome.FAILED, CheckpointFailureReason.FENCED, str(held))
                except (TickRefusedError, SourceError, InvalidPipelineError) as error:
                    end = EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, str(error))
            return self._report(claimed, last)
        finally:
            self._requests.close()
            engine.close()

    def _last(self, claimed: Claimed, end: EndTick) -> EndTick | None:
        """Return how the tick ends, or None if another attempt follows."""
        if self._renews and self._restarts.renews(self._narrator.count - self._inherited):
            return None
        return self._restarts.follows(end, self._warehouse.now_ms(), _seed(claimed.claim))

    def _claim_next(self, generation: Generation) -> Claimed:
        """Claim the job for the next attempt.

        A tick that goes on in another trace has released the job for a moment. It waits for a command that took that
        moment, as a savepoint at rest does, for `lease_ms` at most. Raises what `_claim` raises.
        """
        until = time.monotonic() + (self._settings.lease_ms / 1000 if self._renews else 0)
        self._renews = False
        while True:
            try:
                return self._claim(generation)
            except JobHeldError:
                if time.monotonic() >= until or self._inbox.stop_requested:
                    raise
                time.sleep(HELD_POLL_S)

    def _attempt(self, claimed: Claimed, engine: Engine) -> EndTick:
        hold = Hold(self._stores, claimed.claim, claimed.at_version, self._boundary)
        self._listener.claimed(claimed.claim, claimed.plan.claim.why)
        with self._requests.attempt(), self._inbox.attempt() as inbox, ExitStack() as stack:
            with around(self._boundary, LEASE):
                leases = LeaseStore(self._warehouse)
                stack.enter_context(LeaseKeeper(leases, claimed.claim, self._settings.lease_ms))
            stack.callback(hold.release)
            try:
                end = self._hold(claimed, hold, engine, inbox)
            except OSError as error:  # the trace, or a folder of the job: the effects' own errors are facts
                reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
                end = EndTick(TickOutcome.FAILED, reason, f"{type(error).__name__}: {error}")
            return claiming.end_with_cause(self._stores, claimed.claim, end)

    # -------------------------------------------------------------- the claim

    def _claim(self, generation: Generation | None) -> Claimed:
        """Claim the job; `generation` is that of this tick's own attempt before.

        Whoever loses the race to another claim meets its holder, and takes nothing over from it.
        """
        must_be_usable(self._warehouse)
        holder = this_process(self._settings.dagster_run)
        take_over = self._settings.take_over or generation is not None
        self._stores = JobStores(self._warehouse, self._boundary)
        for _ in range(claiming.TRIES):
            seen = observe_sound(self._stores, self._settings.run_ended)
            newest = claiming.newest_generation(seen)
            take_over = take_over and generation in (None, newest)
            generation = newest
            decided = claiming.decide(seen, self._warehouse, take_over=take_over)
            decision, self._renaming = renamed_plan(self._stores, self._plan.graph, decided)
            if not self._may_begin(seen, decision):
                continue
            claimed = claiming.append_claim(self._stores, seen, decision, holder, self._boundary)
            if claimed is not None:
                return claimed
        raise ClaimUnsettledError(self._plan.job, f"others wrote first {claiming.TRIES} times")

    def _may_begin(self, seen: Observed, decision: RecoveryPlan) -> bool:
        """Raise unless the tick may begin where the decision says; False: look again.

        Files and tables are looked at after the rows. If others wrote rows meanwhile, the two are of different
        moments: a table may show what only a newer row says, and a file be gone that only an older one names.
        """
        try:
            must_be_sound(self._warehouse, decision)
            self._plan = self._fitting(decision.restore)
            must_be_mendable(self._stores, seen.rows, self._table_names())
            must_not_be_ahead(self._stores, self._table_names(), seen.rows)
        except Exception:
            if self._stores.observe().version == seen.version:
                raise
            return False
        return True

    def _table_names(self) -> tuple[TableName, ...]:
        """Return the tables of the pipeline, and those that they are renamed from."""
        names = [table.name for table in self._plan.graph.tables()]
        return tuple(dict.fromkeys([*names, *self._renaming.tables_then(self._plan.graph)]))

    def _fitting(self, restored: CheckpointRecord | None) -> JobPlan:
        """Return the plan with its sources' splits; raise CutDoesNotFitError unless the cut can be restored into it."""
        plan = self._plan.with_discovered_splits(restored)
        if restored is not None:
            allowed = self._settings.allow_non_restored_state
            check_fits(plan.graph, restored, plan.config.max_parallelism, allow_non_restored_state=allowed)
            return plan_with_migrations(plan, restored, self._warehouse.root)
        return plan

    # -------------------------------------------------------------- holding the job

    def _hold(self, claimed: Claimed, hold: Hold, engine: Engine, inbox: Inbox) -> EndTick:
        """Recover, then drive. What goes wrong with tables is an end like any other; the rest is raised."""
        try:
            self._recover(claimed)
            linked = link_renamed(self._stores, self._plan, self._renaming, claimed.claim.generation, self._boundary)
        except (TableMismatchError, RollForwardError, RenameFailedError) as error:
            return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, str(error))
        except (CutsNotRecordedError, OSError) as error:
            return EndTick(TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error))
        self._plan = linked.plan
        end = self._drive(claimed, linked, hold, engine, inbox)
        self._clean_up(claimed, end)
        return end

    def _clean_up(self, claimed: Claimed, end: EndTick) -> None:
        """Delete what nobody needs any more, while the job is still held and nobody waits for this tick to end."""
        grace_ms = self._settings.reader_grace_ms
        if grace_ms is None or end.outcome is TickOutcome.FAILED or self._inbox.stop_requested:
            return
        if self._narrator.count or is_cleanup_due(self._warehouse, grace_ms):
            clean_up_after_tick(self._stores, claimed.claim.generation, grace_ms, self._boundary)

    def _keeping(self) -> LogKeeping | None:
        grace_ms = self._settings.reader_grace_ms
        return None if grace_ms is None else LogKeeping(grace_ms, self._settings.table_log_keep_ms)

    def _recover(self, claimed: Claimed) -> None:
        graph, newest, pending = self._plan.graph, claimed.plan.restore, claimed.plan.roll_forward
        doubt = must_be_mendable(self._stores, claimed.seen.rows, self._table_names())
        unsettled = {*doubt.mending.tables, *(table.table for table in (pending.tables if pending is not None else ()))}
        with around(self._boundary, ENSURE_TABLES):
            renamed = self._renaming.tables.values()
            self._stores.ensure(graph.tables(), self._plan.table_schemas, newest, unsettled=unsettled, renamed=renamed)
        mended = mend(self._stores, doubt, self._boundary)
        if pending is not None:
            done = roll_forward(self._stores, self._renaming.tables_then(graph), pending, self._boundary)
            self._narrator.rolled_forward(done.record, done.notes, done.versions)
        leftovers = discard_leftovers(self._stores, graph, claimed.claim.generation, claimed.seen.rows, self._boundary)
        self._stores.maintain((table.name for table in graph.tables()), self._keeping())
        self._listener.recovered(
            Recovery(newest.checkpoint if newest else None, pending.checkpoint if pending else None, leftovers, mended)
        )

    def _drive(self, claimed: Claimed, linked: Linked, hold: Hold, engine: Engine, inbox: Inbox) -> EndTick:
        setup = self._setup(claimed, linked)
        door = JobDoor(setup)
        keeping = self._keeping()
        handlers = EffectHandlers(self._plan, self._stores, engine, self._boundary, self._notices, keeping=keeping)
        with TraceWriter(self._trace(claimed), self._settings.trace) as trace:
            driver = Driver(door, handlers, inbox, trace, self._narrator, Clock(self._settings.clock))
            try:
                end, late = driver.run(setup, self._settings.drain_ms)
            finally:
                self._renews = driver.renews
                self._narrator.counts += door.counts
                hold.next_id = door.next_id
                hold.at_version = driver.at_version or hold.at_version
        if late:
            _log.warning("effects still run after the end of the tick", effects=late)
            engine.close()
        return end

    def _setup(self, claimed: Claimed, linked: Linked) -> JobSetup:
        restored = linked.record
        records = (row for row in claimed.seen.rows if isinstance(row, CheckpointRecord))
        return JobSetup(
            graph=self._plan.graph,
            config=self._plan.config,
            job=self._plan.job,
            claim=claimed.claim,
            at_version=claimed.at_version,
            restored=restored,
            retained=tuple(sorted(records, key=lambda record: record.checkpoint)),
            versions=(self._stores.read_cut(restored.checkpoint) or {}) if restored else {},
            renamed=linked.renamed,
            rows_per_epoch=dict(self._plan.rows_per_epoch),
            limits=self._restarts.limits(self._narrator.count - self._inherited),
            allow_non_restored_state=self._settings.allow_non_restored_state,
            seed=_seed(claimed.claim),
        )

    def _trace(self, claimed: Claimed) -> Path:
        paths, generation = self._warehouse.paths, claimed.claim.generation
        drop_old_traces(self._warehouse.path(paths.traces), paths, generation)
        return self._warehouse.path(paths.trace(generation))

    def _report(self, claimed: Claimed, end: EndTick) -> TickReport:
        generation = claimed.claim.generation
        return TickReport(
            outcome=end.outcome,
            generation=generation,
            completed=self._narrator.completed,
            message=end.message if end.reason is CheckpointFailureReason.TASK_FAILURE else explained(end.message),
            reason=end.reason,
            seconds=time.monotonic() - self._started,
            trace=self._warehouse.path(self._warehouse.paths.trace(generation)),
            restarts=self._restarts.count,
            counts=self._narrator.counts,
        )


def _seed(claim: Claim) -> int:
    """Return what a generation's chance is drawn from: as unlike another's as its nonce, and on record like it."""
    return crc32(claim.nonce.encode())
