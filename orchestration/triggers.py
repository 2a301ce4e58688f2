"""Starts ticks automatically, and reports ticks outside Dagster.

A schedule, a sensor for new data and a sensor for failed runs start ticks. All three are off at first. None of them
starts a tick while another tick holds the job. If two ticks start all the same, only one can claim the job. The sensor
that reports ticks outside Dagster is on from the start.
"""

from collections.abc import Iterator
from typing import Final

import dagster as dg
from dagster import SkipReason
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from checkpointing.commit.at_rest import waits_for_approval
from checkpointing.commit.recovery import has_finished
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.launch import Launch
from jobs.showing.quantities import counted
from jobs.tick.discovery import Discovered, discover
from jobs.warehouse.job_stores import newest_restorable, waiting_cut
from orchestration.checks import kept_results
from orchestration.deployment import Deployment
from orchestration.epochs import CODE_VERSION_TAG, DATA_VERSION_TAG, Epoch, row_count
from orchestration.health_checks import evaluations, look_events
from orchestration.observation import Standing, activity, held_by, standing
from orchestration.partitions import ToldPartitions
from orchestration.row_rules import rule_results
from orchestration.tags import FAILURE_TAG, JOB_TAG, RECOVERS_TAG
from orchestration.told import DataVersions, Told

