"""A table is reported to Dagster exactly when its content has changed. So downstream assets run just then."""

import ast
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
import typer
from deltalake import DeltaTable

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Statistics, VertexRecord
from jobs.cli.main import app
from jobs.launch import launch
from jobs.operators.spec import KeyedSpec, arrow_schema
from jobs.reading.waiting import waiting_rows, waits_in
from jobs.settings import Layer
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import state_file_schema
from jobs.tick.discovery import discover
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.warehouse import Warehouse
from orchestration.approval import APPROVAL
from orchestration.definitions import defs
from orchestration.deployment import Limits
from orchestration.epochs import Epoch
from orchestration.health import Look, health_results
from orchestration.launchpad import launchpad_schema
from orchestration.naming import Naming
from orchestration.observation import Standing, standing
from orchestration.pipelines import build_definitions
from orchestration.row_rules import rule_results
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.numbers import QUARANTINE, RulingEngine, enriching
from tests.orchestration.test_tick import BRONZE_KEY, CUTS_KEY, GOLD_KEY, materializations
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine
from tests.unit.full_entry import plain_entry
from tidemark.dagster import CheckpointedPipelineComponent

REPORT_KEY = dg.AssetKey("report")


class BronzeOnly(LocalEngine):
    """An engine whose keyed vertex emits no rows, as if no row passed a filter before it."""

    def run(self, planned, *asked):
        done = super().run(planned, *asked)
        if not isinstance(planned.spec, KeyedSpec):
            return done
        nothing = tuple(SubtaskOutput() for _ in range(planned.spec.parallelism))
        return MicroBatchFinished(done.vertex, done.micro_batch, nothing, duration_ms=1)


@dg.asset(key=REPORT_KEY, deps=[GOLD_KEY], automation_condition=dg.AutomationCondition.eager())
def report() -> None:
    """Stand for a user's downstream asset."""


class Project:
    """A project with the tiny pipeline, and an eager asset downstream of the gold table, on one Dagster instance."""

    def __init__(self, root, instance):
        self.warehouse = root / "warehouse"
        self._instance = instance
        self._cursor = None
        self._of(LocalEngine())

    def _of(self, engine):
        runner = partial(run_tick, engine=engine)
        built = build_definitions(NUMBERS, warehouse=self.warehouse, runner=runner)
        self._defs = dg.Definitions.merge(dg.Definitions(assets=[report]), built)

    def tick(self, engine=None, **config):
        self._of(engine or LocalEngine())
        given = {"ops": {JOB: {"config": config}}}
        done = self._defs.resolve_job_def(f"{JOB}_tick").execute_in_process(run_config=given, instance=self._instance)
        return {event.asset_key for event in done.all_events if event.is_step_materialization}

    def asked_for(self):
        """Let Dagster evaluate all conditions, and run what it requests. Return whether Dagster requested the report.

        A second evaluation registers the run, as the daemon's next evaluation would. It must request nothing.
        """
        asked = self._evaluated()
        if asked:
            dg.materialize([report], instance=self._instance)
            assert not self._evaluated()
        return asked

    def _evaluated(self):
        seen = dg.evaluate_automation_conditions(self._defs, instance=self._instance, cursor=self._cursor)
        self._cursor = seen.cursor
        return bool(seen.get_num_requested(REPORT_KEY))


@pytest.fixture
def project(tmp_path, instance):
    made = Project(tmp_path, instance)
    assert not made.asked_for()  # nothing is there yet
    return made


def test_an_eager_asset_runs_exactly_when_there_is_something_new(project):
    """The asset runs after each tick that changed gold, and never after a tick that found nothing new."""
    project.tick(checkpoints=1)
    assert project.asked_for()
    assert not project.asked_for()
    project.tick()
    assert project.asked_for()
    for _ in range(2):
        assert set() == project.tick()
        assert not project.asked_for()


def test_a_table_that_did_not_change_is_not_materialized(project, instance):
    """If an epoch adds rows only to bronze, gold keeps its version, and no asset downstream of gold runs."""
    project.tick(checkpoints=1)
    assert project.asked_for()
    before = materializations(instance, GOLD_KEY)
    assert {BRONZE_KEY, CUTS_KEY} == project.tick(BronzeOnly(), checkpoints=1, report_every=1)
    assert not project.asked_for()
    assert before == materializations(instance, GOLD_KEY)
    assert GOLD_KEY in project.tick()
    assert project.asked_for()


