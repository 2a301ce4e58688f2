"""Reports the hours and days of tables to Dagster: each when it is complete, and again when its rows change (N8).

Dagster itself stores which partitions were reported to it, and with which Delta version of the table. Everything else
follows from the newest cut. So if a tick dies between a commit and the report of its partitions, the next tick reports
them, and no event comes twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import dagster as dg
import structlog

from checkpointing.completeness import complete_until_ms
from checkpointing.identifiers import TableName
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.vertices import Partitions
from jobs.reading.changed_times import changed_times
from jobs.warehouse.cuts_table import event_time
from orchestration.epochs import CODE_VERSION_TAG, DATA_VERSION_TAG, Epoch, table_metadata
from orchestration.lineage import partitioned_specs, partitions_of
from orchestration.naming import Naming
from orchestration.tags import PIPELINE
from orchestration.told import DataVersions

CORRECTED: Final = "corrected"
"""The metadata that marks a partition which was complete before and whose rows have changed since."""
_log = structlog.get_logger(__name__)


class ToldPartitions:
    """The partitions of a job's tables that were reported to Dagster."""

    def __init__(self, instance: dg.DagsterInstance, plan: JobPlan, naming: Naming, versions: DataVersions) -> None:
        """Ask the Dagster instance once what was reported. Later reports are only recorded in this object."""
        self._instance = instance
        self._plan = plan
        self._versions = versions
        specs = {spec.key: spec for spec in partitioned_specs(plan, naming)}
        self._specs = {table: specs[naming.table_key(table)] for table in plan.partitions}
        self._told = {table: instance.get_materialized_partitions(spec.key) for table, spec in self._specs.items()}
        self._seen = {table: _last_version(instance, spec.key) for table, spec in self._specs.items()}
        """The data version up to which the changes of each table were reported."""

    def news(self, epoch: Epoch) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        """Yield the events that Dagster lacks: changed partitions, complete partitions, and the tables' numbers."""
        for table, declared in self._plan.partitions.items():
            if table in epoch.versions:
                yield from self._of_table(table, declared, epoch)

    def _of_table(
        self, table: TableName, declared: Partitions, epoch: Epoch
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        version, told, seen = epoch.versions[table], self._told[table], self._seen[table]
        data_version, key = self._versions.of(table, version), self._specs[table].key
        metadata = table_metadata(self._plan.graph, table, epoch)
        tags = {DATA_VERSION_TAG: data_version, CODE_VERSION_TAG: self._specs[table].code_version or ""}
        corrected = self._corrected(table, declared, version) if seen is not None and seen != data_version else ()
        complete = complete_partitions(declared, complete_until_ms(epoch.record, table), datetime.now(UTC))
        for partition in (*corrected, *(each for each in complete if each not in told)):
            said = metadata | {CORRECTED: dg.MetadataValue.bool(partition in corrected)}
            said |= {PIPELINE: dg.MetadataValue.text(self._plan.job)}
            yield dg.AssetMaterialization(key, partition=partition, metadata=said, tags=tags)
            told.add(partition)
        if seen != data_version:
            yield dg.AssetObservation(key, metadata=metadata, tags=tags)
            self._seen[table] = data_version

    def _corrected(self, table: TableName, declared: Partitions, version: int) -> tuple[str, ...]:
        """Return the partitions that were reported and in which rows have changed since.

        The table's last observation says up to which version all changes were reported. A tick that died before its
        observation may have reported some partitions with a newer version.
        """
        after, partitions = self._number(table, self._seen[table]), partitions_of(declared)
        told = self._told[table]
        if after is None or not told:
            return ()
        before = max(partitions.time_window_for_partition_key(each).end for each in told).astimezone(UTC)

        time = (declared.by, declared.before_ms)

        def changed(since: int) -> set[str]:
            if since >= version:
                return set()
            times = changed_times(self._versions.warehouse, table, since, version, time, before)
            return {partitions.get_partition_key_for_timestamp(each.timestamp()) for each in times} & told

        try:
            found = changed(after)
            own = {each: self._number(table, self._last_told(table, each)) or after for each in found}
            return tuple(sorted(each for each in found if own[each] <= after or each in changed(own[each])))
        except (OSError, ValueError) as error:
            _log.warning("nobody knows which partitions have changed", table=table, after=after, why=str(error))
            return ()

    def _last_told(self, table: TableName, partition: str) -> str | None:
        """Return the data version of a partition's newest materialization."""
        wanted = dg.AssetRecordsFilter(self._specs[table].key, asset_partitions=[partition])
        records = self._instance.fetch_materializations(wanted, 1).records
        event = records[0].asset_materialization if records else None
        return None if event is None else (event.tags or {}).get(DATA_VERSION_TAG)

    def _number(self, table: TableName, data_version: str | None) -> int | None:
        """Return the Delta version in a data version. None: the data version belongs to another table of this name."""
        if data_version is None:
            return None
        number = int(data_version.partition("-")[0])
        return number if data_version == self._versions.of(table, number) else None


def complete_partitions(declared: Partitions, until_ms: int | None, now: datetime) -> tuple[str, ...]:
    """Return the complete partitions of a table, oldest first, if they have ended by now.

    Dagster has no partitions that have not ended. So a row far in the future, or the end of time, completes no day
    before the day has ended.
    """
    if until_ms is None:
        return ()
    end = min(now, event_time(until_ms + 1))
    return tuple(partitions_of(declared).get_partition_keys(current_time=end))


def _last_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """Return the data version of the newest observation of a table."""
    records = instance.fetch_observations(key, 1).records
    event = records[0].event_log_entry.asset_observation if records else None
    return None if event is None else (event.tags or {}).get(DATA_VERSION_TAG)
