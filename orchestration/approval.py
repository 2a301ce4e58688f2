"""The check and the jobs of a cut that waits for approval: a warning with its content, and two ways to settle it."""

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg

from checkpointing.commit.at_rest import held_cut, waits_for_approval
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.sinks.port import TableSink
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.warehouse.warehouse import Warehouse
from orchestration.naming import Naming

APPROVAL: Final = "nothing_waits_for_approval"


def approval_spec(naming: Naming) -> dg.AssetCheckSpec:
    """Return the check. It belongs to the table of cuts, since all tables of a held cut change or none."""
    about = "No cut is held back for a person. If one is, no tick begins before somebody approves or rejects it."
    return dg.AssetCheckSpec(APPROVAL, asset=naming.cuts_key(), description=about)


def approval_result(naming: Naming, rows: tuple[Row, ...]) -> dg.AssetCheckResult:
    """Return a warning with the rows and verdicts of the cut that waits, or a passed result if no cut waits."""
    held = held_cut(rows)
    said = "no cut waits" if held is None else f"{waits_for_approval(held)}. {_jobs(naming)} do the same here"
    return dg.AssetCheckResult(
        passed=held is None,
        asset_key=naming.cuts_key(),
        check_name=APPROVAL,
        severity=dg.AssetCheckSeverity.WARN,
        description=said,
        metadata={} if held is None else _brings(held),
    )


def _jobs(naming: Naming) -> str:
    return f"the jobs {naming.name}_approve and {naming.name}_reject"


def _brings(held: CheckpointRecord) -> dict[str, Any]:
    rows = {str(table.table): sum(file.rows for file in (*table.adds, *table.files)) for table in held.tables}
    return {
        "cut": int(held.checkpoint),
        "held_at": dg.MetadataValue.timestamp(held.statistics.committed_ms / 1000),
        "rows_of_sources": held.statistics.rows,
        "rows_of_sources_estimated": bool(held.statistics.rows_estimated),
        "rows_staged": dg.MetadataValue.json(rows),
        "verdicts": dg.MetadataValue.json(list(held.statistics.verdicts)),
    }


def approved(
    context: dg.OpExecutionContext, warehouse: Warehouse, sinks: Mapping[TableName, TableSink]
) -> Mapping[str, Any]:
    """Publish the cut that waits. Return the metadata that the job's run shows."""
    done = approve(warehouse, sinks=sinks)
    context.log.info("cut %d is approved, as checkpoint %d", done.held.checkpoint, done.record.checkpoint)
    for note in done.published.notes:
        context.log.warning(note)
    versions = {str(table): version for table, version in done.published.versions}
    return {
        "cut": int(done.held.checkpoint),
        "checkpoint": int(done.record.checkpoint),
        "delta_versions": dg.MetadataValue.json(versions),
    }


def rejected(context: dg.OpExecutionContext, warehouse: Warehouse) -> Mapping[str, Any]:
    """Discard the cut that waits. Return the metadata that the job's run shows."""
    held = reject(warehouse)
    context.log.info("cut %d is rejected; the next tick reads its rows again", held.checkpoint)
    return {"cut": int(held.checkpoint)}
