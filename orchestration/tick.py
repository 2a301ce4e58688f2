"""One materialization: a tick from the launchpad's settings to Dagster's results. The tick itself is the engine's."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, assert_never

import dagster as dg

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from jobs.launch import Launch, launch
from jobs.planner import JobPlan
from jobs.runtime.driver import Inbox
from jobs.runtime.failures import TablesAheadError, TickRefusedError
from jobs.runtime.listener import TickListener
from jobs.runtime.tick import RuntimeSettings, TickReport
from jobs.settings import InvalidSettingsError
from orchestration.checks import cut_results, kept_results, rejected_results
from orchestration.epochs import Metadata, source_metadata, table_metadata
from orchestration.launchpad import REPORT_EVERY, given_settings
from orchestration.lineage import source_key, table_key, table_specs
from orchestration.observation import Standing, standing
from orchestration.reporting import EpochReporter

Events = dg.MaterializeResult[None] | dg.AssetCheckResult


class TickRunner(Protocol):
    """Runs a tick: `jobs.runtime.tick.run_tick`, or the same with an engine of one's own."""

    def __call__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener | None = None, *, inbox: Inbox
    ) -> TickReport:
        """Run one tick; see `run_tick`."""
        ...


def tick_events(reference: str, context: dg.AssetExecutionContext, runner: TickRunner) -> Iterator[Events]:
    """Run one tick and yield what Dagster is to know: a result for every table, a result for every check.

    Raises dg.Failure, with the way out, for refused settings, a job that another one holds, and a tick that
    failed; DagsterExecutionInterruptedError after a tick that a termination of the Dagster run has stopped.
    """
    config = context.op_execution_context.op_config
    started = _launched(reference, config)
    reporter = EpochReporter(context, started.plan.graph, config[REPORT_EVERY])
    inbox = Inbox()
    try:
        report = runner(started.plan, _runtime(started, context), reporter, inbox=inbox)
    except TickRefusedError as refused:
        hint = "" if isinstance(refused, TablesAheadError) else " (in the launchpad: take_over: true)"
        raise dg.Failure(f"{refused}{hint}") from refused
    match report.outcome:
        case TickOutcome.FAILED:
            reporter.report_held()
            yield from _failed(started.plan, report)
        case TickOutcome.STOPPED if inbox.stop_requested:
            reporter.report_held()
            raise dg.DagsterExecutionInterruptedError
        case TickOutcome.CAUGHT_UP | TickOutcome.STOPPED:
            yield from _succeeded(started, report, reporter, context)
        case _ as unreachable:
            assert_never(unreachable)


def _launched(reference: str, config: dict[str, object]) -> Launch:
    try:
        return launch(reference, given_settings(config))
    except InvalidSettingsError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _runtime(started: Launch, context: dg.AssetExecutionContext) -> RuntimeSettings:
    instance = context.instance

    def run_ended(run_id: str) -> bool | None:
        """Say whether a Dagster run has ended; None for one that this instance does not know."""
        run = instance.get_run_by_id(run_id)
        return None if run is None else run.is_finished

    return replace(started.runtime(), dagster_run=context.run.run_id, run_ended=run_ended)


def _failed(plan: JobPlan, report: TickReport) -> Iterator[Events]:
    """Yield the checks that failed, if it was by a suite; then fail as a person should read it."""
    quality = report.reason is CheckpointFailureReason.QUALITY
    if quality:
        yield from rejected_results(plan, report.trace)
    reason = "" if report.reason is None else f"{report.reason.message}: "
    raise dg.Failure(
        f"{reason}{report.message}",
        metadata={
            "completed_checkpoints": len(report.completed),
            "generation": report.generation,
            "restarts": report.restarts,
            "trace": dg.MetadataValue.path(report.trace),
        },
        allow_retries=not quality,
    )


def _succeeded(
    started: Launch, report: TickReport, reporter: EpochReporter, context: dg.AssetExecutionContext
) -> Iterator[Events]:
    plan = started.plan
    stands = standing(started.settings.warehouse, plan.job)
    ended: Metadata = {
        "outcome": dg.MetadataValue.text(report.outcome.value),
        "completed_checkpoints": dg.MetadataValue.int(len(report.completed)),
        "restarts": dg.MetadataValue.int(report.restarts),
        "seconds": dg.MetadataValue.float(round(report.seconds, 3)),
        "trace": dg.MetadataValue.path(report.trace),
    }
    _observe_sources(plan, stands, context)
    yield from _materialized(plan, stands, reporter, ended)
    yield from kept_results(plan, stands)
    yield from cut_results(plan, stands)


def _observe_sources(plan: JobPlan, stands: Standing, context: dg.AssetExecutionContext) -> None:
    if stands.epoch is None:
        return
    for source in plan.graph.sources():
        context.log_event(
            dg.AssetObservation(source_key(plan.job, source.id), metadata=source_metadata(source.id, stands.epoch))
        )


def _materialized(
    plan: JobPlan, stands: Standing, reporter: EpochReporter, ended: Metadata
) -> Iterator[dg.MaterializeResult[None]]:
    """Yield the newest cut for every table, in topological order; its data version is new only if the cut is."""
    epoch = reporter.held or stands.epoch
    for spec in table_specs(plan):
        table = next(each.name for each in plan.graph.tables() if table_key(each.name) == spec.key)
        yield dg.MaterializeResult(
            asset_key=spec.key,
            metadata=ended | (table_metadata(plan.graph, table, epoch) if epoch is not None else {}),
            data_version=dg.DataVersion(epoch.data_version if epoch is not None else "0"),
        )
