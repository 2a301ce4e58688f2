"""A materialization runs a tick. Dagster shows the tick's epochs and refusals, and its verdicts are checks."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from logging import ERROR
from pathlib import Path
from typing import get_args

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.loader import LoadingContextForTest
from deltalake import DeltaTable
from pydantic import ValidationError

from checkpointing.commit.fencing import release_of
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
from jobs.pipelines.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from jobs.quality.judge import Judge
from jobs.tick.carrier import LEASE_MS
from jobs.tick.tick import run_tick
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.warehouse import Warehouse
from orchestration.launchpad import launchpad_schema
from orchestration.tags import FAILURE_TAG
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.numbers import InterruptedEngine
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, read_cut
from tidemark import CheckpointingMode
from tidemark.dagster import TickConfig, build_definitions

ROOT = Path(__file__).parents[2]
JUDGED = dg.AssetCheckKey(dg.AssetKey(BRONZE.split("/")), "value_between")
BRONZE_KEY = dg.AssetKey(BRONZE.split("/"))
CUTS_KEY = dg.AssetKey(["_tidemark", JOB, "cuts"])
GOLD_KEY = dg.AssetKey(GOLD.split("/"))


def materializations(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dict[str, object]]:
    records = instance.fetch_materializations(key, limit=100, ascending=True).records
    return [
        {name: value.value for name, value in record.asset_materialization.metadata.items()}
        | {"data_version": record.asset_materialization.tags["dagster/data_version"]}
        for record in records
    ]


def checks_of(instance: dg.DagsterInstance, key: dg.AssetKey, *names: str) -> list[dg.AssetCheckEvaluation]:
    storage = instance.event_log_storage
    records = [storage.get_asset_check_execution_history(dg.AssetCheckKey(key, name), limit=1)[0] for name in names]
    return [record.event.dagster_event.asset_check_evaluation_data for record in records]


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data.description


def hold(root, holder: Holder) -> None:
    stores = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely)
    claim = Claim(
        generation=Generation(1),
        holder=holder,
        first_id=CheckpointId(1),
        last_id=CheckpointId(100),
        at_ms=stores.warehouse.now_ms(),
        nonce="other",
    )
    stores.entries.append(claim, stores.observe().version)


def test_a_materialization_runs_a_tick_and_shows_its_epochs(run_job, instance, tmp_path):
    """Every table is materialized once for each reported epoch, with the numbers that Dagster plots."""
    result = run_job(report_every=1)
    assert result.success
    assert 300 == len(read_cut(tmp_path / "warehouse")[BRONZE])
    shown = materializations(instance, BRONZE_KEY)
    assert [1, 2, 3] == [each["checkpoint"] for each in shown]
    assert [100, 100, 100] == [each["rows_added"] for each in shown]
    assert ["1", "2", "3"] == [each["data_version"].partition("-")[0] for each in shown]
    assert 3 == len({each["data_version"] for each in shown})
    assert DeltaTable(str(tmp_path / "warehouse" / BRONZE)).version() == shown[-1]["delta_version"]
    assert {"duration_ms", "alignment_ms", "bytes_held", "epoch_rows"} < set(shown[0])
    assert (300, 7) == (shown[-1]["dagster/row_count"], materializations(instance, GOLD_KEY)[-1]["dagster/row_count"])
    assert {"start_delay_ms", "async_ms", "bytes_let_through"} < set(shown[0])
    told = materializations(instance, CUTS_KEY)[-1]
    ended = [told[f"checkpoints_{how}"] for how in ("triggered", "failed", "restored")]
    assert ([3, 0, 0], True) == (ended, 0 <= told["duration_ms_p50"] <= told["duration_ms_p99"])
    assert ["3", "2", "1"] == [line.split(" | ")[0].strip("| ") for line in told["last_checkpoints"].splitlines()[2:]]
    assert [100, 200, 300] == [each["dagster/row_count"] for each in shown]


def test_a_pipelines_own_report_is_logged_and_kept_with_the_cut(run_job, instance):
    """The report is the same as in `tidemark run`. A tick without news logs it, too."""
    for cut in (1, 2):
        assert run_job("tests.orchestration.numbers:reported").success
        run = instance.get_runs(limit=1)[0]
        assert 1 == sum("300 rows at cut 3" in log.user_message for log in instance.all_logs(run.run_id)), cut
    assert "```\n300 rows at cut 3\n```" == materializations(instance, CUTS_KEY)[-1]["report"]


def test_a_second_tick_materializes_nothing_and_its_checks_are_evaluated(run_job, instance):
    """A tick that finds nothing new reports no table to Dagster, but still runs the checks."""
    run_job()
    result = run_job()
    assert result.success
    assert 1 == len(materializations(instance, GOLD_KEY))
    checks = result.get_asset_check_evaluations()
    names = ("one_cut", "fresh", "checkpoint_lag", "nothing_waits_for_approval")
    assert {(name, True) for name in names} == {(check.check_name, check.passed) for check in checks}
    assert 7 == len(checks)


def test_a_source_shows_where_it_stands(run_job, instance):
    """After a tick, the source's observation has the position of each split, and the number of unread rows."""
    run_job(checkpoints=1)
    run_job()
    records = instance.fetch_observations(dg.AssetKey(["sources", JOB, "numbers"]), limit=5).records
    assert {"a": "150", "b": "150"} == records[0].asset_observation.metadata["positions"].value
    told = [record.asset_observation.metadata.get("rows_unread") for record in reversed(records)]
    assert [200, 0] == [each.value for each in told if each is not None]


