"""Runs one tick as a Dagster materialization: from the launchpad's settings to Dagster's results."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

import dagster as dg

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.launch import Launch
from jobs.settings import InvalidSettingsError
from jobs.showing.checkpoints import failed_checkpoints
from jobs.showing.summary import reported
from jobs.tick.driver import Inbox
from jobs.tick.interrupts import ending_in_time
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.refusals import JobHeldError, TickRefusedError
from orchestration.checks import kept_results, of_partitioned, rejected_results
from orchestration.deployment import Deployment
from orchestration.epochs import Metadata, checkpoint_counts, failures, row_count
from orchestration.health_checks import evaluations, log_look
from orchestration.launchpad import REPORT_EVERY, given_settings
from orchestration.observation import RowCounts, Standing, standing
from orchestration.partitions import ToldPartitions
from orchestration.pictures import as_text, block, checkpoints_table
from orchestration.reporting import EpochReporter
from orchestration.row_rules import rule_results
from orchestration.tags import FAILURE_TAG
from orchestration.told import DataVersions, Told

_LASTING: Final = (
    CheckpointFailureReason.QUALITY,
    CheckpointFailureReason.TABLE_CHANGED,
    CheckpointFailureReason.FENCED,
)
"""Failure reasons that a retry does not remove, because a user has to act first."""

_SUITES_OBJECTED: Final = (CheckpointFailureReason.QUALITY, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION)
"""Failure reasons of a tick whose suites may have rejected the rows, or could not be judged."""

Events = dg.MaterializeResult[None] | dg.AssetCheckResult


def tick_events(deployment: Deployment, context: dg.AssetExecutionContext) -> Iterator[Events]:
    """Run one tick and yield its results: one for each changed table and one for each expectation.

    Raises dg.Failure, with the way out, for refused settings and for a tick that failed. Raises
    DagsterExecutionInterruptedError if another tick holds the job, or if a termination of the Dagster run stopped the
    tick. If the tick does not stop in time, its process ends.
    """
    with ending_in_time(partial(ended_by_force, context)):
        yield from _tick_events(deployment, context)


def ended_by_force(context: dg.AssetExecutionContext | dg.OpExecutionContext, said: str) -> None:
    """Log to Dagster that the process of a terminated Dagster run ends before its work is done."""
    context.log.error(said)
    context.instance.report_run_canceled(context.run, message=said)


def _tick_events(deployment: Deployment, context: dg.AssetExecutionContext) -> Iterator[Events]:
    config = context.op_execution_context.op_config
    started = _launched(deployment, config, context)
    counts = RowCounts(started.warehouse, started.plan)
    versions = DataVersions(started.warehouse)
    told = Told(context.instance, started.plan, deployment.naming, versions)
    partitions = ToldPartitions(context.instance, started.plan, deployment.naming, versions)
    reporter = EpochReporter(context, told, config[REPORT_EVERY], counts, partitions)
    inbox = Inbox()
    try:
        report = deployment.runner(started.plan, _runtime(started, context), reporter, inbox=inbox)
    except JobHeldError as held:
        raise _left_alone(held, context) from held
    except TickRefusedError as refused:
        _marked(context, "refused")
        raise dg.Failure(str(refused), allow_retries=False) from refused
    match report.outcome:
        case TickOutcome.FAILED:
            reporter.report_held()
            log_look(deployment, started, context.op_execution_context)
            yield from _failed(deployment, started, report, context)
        case TickOutcome.STOPPED if inbox.stop_requested:
            reporter.report_held()
            raise dg.DagsterExecutionInterruptedError
        case TickOutcome.CAUGHT_UP | TickOutcome.FINISHED | TickOutcome.STOPPED | TickOutcome.HELD:
            if report.outcome is TickOutcome.HELD:
                context.log.warning(report.message)
            yield from _succeeded(deployment, started, report, reporter, context)
        case _ as unreachable:
            assert_never(unreachable)


def _launched(deployment: Deployment, config: dict[str, object], context: dg.AssetExecutionContext) -> Launch:
    try:
        return deployment.launch(given_settings(config))
    except InvalidSettingsError as error:
        _marked(context, "settings")
        raise dg.Failure(str(error), allow_retries=False) from error


def _marked(context: dg.AssetExecutionContext, failure: str) -> None:
    """Tag the run with a failure that would occur again, so that no recovery run is started."""
    context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: failure})


def _left_alone(held: JobHeldError, context: dg.AssetExecutionContext) -> dg.DagsterExecutionInterruptedError:
    """Return the exception that ends the run as canceled. This shows that the run did nothing."""
    message = f"{held} (in the launchpad: take_over: true)"
    _marked(context, "held")
    context.log.error(message)
    context.instance.report_run_canceling(context.run, message=message)
    return dg.DagsterExecutionInterruptedError(message)


def _runtime(started: Launch, context: dg.AssetExecutionContext) -> RuntimeSettings:
    instance = context.instance

    def run_ended(run_id: str) -> bool | None:
        """Return whether a Dagster run has ended. None if this instance does not know the run."""
        run = instance.get_run_by_id(run_id)
        return None if run is None else run.is_finished

    return replace(started.runtime(), dagster_run=context.run.run_id, run_ended=run_ended)


def _failed(
    deployment: Deployment,
    started: Launch,
    report: TickReport,
    context: dg.AssetExecutionContext,
) -> Iterator[Events]:
    """Yield the failed checks if a suite rejected rows or could not be judged. Then raise the failure."""
    lasting = report.reason in _LASTING
    if report.reason is not None and lasting:
        _marked(context, report.reason.name.lower())
    if report.reason in _SUITES_OBJECTED:
        yield from _of_step(rejected_results(started.plan, deployment.naming, report.trace), deployment, context)
    yield from rule_results(started.plan, deployment.naming, started.warehouse)
    raise dg.Failure(
        report.why,
        metadata=_numbers(report, report.completed) | {"generation": dg.MetadataValue.int(report.generation)},
        allow_retries=not lasting,
    )


def _of_step(
    results: Iterator[dg.AssetCheckResult], deployment: Deployment, context: dg.AssetExecutionContext
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of suites. Log those of tables with partitions, which are not assets of this step."""
    for result in results:
        if not of_partitioned(deployment.plan, deployment.naming, result):
            yield result
            continue
        for event in evaluations([result]):
            context.op_execution_context.log_event(event)  # type: ignore[arg-type] # as in `log_look`


