"""A pipeline as Dagster sees it: assets in the lineage of its graph, checks, jobs, a schedule and two sensors."""

from collections.abc import Iterator, Sequence
from typing import Final

import dagster as dg

from jobs.launch import Launch, launch
from jobs.pipelines.registry import PipelineReference
from jobs.planner import JobPlan
from jobs.runtime.tick import run_tick
from jobs.settings import Layer
from orchestration.checks import check_specs
from orchestration.health import Limits
from orchestration.health_checks import health_checks
from orchestration.launchpad import launchpad_schema
from orchestration.lineage import checked_owners, source_specs, table_specs
from orchestration.operations import operation_jobs
from orchestration.tags import JOB_TAG
from orchestration.tick import Events, TickRunner, tick_events
from orchestration.triggers import new_data_sensor, recovery_sensor, tick_schedule

HOURLY: Final = "0 * * * *"
DAY: Final = Limits()


def build_definitions(
    pipeline: PipelineReference,
    *,
    cron: str = HOURLY,
    owners: Sequence[str] = (),
    limits: Limits = DAY,
    runner: TickRunner = run_tick,
) -> dg.Definitions:
    """Return a pipeline's definitions; it is given itself, as a function of the data folder, or by its name.

    `owners` are e-mail addresses or `team:NAME`, of every asset; `limits` say when a table is stale and a
    row waits too long; `runner` runs the ticks. No Spark is started and no table touched. Schedule and
    sensors are there, but have to be switched on. Raises UnknownPipelineError, InvalidSettingsError for the
    environment, InvalidOwnerError, and what the planner refuses.
    """

    def launching() -> Launch:
        return launch(pipeline, Layer("", {}))

    plan = launching().plan
    owned = checked_owners(owners)
    tables = _tables_asset(pipeline, plan, owned, runner, limits)
    checks = health_checks(pipeline, plan, limits)
    job = dg.define_asset_job(
        f"{plan.job}_tick",
        dg.AssetSelection.assets(tables) | dg.AssetSelection.checks(checks),
        description=f"One tick of pipeline {plan.job}: from where it stands until it has caught up; then its checks.",
        tags={JOB_TAG: plan.job},
    )
    health = dg.define_asset_job(
        f"{plan.job}_health",
        dg.AssetSelection.checks(checks),
        description=f"The checks of {plan.job} that look at the warehouse, without a tick and without Spark.",
    )
    return dg.Definitions(
        assets=[*source_specs(plan, owned), tables],
        asset_checks=[checks],
        jobs=[job, health, *operation_jobs(plan.job)],
        schedules=[tick_schedule(launching, job, cron)],
        sensors=[new_data_sensor(launching, job), recovery_sensor(launching, job)],
        executor=dg.in_process_executor,
    )


def _tables_asset(
    pipeline: PipelineReference, plan: JobPlan, owners: Sequence[str], runner: TickRunner, limits: Limits
) -> dg.AssetsDefinition:
    """One step for all tables: they share a cut, so none is materialized without the others."""

    @dg.multi_asset(
        name=plan.job,
        specs=table_specs(plan, owners),
        check_specs=check_specs(plan),
        config_schema=launchpad_schema(),
        pool=plan.job,
        description=f"One tick of pipeline {plan.job}.",
    )
    def tick(context: dg.AssetExecutionContext) -> Iterator[Events]:
        yield from tick_events(pipeline, context, runner, limits)

    return tick