def test_the_launchpad_bounds_a_tick_and_a_wrong_value_is_named(run_job):
    """`checkpoints` limits a tick.

    An invalid value fails the Dagster run, and the error names the field and the place.
    """
    result = run_job(checkpoints=1)
    (last,) = [event for event in result.asset_materializations_for_node(JOB) if event.asset_key == CUTS_KEY]
    assert ("stopped", 1) == tuple(last.metadata[name].value for name in ("outcome", "completed_checkpoints"))
    assert "interval_ms (set in the launchpad)" in failure(run_job(interval_ms="soon"))


def test_a_job_that_is_held_is_refused_by_the_holders_name(run_job, instance, tmp_path):
    warehouse, holder = tmp_path / "warehouse", this_process("another-run")
    hold(warehouse, holder)
    LeaseStore(Warehouse(warehouse, ProtocolPaths(JOB))).renew(Generation(1), holder, 100 * LEASE_MS)
    run_job("tests.orchestration.numbers:judged")
    assert dg.DagsterRunStatus.CANCELED is instance.get_runs()[0].status
    said = next(log.user_message for log in instance.all_logs(instance.get_runs()[0].run_id) if log.level == ERROR)
    assert f"process {os.getpid()} on" in said
    assert "Dagster run another-run" in said
    assert "take_over: true" in said
    assert not (warehouse / BRONZE).exists()
    (check,) = instance.event_log_storage.get_asset_check_execution_history(JUDGED, limit=5)
    seen = asyncio.run(check.resolve_status(LoadingContextForTest(instance)))
    assert "SKIPPED" == seen.value  # a run that fails leaves EXECUTION_FAILED
    assert run_job(take_over=True).success


@pytest.mark.parametrize(("ended", "taken"), [(True, True), (False, False)])
def test_a_holder_whose_dagster_run_has_ended_is_dead(run_job, instance, tmp_path, ended, taken):
    """A holder on another host is taken over at once only if Dagster knows that its run has ended."""
    run_id = "11111111-1111-4111-8111-111111111111"
    status = dg.DagsterRunStatus.FAILURE if ended else dg.DagsterRunStatus.STARTED
    instance.add_run(dg.DagsterRun(job_name=JOB, run_id=run_id, status=status))
    holder = Holder(host="elsewhere", pid=1, started="then", dagster_run=run_id)
    hold(tmp_path / "warehouse", holder)
    LeaseStore(Warehouse(tmp_path / "warehouse", ProtocolPaths(JOB))).renew(Generation(1), holder, LEASE_MS)
    assert taken == run_job().success


def test_a_terminated_dagster_run_ends_its_tick_in_order(run_job, instance, tmp_path):
    """The interrupt stops the tick, which releases the job. The Dagster run is canceled, and no row is lost."""

    def terminate() -> None:
        instance.report_run_canceling(instance.get_runs()[0])

    assert not run_job(engine=InterruptedEngine(terminate)).success
    assert dg.DagsterRunStatus.CANCELED is instance.get_runs()[0].status
    stores = JobStores(Warehouse(tmp_path / "warehouse", ProtocolPaths(JOB)), cross_freely)
    assert release_of(stores.observe().rows, Generation(1)) is not None
    assert run_job().success
    assert 300 == len(read_cut(tmp_path / "warehouse")[BRONZE])


