"""Runs all checks of `health` in one Dagster op, after each tick or alone."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from jobs.launch import Launch
from jobs.pipeline.job_plan import JobPlan
from jobs.settings import InvalidSettingsError
from jobs.sources.port import SourceError
from jobs.tick.discovery import discover
from jobs.warehouse.warehouse import Warehouse
from orchestration.checks import kept_results, partitioned_check_specs
from orchestration.deployment import FRESH_WITHIN, WAITING_WITHIN, Deployment, limits_of
from orchestration.health import Look, health_results, health_specs
from orchestration.launchpad import FOLDERS, given_settings, setting_fields
from orchestration.naming import Naming
from orchestration.observation import standing
from orchestration.reporting import source_observations


def health_checks(deployment: Deployment) -> dg.AssetChecksDefinition:
    """Return the checks that read the warehouse. They start no Spark and change nothing."""

    @dg.multi_asset_check(
        name=f"{deployment.naming.name}_checks",
        specs=health_specs(deployment.plan, deployment.naming, deployment.limits),
        config_schema=setting_fields(*FOLDERS) | _limit_fields(),
        can_subset=True,
        description=(
            f"Checks that all tables of {deployment.plan.job} show one cut, that it is fresh, and that no "
            "row waits too long."
        ),
    )
    def health(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        yield from _judged(deployment, context)

    return health


def partitioned_suites(deployment: Deployment) -> list[dg.AssetChecksDefinition]:
    """Return the checks of suites that judge tables with partitions, if there are any.

    Each tick reports these checks. Started alone, they report the newest checkpoint's verdicts again. No schedule
    starts them, since this would hide the verdict that failed a tick.
    """
    specs = partitioned_check_specs(deployment.plan, deployment.naming)

    @dg.multi_asset_check(
        name=f"{deployment.naming.name}_suites",
        specs=specs,
        config_schema=setting_fields(*FOLDERS),
        can_subset=True,
        description=f"What the suites of {deployment.plan.job} said of the newest checkpoint's rows.",
    )
    def suites(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        config = context.op_execution_context.op_config
        try:
            started = deployment.launch(given_settings(config))
        except InvalidSettingsError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        stands = standing(started.warehouse, started.plan)
        for result in kept_results(started.plan, deployment.naming, stands):
            if _wanted(context, result):
                yield result

    return [suites] if specs else []


def _judged(deployment: Deployment, context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
    """Read the warehouse once, log an observation of each source, and yield the results of the selected checks."""
    config = context.op_execution_context.op_config
    folders = _of_the_tick(context, deployment.naming.name) | {name: config[name] for name in FOLDERS if name in config}
    try:
        started = deployment.launch(given_settings(folders))
        limits = limits_of(config, deployment.limits, "set in the launchpad")
    except InvalidSettingsError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    try:
        look = _looked(deployment.naming, started.warehouse, started.plan)
    except SourceError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    for observation in source_observations(look.plan, look.naming, look.stands, look.discovered):
        context.op_execution_context.log_event(observation)
    for result in health_results(look, limits):
        if _wanted(context, result):
            yield result


Seen = dg.AssetObservation | dg.AssetCheckEvaluation


def log_look(deployment: Deployment, started: Launch, context: dg.OpExecutionContext) -> None:
    """Read the warehouse after a tick. Log observations of the sources and the results of all checks.

    The tick does this itself, because Dagster would skip a separate step unless all tables were materialized.
    """
    for event in look_events(deployment, started.warehouse, started.plan):
        context.log_event(event)  # type: ignore[arg-type] # a check is taken, and written down; only the annotation lags


def look_events(deployment: Deployment, warehouse: Warehouse, plan: JobPlan) -> Iterator[Seen]:
    """Read the warehouse. Yield observations of the sources and the results of all health checks.

    Nothing is yielded if the sources cannot be read, since a tick reports that.
    """
    try:
        look = _looked(deployment.naming, warehouse, plan)
    except SourceError:
        return
    yield from source_observations(look.plan, look.naming, look.stands, look.discovered)
    yield from evaluations(health_results(look, deployment.limits))


def evaluations(results: Iterable[dg.AssetCheckResult]) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield these results as events that Dagster accepts outside the step of a check."""
    for result in results:
        if result.asset_key is not None and result.check_name is not None:
            yield dg.AssetCheckEvaluation(
                asset_key=result.asset_key,
                check_name=result.check_name,
                passed=result.passed,
                metadata=result.metadata,
                severity=result.severity,
                description=result.description,
            )


def _looked(naming: Naming, warehouse: Warehouse, plan: JobPlan) -> Look:
    stands = standing(warehouse, plan)
    return Look(
        plan=plan,
        naming=naming,
        root=warehouse.root,
        stands=stands,
        discovered=discover(plan.sources, None if stands.epoch is None else stands.epoch.record),
        now_ms=time.time_ns() // 1_000_000,
    )


def _wanted(context: dg.AssetCheckExecutionContext, result: dg.AssetCheckResult) -> bool:
    if result.asset_key is None or result.check_name is None:
        return False
    return dg.AssetCheckKey(result.asset_key, result.check_name) in context.selected_asset_check_keys


def _of_the_tick(context: dg.AssetCheckExecutionContext, op: str) -> dict[str, Any]:
    """Return the folders that the tick in the same run used, so that the checks read where it wrote."""
    config: Mapping[str, Any] = context.run.run_config
    given = config.get("ops", {}).get(op, {}).get("config", {})
    return {name: given[name] for name in FOLDERS if name in given}


def _limit_fields() -> dict[str, dg.Field]:
    stale = "How old the newest checkpoint may be while the sources have more: 30m, 24h."
    late = "How long a row may wait in an operator's state for its counterpart: 30m, 24h."
    return {
        FRESH_WITHIN: dg.Field(dg.String, is_required=False, description=stale),
        WAITING_WITHIN: dg.Field(dg.String, is_required=False, description=late),
    }
