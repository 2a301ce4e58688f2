"""Dagster is told of a table when its content changed, and of nothing else: what lies downstream runs just then."""

from functools import partial

import dagster as dg
import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from jobs.launch import launch
from jobs.operators.spec import KeyedSpec
from jobs.settings import Layer
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_tick import BRONZE_KEY, CUTS_KEY, GOLD_KEY, materializations
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine

REPORT_KEY = dg.AssetKey("report")


class BronzeOnly(LocalEngine):
    """An engine whose keyed vertex puts nothing out, as when no row passes a filter before it."""

    def run(self, planned, *asked):
        """Run one micro-batch; the keyed vertex leaves its table and its state as they are."""
        done = super().run(planned, *asked)
        if not isinstance(planned.spec, KeyedSpec):
            return done
        nothing = tuple(SubtaskOutput() for _ in range(planned.spec.parallelism))
        return MicroBatchFinished(done.vertex, done.micro_batch, nothing, duration_ms=1)


@dg.asset(key=REPORT_KEY, deps=[GOLD_KEY], automation_condition=dg.AutomationCondition.eager())
def report() -> None:
    """Stand for a downstream asset of a user."""


class Project:
    """A project with the tiny pipeline and an eager asset downstream of its gold table, on one Dagster instance."""

    def __init__(self, root, instance):
        """Begin with an empty warehouse."""
        self.warehouse = root / "warehouse"
        self._instance = instance
        self._cursor = None
        self._of(LocalEngine())

    def _of(self, engine):
        runner = partial(run_tick, engine=engine)
        built = build_definitions(NUMBERS, warehouse=self.warehouse, runner=runner)
        self._defs = dg.Definitions.merge(dg.Definitions(assets=[report]), built)

    def tick(self, engine=None, **config):
        """Run a tick by its Dagster job; return the keys that it materialized."""
        self._of(engine or LocalEngine())
        given = {"ops": {JOB: {"config": config}}}
        done = self._defs.resolve_job_def(f"{JOB}_tick").execute_in_process(run_config=given, instance=self._instance)
        return {event.asset_key for event in done.all_events if event.is_step_materialization}

    def asked_for(self):
        """Let Dagster evaluate all conditions, and run what they ask for; return whether the report was.

        A second evaluation takes note of the run, as the daemon's next turn would: it must ask for nothing.
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
    """Return such a project."""
    made = Project(tmp_path, instance)
    assert not made.asked_for()  # nothing is there yet
    return made


def test_an_eager_asset_runs_exactly_when_there_is_something_new(project):
    """It runs after each tick that changed its table, and never after one that found nothing."""
    project.tick(checkpoints=1)
    assert project.asked_for()
    assert not project.asked_for()
    project.tick()
    assert project.asked_for()
    for _ in range(2):
        assert set() == project.tick()
        assert not project.asked_for()


def test_a_table_that_did_not_change_is_not_materialized(project, instance):
    """An epoch that adds to bronze alone leaves gold as it is: its version stays, and nothing downstream runs."""
    project.tick(checkpoints=1)
    assert project.asked_for()
    before = materializations(instance, GOLD_KEY)
    assert {BRONZE_KEY, CUTS_KEY} == project.tick(BronzeOnly(), checkpoints=1, report_every=1)
    assert not project.asked_for()
    assert before == materializations(instance, GOLD_KEY)
    assert GOLD_KEY in project.tick()
    assert project.asked_for()


def test_what_a_tick_outside_dagster_changed_is_told_by_the_next_one(project):
    """After ticks of the command line, the next Dagster tick reads nothing, but reports the change."""
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
    """What a tick did stands on the table of cuts, with its last checkpoints; the tables do not repeat it."""
    project.tick(report_every=1)
    told = materializations(instance, CUTS_KEY)
    assert [1, 2, 3] == [each["checkpoint"] for each in told]
    assert ("caught_up", 3) == tuple(told[-1][name] for name in ("outcome", "completed_checkpoints"))
    assert {"outcome", "last_checkpoints", "trace"}.isdisjoint(materializations(instance, GOLD_KEY)[-1])


def test_a_version_of_the_code_is_the_pipelines_and_not_the_runs(project, instance):
    """Ticks of one pipeline bear one code version; another suite is another version, of the judged table alone."""

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