HANGING = """
import socket, sys
from functools import partial
import dagster as dg
from jobs.tick.tick import run_tick
from orchestration.pipelines import build_definitions
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine

class HangingEngine(LocalEngine):
    left = 3
    def run(self, *asked):
        self.left -= 1
        if not self.left:
            print("hangs", flush=True)
            self.hang("run")
        return super().run(*asked)
    def close(self):
        self.hang("close")
        super().close()
    def hang(self, where):
        ours, theirs = socket.socketpair()
        while where == sys.argv[3]:
            ours.recv(1)

with dg.DagsterInstance.local_temp(sys.argv[2]) as instance:
    runner = partial(run_tick, engine=HangingEngine())
    definitions = build_definitions("tests.orchestration.numbers:build", runner=runner)
    definitions.resolve_job_def(f"{JOB}_tick").execute_in_process(
        run_config={"ops": {JOB: {"config": {"warehouse": sys.argv[1]}}}}, instance=instance
    )
"""


@pytest.mark.parametrize(("how", "where"), [(signal.SIGINT, "run"), (signal.SIGTERM, "close")])
def test_a_terminated_dagster_run_ends_in_time_though_its_tick_hangs(run_job, tmp_path, how, where):
    """Dagster sends SIGINT, and other programs send SIGTERM. The run ends, no process stays, and the next tick goes on.

    In the first case a thread hangs, and in the second case the tick itself.
    """
    (tmp_path / "dagster").mkdir()
    words = [sys.executable, "-c", HANGING, str(tmp_path / "warehouse"), str(tmp_path / "dagster"), where]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as run:
        assert "hangs\n" == run.stdout.readline()
        run.send_signal(how)
        begun = time.monotonic()
        try:
            assert 128 + how == run.wait(30)
        finally:
            run.kill()
        assert time.monotonic() - begun < 15  # it is 8 to 10 s on an idle machine
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        (ended,) = instance.get_runs()
        asked = dg.DagsterRunStatus.FAILURE  # Dagster itself says first that it cancels the run
        assert (dg.DagsterRunStatus.CANCELED if where == "close" else asked) is ended.status
        logs = instance.all_logs(ended.run_id)
        assert (where == "close") == any("something did not stop within 8 s" in log.user_message for log in logs)
    table = str(tmp_path / "warehouse" / BRONZE)
    assert not DeltaTable.is_deltatable(table) or 0 == DeltaTable(table).to_pyarrow_table().num_rows % 100
    assert run_job().success
    assert 300 == len(read_cut(tmp_path / "warehouse")[BRONZE])


class FailsOnce(Judge):
    """A judge that raises an error for its second suite."""

    judged = 0

    def judge(self, suite, files, *how):
        type(self).judged += 1
        if self.judged == 2:
            raise RuntimeError("Great Expectations lost its way")
        return super().judge(suite, files, *how)


@pytest.fixture
def fails_once(monkeypatch):
    monkeypatch.setattr("jobs.tick.effects.Judge", type("Counted", (FailsOnce,), {}))


@pytest.mark.usefixtures("fails_once")
def test_a_judge_that_fails_is_a_failed_check_and_a_failed_checkpoint(run_job, instance):
    result = run_job("tests.orchestration.numbers:judged", report_every=100)
    assert not result.success
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    for name in ("value_between", "value_not_null"):
        assert not checks[name].passed
        assert "RuntimeError: Great Expectations lost its way" in checks[name].description
    assert "--set tolerable_failures=3" in failure(result)
    assert "CHECKPOINT_ASYNC_EXCEPTION" in failed_checkpoints(result)
    assert FAILURE_TAG not in instance.get_runs()[0].tags


def failed_checkpoints(result):
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data.metadata["failed_checkpoints"].value


@pytest.mark.usefixtures("fails_once")
def test_a_declined_checkpoint_is_shown_with_its_reason(run_job, instance):
    result = run_job("tests.orchestration.numbers:nearly_judged", report_every=100, tolerable_failures=1)
    assert result.success
    assert {True} == {check.passed for check in result.get_asset_check_evaluations()}
    (told,) = [each["failed_checkpoints"] for each in materializations(instance, CUTS_KEY)]
    assert "| 2 | " in told
    assert "failed: `CHECKPOINT_ASYNC_EXCEPTION` | suite small_numbers of table bronze/numbers could not be" in told
    assert "| nothing: checkpoint 3 has its rows |" in told


def test_a_failing_suite_is_a_failed_check(run_job, instance, tmp_path):
    result = run_job("tests.orchestration.numbers:judged", report_every=100)
    assert not result.success
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    between = checks["value_between"]
    assert between.blocking
    assert not between.passed
    assert "121" in between.metadata["unexpected_values"].value
    assert checks["value_not_null"].passed
    assert "turn the expectation into a row rule" in failure(result)
    assert {True} == {check.passed for check in checks_of(instance, BRONZE_KEY, "one_cut", "fresh")}
    assert [2] == [each["checkpoint"] for each in materializations(instance, BRONZE_KEY)]
    assert 200 == len(read_cut(tmp_path / "warehouse")[BRONZE])