def test_what_a_tick_outside_dagster_changed_is_told_by_the_next_one(project):
    """After a tick on the command line, the next tick in Dagster reads nothing, but reports the change."""
    project.tick(checkpoints=1)
    assert project.asked_for()
    plan = launch(NUMBERS, Layer("", {})).plan
    run_tick(plan, RuntimeSettings(warehouse=project.warehouse, limits=TickLimits()), engine=LocalEngine())
    assert not project.asked_for()
    assert GOLD_KEY in project.tick()
    assert project.asked_for()
    assert set() == project.tick()


def test_a_warehouse_that_was_written_anew_is_new(project, instance, tmp_path):
    """A replay from the start is reported even if it ends at the same checkpoint and the same Delta versions."""
    project.tick()
    assert project.asked_for()
    project.warehouse.rename(tmp_path / "old")
    assert GOLD_KEY in project.tick()
    assert project.asked_for()
    first, second = materializations(instance, GOLD_KEY)
    assert first["delta_version"] == second["delta_version"]
    assert first["data_version"] != second["data_version"]


def test_a_tick_is_told_once_and_each_table_by_its_own_numbers(project, instance):
    project.tick(report_every=1)
    told = materializations(instance, CUTS_KEY)
    assert [1, 2, 3] == [each["checkpoint"] for each in told]
    assert ("caught_up", 3) == tuple(told[-1][name] for name in ("outcome", "completed_checkpoints"))
    assert {"outcome", "last_checkpoints", "trace"}.isdisjoint(materializations(instance, GOLD_KEY)[-1])


def test_a_version_of_the_code_is_the_pipelines_and_not_the_runs(project, instance):
    """Ticks of one pipeline report the same code version. Another suite changes only the judged table's version."""

    def versions(reference):
        graph = build_definitions(reference).resolve_asset_graph()
        return {key: graph.get(key).code_version for key in (BRONZE_KEY, GOLD_KEY)}

    project.tick(checkpoints=1)
    project.tick(report_every=1)
    records = instance.fetch_materializations(GOLD_KEY, limit=10).records
    told = {record.asset_materialization.tags["dagster/code_version"] for record in records}
    own = versions(NUMBERS)
    assert {own[GOLD_KEY]} == told
    judged = versions("tests.orchestration.numbers:judged")
    assert own[GOLD_KEY] == judged[GOLD_KEY]
    assert own[BRONZE_KEY] != judged[BRONZE_KEY]


# ------------------------------------------------------------------
# Checks that look at the warehouse: one cut, freshness, and rows that wait too long. A healthy job passes them.


MINUTE_MS = 60_000
HOUR = Limits(fresh_within_ms=60 * MINUTE_MS, waiting_within_ms=60 * MINUTE_MS)


@pytest.fixture
def judged(tmp_path):
    def judge(after_ms: int = 0) -> dict[tuple[str, str], dg.AssetCheckResult]:
        launched = launch(NUMBERS, Layer("", {"warehouse": tmp_path / "warehouse"}))
        plan, root = launched.plan, launched.warehouse.root
        stands = standing(launched.warehouse, plan)
        newest = None if stands.epoch is None else stands.epoch.record
        now_ms = after_ms + (0 if newest is None else newest.statistics.committed_ms)
        look = Look(
            plan=plan,
            naming=Naming(plan.job),
            root=root,
            stands=stands,
            discovered=discover(plan.sources, newest),
            now_ms=now_ms,
        )
        return {(result.asset_key.to_user_string(), result.check_name): result for result in health_results(look, HOUR)}

    return judge


def test_before_the_first_checkpoint_nothing_passes_and_nothing_is_created(judged, tmp_path):
    """For a job that never ran, every check but that for approvals warns and says what to do."""
    results = {check: result for check, result in judged().items() if check[1] != APPROVAL}
    assert {(False, dg.AssetCheckSeverity.WARN)} == {(each.passed, each.severity) for each in results.values()}
    assert "materialize its tables" in results[GOLD, "fresh"].description
    assert not (tmp_path / "warehouse").exists()


def test_a_table_is_stale_only_while_the_sources_have_more(run_job, judged):
    """An old checkpoint is fresh enough while there are no rows to read. The check says how many rows there are."""
    run_job(checkpoints=1)
    assert judged(after_ms=59 * MINUTE_MS)[GOLD, "fresh"].passed
    late = judged(after_ms=61 * MINUTE_MS)[GOLD, "fresh"]
    assert (False, 200) == (late.passed, late.metadata["rows_unread"].value)
    assert "200 rows wait at the sources: start a tick" in late.description
    run_job()
    assert judged(after_ms=61 * MINUTE_MS)[GOLD, "fresh"].passed


