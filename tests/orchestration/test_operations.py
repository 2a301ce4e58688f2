"""Dagster jobs besides the tick: a savepoint with and without a running tick, a stop, and what is refused."""

import os
import threading
from functools import partial

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame as SparkFrame

from checkpointing.identifiers import TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.launch import launch
from jobs.reading import Cuts
from jobs.reading.frames import UnknownFrameError, read_as
from jobs.settings import Layer
from jobs.tick.carrier import LEASE_MS
from jobs.tick.cleaning import clean_up
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.warehouse import Warehouse
from orchestration.approval import APPROVAL, approval_result
from orchestration.cut_resource import CutResource
from orchestration.deployment import Deployment, Limits
from orchestration.epochs import cut_metadata, table_metadata
from orchestration.naming import InvalidNamingError, Naming
from orchestration.observation import standing
from orchestration.pipelines import build_definitions
from orchestration.tags import FAILURE_TAG, JOB_TAG, RECOVERS_TAG
from orchestration.triggers import due, recovery_of
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_tick import BRONZE_KEY, CUTS_KEY, GOLD_KEY, checks_of, failure, hold, materializations
from tests.scenarios.runtime import cut_jobs
from tests.scenarios.runtime.cut_jobs import REPORT, SHOP, planned, tick
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, read_cut, run
from tests.scenarios.runtime.sqlite_mirror import SqliteMirror

MIRRORED = "tests.orchestration.numbers:mirrored"
ENDLESS = "tests.orchestration.numbers:endless"


@pytest.fixture
def operate(tmp_path, instance):
    def run(verb: str, reference: str = NUMBERS, **config: object) -> dg.ExecuteInProcessResult:
        job = build_definitions(reference).resolve_job_def(f"{JOB}_{verb}")
        config = {"warehouse": str(tmp_path / "warehouse")} | config
        return job.execute_in_process(
            run_config={"ops": {f"{verb}_{JOB}": {"config": config}}}, instance=instance, raise_on_error=False
        )

    return run


