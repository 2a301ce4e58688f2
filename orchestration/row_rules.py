"""Asset checks of the row rules: for each rule, how many rows are in quarantine at the newest cut."""

import re
from collections.abc import Iterator
from typing import Final

import dagster as dg
import polars as pl

from checkpointing.identifiers import TableName
from jobs.operators.spec import FAILED, RowRule, StatelessSpec
from jobs.pipeline.job_plan import JobPlan
from jobs.reading import Cuts
from jobs.reading.cut import Cut
from jobs.reading.moments import ReadingError
from jobs.showing.quantities import count
from jobs.warehouse.refusals import NeverRunError
from jobs.warehouse.warehouse import Warehouse
from orchestration.naming import Naming, check_names

_COLUMN: Final = re.compile(r"column(?:_A|_B)?='([^']*)'")
_ROWS: Final = "_rows"
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


def rule_results(plan: JobPlan, naming: Naming, warehouse: Warehouse) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each row rule over the rows in quarantine at the newest published cut.

    So the result is the same after any tick, even if the tick read nothing, failed, or ran outside Dagster. Rows in
    quarantine are not an error, so a check that does not pass is only a warning.
    """
    checked = tuple(_checked(plan))
    cut = _newest_cut(warehouse, plan) if checked else None
    for spec, quarantine in checked:
        failed = cut if isinstance(cut, str) or cut is None else _failed_rows(cut, quarantine)
        for rule, name in _names(spec.rules).items():
            rows = None if isinstance(failed, str) or failed is None else _rows_of(failed, rule)
            checkpoint = cut.checkpoint if isinstance(cut, Cut) else None
            yield dg.AssetCheckResult(
                passed=rows == 0,
                asset_key=naming.table_key(quarantine),
                check_name=name,
                severity=dg.AssetCheckSeverity.WARN,
                description=failed if isinstance(failed, str) else _said(rows, checkpoint),
                metadata={
                    **({} if rows is None else {"rows_quarantined": dg.MetadataValue.int(rows)}),
                    **({} if checkpoint is None else {"checkpoint": dg.MetadataValue.int(checkpoint)}),
                },
            )


def _newest_cut(warehouse: Warehouse, plan: JobPlan) -> Cut | str:
    """Return the newest published cut, or why there is none."""
    try:
        return Cuts(warehouse.root, plan.job).latest()
    except (ReadingError, NeverRunError) as error:
        return f"it has judged no rows yet: {error}"


def _failed_rows(cut: Cut, quarantine: TableName) -> pl.DataFrame | str:
    """Return each list of failed rules that occurs, with its number of rows, or why the table cannot be read.

    If the cut does not have the table yet, the table is empty.
    """
    if quarantine not in cut.versions:
        return pl.DataFrame(schema={FAILED: pl.String, _ROWS: pl.UInt32})
    try:
        return cut.polars(quarantine).group_by(FAILED).agg(pl.len().alias(_ROWS)).collect()
    except (ReadingError, OSError, pl.exceptions.PolarsError) as error:
        return f"the rows in quarantine could not be counted: {error}"


def _rows_of(failed: pl.DataFrame, rule: RowRule) -> int:
    return int(failed.filter(pl.col(FAILED).str.contains(rule.name, literal=True))[_ROWS].sum())


def _said(rows: int | None, checkpoint: int | None) -> str:
    found = f"{count(rows)} rows are" if rows else "no row is"
    return f"{found} in quarantine at checkpoint {checkpoint}"


def _checked(plan: JobPlan) -> Iterator[tuple[StatelessSpec, TableName]]:
    for planned in plan.vertices.values():
        if isinstance(planned.spec, StatelessSpec) and planned.spec.quarantine is not None:
            yield planned.spec, planned.spec.quarantine.name


def _names(rules: tuple[RowRule, ...]) -> dict[RowRule, str]:
    """Return a name for each rule, made of its columns and type."""
    return check_names((rule, _name(rule)) for rule in rules)


def _name(rule: RowRule) -> str:
    expected = _EXPECT.sub("", rule.name.partition("(")[0]).replace("not_be_", "not_").removeprefix("be_")
    return "_".join([*_COLUMN.findall(rule.name), expected])
