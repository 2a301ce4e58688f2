"""What starts ticks: when there is new data, when one has failed, and never while one runs."""

import os
from functools import partial

import dagster as dg
import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.launch import launch
from jobs.settings import Layer
from jobs.tick.carrier import LEASE_MS
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.warehouse import Warehouse
from orchestration.deployment import Deployment, Limits
from orchestration.naming import Naming
from orchestration.pipelines import build_definitions
from orchestration.tags import FAILURE_TAG, JOB_TAG, RECOVERS_TAG
from orchestration.triggers import due, recovery_of
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_tick import BRONZE_KEY, CUTS_KEY, GOLD_KEY, checks_of, hold, materializations
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine

TICK = f"{JOB}_tick"


@pytest.fixture
def definitions(tmp_path, monkeypatch):
    """Return the tiny pipeline's definitions, its warehouse in the environment, as for a deployment."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    return build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()))


@pytest.fixture
def deployment(definitions):
    """Return the tiny pipeline as a project that gives no argument of its own runs it."""
    given = Layer("", {})
    plan = launch(NUMBERS, given).plan
    return Deployment(reference=NUMBERS, given=given, naming=Naming(plan.job), plan=plan, limits=Limits())


@pytest.fixture
def looked(definitions, instance):
    repository = definitions.get_repository_def()

    def look(cursor: str | None = None):
        sensor = definitions.resolve_sensor_def(f"{JOB}_new_data")
        context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
        return sensor.evaluate_tick(context)

    return look


def test_new_data_starts_a_tick_once(looked):
    """What the sources offer starts one tick, which says how much; the very same data does not start another."""
    seen = looked()
    (request,) = seen.run_requests
    assert "300" == request.tags["tidemark/rows_unread.numbers"]
    again = looked(seen.cursor)
    assert ([], seen.cursor) == (again.run_requests, again.cursor)
    assert "the sources have nothing newer" in again.skip_message


def test_nothing_new_starts_nothing(looked, run_job):
    """Once a checkpoint holds all rows, no tick is started. After a tick that stopped early, one is."""
    run_job(checkpoints=1)
    seen = looked()
    assert ["200"] == [request.tags["tidemark/rows_unread.numbers"] for request in seen.run_requests]
    run_job()
    assert "holds all that the sources offer" in looked(seen.cursor).skip_message


def test_nothing_is_started_while_a_tick_runs(looked, deployment, instance, tmp_path):
    """While a process holds the job, or a Dagster run of it waits, sensor and schedule skip and name it."""
    warehouse = tmp_path / "warehouse"
    hold(warehouse, this_process("another-run"))
    LeaseStore(Warehouse(warehouse, ProtocolPaths(JOB))).renew(1, this_process("another-run"), LEASE_MS)
    assert "Dagster run another-run holds the job" in looked().skip_message
    assert "Dagster run another-run holds the job" in due(deployment, instance).skip_message


def test_nothing_is_started_while_a_run_waits(looked, deployment, instance):
    """A Dagster run that is queued counts as one that runs; without it the schedule starts a tick."""
    assert isinstance(due(deployment, instance), dg.RunRequest)
    waiting = dg.DagsterRun(job_name=TICK, tags={JOB_TAG: JOB}, status=dg.DagsterRunStatus.NOT_STARTED)
    instance.add_run(waiting)
    assert f"run {waiting.run_id} is not_started" == looked().skip_message
    assert f"run {waiting.run_id} is not_started" == due(deployment, instance).skip_message


def test_a_failed_run_is_taken_up_once():
    """After a crash one run follows, with the same settings. If that run fails too, none follows."""
    config = {"ops": {JOB: {"config": {"checkpoints": 5}}}}
    crashed = dg.DagsterRun(job_name=TICK, run_config=config)
    request = recovery_of(crashed)
    assert (config, {RECOVERS_TAG: crashed.run_id}) == (request.run_config, request.tags)
    again = recovery_of(dg.DagsterRun(job_name=TICK, tags=request.tags))
    assert f"was itself the recovery of {crashed.run_id}" in again.skip_message


def test_a_failure_that_would_come_again_is_left_to_a_person(run_job, instance):
    """A run that ended by a rejected suite, a held job or a refused setting is marked. No recovery run follows it."""
    run_job(interval_ms="soon")
    (failed,) = instance.get_runs()
    assert "settings" == failed.tags[FAILURE_TAG]
    assert "would fail again (settings)" in recovery_of(failed).skip_message


def tick_outside(deployment, root):
    settings = RuntimeSettings(warehouse=root / "warehouse", limits=TickLimits())
    run_tick(deployment.plan, settings, engine=LocalEngine())


def reported(definitions, instance, cursor=None):
    sensor = definitions.resolve_sensor_def(f"{JOB}_outside_ticks")
    assert dg.DefaultSensorStatus.RUNNING is sensor.default_status
    repository = definitions.get_repository_def()
    said = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository))
    for event in said.asset_events:
        instance.report_runless_asset_event(event)
    return said


def test_a_tick_of_the_command_line_is_reported_once(definitions, deployment, instance, tmp_path):
    """Tables, checks and sources show its cut. Neither a lost cursor nor a tick in Dagster reports it again."""
    assert not reported(definitions, instance).asset_events
    assert not (tmp_path / "warehouse").exists()
    run_tick(
        deployment.plan, RuntimeSettings(warehouse=tmp_path / "warehouse", limits=TickLimits()), engine=LocalEngine()
    )
    said = reported(definitions, instance)
    (shown,) = materializations(instance, GOLD_KEY)
    assert (3, 7) == (shown["checkpoint"], shown["dagster/row_count"])
    assert 1 == len(materializations(instance, CUTS_KEY))
    (description,) = {each.description for each in said.asset_events if isinstance(each, dg.AssetMaterialization)}
    assert f"checkpoint 3, by process {os.getpid()}" in description
    assert {True} == {check.passed for check in checks_of(instance, BRONZE_KEY, "one_cut", "fresh")}
    source = dg.AssetKey(["sources", JOB, "numbers"])
    (seen,) = instance.fetch_observations(source, limit=5).records
    assert {"a": "150", "b": "150"} == seen.asset_observation.metadata["positions"].value
    for cursor in (said.cursor, None, "checkpoint=3 nonce=of another warehouse"):
        assert not reported(definitions, instance, cursor).asset_events, cursor
    assert definitions.resolve_job_def(TICK).execute_in_process(instance=instance).success
    assert 1 == len(materializations(instance, GOLD_KEY))


def test_a_running_tick_in_dagster_reports_its_checkpoints_itself(definitions, deployment, instance, tmp_path):
    """The sensor leaves them alone, and looks again once the run has ended."""
    run_tick(
        deployment.plan, RuntimeSettings(warehouse=tmp_path / "warehouse", limits=TickLimits()), engine=LocalEngine()
    )
    run = dg.DagsterRun(job_name=TICK, status=dg.DagsterRunStatus.STARTED, tags={JOB_TAG: JOB})
    instance.add_run(run)
    said = reported(definitions, instance)
    assert (said.cursor, said.asset_events) == (None, [])
    assert f"run {run.run_id} is started" in said.skip_message
    instance.report_run_failed(run)
    assert reported(definitions, instance).asset_events
