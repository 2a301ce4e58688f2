"""Reports a running tick to Dagster: materializations, and a few lines of log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.pipeline.job_plan import JobPlan
from jobs.showing.quantities import failure_line, state_line, warnings
from jobs.sources.position_words import PositionWords
from jobs.tick.discovery import Discovered, look_at_input
from jobs.tick.listener import (
    Progress,
    Recovery,
    SparkStarted,
    StateLoaded,
    TickListener,
)
from orchestration.epochs import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    Epoch,
    passed_over,
    row_count,
    source_metadata,
)
from orchestration.naming import Naming
from orchestration.observation import RowCounts, Standing
from orchestration.partitions import ToldPartitions
from orchestration.told import Asset, Told


def source_observations(
    plan: JobPlan, naming: Naming, stands: Standing, discovered: Mapping[VertexId, Discovered]
) -> Iterator[dg.AssetObservation]:
    """Yield an observation of every source with its position at the newest checkpoint, if there is one."""
    if stands.epoch is None:
        return
    looks = {look.source: look for look in look_at_input(plan.sources, stands.epoch.record)}
    words = PositionWords(plan.sources)
    for source in plan.graph.sources():
        told = source_metadata(source.id, stands.epoch, discovered[source.id], words)
        told |= passed_over(looks.get(source.id))
        yield dg.AssetObservation(naming.source_key(source.id), metadata=told)


@dataclass(frozen=True, slots=True)
class News:
    """A change of an asset at a checkpoint that was not reported to Dagster yet."""

    epoch: Epoch
    data_version: str
    rows: int | None = None


class EpochReporter(TickListener):
    """Reports changed tables every n checkpoints. Each asset's newest change waits for the end of the tick.

    Dagster stores an event as soon as it is logged, so its page plots a tick that still runs.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, told: Told, every: int, counts: RowCounts, partitions: ToldPartitions
    ) -> None:
        """Report each `every`-th checkpoint of this job, with the rows of its tables.

        Partitions are reported at once.
        """
        self._context = context
        self._partitions = partitions
        self.told = told
        self._every = max(1, every)
        self._counts = counts
        self._seen = 0
        self.held: dict[dg.AssetKey, News] = {}
        """The changes of this tick that are not reported yet."""

    def claimed(self, claim: Claim, why: str) -> None:
        """Log this tick's generation and why it could claim the job."""
        self._context.log.info("generation %d: %s", claim.generation, why)

    def recovered(self, recovery: Recovery) -> None:
        """Log where the tick begins."""
        for each in recovery.repaired:
            self._context.log.warning("%s", each)
        begins = "the beginning" if recovery.restored is None else f"checkpoint {recovery.restored}"
        self._context.log.info("begins from %s; deleted %d leftover files", begins, recovery.leftovers)

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Hold the checkpoint's changes back.

        If a report is due, first report the earlier changes of the same assets.
        """
        epoch = Epoch(record, notes, dict(versions))
        rows = self._counts.after(epoch)
        turn = self._seen > 0 and self._seen % self._every == 0
        self._seen += 1
        for asset in self.told.assets:
            version = self.told.news(asset, epoch)
            held = self.held.get(asset.key)
            if version is None or (held is not None and held.data_version == version):
                continue
            if turn:
                self._report(asset)
            self.held[asset.key] = News(epoch, version, None if asset.table is None else rows.get(asset.table))
        self.report_partitions(epoch)
        for note in notes:
            self._context.log.warning("checkpoint %d: %s", record.checkpoint, note)

    def report_partitions(self, epoch: Epoch) -> None:
        """Report the hours and days of tables that have become complete or have changed by a checkpoint, each once."""
        for event in self._partitions.news(epoch):
            self._context.log_event(event)

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """Log why a checkpoint failed."""
        self._context.log.warning("%s", failure_line(checkpoint, reason, message, ends_tick=ends_tick))

    def progress(self, progress: Progress) -> None:
        """Log Spark's start, the loads of state, and warnings. Reads of rows come too often to be logged."""
        if isinstance(progress, SparkStarted):
            self._context.log.info("Spark started in %d ms", progress.duration_ms)
        if isinstance(progress, StateLoaded):
            self._context.log.info("%s", state_line(progress.uses))
        for line in warnings(progress):
            self._context.log.warning("%s", line)

    def report_held(self) -> None:
        """Report all changes that are held back, once."""
        for asset in self.told.assets:
            self._report(asset)

    def _report(self, asset: Asset) -> None:
        news = self.held.pop(asset.key, None)
        if news is None:
            return
        self.told.tell(asset, news.data_version)
        self._context.log_event(
            dg.AssetMaterialization(
                asset.key,
                description=f"checkpoint {news.epoch.record.checkpoint}",
                metadata=self.told.metadata(asset, news.epoch) | row_count(news.rows),
                tags={DATA_VERSION_TAG: news.data_version, CODE_VERSION_TAG: asset.code_version},
            )
        )