# ------------------------------------------------------------------
# The typed configuration of a tick: every field of the launchpad, and values that the launchpad accepts.


SAMPLES = {bool: True, int: 1, float: 0.5, str: "30s", Path: Path("lake")}


def samples(name):
    kinds = [kind for kind in get_args(TickConfig.model_fields[name].annotation) if kind is not type(None)]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            yield from kind
        else:
            yield SAMPLES.get(kind, ["numbers"])


@pytest.fixture(scope="module")
def tick():
    definitions = build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()))
    return definitions.resolve_job_def(f"{JOB}_tick")


def test_it_has_the_fields_of_the_launchpad():
    """A new setting must be a field of `TickConfig`, too."""
    assert set(launchpad_schema()) == set(TickConfig.model_fields)


@pytest.mark.parametrize("name", TickConfig.model_fields)
def test_dagster_takes_each_field_with_each_of_its_types(tick, name):
    """A mode may be an enum member, a time may be a number, a folder may be a path. The run gets what a user types."""
    for value in samples(name):
        given = dg.RunConfig(ops={JOB: TickConfig(**{name: value})})
        taken = dg.validate_run_config(tick, given)["ops"][JOB]["config"]
        shown = value.value if isinstance(value, Enum) else value
        assert str(shown) == str(taken[name])


def test_a_run_is_started_from_it(tick, tmp_path):
    """The run takes one checkpoint, as the configuration says. Settings that it leaves out are the pipeline's."""
    config = TickConfig(
        checkpoints=1, warehouse=tmp_path / "lake", mode=CheckpointingMode.AT_LEAST_ONCE, timeout_ms=60_000
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = tick.execute_in_process(run_config=dg.RunConfig(ops={JOB: config}), instance=instance)
    told = {event.asset_key: event.metadata for event in result.asset_materializations_for_node(JOB)}
    cuts = told[dg.AssetKey(["_tidemark", JOB, "cuts"])]
    assert ("stopped", 1) == (cuts["outcome"].value, cuts["completed_checkpoints"].value)
    assert (tmp_path / "lake" / "gold").is_dir()


@pytest.mark.parametrize(("name", "value"), [("checkpoints", "many"), ("mode", "sometimes"), ("chekpoints", 1)])
def test_what_is_no_field_or_of_another_type_is_refused_where_it_is_written(name, value):
    with pytest.raises((ValidationError, dg.DagsterInvalidConfigError), match=name):
        TickConfig(**{name: value})


# ------------------------------------------------------------------
# The real command line in its own process, with real Spark: the command that a user types works.


FLIGHTS = 40
CANCELLED = 4


def lay_out(data: Path) -> None:
    midnight = datetime(2013, 1, 1, tzinfo=UTC)
    flights = [
        {
            "carrier": "UA",
            "dest": "IAH",
            "origin": "EWR",
            "arr_delay": None if n < CANCELLED else n,
            "distance": 1400,
            "time_hour": midnight + timedelta(hours=n // 2),
        }
        for n in range(FLIGHTS)
    ]
    weather = [
        {"origin": "EWR", "time_hour": midnight + timedelta(hours=hour), "wind_speed": float(hour)}
        for hour in range(24)
    ]
    for name, rows, schema in (("flights", flights, FLIGHTS_SCHEMA), ("weather", weather, WEATHER_SCHEMA)):
        folder = data / name / "EWR"
        folder.mkdir(parents=True)
        whole = [{column: row.get(column) for column in schema.names} for row in rows]
        pq.write_table(pa.Table.from_pylist(whole, schema=schema), folder / "001.parquet")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_dg_launch_materializes_the_flights(tmp_path):
    """`dg launch --job` runs a tick on Spark, keeps Dagster's records under .dagster, and writes every table."""
    lay_out(tmp_path / "data")
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    asked = subprocess.run(
        [Path(sys.executable).with_name("dg"), "launch", "--job", "flights_tick", "--target-path", ROOT],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), "TIDEMARK_SPARK_CORES": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == asked.returncode, asked.stdout + asked.stderr
    rows = {
        table: DeltaTable(str(tmp_path / "warehouse" / table)).to_pyarrow_table().num_rows
        for table in ("bronze/flights", "quarantine/flights", "silver/flights", "gold/delays_by_route")
    }
    good = FLIGHTS - CANCELLED
    assert {
        "bronze/flights": FLIGHTS,
        "quarantine/flights": CANCELLED,
        "silver/flights": good,
        "gold/delays_by_route": 1,
    } == rows
    assert {".dagster", "dagster.yaml", "data", "warehouse"} == {path.name for path in tmp_path.iterdir()}