def _succeeded(
    deployment: Deployment,
    started: Launch,
    report: TickReport,
    reporter: EpochReporter,
    context: dg.AssetExecutionContext,
) -> Iterator[Events]:
    plan = started.plan
    stands = standing(started.warehouse, plan)
    outcome = report.outcome.value.replace("_", " ")
    reports = [as_text(shown) for shown in reported(plan, started.settings.warehouse)]
    for text in reports:
        context.log.info("%s", text)
    if stands.epoch is not None:
        reporter.report_partitions(stands.epoch)
    materialized = tuple(_materialized(_ended(report, stands, reports), reporter, stands))
    if not materialized:
        context.log.info("%s: the tables have not changed since the last report; nothing is materialized", outcome)
    yield from materialized
    yield from _of_step(kept_results(plan, deployment.naming, stands), deployment, context)
    yield from rule_results(plan, deployment.naming, started.warehouse)
    log_look(deployment, started, context.op_execution_context)


def _materialized(ended: Metadata, reporter: EpochReporter, stands: Standing) -> Iterator[dg.MaterializeResult[None]]:
    """Yield each asset that changed since the last report, in topological order, as of the newest cut.

    `ended` is the metadata of the tick, which the table of cuts gets.
    """
    told = reporter.told
    for asset in told.assets:
        held = reporter.held.get(asset.key)
        epoch = stands.epoch if held is None else held.epoch
        version = None if epoch is None else told.news(asset, epoch)
        if epoch is None or version is None:
            continue
        seen = None if asset.table is None else stands.tables.get(asset.table)
        told_of = ended if asset.table is None else row_count(None if seen is None else seen.rows)
        yield dg.MaterializeResult(
            asset_key=asset.key, metadata=told.metadata(asset, epoch) | told_of, data_version=dg.DataVersion(version)
        )


def _ended(report: TickReport, stands: Standing, reports: Sequence[str]) -> Metadata:
    """Return the metadata of a tick. The pipeline's own reports come last."""
    return {
        "outcome": dg.MetadataValue.text(report.outcome.value),
        "seconds": dg.MetadataValue.float(round(report.seconds, 3)),
        **_numbers(report, [*stands.rows, *report.completed]),
        **({"report": dg.MetadataValue.md(block("\n\n".join(reports)))} if reports else {}),
    }


def _numbers(report: TickReport, rows: Sequence[Row]) -> Metadata:
    """Return the metadata of a failed or successful tick. The newest checkpoints of `rows` are shown as a table."""
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
    return {
        "completed_checkpoints": dg.MetadataValue.int(len(report.completed)),
        "restarts": dg.MetadataValue.int(report.restarts),
        **checkpoint_counts(report),
        **failures(failed_checkpoints(rows, (report.generation, report.failed))),
        "last_checkpoints": dg.MetadataValue.md(checkpoints_table(records)),
        "trace": dg.MetadataValue.path(report.trace),
    }
