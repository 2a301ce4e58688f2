"""Starts ticks automatically: a schedule, a sensor for new data, one for failed runs. All are off at first.

None of them starts a tick while one holds the job. If two ticks start all the same, the fence admits one.
"""

from typing import Final

import dagster as dg
from dagster import SkipReason
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from checkpointing.commit.approval import waits_for_approval
from checkpointing.commit.recovery import has_finished
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.holding.job_state import newest_restorable, waiting_cut
from jobs.launch import Launch
from jobs.runtime.discovery import Discovered, discover
from jobs.showing.quantities import count
from orchestration.deployment import Deployment
from orchestration.observation import activity, held_by
from orchestration.tags import FAILURE_TAG, JOB_TAG, RECOVERS_TAG

HOURLY: Final = "0 * * * *"
LOOK_EVERY_S: Final = 30
_UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def tick_schedule(deployment: Deployment, job: UnresolvedAssetJobDefinition, cron: str) -> dg.ScheduleDefinition:
    """Return a schedule that starts a tick unless one runs or waits."""
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
    """Return a request for a tick, or a reason to skip it that names the running one."""
    busy = _busy(deployment, deployment.launch(), instance)
    return dg.RunRequest() if busy is None else SkipReason(busy)


def new_data_sensor(deployment: Deployment, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Return a sensor that starts a tick when the sources have rows that the newest checkpoint does not hold.

    The cursor holds what the sensor found when it last started a tick. So it does not start a tick again on data on
    which one failed. Polling needs no Spark and reads no row.
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

    It leaves failures that a retry would meet again to people (a rejected suite, a refused setting, a job that another
    tick holds). The failed run says what to do.
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


def _busy(deployment: Deployment, launched: Launch, instance: dg.DagsterInstance) -> str | None:
    """Return which tick runs or waits to run, or that none is needed any more; None if one may begin."""
    holder = held_by(launched.warehouse)
    if holder is not None:
        return holder
    held = waiting_cut(launched.warehouse)
    if held is not None:
        return waits_for_approval(held)
    newest = newest_restorable(launched.warehouse)
    if newest is not None and has_finished(newest, launched.plan.graph.sources()):
        return f"{launched.plan.job} is finished: checkpoint {newest.checkpoint} holds all rows of its sources"
    unfinished = instance.get_runs(
        dg.RunsFilter(tags={JOB_TAG: deployment.naming.name}, statuses=list(_UNFINISHED)), limit=1
    )
    return f"run {unfinished[0].run_id} is {unfinished[0].status.value.lower()}" if unfinished else None


def _decided(
    context: dg.SensorEvaluationContext, newest: CheckpointRecord | None, found: dict[VertexId, Discovered]
) -> dg.RunRequest | SkipReason:
    checkpoint = 0 if newest is None else newest.checkpoint
    unread = {name: each.rows for name, each in found.items() if each.any}
    if not unread:
        return SkipReason(f"checkpoint {checkpoint} holds all that the sources offer")
    cursor = " ".join([f"checkpoint={checkpoint}", *(f"{name}={each.digest}" for name, each in sorted(found.items()))])
    if cursor == context.cursor:
        return SkipReason(
            "a tick was already started for these rows and did not get further; the sources have nothing newer"
        )
    context.update_cursor(cursor)
    rows = {f"tidemark/rows_unread.{name}": _rows(number) for name, number in unread.items()}
    return dg.RunRequest(run_key=cursor, tags=rows)


def _rows(number: int | None) -> str:
    return "not counted" if number is None else count(number)
