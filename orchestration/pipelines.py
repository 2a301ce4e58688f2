"""Builds a pipeline's Dagster definitions: assets, checks, jobs, schedules and sensors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import dagster as dg
import structlog
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from checkpointing.identifiers import JobName
from jobs.launch import launch
from jobs.pipeline import Pipeline
from jobs.pipelines.registry import BrokenPipelineError, PipelineReference
from jobs.settings import Layer
from jobs.sources.port import SourceError
from jobs.storage.address import Root, absolute
from jobs.tick.tick import run_tick
from orchestration.checks import check_specs
from orchestration.cut_resource import CutIOManager, CutResource
from orchestration.deployment import Deployment, Limits, TickRunner, arguments
from orchestration.health_checks import health_checks, partitioned_suites
from orchestration.launchpad import given_settings, launchpad_schema
from orchestration.lineage import checked_owners, materialized_specs, partitioned_specs, source_specs
from orchestration.naming import CUTS, GROUPS, Naming, prefix_parts
from orchestration.operations import operation_jobs
from orchestration.tags import JOB_TAG
from orchestration.tick import Events, tick_events
from orchestration.triggers import (
    HOURLY,
    health_schedule,
    new_data_sensor,
    outside_ticks_sensor,
    recovery_sensor,
    tick_schedule,
)

DAY: Final = Limits()
_COMMON: Final = frozenset({"pipeline", "pipelines", "definitions", "defs", "jobs"})
"""Names of modules that do not hint at the pipeline's name."""
_log = structlog.get_logger(__name__)


def build_definitions(  # noqa: PLR0913 - each is a choice of the project's, and all but the pipeline have a default
    pipeline: PipelineReference,
    *,
    cron: str = HOURLY,
    owners: Sequence[str] = (),
    limits: Limits = DAY,
    key_prefix: str | Sequence[str] = (),
    group_name: str = GROUPS,
    warehouse: str | Path | None = None,
    data: Root | str | None = None,
    settings: Mapping[str, object] | None = None,
    show_state: bool = True,
    upstream_prefixes: Mapping[str, str | Sequence[str]] = MappingProxyType({}),
    runner: TickRunner = run_tick,
) -> dg.Definitions:
    """Return the definitions of a pipeline, given as a Pipeline, a function of the data folder, or a name.

    - `owners` are the owners of every asset: e-mail addresses or `team:NAME`.
    - `limits` say when a table is stale and a row waits too long.
    - `key_prefix` comes before every asset key and every name of a job, schedule or sensor. Give one if two
      pipelines write tables of the same name, or if one pipeline runs in two warehouses.
    - `group_name` may hold `{pipeline}` and `{layer}`.
    - `warehouse`, `data` and `settings` (by the names of `tidemark run`'s flags) override the environment, and the
      launchpad overrides them.
    - `show_state=False` keeps operators' states out of the catalogue. Their checks then belong to the table of cuts.
    - `upstream_prefixes` maps the names of the other pipelines whose cuts this one reads to their key prefixes. By
      default they have the same prefix.
    - `runner` runs the ticks.

    The definitions name no executor and no common resource, so they merge with any other definitions. No Spark is
    started and no table touched. Schedules and sensors that start ticks are off until a user turns them on. If the
    columns of a source cannot be read now, the definitions are one asset that says why, and the rest of the code
    location loads. Raises UnknownPipelineError, InvalidSettingsError, InvalidOwnerError, InvalidNamingError, and what
    the planner refuses.
    """
    given = arguments({**(settings or {}), "warehouse": warehouse, "data": data})
    others = {job: prefix_parts(prefix) for job, prefix in upstream_prefixes.items()}

    def named(job: JobName) -> Naming:
        return Naming(job, prefix_parts(key_prefix), group_name, show_state, others)

    try:
        launched = launch(pipeline, given)
    except (SourceError, BrokenPipelineError) as error:
        if isinstance(error, BrokenPipelineError) and not isinstance(error.__cause__, SourceError):
            raise
        return unavailable(pipeline, given, named(called(pipeline)), error.__cause__ or error)
    naming = named(launched.plan.job)
    deployment = Deployment(
        reference=pipeline, given=given, naming=naming, plan=launched.plan, limits=limits, runner=runner
    )
    return _definitions(deployment, launched.settings.warehouse, cron, checked_owners(owners))


