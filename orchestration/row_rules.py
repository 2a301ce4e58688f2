"""Asset checks of the row rules: how many of the last tick's rows went to quarantine, for each rule."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import dagster as dg
import polars as pl

from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.spec import FAILED, RowRule, StatelessSpec
from jobs.planner import JobPlan
from jobs.showing.quantities import count
from jobs.stores.warehouse import Warehouse
from orchestration.naming import Naming, check_names

_COLUMN: Final = re.compile(r"column(?:_A|_B)?='([^']*)'")
_EXPECT: Final = re.compile(r"^expect_(column_values_to_|column_value_|column_pair_values_)?")


def rule_specs(plan: JobPlan, naming: Naming) -> Iterator[dg.AssetCheckSpec]:
    """Yield a check for each row rule, on the table that quarantines its rows."""
    for spec, quarantine in _checked(plan):
        for rule, name in _names(spec.rules).items():
            yield dg.AssetCheckSpec(
                name,
                asset=naming.table_key(quarantine),
                description=f"Row rule of vertex {spec.vertex}: {rule.name}. Rows that fail it go to this table.",
            )


def rule_results(
    plan: JobPlan, naming: Naming, warehouse: Warehouse, records: Iterable[CheckpointRecord]
) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each row rule over the rows of these checkpoints, which are still retained or just completed.

    Rows in quarantine are not an error, so a check that does not pass is only a warning.
    """
    newest = max(records, key=lambda record: record.checkpoint, default=None) if (records := tuple(records)) else None
    for spec, quarantine in _checked(plan):
        failed = _failed_rows(warehouse, quarantine, records)
        for rule, name in _names(spec.rules).items():
            rows = int(failed.str.contains(rule.name, literal=True).sum())
            said = f"{count(rows)} rows went to quarantine" if rows else "every row met it"
            yield dg.AssetCheckResult(
                passed=rows == 0,
                asset_key=naming.table_key(quarantine),
                check_name=name,
                severity=dg.AssetCheckSeverity.WARN,
                description=said if newest is not None else "it has judged no rows yet",
                metadata={
                    "rows_quarantined": dg.MetadataValue.int(rows),
                    **({} if newest is None else {"checkpoint": dg.MetadataValue.int(newest.checkpoint)}),
                },
            )


def _checked(plan: JobPlan) -> Iterator[tuple[StatelessSpec, TableName]]:
    for planned in plan.vertices.values():
        if isinstance(planned.spec, StatelessSpec) and planned.spec.quarantine is not None:
            yield planned.spec, planned.spec.quarantine.name


def _failed_rows(warehouse: Warehouse, quarantine: TableName, records: Iterable[CheckpointRecord]) -> pl.Series:
    """Return the failed rules of each row that these checkpoints put into the quarantine table."""
    paths = [
        warehouse.place(file.path)
        for record in records
        for table in record.tables
        if table.table == quarantine
        for file in table.adds
    ]
    there = [pl.read_parquet(path.read(), columns=[FAILED])[FAILED] for path in paths if path.exists()]
    return pl.concat(there) if there else pl.Series(FAILED, [], dtype=pl.String)


def _names(rules: tuple[RowRule, ...]) -> dict[RowRule, str]:
    """Return a name for each rule, made of its columns and type."""
    return check_names((rule, _name(rule)) for rule in rules)


def _name(rule: RowRule) -> str:
    expected = _EXPECT.sub("", rule.name.partition("(")[0]).replace("not_be_", "not_").removeprefix("be_")
    return "_".join([*_COLUMN.findall(rule.name), expected])
