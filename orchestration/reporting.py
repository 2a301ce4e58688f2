"""A tick's news as Dagster events, while it runs: materializations by epoch, and a few lines of log."""

from collections.abc import Mapping

import dagster as dg

from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.planner import JobPlan
from jobs.runtime.discovery import Discovered
from jobs.runtime.listener import MicroBatchSlow, NoticeFailed, Progress, Recovery, Restarting, SparkStarted
from orchestration.epochs import DATA_VERSION_TAG, Epoch, row_count, source_metadata, table_metadata
from orchestration.naming import Naming
from orchestration.observation import RowCounts, Standing


def observe_sources(
    plan: JobPlan,
    naming: Naming,
    stands: Standing,
    context: dg.OpExecutionContext,
    discovered: Mapping[VertexId, Discovered] | None = None,
) -> None:
    """Log an observation of every source: where the newest checkpoint stands in it; nothing before the first."""
    if stands.epoch is None:
        return
    for source in plan.graph.sources():
        found = None if discovered is None else discovered[source.id]
        told = source_metadata(source.id, stands.epoch, found)
        context.log_event(dg.AssetObservation(naming.source_key(source.id), metadata=told))


class EpochReporter:
    """Reports every so many checkpoints; the newest is held back, for the tick's end reports it.

    Dagster writes an event down as soon as it is logged, so that its page plots a tick that still runs.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, graph: JobGraph, naming: Naming, every: int, counts: RowCounts
    ) -> None:
        """Report each `every`-th checkpoint of this job, with the rows of its tables."""
        self._context = context
        self._graph = graph
        self._naming = naming
        self._every = max(1, every)
        self._counts = counts
        self._rows: Mapping[TableName, int] = {}
        self._seen = 0
        self.held: Epoch | None = None
        """The newest checkpoint that this tick completed, not reported yet; None if there is none."""

    def claimed(self, claim: Claim, why: str) -> None:
        """Log whose place this tick takes."""
        self._context.log.info("generation %d: %s", claim.generation, why)

    def recovered(self, recovery: Recovery) -> None:
        """Log where the tick begins."""
        begins = "the beginning" if recovery.restored is None else f"checkpoint {recovery.restored}"
        self._context.log.info("begins from %s; deleted %d leftover files", begins, recovery.leftovers)

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Report the checkpoint before this one if it is its turn, and hold this one."""
        if self._seen and self._seen % self._every == 0:
            self.report_held()
        self._seen += 1
        self.held = Epoch(record, notes, dict(versions))
        self._rows = self._counts.after(self.held)
        for note in notes:
            self._context.log.warning("checkpoint %d: %s", record.checkpoint, note)

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Log why a checkpoint failed."""
        self._context.log.warning("checkpoint %d failed, %s: %s", checkpoint, reason.message, message)

    def progress(self, progress: Progress) -> None:
        """Log what is rare: Spark's start, a restart, a notice that failed; rows and micro-batches are too many."""
        match progress:
            case SparkStarted():
                self._context.log.info("Spark started in %d ms", progress.duration_ms)
            case Restarting():
                self._context.log.warning(
                    "restart %d in %d ms, since the job failed: %s",
                    progress.restart,
                    progress.delay_ms,
                    progress.message,
                )
            case NoticeFailed():
                self._context.log.warning(
                    "checkpoint %d stays as it is, but %s raised %s", progress.checkpoint, progress.told, progress.error
                )
            case MicroBatchSlow():
                self._context.log.warning(
                    "vertex %s has been at work on micro-batch %d for %d s: if its function hangs, end this run and "
                    "mend the function; what is committed stays",
                    progress.vertex,
                    progress.micro_batch,
                    progress.for_ms // 1000,
                )
            case _:
                return

    def report_held(self) -> None:
        """Report the checkpoint that is held back, if there is one: once."""
        epoch, self.held = self.held, None
        if epoch is None:
            return
        for table in self._graph.tables():
            self._context.log_event(
                dg.AssetMaterialization(
                    self._naming.table_key(table.name),
                    description=f"checkpoint {epoch.record.checkpoint}",
                    metadata=table_metadata(self._graph, table.name, epoch) | row_count(self._rows.get(table.name)),
                    tags={DATA_VERSION_TAG: epoch.data_version},
                )
            )
