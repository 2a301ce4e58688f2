"""What a failed tick leaves behind for a user: its failed checkpoints and their reasons, until the job goes on."""

import json

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import TickOutcome
from checkpointing.metadata.codec import UnreadableRowError, decode, encode
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointFailure, Release, TickEnd
from checkpointing.metadata.row_validity import MESSAGE_MAX
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.quality.judge import Judge
from jobs.sources.hybrid import SequenceSource
from jobs.tick.listener import TickListener, kept_message
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, JOB, KEYS, ROWS, LocalEngine
from tests.scenarios.runtime.test_judging import Failed

LEAST = "expect_column_values_to_be_between"


@pytest.fixture
def typed(capsys):
    """Return what a command line says: exit code, and stdout without the breaks of its lines."""

    def type_in(*words):
        code = execute([str(word) for word in words])
        return code, " ".join(capsys.readouterr().out.split())

    return type_in


def ran(root, least: int, listener: TickListener | None = None, **config):
    """Run a tick whose suite wants values from `least` on; the sequence begins at 0."""
    pipeline = Pipeline(JOB, config=CONFIG.model_copy(update=config), parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.expect(Expectation(LEAST, {"column": "n", "min_value": least}), suite="large")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), listener, engine=LocalEngine())


def test_a_rejected_checkpoint_is_listed_and_found_until_the_job_goes_on(tmp_path, typed):
    """List and doctor show the whole report: expectation, number of rows, values, file. Then the suite is changed."""
    report = ran(tmp_path, 140)
    assert (TickOutcome.FAILED, CheckpointFailureReason.QUALITY) == (report.outcome, report.reason)
    code, listed = typed("checkpoints", "list", JOB, "--warehouse", tmp_path)
    assert ExitCode.DONE is code
    assert "checkpoint 1 failed (generation 1, " in listed
    assert "suite large rejects 100 rows staged for table bronze/numbers: 1 of 1 expectations are not met:" in listed
    assert f"{LEAST}(column='n', min_value=140): 100 rows (100 %) not as expected, among them 0, 1," in listed
    assert "in bronze/numbers/_data/1/" in listed
    assert "nobody holds the job: the last tick failed and released the job" in listed
    code, page = typed("doctor", JOB, "--warehouse", tmp_path)
    assert ExitCode.FAILED is code
    assert "the last tick, generation 1, failed at checkpoint 1" in page
    assert f"{LEAST}(column='n', min_value=140): 100 rows (100 %)" in page
    assert TickOutcome.CAUGHT_UP is ran(tmp_path, 0).outcome
    code, page = typed("doctor", JOB, "--warehouse", tmp_path)
    assert "failed at checkpoint" not in page
    assert "the last tick ended normally" in typed("checkpoints", "list", JOB, "--warehouse", tmp_path)[1]


def test_a_tolerated_failure_is_listed_and_is_no_finding(tmp_path, typed, monkeypatch):
    """The job went on. The list still says which checkpoint failed, and why."""
    failing = iter([True])

    def judge(*_):
        if next(failing, False):
            raise OSError("the file is away for a moment")
        return real(*_)

    real = Judge.judge
    monkeypatch.setattr(Judge, "judge", judge)
    failed = Failed()
    assert TickOutcome.CAUGHT_UP is ran(tmp_path, 0, failed, tolerable_failures=3).outcome
    assert [(1, "CHECKPOINT_ASYNC_EXCEPTION")] == failed.checkpoints
    listed = typed("checkpoints", "list", JOB, "--warehouse", tmp_path)[1]
    assert "checkpoint 1 failed (generation 1, " in listed
    assert "the file is away for a moment" in listed
    assert "failed at checkpoint" not in typed("doctor", JOB, "--warehouse", tmp_path)[1]


def release(**changes) -> Release:
    """Return a release with one failed checkpoint."""
    failed = CheckpointFailure(checkpoint=CheckpointId(2), reason=CheckpointFailureReason.QUALITY, message="m", at_ms=5)
    ended = TickEnd(outcome="failed", reason=CheckpointFailureReason.QUALITY, message="two\nlines", failed=(failed,))
    parts = {"generation": 1, "next_id": 3, "at_ms": 9, "nonce": "n", "ended": ended}
    return Release(**(parts | changes))


def test_a_release_keeps_how_its_tick_ended_and_an_older_one_says_nothing():
    """It survives its JSON. An entry without the field is read as one that says nothing."""
    assert release() == decode(encode(release(), writer="tidemark"))
    document = json.loads(encode(release(), writer="tidemark"))
    del document["row"]["ended"]
    assert decode(json.dumps(document)).ended is None


@pytest.mark.parametrize("message", ["\x1b[31mred", "a" * (MESSAGE_MAX + 1)])
def test_a_message_that_could_not_be_ours_is_refused_and_is_never_written(message):
    """A foreign warehouse may not put control characters on a user's terminal, nor may an error of a user's code."""
    bad = release(ended=TickEnd(outcome="failed", message=message))
    with pytest.raises(UnreadableRowError, match=r"ended\.message"):
        decode(encode(bad, writer="tidemark"))
    kept = kept_message(message)
    assert (
        decode(encode(release(ended=TickEnd(outcome="failed", message=kept)), writer="tidemark")).ended.message == kept
    )


def test_every_tick_says_how_it_ended(tmp_path):
    """A tick that is caught up says so too."""
    ran(tmp_path, 0)
    rows = JobStores(Warehouse(tmp_path, ProtocolPaths(JOB)), cross_freely).rows()
    assert ["caught_up"] == [row.ended.outcome for row in rows if isinstance(row, Release)]
