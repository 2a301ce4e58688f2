"""Runs a job that a tick holds: builds its door at the restored cut, and drives it to its end."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

import structlog

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.columns import due_renames_of_columns
from checkpointing.commit.fencing import Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation, TableName
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, TickEnd
from checkpointing.tick.attempts import TICK, Terms, strategy_of
from checkpointing.tick.door import TickDoor, newest_generation, seed_of
from checkpointing.tick.messages import (
    AppendRelease,
    Broke,
    CleanUp,
    Done,
    Examine,
    Failed,
    Finish,
    LookAtTables,
    Objected,
    Observe,
    Question,
    Recovered,
    RestartDue,
    RolledForward,
    TablesSeen,
    TakeHold,
    TickEffect,
    TickFact,
    Unsettled,
    Wait,
    Waited,
    Work,
    WorkEnded,
)
from jobs.disk_errors import explained
from jobs.engine_paths import typed
from jobs.pipeline import InvalidPipelineError
from jobs.pipeline.job_plan import JobPlan
from jobs.sources.delta.upstream_job import UpstreamHolds, newest_that_stands, taken_back
from jobs.sources.port import SourceError, close_all
from jobs.sources.position_words import positions_of
from jobs.storage.address import absolute
from jobs.storage.objects import StoreError
from jobs.storage.place import is_copied, local_path
from jobs.tick.carrier import Carrier, refusal
from jobs.tick.cleaning import clean_up_after_tick, is_cleanup_due
from jobs.tick.discovery import look_at_input
from jobs.tick.driver import Clock, Driver, Inbox
from jobs.tick.effects import EffectHandlers, Notices
from jobs.tick.engine import Engine
from jobs.tick.listener import (
    ColumnsRenamed,
    InputLooked,
    Narrator,
    Recovery,
    Restarting,
    TickListener,
    kept_message,
)
from jobs.tick.renaming import (
    Linked,
    RenameFailedError,
    Renaming,
    find_renaming,
    link_renamed,
    rename_columns,
)
from jobs.tick.request_watcher import RequestWatcher
from jobs.tick.rollback_plan import must_be_sound, observe_sound
from jobs.tick.start_checks import fitting, must_be_repairable, must_be_whole, must_not_be_ahead
from jobs.tick.state_migration import plan_with_migrations
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.tick.trace_files import TraceBounds, TraceWriter, drop_old_traces
from jobs.user_code import message_of
from jobs.warehouse.boundaries import Boundary
from jobs.warehouse.cleanup import LogKeeping, staging_folders
from jobs.warehouse.cuts_table import CutsNotRecordedError
from jobs.warehouse.job_stores import JobStores, must_be_usable
from jobs.warehouse.lease import this_process
from jobs.warehouse.output_tables import TableMismatchError
from jobs.warehouse.outside_publishing import must_not_be_ahead_outside
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.warehouse import Warehouse

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The job of one attempt. `keeping` says how long log entries of tables stay. None means for ever."""

    linked: Linked
    work: Work
    stores: JobStores
    boundary: Boundary
    notices: Notices
    narrator: Narrator
    keeping: LogKeeping | None
    allow_non_restored_state: bool

    def setup(self) -> JobSetup:
        """Return the set-up of the job's door."""
        work, plan, restored = self.work, self.linked.plan, self.linked.record
        records = (row for row in work.seen.rows if isinstance(row, CheckpointRecord))
        return JobSetup(
            graph=plan.graph,
            config=plan.config,
            job=plan.job,
            claim=work.claim,
            at_version=work.at_version,
            restored=restored,
            retained=tuple(sorted(records, key=lambda record: record.checkpoint)),
            versions=(self.stores.cuts.seen_of(restored.checkpoint) or {}) if restored else {},
            renamed=self.linked.renamed,
            rows_per_epoch=dict(plan.rows_per_epoch),
            cut_groups=plan.cut_groups,
            limits=work.limits,
            allow_non_restored_state=self.allow_non_restored_state,
            seed=seed_of(work.claim),
        )

    def handlers(self, engine: Engine) -> EffectHandlers:
        """Return the handlers of the door's effects."""
        return EffectHandlers(
            self.linked.plan,
            self.stores,
            engine,
            self.boundary,
            self.notices,
            generation=self.work.claim.generation,
            keeping=self.keeping,
        )

    def ended(self, engine: Engine, inbox: Inbox, clock: Clock, bounds: TraceBounds, drain_ms: int) -> WorkEnded:
        """Drive the job to its end. An OSError, such as a full disk, fails the tick. Other errors are returned."""
        before, door, driver = self.narrator.count, None, None
        try:
            setup = self.setup()
            door = JobDoor(setup)
            with self._trace(bounds) as trace:
                driver = Driver(door, self.handlers(engine), inbox, trace, self.narrator, clock)
                ended, late = driver.run(setup, drain_ms)
            if late:
                _log.warning("effects still run after the end of the tick", effects=late)
                engine.close()
            end: EndTick | BaseException = ended
        except OSError as error:  # from the trace or a folder of the job; an effect's own error is a fact
            reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
            end = EndTick(TickOutcome.FAILED, reason, f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - it is raised once the job is released
            end = error
        if not (isinstance(end, EndTick) and end.reason is CheckpointFailureReason.FENCED):
            self._keep_logs_short()
        if door is not None:
            self.narrator.counts += door.counts
        return WorkEnded(
            end,
            next_id=self.work.claim.first_id if door is None else door.next_id,
            at_version=(driver and driver.at_version) or self.work.at_version,
            completed=self.narrator.count - before,
            renews=driver is not None and driver.renews,
            votes=any(table.votes for table in self.linked.plan.graph.tables()),
        )

    def _keep_logs_short(self) -> None:
        """Drop old log entries of `checkpoints`, also in ticks that complete no checkpoint. An error is only logged."""
        try:
            self.stores.maintain((), None)
        except Exception as error:  # noqa: BLE001 - logged; the next tick does it
            _log.warning("maintenance failed", error=f"{type(error).__name__}: {error}")

    def _trace(self, bounds: TraceBounds) -> TraceWriter:
        warehouse, generation = self.stores.warehouse, self.work.claim.generation
        drop_old_traces(warehouse.place(warehouse.paths.traces), generation)
        place = warehouse.place(warehouse.paths.trace(generation))
        return TraceWriter(local_path(place), bounds, place if is_copied(place) else None)


# ------------------------------------------------------------------
# Decides what a tick begins from: the newest entry, with the pipeline's names, if the pipeline fits that entry.


@dataclass(slots=True)
class Beginning:
    """A pipeline and its job at the start of a tick. Once FITS is answered, `plan` has the sources' splits."""

    plan: JobPlan
    allow_non_restored_state: bool = False
    renaming: Renaming = field(default_factory=Renaming)

    def tables(self) -> tuple[TableName, ...]:
        """Return the tables of the pipeline, and the old names of renamed tables."""
        names = [table.name for table in self.plan.graph.tables()]
        return tuple(dict.fromkeys([*names, *self.renaming.tables_then(self.plan.graph)]))

    def observe(self, stores: JobStores, run_ended: Callable[[str], bool | None] | None) -> Observed:
        """Return the observed facts that a start needs."""
        return observe_sound(stores, run_ended)

    def examine(self, question: Question, stores: JobStores, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise an error unless the tick may begin at the restored entry of the plan."""
        match question:
            case Question.SOUND:
                self.renaming = find_renaming(self.plan.graph, plan.restore)
                must_be_sound(stores.warehouse, plan)
            case Question.FITS:
                if self.plan.cut_groups and self.renaming.record is not None:
                    _must_stand(self.renaming.record, seen, stores.warehouse)
                self.plan = self._fitting(stores)
            case Question.REPAIRABLE:
                must_be_repairable(stores, seen.rows, self.tables())
            case Question.WHOLE:
                must_be_whole(stores, seen.rows, self.tables())
            case Question.NOT_AHEAD:
                must_not_be_ahead(stores, self.tables(), seen.rows)
            case Question.POSSIBLE:
                raise TypeError("nobody asks this of a tick")

    def _fitting(self, stores: JobStores) -> JobPlan:
        """Return the plan with its sources' splits. Raise CutDoesNotFitError if the cut cannot be restored into it."""
        plan = fitting(self.plan, self.renaming, allow_non_restored_state=self.allow_non_restored_state)
        restored = self.renaming.record
        return plan if restored is None else plan_with_migrations(plan, restored, stores.warehouse.root)


def _must_stand(restored: CheckpointRecord, seen: Observed, warehouse: Warehouse) -> None:
    """Raise SourceError if an upstream job was rolled back behind a cut that the restored checkpoint rests on (A10).

    The checkpoint names the address that the upstream warehouse had at that time. If the object store there does not
    answer, no error is raised, because the warehouse may have been moved. The sources check its present address next.
    """
    lost = ""
    with suppress(StoreError):
        lost = taken_back(restored)
    if not lost:
        return
    older = newest_that_stands(row for row in seen.rows if isinstance(row, CheckpointRecord))
    job = restored.job
    if older is None:
        raise SourceError(
            f"{lost}. No checkpoint of {job} that is retained rests on a cut from before: begin in an empty warehouse"
        )
    raise SourceError(
        f"{lost}. Take {job} back to checkpoint {older.checkpoint}, which rests on a cut that still exists: "
        f"'tidemark rollback {job} --follow --warehouse {typed(warehouse.root)}'"
    )


# ------------------------------------------------------------------
# Carries out the effects of the tick door for one tick, on the job's real stores.


POLL_MS: Final = 50
"""A waiting tick checks this often whether it must stop, because a signal handler may not take the lock to wake it."""


class TickCarrier(Carrier):
    """Carries out the effects of one tick's door.

    Each attempt of the tick calls these methods, in this order:

    | method    | does                                                                                     |
    |-----------|------------------------------------------------------------------------------------------|
    | `look`    | reads the entries of `checkpoints`, the cuts, and who holds the job                      |
    | `examine` | refuses a start from damaged files, or with a pipeline that does not fit                 |
    | `told`    | the claim is in; from here on the tick hears requests                                    |
    | `ensure`  | creates missing tables; then the door repairs, publishes and deletes what is left over   |
    | `told`    | holds other jobs' cuts, and tells the listener what was recovered                        |
    | `work`    | runs the job until it ends; then it deletes unneeded files, and the door releases it     |
    | `told`    | a restart is due; the carrier waits until the next attempt                               |
    """

    def __init__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener, inbox: Inbox, boundary: Boundary
    ) -> None:
        """Prepare without opening anything. The tick's time comes from the settings' clock, and never goes back."""
        warehouse = Warehouse(absolute(settings.warehouse), ProtocolPaths(plan.job), now_ms=settings.clock)
        super().__init__(warehouse, boundary, lease_ms=settings.lease_ms)
        self._started = time.monotonic()
        self._beginning = Beginning(plan, settings.allow_non_restored_state)
        self._settings = settings
        self._listener = listener
        self._inbox = inbox
        self._clock = Clock(settings.clock)
        self.requests = RequestWatcher(self.warehouse, inbox.put)
        self._narrator = Narrator(listener, self.requests.answer)
        self._notices = Notices(
            plan.sources, plan.listeners, listener, UpstreamHolds(f"{plan.job} in {warehouse.root}")
        )
        self._engine: Engine
        self._claim: Claim | None = None
        """The newest claim that this tick has appended."""
        self._last = Generation(0)
        """The generation of the newest claim at this tick's last look."""
        self._end: EndTick | BaseException | None = None
        """How the newest attempt ended."""
        self._begins = True
        """Whether the next look at the entries begins an attempt, and so opens new stores."""

    @property
    def plan(self) -> JobPlan:
        """The pipeline's plan. `examine` adds the splits of its sources, and `job` adds the files of renamed tables."""
        return self._beginning.plan

    def run(self, engine: Engine) -> TickReport:
        """Make attempts until the door ends the tick. All attempts share one engine."""
        self._engine = engine
        try:
            finish = self.drive(self.door())
            return self._report(finish)
        finally:
            self.requests.close()
            engine.close()
            close_all(self.plan.sources)

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
                sources=self.plan.graph.sources(),
            ),
        )

    def moment(self) -> Stamp:
        """Return the time, a new nonce, and whether the tick was asked to stop."""
        return Stamp(self._clock.now_ms(), uuid4().hex, self._inbox.stop_requested)

    def carry_out(self, effect: TickEffect) -> TickFact | None:
        """Carry out one effect.

        Unlike a task at rest, a tick cleans up, waits for another attempt, and records how it ended.
        """
        match effect:
            case CleanUp():
                self.clean_up()
                return Done()
            case Wait():
                self._wait(effect.delay_ms)
                return Waited()
            case AppendRelease():
                return super().carry_out(replace(effect, row=self._release(effect.row)))
            case _:
                return super().carry_out(effect)

    # -------------------------------------------------------------- before the claim

    def look(self, effect: Observe | LookAtTables) -> Observed | TablesSeen:
        """Return the observed facts that a start needs, or the pipeline's tables in doubt. Raises TablesBehindError."""
        if isinstance(effect, LookAtTables):
            return TablesSeen(must_be_repairable(self.stores, effect.rows, self._beginning.tables()))
        return self._observed()

    def _observed(self) -> Observed:
        """Return the observed facts that a start needs. Each attempt opens its own stores."""
        if self._begins:
            must_be_usable(self.warehouse)
            sinks = self.plan.sinks
            self.stores, self._begins = JobStores(self.warehouse, self.boundary, sinks=sinks, all_sinks=True), False
        held = self.stores.outside.prepare()  # before the entries that say what may be there
        seen = self._beginning.observe(self.stores, self._settings.run_ended)
        must_not_be_ahead_outside(held, seen.rows)
        self._last = newest_generation(seen)
        return seen

    def examine(self, question: Question, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise an error unless the tick may begin at the restored entry of the plan."""
        self._beginning.examine(question, self.stores, seen, plan)

    # -------------------------------------------------------------- holding the job

    def begins(self, claim: Claim, plan: RecoveryPlan) -> None:
        """Notify the listener that the tick holds the job, and begin to look for requests."""
        if self._claim is None:
            for seen in look_at_input(self.plan.sources, plan.restore):
                self._listener.progress(InputLooked(seen))
        self._claim, self._begins = claim, True
        self._listener.claimed(claim, plan.claim.why)
        self._held.enter_context(self.requests.attempt())
        self._attempt_inbox = self._held.enter_context(self._inbox.attempt())

    def ensure(self, plan: RecoveryPlan, unsettled: frozenset[TableName]) -> None:
        """Create the missing output tables, and compare the others with the newest entry."""
        del plan  # its newest entry has the old names of renamed tables
        tables, renaming = self.plan.graph.tables(), self._beginning.renaming
        renamed = renaming.tables.values()
        self.stores.tables.ensure(
            tables,
            self.plan.table_schemas,
            renaming.record,
            unsettled=unsettled,
            renamed=renamed,
            columns_renamed=due_renames_of_columns(self.plan.graph, renaming.record),
            says=self.plan.descriptions,
        )

    def folders(self) -> Iterable[TableName]:
        """Return all folders into which a vertex stages files."""
        return staging_folders(self.plan.graph, self.warehouse.paths)

    def told(self, effect: TakeHold | RolledForward | RestartDue | Recovered) -> None:
        """Notify the listener of this progress."""
        match effect:
            case TakeHold():
                self.begins(effect.claim, effect.plan)
            case Recovered():
                self._recovered(effect)
            case RolledForward():
                self._narrator.rolled_forward(effect.record, effect.notes, dict(effect.versions))
            case RestartDue():
                end = effect.end
                self._listener.progress(Restarting(effect.restart, end.reason, end.message, effect.delay_ms))

    def _recovered(self, done: Recovered) -> None:
        """Hold the cuts of other jobs, and notify the listener."""
        restored, pending = done.plan.restore, done.plan.roll_forward
        if restored is not None:
            self._notices.stands(restored.checkpoint, tuple(positions_of(restored).values()))
        self._listener.recovered(
            Recovery(
                restored.checkpoint if restored else None,
                pending.checkpoint if pending else None,
                done.leftovers,
                self.repaired,
            )
        )

    def work(self, work: Work) -> TickFact:
        """Run the job until it ends."""
        settings = self._settings
        ended = self.job(work).ended(self._engine, self._attempt_inbox, self._clock, settings.trace, settings.drain_ms)
        self._end = ended.end
        return ended

    def job(self, work: Work) -> JobRun:
        """Link the files of renamed tables, rewrite files with renamed columns, and return this attempt's job."""
        linked = link_renamed(self.stores, self.plan, self._beginning.renaming, work.claim.generation, self.boundary)
        self._beginning.plan = linked.plan
        renamed = due_renames_of_columns(self.plan.graph, linked.record)
        there = {table: pairs for table, pairs in renamed.items() if table not in linked.renamed}
        rename_columns(
            self.stores,
            there,
            work.claim.generation,
            lambda *progress: self._listener.progress(ColumnsRenamed(*progress)),
            self.boundary,
        )
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
        """Delete unneeded files if a checkpoint completed or the last clean-up is long ago.

        The tick still holds the job.
        """
        grace_ms = self._settings.reader_grace_ms
        if grace_ms is None or self._claim is None:
            return
        if self._narrator.count or is_cleanup_due(self.warehouse, grace_ms):
            clean_up_after_tick(self.stores, self._claim.generation, grace_ms, self.boundary)

    def _keeping(self) -> LogKeeping | None:
        """Return how long log entries of tables stay, or None if they stay for ever."""
        grace_ms = self._settings.reader_grace_ms
        return None if grace_ms is None else LogKeeping(grace_ms, self._settings.table_log_keep_ms)

    def failure(self, effect: TickEffect, error: Exception) -> TickFact:
        """Return the fact for an error. Errors of tables or files fail the tick, and refusals refuse it.

        All other errors are bugs.
        """
        if isinstance(effect, Observe | Examine):
            refuses = isinstance(error, (TickRefusedError, SourceError, InvalidPipelineError))
            return Objected(error) if refuses else Broke(error)
        self._end = error
        if isinstance(error, (TableMismatchError, RenameFailedError)):
            return Failed(EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, str(error)))
        if isinstance(error, (CutsNotRecordedError, OSError)):
            return Failed(EndTick(TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error)))
        return Broke(error)

    # -------------------------------------------------------------- the end

    def _release(self, row: Release) -> Release:
        """Return the release with how the tick ended, and which of its checkpoints failed."""
        end = self._end
        if end is None:
            return row
        failed = self._narrator.failed
        if isinstance(end, EndTick):
            told = TickEnd(
                outcome=end.outcome.value, reason=end.reason, message=kept_message(end.message), failed=failed
            )
        else:
            told = TickEnd(outcome=TickOutcome.FAILED.value, message=kept_message(message_of(end)), failed=failed)
        return row.model_copy(update={"ended": told})

    def _wait(self, delay_ms: int) -> None:
        """Wait for this time, or until the tick is asked to stop."""
        until = time.monotonic() + delay_ms / 1000
        while not self._inbox.stop_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_MS / 1000))

    def _report(self, finish: Finish) -> TickReport:
        """Return how the tick ended.

        Raise the error that refused the tick before its first claim, or a bug of Tidemark.
        """
        end = finish.outcome
        if isinstance(end, BaseException):
            raise end
        if isinstance(end, (Refused, Unsettled)):
            error = refusal(self.warehouse, end)
            if self._claim is None:
                raise error
            end = EndTick(TickOutcome.FAILED, CheckpointFailureReason.FENCED, str(error))
        if not isinstance(end, EndTick):
            raise TypeError(f"a tick ended as {end}")
        generation = self._last if self._claim is None else self._claim.generation
        return TickReport(
            outcome=end.outcome,
            generation=generation,
            completed=self._narrator.completed,
            message=end.message if end.reason is CheckpointFailureReason.TASK_FAILURE else explained(end.message),
            reason=end.reason,
            seconds=time.monotonic() - self._started,
            trace=self.warehouse.path(self.warehouse.paths.trace(generation)),
            counts=self._narrator.counts,
            failed=self._narrator.failed,
            restarts=finish.restarts,
        )