def _definitions(deployment: Deployment, warehouse: Root, cron: str, owners: Sequence[str]) -> dg.Definitions:
    plan, naming = deployment.plan, deployment.naming
    tables = _tables_asset(deployment, owners)
    checks = health_checks(deployment)
    job, health = _tick_job(deployment, tables), _health_job(deployment, checks)
    return dg.Definitions(
        assets=[*source_specs(plan, naming, owners), *partitioned_specs(plan, naming, owners), tables],
        asset_checks=[checks, *partitioned_suites(deployment)],
        jobs=[job, health, *operation_jobs(deployment)],
        schedules=[tick_schedule(deployment, job, cron), health_schedule(deployment, health)],
        sensors=[
            new_data_sensor(deployment, job),
            recovery_sensor(deployment, job),
            outside_ticks_sensor(deployment),
        ],
        resources=_readers(naming, warehouse),
    )


def called(pipeline: PipelineReference) -> JobName:
    """Return the name of a pipeline that cannot be built now: its own name, or the name of its module's folder."""
    if isinstance(pipeline, Pipeline):
        return pipeline.name
    text = pipeline if isinstance(pipeline, str) else getattr(pipeline, "__module__", "")
    parts = [part for part in text.partition(":")[0].split(".") if part not in _COMMON]
    return JobName(re.sub(r"[^a-z0-9_]", "_", parts[-1].lower()) if parts else "pipeline")


def unavailable(pipeline: PipelineReference, given: Layer, naming: Naming, why: BaseException) -> dg.Definitions:
    """Return definitions that say why a pipeline could not be built: the table of cuts, and the job of a tick.

    A run of the job builds the pipeline again. It fails with the reason, or asks the user to reload the code location.
    """
    said = f"{naming.job} was not built when this code location was loaded: {why}"
    _log.warning("pipeline is not available", pipeline=naming.job, why=str(why))

    @dg.asset(
        key=naming.cuts_key(),
        group_name=naming.group(CUTS),
        op_tags={},
        description=f"{said}. Its tables are shown again once you reload the code location after that is mended.",
        tags={JOB_TAG: naming.name},
        config_schema=launchpad_schema(),
    )
    def tables(context: dg.AssetExecutionContext) -> None:
        try:
            launch(pipeline, given, given_settings(context.op_execution_context.op_config))
        except (SourceError, BrokenPipelineError) as error:
            raise dg.Failure(f"{naming.job} cannot be built: {error}", allow_retries=False) from error
        raise dg.Failure(f"{said}. Now it can be built: reload the code location", allow_retries=False)

    job = dg.define_asset_job(f"{naming.name}_tick", dg.AssetSelection.assets(tables), description=said)
    return dg.Definitions(assets=[tables], jobs=[job])


def _readers(naming: Naming, warehouse: Root) -> dict[str, object]:
    """Return the resources by which downstream assets read the pipeline's tables."""
    cuts = CutResource(pipeline=naming.job, warehouse=str(absolute(warehouse)))
    return {naming.cut_key: cuts, naming.tables_key: CutIOManager(cuts=cuts, key_prefix=list(naming.prefix))}


def _tick_job(deployment: Deployment, tables: dg.AssetsDefinition) -> UnresolvedAssetJobDefinition:
    """Return the job of a tick: one step, in the run's own process.

    The tick runs the health checks itself. If they were a separate step, Dagster would skip it whenever the tick did
    not materialize every table.
    """
    return dg.define_asset_job(
        f"{deployment.naming.name}_tick",
        dg.AssetSelection.assets(tables).without_checks() | dg.AssetSelection.checks(*tables.check_keys),
        description=(
            f"One tick of pipeline {deployment.plan.job}: from where it stands until it has caught up; then its checks."
        ),
        tags={JOB_TAG: deployment.naming.name},
        executor_def=dg.in_process_executor,
    )


def _health_job(deployment: Deployment, checks: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        f"{deployment.naming.name}_health",
        dg.AssetSelection.checks(checks),
        description=(
            f"The checks of {deployment.plan.job} that look at the warehouse, without a tick and without Spark."
        ),
        executor_def=dg.in_process_executor,
    )


def _tables_asset(deployment: Deployment, owners: Sequence[str]) -> dg.AssetsDefinition:
    """Return one step for all tables, since all tables share a cut."""
    plan, naming = deployment.plan, deployment.naming

    @dg.multi_asset(
        name=naming.name,
        specs=materialized_specs(plan, naming, owners),
        check_specs=check_specs(plan, naming),
        config_schema=launchpad_schema(),
        pool=naming.name,
        description=f"One tick of pipeline {plan.job}.",
    )
    def tick(context: dg.AssetExecutionContext) -> Iterator[Events]:
        yield from tick_events(deployment, context)

    return tick
