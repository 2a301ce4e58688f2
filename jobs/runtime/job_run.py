"""Runs a job that a tick holds: builds its door at the restored cut, and drives it to its end."""

from dataclasses import dataclass

import structlog

from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.door import seed_of
from checkpointing.tick.messages import Work, WorkEnded
from jobs.cleanup.log_keeping import LogKeeping
from jobs.holding.boundaries import Boundary
from jobs.holding.job_stores import JobStores
from jobs.recovery.renaming import Linked
from jobs.runtime.driver import Clock, Driver, Inbox
from jobs.runtime.effects import EffectHandlers
from jobs.runtime.engine import Engine
from jobs.runtime.listener import Narrator
from jobs.runtime.notices import Notices
from jobs.runtime.trace import TraceBounds, TraceWriter, drop_old_traces
from jobs.storage.local import is_copied, local_path

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The job of one attempt. `keeping` says how long log entries of tables stay; None means for ever."""

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
            versions=(self.stores.cut_seen(restored.checkpoint) or {}) if restored else {},
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
        """Drive the job to its end. An OSError, such as a full disk, fails the tick; other errors are returned."""
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
        """Let also ticks that complete no checkpoint keep `checkpoints` short. An error is only logged."""
        try:
            self.stores.maintain((), None)
        except Exception as error:  # noqa: BLE001 - logged; the next tick does it
            _log.warning("maintenance failed", error=f"{type(error).__name__}: {error}")

    def _trace(self, bounds: TraceBounds) -> TraceWriter:
        warehouse, generation = self.stores.warehouse, self.work.claim.generation
        drop_old_traces(warehouse.place(warehouse.paths.traces), generation)
        place = warehouse.place(warehouse.paths.trace(generation))
        return TraceWriter(local_path(place), bounds, place if is_copied(place) else None)
