"""Jobs beside the ticks: a savepoint with and without a tick, a stop, and what is refused."""

import threading
from functools import partial

import dagster as dg
import pytest

from checkpointing.messages import TickOutcome
from jobs.launch import launch
from jobs.settings import Layer
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_tick import failure
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, read_cut
from tests.scenarios.runtime.sqlite_mirror import SqliteMirror

MIRRORED = "tests.orchestration.numbers:mirrored"
ENDLESS = "tests.orchestration.numbers:endless"


@pytest.fixture
def operate(tmp_path, instance):
    """Run the job of that verb in this process, in this test's warehouse."""

    def run(verb: str, reference: str = NUMBERS, **config: object) -> dg.ExecuteInProcessResult:
        job = build_definitions(reference).resolve_job_def(f"{JOB}_{verb}")
        config = {"warehouse": str(tmp_path / "warehouse")} | config
        return job.execute_in_process(
            run_config={"ops": {f"{verb}_{JOB}": {"config": config}}}, instance=instance, raise_on_error=False
        )

    return run


def told(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    """Return the metadata of the job's output."""
    (output,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def test_a_savepoint_at_rest_and_its_copy(run_job, operate, tmp_path):
    """A job at rest gets a savepoint of its newest checkpoint, and with `to` a copy of all that it needs."""
    run_job()
    done = operate("savepoint", to=str(tmp_path / "copy"))
    assert done.success
    assert (4, "nobody: no tick was running") == (told(done)["savepoint"], told(done)["taken_by"])
    assert (tmp_path / "copy" / "gold" / "by_key" / "_delta_log").is_dir()


def test_a_stop_ends_the_running_tick(operate, tmp_path):
    """The job asks the tick that runs and returns when it has ended; nothing of Dagster's queue lies between."""
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


def test_a_rollback_is_shown_and_then_done(run_job, operate, tmp_path):
    """Tried dry it changes nothing; done, the tables are at the older checkpoint; the next tick reads on from it."""
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
    """The sink of the upsert table goes back too, unless the launchpad says `leave_outside`."""
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
    """A clean-up runs without Spark, tried dry too, and shows what the command line would."""
    run_job()
    assert "would_delete_files" in told(operate("cleanup", dry_run=True))
    assert "deleted_files" in told(operate("cleanup", reader_grace_ms="0"))


REFUSED = [
    ("stop", {"kind": "drain"}, "nothing to stop"),
    ("savepoint", {"to": "warehouse"}, "is not empty"),
    ("rollback", {"checkpoint": 99}, "99"),
]


@pytest.mark.parametrize(("verb", "config", "said"), REFUSED)
def test_what_cannot_be_done_is_said(run_job, operate, tmp_path, verb, config, said):
    """A stop of a job at rest, a copy into a folder that is taken, a way back to nowhere: each fails saying so."""
    run_job()
    given = {name: str(tmp_path / value) if name == "to" else value for name, value in config.items()}
    done = operate(verb, **given)
    assert not done.success
    assert said in failure(done)


def test_a_job_that_never_ran_is_refused_and_nothing_is_created(operate, tmp_path):
    """A savepoint of nothing says how to start the job, and leaves no folder behind."""
    done = operate("savepoint")
    assert "has never run in" in failure(done)
    assert not (tmp_path / "warehouse").exists()