def told(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    (output,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def test_a_savepoint_at_rest_and_its_copy(run_job, operate, tmp_path):
    """For a job at rest, a savepoint of the newest checkpoint is taken.

    With `to`, a copy has all files that it needs.
    """
    run_job()
    done = operate("savepoint", to=str(tmp_path / "copy"))
    assert done.success
    assert (4, "nobody: no tick was running") == (told(done)["savepoint"], told(done)["taken_by"])
    assert (tmp_path / "copy" / "gold" / "by_key" / "_delta_log").is_dir()


def test_a_stop_ends_the_running_tick(operate, tmp_path):
    """The Dagster job asks the running tick to stop, and returns when it has ended. Dagster's queue is not involved."""
    plan = launch(ENDLESS, Layer("", {})).plan
    settings = RuntimeSettings(warehouse=tmp_path / "warehouse")
    outcomes = []
    begun = threading.Event()

    class Engine(LocalEngine):
        def run(self, *asked):
            begun.set()
            return super().run(*asked)

    tick = threading.Thread(
        target=lambda: outcomes.append(partial(run_tick, engine=Engine())(plan, settings).outcome), daemon=True
    )
    tick.start()
    assert begun.wait(60)
    done = operate("stop", kind="suspend")
    tick.join(60)
    assert done.success
    assert [TickOutcome.STOPPED] == outcomes
    assert "suspend" == told(done)["kind"]


def test_a_cancellation_keeps_the_checkpoints_or_deletes_them(run_job, operate, tmp_path):
    """No tick is running, so the operation ends no tick. Savepoints stay in any case."""
    run_job()
    done = operate("cancel")
    assert done.success
    assert {"ended"} == set(told(done))
    assert told(done)["ended"].startswith("nobody: ")
    assert read_cut(tmp_path / "warehouse")
    savepoint = told(operate("savepoint"))["savepoint"]
    gone = told(operate("cancel", retain_on_cancellation=False))
    assert savepoint - 1 in gone["deleted_checkpoints"]
    assert [savepoint] == gone["kept_savepoints"]
    assert [] == told(operate("cancel", retain_on_cancellation=False))["deleted_checkpoints"]


def test_a_rollback_is_shown_and_then_done(run_job, operate, tmp_path):
    """A dry run changes nothing.

    After the rollback, the tables are at the older checkpoint, and the next tick reads on.
    """
    run_job()
    before = read_cut(tmp_path / "warehouse")
    assert "rollback plan" in told(operate("rollback", checkpoint=2, dry_run=True))["plan"]
    assert before == read_cut(tmp_path / "warehouse")
    assert 2 == told(operate("rollback", checkpoint=2))["back_at"]
    assert 200 == len(read_cut(tmp_path / "warehouse")[BRONZE])
    result = run_job()
    assert {True} == {check.passed for check in result.get_asset_check_evaluations()}
    assert before == read_cut(tmp_path / "warehouse")


def test_a_rollback_takes_a_sink_back_or_leaves_it(run_job, operate, tmp_path, monkeypatch):
    """The sink of the upsert table is rolled back, too, unless the launchpad sets `leave_outside`."""
    monkeypatch.setenv("MIRROR", str(tmp_path / "mirror.db"))
    mirror = SqliteMirror(tmp_path / "mirror.db")
    run_job(MIRRORED)
    before, expected = mirror.shown(), read_cut(tmp_path / "warehouse")[GOLD]
    assert before[1] == expected
    assert operate("rollback", MIRRORED, checkpoint=2, leave_outside=True).success
    assert before == mirror.shown()
    run_job(MIRRORED)
    assert expected == mirror.shown()[1]
    older = mirror.shown()[0] - 1
    assert operate("rollback", MIRRORED, checkpoint=older).success
    assert read_cut(tmp_path / "warehouse")[GOLD] == mirror.shown()[1] != expected


def test_a_clean_up_says_what_it_deletes(run_job, operate):
    """A clean-up, or its dry run, works without Spark and reports the same as the command line."""
    run_job()
    assert "would_delete_files" in told(operate("cleanup", dry_run=True))
    assert "deleted_files" in told(operate("cleanup", reader_grace_ms="0"))


@pytest.mark.spark
def test_an_erasure_is_shown_and_then_done(run_job, operate, tmp_path, spark):
    """The preview changes nothing. The report lists what was not searched. A wrong condition is refused."""
    run_job()
    before = read_cut(tmp_path / "warehouse")
    asked = {"table": str(BRONZE), "where": "key = 3", "except": [str(GOLD)]}
    assert "forget plan" in told(operate("forget", **asked, dry_run=True))["plan"]
    assert before == read_cut(tmp_path / "warehouse")
    done = told(operate("forget", **asked))
    assert {str(BRONZE), "_tidemark/numbers/state/by_key"} == set(done["rows_by_table"])
    assert {str(GOLD): "left out with --except"} == done["not_searched"]
    assert f"as forget {done['checkpoint']}" in done["report"]
    assert (
        42 == done["rows_by_table"][str(BRONZE)] == len(before[BRONZE]) - len(read_cut(tmp_path / "warehouse")[BRONZE])
    )
    refused = operate("forget", **asked | {"where": "rand() > key"})
    assert not refused.success
    assert "Write a condition" in failure(refused)


REFUSED = [
    ("stop", {"kind": "drain"}, "nothing to stop"),
    ("savepoint", {"to": "warehouse"}, "is not empty"),
    ("rollback", {"checkpoint": 99}, "99"),
]


@pytest.mark.parametrize(("verb", "config", "said"), REFUSED)
def test_what_cannot_be_done_is_said(run_job, operate, tmp_path, verb, config, said):
    """Each fails with a message: to stop a job at rest, to copy into a used folder, to roll back to no checkpoint."""
    run_job()
    given = {name: str(tmp_path / value) if name == "to" else value for name, value in config.items()}
    done = operate(verb, **given)
    assert not done.success
    assert said in failure(done)


def test_a_job_that_never_ran_is_refused_and_nothing_is_created(operate, tmp_path):
    """The message says that the job has never run. No folder is made."""
    done = operate("savepoint")
    assert "has never run in" in failure(done)
    assert not (tmp_path / "warehouse").exists()


# ------------------------------------------------------------------
# A tick in Dagster that holds its cut: the check that warns, the job that publishes the cut, and what then starts no
# tick.


@pytest.fixture
def check(tmp_path):
    def looked() -> dg.AssetCheckResult:
        launched = launch(NUMBERS, Layer("", {"warehouse": tmp_path / "warehouse"}))
        return approval_result(Naming(launched.plan.job), standing(launched.warehouse, launched.plan).rows)

    return looked


@pytest.mark.dear
def test_a_held_cut_is_a_warning_until_a_job_settles_it(run_job, operate, check, instance, tmp_path):
    """The tick's run succeeds and materializes nothing. The check names the cut, and a job publishes it."""
    assert run_job(hold=True).success
    cuts = Cuts(tmp_path / "warehouse", JOB)
    held = cuts.pending().checkpoint
    seen = check()
    assert (False, dg.AssetCheckSeverity.WARN, APPROVAL) == (seen.passed, seen.severity, seen.check_name)
    assert f"cut {held} of numbers waits for approval" in seen.description
    assert f"the jobs {JOB}_approve and {JOB}_reject" in seen.description
    assert held == seen.metadata["cut"].value
    deployed = build_definitions(NUMBERS, warehouse=tmp_path / "warehouse")
    assert deployed.resolve_job_def(f"{JOB}_reject")
    done = operate("approve")
    assert done.success
    assert cuts.latest().checkpoint == told(done)["checkpoint"]
    assert check().passed
    again = operate("reject")
    assert not again.success


def test_no_tick_is_started_while_a_cut_waits(monkeypatch, instance):
    from orchestration import triggers

    class Launched:
        warehouse = None

    class Deployed:
        def launch(self) -> Launched:
            return Launched()

    monkeypatch.setattr(triggers, "held_by", lambda _: None)
    monkeypatch.setattr(triggers, "waiting_cut", lambda _: "cut")
    monkeypatch.setattr(triggers, "waits_for_approval", lambda cut: f"{cut} 7 waits for approval")
    skipped = due(Deployed(), instance)
    assert isinstance(skipped, dg.SkipReason)
    assert "cut 7 waits for approval" == skipped.skip_message


# ------------------------------------------------------------------
# A downstream asset reads one cut of a pipeline's tables, whatever ticks and clean-ups do during its run.


BRONZE_IN = dg.AssetIn(key=BRONZE.split("/"))
GOLD_IN = dg.AssetIn(key=GOLD.split("/"))


@pytest.fixture
def root(tmp_path):
    """Return a warehouse at checkpoint 1 of the tiny pipeline, whose sources have more rows."""
    run(tmp_path / "warehouse", 1)
    return tmp_path / "warehouse"


def moved_on(root):
    """Complete two more checkpoints, subsume the first one, and clean up without grace."""
    run(root)
    clean_up(Warehouse(root, ProtocolPaths(JOB)), 0)


def executed(root, instance, *assets, prefix=()):
    built = build_definitions(
        NUMBERS, warehouse=root, key_prefix=prefix, runner=partial(run_tick, engine=LocalEngine())
    )
    job = dg.define_asset_job("downstream", dg.AssetSelection.assets(*assets))
    merged = dg.Definitions.merge(dg.Definitions(assets=list(assets), jobs=[job]), built)
    return merged.resolve_job_def("downstream").execute_in_process(instance=instance, raise_on_error=False)


def shown_by(result, name):
    (event,) = result.asset_materializations_for_node(name)
    return {key: value.value for key, value in event.metadata.items()}


def test_all_steps_of_a_run_read_one_cut_while_a_tick_and_a_clean_up_run(root, instance):
    @dg.asset(deps=[dg.AssetKey(BRONZE.split("/"))])
    def first(numbers_cut: CutResource) -> None:
        assert 100 == numbers_cut.cut().polars(BRONZE).collect().height
        moved_on(root)

    @dg.asset(deps=[first, GOLD_KEY])
    def second(numbers_cut: CutResource) -> None:
        assert 100 == numbers_cut.read(BRONZE, pl.DataFrame).height
        assert 100 == numbers_cut.read(GOLD, pl.DataFrame)["rows"].sum()

    done = executed(root, instance, first, second)
    assert done.success
    assert 1 == shown_by(done, "first")["numbers_checkpoint"] == shown_by(done, "second")["numbers_checkpoint"]
    assert 300 == Cuts(root, JOB).latest().polars(BRONZE).collect().height


@pytest.mark.parametrize("prefix", [(), ("lake", "eu")])
def test_tables_come_as_arguments_of_one_cut_and_of_the_annotated_class(root, instance, prefix):
    """Two arguments of two classes are two tables of one cut. The materialization shows which cut it is."""
    ins = {"rows": dg.AssetIn(key=[*prefix, *BRONZE.split("/")]), "totals": dg.AssetIn(key=[*prefix, *GOLD.split("/")])}

    @dg.asset(ins=ins)
    def report(rows: pd.DataFrame, totals: pa.Table) -> None:
        assert len(rows) == sum(totals.column("rows").to_pylist()) == 100

    done = executed(root, instance, report, prefix=prefix)
    assert done.success
    assert 1 == shown_by(done, "report")["numbers_checkpoint"]


def test_an_argument_without_annotation_is_lazy(root, instance):
    """Polars reads nothing until the frame is collected."""

    @dg.asset(ins={"rows": BRONZE_IN})
    def report(rows) -> None:
        assert isinstance(rows, pl.LazyFrame)
        assert 100 == rows.collect().height

    assert executed(root, instance, report).success


def test_a_run_after_that_reads_the_newest_cut(root, instance):
    @dg.asset
    def report(numbers_cut: CutResource) -> None:
        numbers_cut.cut()

    assert 1 == shown_by(executed(root, instance, report), "report")["numbers_checkpoint"]
    moved_on(root)
    newest = Cuts(root, JOB).latest().checkpoint
    assert 1 < newest == shown_by(executed(root, instance, report), "report")["numbers_checkpoint"]


def test_a_tick_downstream_and_all_in_one_run_reads_what_the_tick_wrote(root, instance):
    @dg.asset(ins={"totals": GOLD_IN})
    def report(totals: pl.DataFrame) -> None:
        assert 300 == totals["rows"].sum()

    built = build_definitions(NUMBERS, warehouse=root, runner=partial(run_tick, engine=LocalEngine()))
    job = dg.define_asset_job("all", dg.AssetSelection.all(), executor_def=dg.in_process_executor)
    merged = dg.Definitions.merge(dg.Definitions(assets=[report], jobs=[job]), built)
    done = merged.resolve_job_def("all").execute_in_process(instance=instance)
    assert Cuts(root, JOB).latest().checkpoint == shown_by(done, "report")["numbers_checkpoint"]


def test_a_class_that_no_table_is_read_as_is_refused_by_name(root):
    with pytest.raises(UnknownFrameError, match=r"bronze/numbers cannot be read as builtins\.dict: ask for polars"):
        read_as(Cuts(root, JOB).latest(), BRONZE, dict)


def test_an_asset_that_would_be_written_by_the_reader_is_told_what_to_do(root, instance):
    """Only ticks write a pipeline's tables. The message names the asset and the way out."""

    @dg.asset(io_manager_key="numbers_tables")
    def report() -> int:
        return 1

    assert "report cannot be written" in failure(executed(root, instance, report))


@pytest.mark.jars("delta")
@pytest.mark.spark
def test_spark_reads_the_same_cut(root, spark):
    """A Spark frame of a cut holds the rows of that cut, and no newer ones."""
    with Cuts(root, JOB).reserved() as cut:
        moved_on(root)
        assert 100 == read_as(cut, BRONZE, SparkFrame).count()


# ------------------------------------------------------------------
# A pipeline in Dagster that reads another pipeline's cuts: its lineage, its sensor, and on which cut a table rests.


ORDERS = dg.AssetKey(["sources", REPORT, "orders"])


@pytest.fixture
def downstream(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / REPORT))
    monkeypatch.setenv("TIDEMARK_DATA", str(tmp_path))

    def build(**how):
        return build_definitions(cut_jobs.report, **how)

    return build


def test_a_source_depends_on_the_table_that_it_reads(downstream):
    """The upstream pipeline may be in the same code location or another one, and may have another key prefix."""
    both = dg.Definitions.merge(downstream(), build_definitions(cut_jobs.shop(40)))
    graph = both.resolve_asset_graph()
    orders = dg.AssetKey(["silver", "orders"])
    assert {orders} == graph.get(ORDERS).parent_keys
    assert graph.get(orders).is_materializable
    assert dg.AssetKey(["gold", "orders"]) in graph.get(ORDERS).child_keys
    (elsewhere,) = downstream(upstream_prefixes={SHOP: ["lake", "eu"]}).resolve_asset_graph().get(ORDERS).parent_keys
    assert dg.AssetKey(["lake", "eu", "silver", "orders"]) == elsewhere
    with pytest.raises(InvalidNamingError, match="key_prefix: 'a b' may hold only"):
        downstream(upstream_prefixes={SHOP: "a b"})


def test_a_new_cut_starts_a_tick(downstream, tmp_path, instance):
    """The sensor looks at the upstream job's warehouse, without Spark. A cut that was read starts no tick."""
    definitions = downstream()
    sensor, repository = definitions.resolve_sensor_def(f"{REPORT}_new_data"), definitions.get_repository_def()

    def looked():
        return sensor.evaluate_tick(dg.build_sensor_context(instance=instance, repository_def=repository))

    tick(SHOP, tmp_path, 40)
    (request,) = looked().run_requests
    assert ("40", "40") == tuple(request.tags[f"tidemark/rows_unread.{name}"] for name in cut_jobs.SOURCES)
    tick(REPORT, tmp_path)
    assert "holds all that the sources offer" in looked().skip_message
    tick(SHOP, tmp_path, 60)
    assert ["20"] == [request.tags["tidemark/rows_unread.orders"] for request in looked().run_requests]


def test_a_table_says_on_which_cut_it_rests(tmp_path):
    tick(SHOP, tmp_path, 40)
    tick(REPORT, tmp_path)
    stands = standing(Warehouse(tmp_path / REPORT, ProtocolPaths(REPORT)), planned(REPORT, tmp_path))
    newest = max(CutStore(Warehouse(tmp_path / SHOP, ProtocolPaths(SHOP))).recorded())
    for told in (
        table_metadata(planned(REPORT, tmp_path).graph, TableName("gold/orders"), stands.epoch),
        cut_metadata(stands.epoch),
    ):
        assert f"cut {newest} of {SHOP} in {tmp_path / SHOP}" == told["rests_on"].text


# ------------------------------------------------------------------
# What starts ticks: new data, or a failed tick, and never while a tick runs.


TICK = f"{JOB}_tick"


@pytest.fixture
def definitions(tmp_path, monkeypatch):
    """Return the tiny pipeline's definitions. The environment names the warehouse, as in a deployment."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    return build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()))


@pytest.fixture
def deployment(definitions):
    """Return the deployment of the tiny pipeline in a project that gives no arguments."""
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
    """New rows of the sources start one tick. Its tag has their number. The same rows start no second tick."""
    seen = looked()
    (request,) = seen.run_requests
    assert "300" == request.tags["tidemark/rows_unread.numbers"]
    again = looked(seen.cursor)
    assert ([], seen.cursor) == (again.run_requests, again.cursor)
    assert "the sources have nothing newer" in again.skip_message


def test_nothing_new_starts_nothing(looked, run_job):
    """Once a checkpoint has all rows, no tick is started. After a tick that stopped early, a tick is started."""
    run_job(checkpoints=1)
    seen = looked()
    assert ["200"] == [request.tags["tidemark/rows_unread.numbers"] for request in seen.run_requests]
    run_job()
    assert "holds all that the sources offer" in looked(seen.cursor).skip_message


def test_nothing_is_started_while_a_tick_runs(looked, deployment, instance, tmp_path):
    """While a process holds the job, or a Dagster run of the job waits, sensor and schedule skip and name it."""
    warehouse = tmp_path / "warehouse"
    hold(warehouse, this_process("another-run"))
    LeaseStore(Warehouse(warehouse, ProtocolPaths(JOB))).renew(1, this_process("another-run"), LEASE_MS)
    assert "Dagster run another-run holds the job" in looked().skip_message
    assert "Dagster run another-run holds the job" in due(deployment, instance).skip_message


def test_nothing_is_started_while_a_run_waits(looked, deployment, instance):
    """A queued Dagster run counts as running. Without such a run, the schedule starts a tick."""
    assert isinstance(due(deployment, instance), dg.RunRequest)
    waiting = dg.DagsterRun(job_name=TICK, tags={JOB_TAG: JOB}, status=dg.DagsterRunStatus.NOT_STARTED)
    instance.add_run(waiting)
    assert f"run {waiting.run_id} is not_started" == looked().skip_message
    assert f"run {waiting.run_id} is not_started" == due(deployment, instance).skip_message


def test_a_failed_run_is_taken_up_once():
    """After a crash, one run with the same settings follows. If that run fails, too, no run follows."""
    config = {"ops": {JOB: {"config": {"checkpoints": 5}}}}
    crashed = dg.DagsterRun(job_name=TICK, run_config=config)
    request = recovery_of(crashed)
    assert (config, {RECOVERS_TAG: crashed.run_id}) == (request.run_config, request.tags)
    again = recovery_of(dg.DagsterRun(job_name=TICK, tags=request.tags))
    assert f"was itself the recovery of {crashed.run_id}" in again.skip_message


def test_a_failure_that_would_come_again_is_left_to_a_person(run_job, instance):
    """A run that failed by a rejecting suite, a held job or a refused setting is marked. No recovery run follows it."""
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
    """Tables, checks and sources show the tick's cut.

    Neither a lost cursor nor a tick in Dagster reports the cut again.
    """
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
    """The sensor does not report these checkpoints. After the run has ended, the sensor looks again."""
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
