"""Keeps track of the data versions of a job's tables that were reported to Dagster, and finds new ones.

So downstream assets run when a table has changed, even if a tick outside Dagster changed it. A tick that finds no new
data materializes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import dagster as dg

from checkpointing.identifiers import TableName
from jobs.pipeline.job_plan import JobPlan
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse
from orchestration.epochs import DATA_VERSION_TAG, Epoch, Metadata, cut_metadata, table_metadata
from orchestration.lineage import COLUMN_LINEAGE, column_lineage_of, materialized_specs
from orchestration.naming import Naming

_DIGITS: Final = 8


class DataVersions:
    """The data versions of a job's tables: `12-3f2a9c1e` is Delta version 12 of the table with the id 3f2a9c1e...

    The id distinguishes a table from an earlier table of the same name that was deleted, even at the same version.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        """Read nothing yet."""
        self.warehouse = warehouse
        self._logs = TableLogs(warehouse)
        self._ids: dict[TableName, str] = {}

    def of(self, table: TableName, version: int) -> str:
        """Return the data version of a table at this Delta version."""
        if table not in self._ids:
            self._ids[table] = str(self._logs.log(table).current().loaded.metadata().id)[:_DIGITS]
        return f"{version}-{self._ids[table]}"

    def of_cut(self, versions: Mapping[TableName, int]) -> str:
        """Return one data version for all tables of a cut together."""
        each = sorted(f"{table}={self.of(table, version)}" for table, version in versions.items())
        return hashlib.sha256("\n".join(each).encode()).hexdigest()[: 2 * _DIGITS]


@dataclass(frozen=True, slots=True)
class Asset:
    """An asset that ticks materialize: a table, or the table of cuts if `table` is None."""

    key: dg.AssetKey
    table: TableName | None
    code_version: str


class Told:
    """The assets of a job, and the last data version of each that was reported to Dagster."""

    def __init__(self, instance: dg.DagsterInstance, plan: JobPlan, naming: Naming, versions: DataVersions) -> None:
        """Ask the Dagster instance once what was reported. Later reports are only recorded in this object."""
        self.assets = tuple(_assets(plan, naming))
        self._graph = plan.graph
        self._lineage = column_lineage_of(plan, naming)
        self._versions = versions
        self._told = dict(_last(instance, [asset.key for asset in self.assets]))

    def news(self, asset: Asset, epoch: Epoch) -> str | None:
        """Return the data version of an asset at a checkpoint if it is new to Dagster, else None."""
        version = self._version(asset, epoch)
        return None if version == self._told.get(asset.key) else version

    def tell(self, asset: Asset, data_version: str) -> None:
        """Record that this data version was reported."""
        self._told[asset.key] = data_version

    def metadata(self, asset: Asset, epoch: Epoch) -> Metadata:
        """Return the metadata of an asset at a checkpoint."""
        if asset.table is None:
            return cut_metadata(epoch)
        told = table_metadata(self._graph, asset.table, epoch)
        lineage = self._lineage.get(asset.table)
        return told if lineage is None else told | {COLUMN_LINEAGE: dg.MetadataValue.column_lineage(lineage)}

    def _version(self, asset: Asset, epoch: Epoch) -> str | None:
        if asset.table is None:
            return self._versions.of_cut(epoch.versions) if epoch.versions else None
        version = epoch.versions.get(asset.table)
        return None if version is None else self._versions.of(asset.table, version)


def _assets(plan: JobPlan, naming: Naming) -> Iterator[Asset]:
    """Yield the assets in topological order, since Dagster reads the upstream versions when a table is reported."""
    tables = {naming.table_key(table.name): table.name for table in plan.graph.tables()}
    for spec in materialized_specs(plan, naming):
        yield Asset(spec.key, tables.get(spec.key), spec.code_version or "")


def _last(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> Iterator[tuple[dg.AssetKey, str]]:
    """Yield the data version of the newest materialization of each asset that has one."""
    for record in instance.get_asset_records(list(keys)):
        newest = record.asset_entry.last_materialization
        materialization = None if newest is None else newest.asset_materialization
        version = None if materialization is None else (materialization.tags or {}).get(DATA_VERSION_TAG)
        if version is not None:
            yield record.asset_entry.asset_key, version