HOURLY: Final = "0 * * * *"
LOOK_EVERY_S: Final = 30
Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
_UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def tick_schedule(deployment: Deployment, job: UnresolvedAssetJobDefinition, cron: str) -> dg.ScheduleDefinition:
    """Return a schedule that starts a tick unless another tick runs or waits to run."""
    name = deployment.naming.name

    def execute(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | SkipReason:
        return due(deployment, context.instance)

    return dg.ScheduleDefinition(
        name=f"{name}_schedule",
        job=job,
        cron_schedule=cron,
        execution_fn=execute,
        description=f"Starts a tick of pipeline {name}, which ends by itself when it has caught up.",
    )


def health_schedule(deployment: Deployment, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Return a schedule that checks the warehouse every hour, so that a lag shows even if no tick runs.

    It is on from the start, since it changes nothing and starts no tick. Before the first tick it does nothing.
    """
    name = deployment.naming.name

    def execute(_context: dg.ScheduleEvaluationContext) -> dg.RunRequest | SkipReason:
        launched = deployment.launch()
        if activity(launched.warehouse) is None:
            return SkipReason(f"{launched.plan.job} has never run: there is nothing to look at")
        return dg.RunRequest()

    return dg.ScheduleDefinition(
        name=f"{name}_health_schedule",
        job=job,
        cron_schedule=HOURLY,
        execution_fn=execute,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Checks every hour how far {name} is behind its sources, and whether all tables show one cut.",
    )


def due(deployment: Deployment, instance: dg.DagsterInstance) -> dg.RunRequest | SkipReason:
    """Return a request for a tick, or the reason to skip it, such as the tick that runs."""
    busy = _busy(deployment, deployment.launch(), instance)
    return dg.RunRequest() if busy is None else SkipReason(busy)


def new_data_sensor(deployment: Deployment, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Return a sensor that starts a tick when the sources have rows that the newest checkpoint does not hold.

    The cursor holds what the sensor found when it last started a tick. So it does not start another tick for data on
    which a tick failed. Polling needs no Spark and reads no row.
    """
    name = deployment.naming.name

    @dg.sensor(
        name=f"{name}_new_data",
        job=job,
        minimum_interval_seconds=LOOK_EVERY_S,
        description=f"Starts a tick of {name} when its sources have new data. It needs no Spark and reads no row.",
    )
    def new_data(context: dg.SensorEvaluationContext) -> dg.RunRequest | SkipReason:
        launched = deployment.launch()
        busy = _busy(deployment, launched, context.instance)
        if busy is not None:
            return SkipReason(busy)
        newest = newest_restorable(launched.warehouse)
        found = discover(launched.plan.sources, newest)
        return _decided(context, newest, found)

    return new_data


def recovery_sensor(deployment: Deployment, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Return a sensor that starts one recovery run for a failed tick, and none for a failed recovery run.

    Failures that would occur again need a person: a rejected suite, a refused setting, a job that another tick holds.
    The failed run says what to do.
    """
    name = deployment.naming.name

    @dg.run_failure_sensor(
        name=f"{name}_recovery",
        monitored_jobs=[job],
        request_job=job,
        description=f"Starts one recovery run for a tick of {name} that failed; every tick recovers what was left.",
    )
    def recovery(context: dg.RunFailureSensorContext) -> dg.RunRequest | SkipReason:
        return recovery_of(context.dagster_run)

    return recovery


def recovery_of(failed: dg.DagsterRun) -> dg.RunRequest | SkipReason:
    """Return the recovery run of a failed run, with its settings, or the reason why there is none."""
    if RECOVERS_TAG in failed.tags:
        return SkipReason(
            f"run {failed.run_id} was itself the recovery of {failed.tags[RECOVERS_TAG]}: look at its error"
        )
    if FAILURE_TAG in failed.tags:
        return SkipReason(
            f"run {failed.run_id} would fail again ({failed.tags[FAILURE_TAG]}): its error says what to do"
        )
    return dg.RunRequest(
        run_key=f"recovers-{failed.run_id}", run_config=failed.run_config, tags={RECOVERS_TAG: failed.run_id}
    )


def outside_ticks_sensor(deployment: Deployment) -> dg.SensorDefinition:
    """Return a sensor that reports cuts to Dagster that no run of a tick has reported.

    `tidemark run` takes such cuts, and so do a rollback and an approval. The sensor is on from the start, since it
    starts no run and changes nothing. It uses the pipeline as the code location loaded it, and asks no source's server
    for columns.
    """
    name = deployment.naming.name

    @dg.sensor(
        name=f"{name}_outside_ticks",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Reports tables of {name} that something else than a tick in Dagster has changed, such as `tidemark run`."
        ),
    )
    def outside_ticks(context: dg.SensorEvaluationContext) -> dg.SensorResult | SkipReason:
        return reported_outside(deployment, context.instance, context.cursor)

    return outside_ticks


def reported_outside(
    deployment: Deployment, instance: dg.DagsterInstance, cursor: str | None
) -> dg.SensorResult | SkipReason:
    """Return the newest cut as events, if a table has a data version that was not reported to Dagster.

    The cursor holds the newest checkpoint that was compared. Reported tables are recognized by their data versions, so
    nothing is reported twice, even if the cursor is lost.
    """
    warehouse, plan = deployment.warehouse(deployment.resolved()), deployment.plan
    newest = newest_restorable(warehouse)
    compared = "" if newest is None else f"checkpoint={newest.checkpoint} nonce={newest.nonce}"
    if newest is None or compared == cursor:
        return SkipReason("there is no newer checkpoint")
    running = _unfinished_run(deployment, instance)
    if running is not None:
        return SkipReason(f"{running}, and reports its checkpoints itself")
    stands = standing(warehouse, plan)
    epoch = stands.epoch
    if epoch is None or not epoch.versions:
        return SkipReason(f"checkpoint {newest.checkpoint} is not published yet")
    told = Told(instance, plan, deployment.naming, DataVersions(warehouse))
    events: list[Event] = list(_outside_news(told, stands, epoch))
    if not events:
        return dg.SensorResult(skip_reason=f"checkpoint {newest.checkpoint} is reported already", cursor=compared)
    events += ToldPartitions(instance, plan, deployment.naming, DataVersions(warehouse)).news(epoch)
    events += evaluations(kept_results(plan, deployment.naming, stands))
    events += evaluations(rule_results(plan, deployment.naming, warehouse))
    events += look_events(deployment, warehouse, plan)
    return dg.SensorResult(asset_events=events, cursor=compared)


def _outside_news(told: Told, stands: Standing, epoch: Epoch) -> Iterator[dg.AssetMaterialization]:
    """Yield each asset whose data version at the cut is new to Dagster, in topological order."""
    claims = (row for row in stands.rows if isinstance(row, Claim) and row.generation == epoch.record.generation)
    holder = next((f"by {claim.holder}" for claim in claims), "outside Dagster")
    for asset in told.assets:
        version = told.news(asset, epoch)
        if version is None:
            continue
        seen = None if asset.table is None else stands.tables.get(asset.table)
        yield dg.AssetMaterialization(
            asset.key,
            description=f"checkpoint {epoch.record.checkpoint}, {holder}",
            metadata=told.metadata(asset, epoch) | row_count(None if seen is None else seen.rows),
            tags={DATA_VERSION_TAG: version, CODE_VERSION_TAG: asset.code_version},
        )


def _unfinished_run(deployment: Deployment, instance: dg.DagsterInstance) -> str | None:
    """Return which run of a tick has not ended yet in Dagster."""
    tagged = dg.RunsFilter(tags={JOB_TAG: deployment.naming.name}, statuses=list(_UNFINISHED))
    unfinished = instance.get_runs(tagged, limit=1)
    return f"run {unfinished[0].run_id} is {unfinished[0].status.value.lower()}" if unfinished else None


def _busy(deployment: Deployment, launched: Launch, instance: dg.DagsterInstance) -> str | None:
    """Return which tick runs or waits to run, or why no tick may begin or is needed. None if a tick may begin."""
    holder = held_by(launched.warehouse)
    if holder is not None:
        return holder
    held = waiting_cut(launched.warehouse)
    if held is not None:
        return waits_for_approval(held)
    newest = newest_restorable(launched.warehouse)
    if newest is not None and has_finished(newest, launched.plan.graph.sources()):
        return f"{launched.plan.job} is finished: checkpoint {newest.checkpoint} holds all rows of its sources"
    return _unfinished_run(deployment, instance)


def _decided(
    context: dg.SensorEvaluationContext, newest: CheckpointRecord | None, found: dict[VertexId, Discovered]
) -> dg.RunRequest | SkipReason:
    checkpoint = 0 if newest is None else newest.checkpoint
    unread = {name: each for name, each in found.items() if each.any}
    if not unread:
        return SkipReason(f"checkpoint {checkpoint} holds all that the sources offer")
    cursor = " ".join([f"checkpoint={checkpoint}", *(f"{name}={each.digest}" for name, each in sorted(found.items()))])
    if cursor == context.cursor:
        return SkipReason(
            "a tick was already started for these rows and did not get further; the sources have nothing newer"
        )
    context.update_cursor(cursor)
    rows = {f"tidemark/rows_unread.{name}": _rows(each) for name, each in unread.items()}
    return dg.RunRequest(run_key=cursor, tags=rows)


def _rows(found: Discovered) -> str:
    return "not counted" if found.rows is None else counted(found.rows, found.estimated)
