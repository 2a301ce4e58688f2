"""Decides what a tick begins from: the newest entry under the pipeline's names, if the pipeline fits it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.messages import Question
from jobs.engine_paths import typed
from jobs.holding.job_stores import JobStores
from jobs.planner import JobPlan
from jobs.recovery.fitting import fitting
from jobs.recovery.renaming import Renaming, find_renaming, names_before
from jobs.recovery.restore_damage import must_be_sound, observe_sound
from jobs.recovery.state_migration import plan_with_migrations
from jobs.recovery.tables_ahead import must_not_be_ahead
from jobs.recovery.tables_behind import must_be_repairable, must_be_whole
from jobs.sources.port import SourceError
from jobs.sources.upstream_job import newest_that_stands, taken_back
from jobs.storage.failures import StoreError
from jobs.stores.warehouse import Warehouse


@dataclass(slots=True)
class Beginning:
    """One pipeline at one job. `plan` has its sources' splits from the question FITS on."""

    plan: JobPlan
    allow_non_restored_state: bool = False
    renaming: Renaming = field(default_factory=Renaming)

    def tables(self) -> tuple[TableName, ...]:
        """Return the tables of the pipeline, and those that they are renamed from."""
        names = [table.name for table in self.plan.graph.tables()]
        return tuple(dict.fromkeys([*names, *self.renaming.tables_then(self.plan.graph)]))

    def observe(self, stores: JobStores, run_ended: Callable[[str], bool | None] | None) -> Observed:
        """Return what a start must know; the newest row says its columns, also if it was written before rows did."""
        seen = observe_sound(stores, run_ended)
        newest = newest_checkpoint(seen.rows)
        if newest is None:
            return seen
        told = stores.told(newest, names_before(self.plan.graph))
        return replace(seen, rows=tuple(told if row is newest else row for row in seen.rows))

    def examine(self, question: Question, stores: JobStores, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise unless the tick may begin where the plan says."""
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
        """Return the plan with its sources' splits; raise CutDoesNotFitError unless the cut can be restored into it."""
        plan = fitting(self.plan, self.renaming, allow_non_restored_state=self.allow_non_restored_state)
        restored = self.renaming.record
        return plan if restored is None else plan_with_migrations(plan, restored, stores.warehouse.root)


def _must_stand(restored: CheckpointRecord, seen: Observed, warehouse: Warehouse) -> None:
    """Raise SourceError if an upstream job was rolled back behind a cut that the restored checkpoint rests on (A10).

    The checkpoint names the place where the upstream warehouse was then. If the object store there does not answer, it
    says nothing: the warehouse may have been moved, and its sources look at its present place next.
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