def test_a_table_that_is_not_at_the_cut_is_found(run_job, judged, tmp_path):
    """`one_cut` fails if an upsert table's files differ from the checkpoint's entry, or if a table is gone."""
    run_job()
    assert {True} == {each.passed for (_, name), each in judged().items() if name == "one_cut"}
    log = tmp_path / "warehouse" / GOLD / "_delta_log"
    newest = DeltaTable(str(tmp_path / "warehouse" / GOLD)).version()
    (log / f"{newest:020d}.json").unlink()
    assert "the cut says version" in judged()[GOLD, "one_cut"].description
    shutil.rmtree(tmp_path / "warehouse" / BRONZE)
    gone = judged()[BRONZE, "one_cut"]
    assert (False, True) == (gone.passed, "the table is gone" in gone.description)


def waiting_record(root, plan, checkpoint: int, committed_ms: int, waiting: dict[int, int]) -> CheckpointRecord:
    spec = waits_in(plan.vertices[VertexId("joined")])
    table = plan.graph.vertex(spec.vertex).tables[-1].name
    schema = state_file_schema(arrow_schema(spec.state), spec.keys)
    left = dict.fromkeys(field.name for field in schema.field("waiting").type.value_type) | {"key": 0, "n": 0}
    rows = [
        {
            "_key_group": 0,
            "key": key,
            "right": None,
            "waiting": [left] * count,
            "_deleted": False,
        }
        for key, count in waiting.items()
    ]
    DeltaTable.create(str(root / table), schema, mode="ignore")
    content = pl.DataFrame(rows, schema=pl.from_arrow(schema.empty_table()).schema).to_arrow().cast(schema)
    writer = StagedFiles(str(root), plan.job, Generation(1), spec.vertex, checkpoint)
    written: FileHandle = writer.write(table, content)
    base = KeyedFile(written, KeyedFileKind.BASE, 0, 127, Version(Generation(1), checkpoint))
    vertex = VertexRecord(vertex=spec.vertex, micro_batch=checkpoint, subtasks=(SubtaskSnapshot(state=(base,)),))
    return plain_entry(
        job=plan.job,
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(checkpoint - 1),
        nonce=str(checkpoint),
        max_parallelism=128,
        vertices=(vertex,),
        statistics=Statistics(triggered_ms=committed_ms, committed_ms=committed_ms, rows=0),
    )


def test_rows_that_wait_since_an_old_checkpoint_are_counted(tmp_path):
    plan = launch(enriching, Layer("", {})).plan
    then = waiting_record(tmp_path, plan, 1, 0, {7: 2, 8: 3})
    now = waiting_record(tmp_path, plan, 2, 61 * MINUTE_MS, {7: 4, 9: 5})
    spec = waits_in(plan.vertices[VertexId("joined")])
    assert waiting_rows(tmp_path, then.model_copy(update={"vertices": ()}), spec).is_empty()
    assert {7: 2, 8: 3} == dict(waiting_rows(tmp_path, then, spec).select("key", "rows_waiting").rows())
    stands = Standing((then, now), Epoch(now, (), {}), {})
    look = Look(plan=plan, naming=Naming(plan.job), root=tmp_path, stands=stands, discovered={}, now_ms=62 * MINUTE_MS)
    results = {(each.asset_key.path[-1], each.check_name): each for each in health_results(look, HOUR)}
    found = results["joined", "nothing_waiting_too_long"]
    told = tuple(found.metadata[name].value for name in ("rows_waiting", "rows_waiting_too_long"))
    assert (False, (9, 2)) == (found.passed, told)
    patient = health_results(look, Limits(waiting_within_ms=63 * MINUTE_MS))
    (other,) = [each for each in patient if each.check_name == "nothing_waiting_too_long"]
    assert (True, "since when is not known" in other.description) == (other.passed, True)


def test_the_lag_of_a_pipeline_is_one_check_and_grows_only_while_rows_wait(judged, run_job):
    """With unread rows, the lag is the newest checkpoint's age. If no row waits, the lag is 0.

    The check fails if the lag is too great.
    """
    cuts = (f"_tidemark/{JOB}/cuts", "checkpoint_lag")
    assert not judged()[cuts].passed
    run_job(checkpoints=1)
    behind = judged(after_ms=61 * MINUTE_MS)[cuts]
    assert (False, 3660.0) == (behind.passed, behind.metadata["lag_s"].value)
    assert judged(after_ms=59 * MINUTE_MS)[cuts].passed
    run_job()
    caught_up = judged(after_ms=61 * MINUTE_MS)[cuts]
    assert (True, 0.0) == (caught_up.passed, caught_up.metadata["lag_s"].value)


