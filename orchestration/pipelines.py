"""A pipeline as Dagster sees it: one multi-asset whose materialization is one tick, its checks, a job, a schedule."""

from collections.abc import Iterator

import dagster as dg

from jobs.launch import launch
from jobs.planner import JobPlan
from jobs.runtime.tick import run_tick
from jobs.settings import Layer
from orchestration.checks import check_specs
from orchestration.launchpad import launchpad_schema
from orchestration.lineage import source_specs, table_specs
from orchestration.tick import Events, TickRunner, tick_events

JOB_TAG = "tidemark/job"
"""The tag of a pipeline's Dagster runs, by which dagster.yaml lets them wait for each other."""

HOURLY = "0 * * * *"


def build_definitions(reference: str, *, cron: str = HOURLY, runner: TickRunner = run_tick) -> dg.Definitions:
    """Return the definitions of a pipeline, named as on the command line; `runner` runs its ticks.

    No Spark is started and no table touched. The schedule is there, but has to be switched on. Raises
    UnknownPipelineError, InvalidSettingsError for the environment, and what the planner refuses.
    """
    plan = launch(reference, Layer("", {})).plan
    tables = _tables_asset(reference, plan, runner)
    job = dg.define_asset_job(
        plan.job,
        dg.AssetSelection.assets(tables),
        description=f"One tick of pipeline {plan.job}: from where it stands until it has caught up.",
        tags={JOB_TAG: plan.job},
    )
    schedule = dg.ScheduleDefinition(
        name=f"{plan.job}_schedule",
        job=job,
        cron_schedule=cron,
        description=f"A tick of pipeline {plan.job} at a time; it ends by itself when it has caught up.",
    )
    return dg.Definitions(
        assets=[*source_specs(plan), tables],
        jobs=[job],
        schedules=[schedule],
        executor=dg.in_process_executor,
    )


def _tables_asset(reference: str, plan: JobPlan, runner: TickRunner) -> dg.AssetsDefinition:
    """One step for all tables: they share a cut, so none is materialized without the others."""

    @dg.multi_asset(
        name=f"{plan.job}_tick",
        specs=table_specs(plan),
        check_specs=check_specs(plan),
        config_schema=launchpad_schema(),
        pool=plan.job,
        description=f"One tick of pipeline {plan.job}.",
    )
    def tick(context: dg.AssetExecutionContext) -> Iterator[Events]:
        yield from tick_events(reference, context, runner)

    return tick