def test_the_health_job_waits_for_a_first_tick(run_job, instance, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    definitions = build_definitions(NUMBERS, show_state=False)
    schedule = definitions.resolve_schedule_def(f"{JOB}_health_schedule")
    context = dg.build_schedule_context(instance=instance)
    assert "has never run" in schedule.evaluate_tick(context).skip_message
    run_job()
    assert 1 == len(schedule.evaluate_tick(context).run_requests)
    done = definitions.resolve_job_def(f"{JOB}_health").execute_in_process(instance=instance)
    assert {"one_cut", "fresh", "checkpoint_lag", "one_cut_by_key", APPROVAL} == {
        check.check_name for check in done.get_asset_check_evaluations()
    }


# ------------------------------------------------------------------
# Texts that a user sees do not contain the ids by which this project numbers its features.


ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"\([A-P]\d{1,2}(, ?[A-P]\d{1,2})*\)")


def commands(command, path) -> Iterator[str]:
    yield from (f"{path}: {text}" for text in (command.help, command.short_help) if text)
    yield from (f"{path}: {option.help}" for option in command.params if getattr(option, "help", None))
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def shown_in_dagster() -> Iterator[str]:
    graph = defs.resolve_asset_graph()
    yield from (f"{key}: {graph.get(key).description}" for key in graph.get_all_asset_keys())
    yield from (f"{key}: {graph.get_check_spec(key).description}" for key in graph.asset_check_keys)
    repository = defs.get_repository_def()
    shown = (*repository.get_all_jobs(), *repository.schedule_defs, *repository.sensor_defs)
    yield from (f"{each.name}: {each.description}" for each in shown)
    yield from (f"{name}: {field.description}" for name, field in launchpad_schema().items())
    yield from (f"{name}: {field.description}" for name, field in CheckpointedPipelineComponent.model_fields.items())


def messages() -> Iterator[str]:
    for package in ("checkpointing", "jobs", "orchestration", "tidemark"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"


@pytest.mark.parametrize(
    "texts",
    [lambda: commands(typer.main.get_command(app), "tidemark"), shown_in_dagster, messages],
    ids=["command line", "dagster", "messages"],
)
def test_no_text_names_a_feature_by_its_id(texts):
    """Users do not know what an id such as (K4) means."""
    found = list(texts())
    assert len(found) > 40
    assert [] == [text for text in found if CODE.search(text)]


@pytest.mark.parametrize("makefile", ["Makefile", "jobs/init/template/Makefile.template"])
def test_dagster_keeps_all_its_folders_together(makefile):
    """`make dev` sets Dagster's home to .dagster, since no setting moves the folders `logs` and `.logs_queue`."""
    said = (ROOT / makefile).read_text()
    assert re.search(r"ln -sf \.\./dagster.yaml \.dagster/dagster.yaml && DAGSTER_HOME=\S+/\.dagster\"? ", said)


# ------------------------------------------------------------------
# Row rules are checks: each shows how many rows of the quarantine table at the newest cut failed the rule.


RULED = "tests.orchestration.numbers:ruled"
RULE = "key_not_null"


@pytest.fixture
def rule_of(run_job, instance):
    """Return a function that runs a tick in which every tenth number fails the rule.

    The function returns the run's result and the rule's newest evaluation.
    """

    def tick(**settings: object):
        result = run_job(RULED, RulingEngine(), **settings)
        key = dg.AssetCheckKey(dg.AssetKey(QUARANTINE.split("/")), RULE)
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        return result, record.event.dagster_event.asset_check_evaluation_data

    return tick


def test_a_rule_counts_the_rows_in_quarantine_at_the_newest_cut(rule_of):
    """The first tick completes one checkpoint, and the second tick completes another.

    The third tick's first checkpoint is declined, and the count stays.
    """
    result, check = rule_of(checkpoints=1)
    assert (result.success, check.passed, check.severity) == (True, False, dg.AssetCheckSeverity.WARN)
    first = check.metadata["rows_quarantined"].value
    assert f"{first} rows are in quarantine at checkpoint 1" == check.description
    result, check = rule_of()
    assert (result.success, check.passed) == (False, False)
    assert first < check.metadata["rows_quarantined"].value == 20
    _, declined = rule_of()  # the first checkpoint of this tick is declined
    assert declined.metadata == check.metadata
    assert declined.description == check.description


def test_without_a_checkpoint_nothing_was_judged_and_that_is_a_warning(tmp_path):
    """So a check that was not evaluated does not look like a check that passed."""
    plan = launch(RULED, Layer("", {})).plan
    (result,) = rule_results(plan, Naming(plan.job), Warehouse(tmp_path, ProtocolPaths(plan.job)))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "it has judged no rows yet: numbers has never run" in result.description
