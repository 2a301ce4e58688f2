"""What a user finds after a failed tick: its failed checkpoints and their reasons, until the job goes on."""

import json
import os
import signal
from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import TickOutcome
from checkpointing.metadata.codec import UnreadableRowError, decode, encode
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointFailure, CheckpointRecord, Release, TickEnd
from checkpointing.metadata.row_validity import MESSAGE_MAX
from jobs.cli.errors import ExitCode
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.quality.judge import Judge
from jobs.sources.hybrid import SequenceSource
from jobs.tick.listener import TickListener, kept_message
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.user_code import own_lines, sentence_of, traceback_of
from jobs.warehouse.boundaries import boundary_names, cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.conftest import ONCE, RARE
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, JOB, KEYS, ROWS, LocalEngine, build
from tests.scenarios.runtime.test_notices import Failed

LEAST = "expect_column_values_to_be_between"


def ran(root, least: int, listener: TickListener | None = None, **config):
    pipeline = Pipeline(JOB, config=CONFIG.model_copy(update=config), parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.expect(Expectation(LEAST, {"column": "n", "min_value": least}), suite="large")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), listener, engine=LocalEngine())


def test_a_rejected_checkpoint_is_listed_and_found_until_the_job_goes_on(tmp_path, answered):
    """`checkpoints list` and doctor show the whole report: expectation, number of rows, values, file.

    Then the suite is changed, and the job goes on.
    """
    report = ran(tmp_path, 140)
    assert (TickOutcome.FAILED, CheckpointFailureReason.QUALITY) == (report.outcome, report.reason)
    code, listed = answered("checkpoints", "list", JOB, "--warehouse", tmp_path)
    assert ExitCode.DONE is code
    assert "checkpoint 1 declined (generation 1, " in listed
    assert "suite large rejects 100 rows staged for table bronze/numbers: 1 of 1 expectations are not met:" in listed
    assert f"{LEAST}(column='n', min_value=140): 100 rows (100 %) not as expected, among them 0, 1," in listed
    assert "in bronze/numbers/_data/1/" in listed
    assert "nobody holds the job: the last tick failed and released the job" in listed
    code, page = answered("doctor", JOB, "--warehouse", tmp_path)
    assert ExitCode.FAILED is code
    assert "the last tick, generation 1, failed at checkpoint 1" in page
    assert f"{LEAST}(column='n', min_value=140): 100 rows (100 %)" in page
    assert TickOutcome.CAUGHT_UP is ran(tmp_path, 0).outcome
    code, page = answered("doctor", JOB, "--warehouse", tmp_path)
    assert "failed at checkpoint" not in page
    assert "the last tick ended normally" in answered("checkpoints", "list", JOB, "--warehouse", tmp_path)[1]


def test_a_tolerated_failure_is_listed_and_is_no_finding(tmp_path, answered, monkeypatch):
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
    listed = answered("checkpoints", "list", JOB, "--warehouse", tmp_path)[1]
    assert "checkpoint 1 failed (generation 1, " in listed
    assert "the file is away for a moment" in listed
    assert "What to do: nothing: checkpoint 2 has its rows" in listed
    found = json.loads(answered("checkpoints", "list", JOB, "--warehouse", tmp_path, "--json")[1])
    assert [3, 2] == [each["checkpoint"] for each in found["checkpoints"]]
    (one,) = found["failed"]
    assert (1, "failed", "CHECKPOINT_ASYNC_EXCEPTION") == (one["checkpoint"], one["status"], one["reason"])
    rows = JobStores(Warehouse(tmp_path, ProtocolPaths(JOB)), cross_freely).entries.rows()
    (entry,) = [row for row in rows if isinstance(row, CheckpointRecord) and row.checkpoint == 2]
    assert [1] == [each.checkpoint for each in entry.statistics.failed]  # so it is recorded even if the tick dies now
    assert "failed at checkpoint" not in answered("doctor", JOB, "--warehouse", tmp_path)[1]


def release(**changes) -> Release:
    failed = CheckpointFailure(checkpoint=CheckpointId(2), reason=CheckpointFailureReason.QUALITY, message="m", at_ms=5)
    ended = TickEnd(outcome="failed", reason=CheckpointFailureReason.QUALITY, message="two\nlines", failed=(failed,))
    parts = {"generation": 1, "next_id": 3, "at_ms": 9, "nonce": "n", "ended": ended}
    return Release(**(parts | changes))


def test_a_release_keeps_how_its_tick_ended_and_an_older_one_says_nothing():
    """The release is the same after a round trip through JSON. An entry without the field reads as None."""
    assert release() == decode(encode(release(), writer="tidemark"))
    document = json.loads(encode(release(), writer="tidemark"))
    del document["row"]["ended"]
    assert decode(json.dumps(document)).ended is None


@pytest.mark.parametrize("message", ["\x1b[31mred", "a" * (MESSAGE_MAX + 1)])
def test_a_message_that_could_not_be_ours_is_refused_and_is_never_written(message):
    """Neither a foreign warehouse nor an error of a user's code may put control characters on a user's terminal."""
    bad = release(ended=TickEnd(outcome="failed", message=message))
    with pytest.raises(UnreadableRowError, match=r"ended\.message"):
        decode(encode(bad, writer="tidemark"))
    kept = kept_message(message)
    assert (
        decode(encode(release(ended=TickEnd(outcome="failed", message=kept)), writer="tidemark")).ended.message == kept
    )


# ------------------------------------------------------------------
# The names of the boundaries at which a tick can be killed, in this process and without Spark.
#
# A death is played: from its boundary on, no effect of the tick is carried out. Work that other threads have begun
# still ends, as on another machine.


NAMES = boundary_names(build().graph)


def test_every_boundary_is_crossed(tick):
    """The boundaries at which a kill may be requested are exactly those that ticks cross."""
    crossed: Counter[str] = Counter()

    def count(name: str) -> None:
        crossed[name] += 1

    tick(boundary=count)
    assert not {name for name in crossed if name not in NAMES}
    assert RARE >= {name.split(":")[1] for name in NAMES if name not in crossed}
    assert ONCE == {name.split(":")[1] for name, times in crossed.items() if times == 1} - RARE


# ------------------------------------------------------------------
# If a user's function raises, kills its worker or hangs, the tick fails with one sentence that names the vertex.


def helper():
    raise ValueError("this row is bad")


def raises(batches):
    for batch in batches:
        helper()
        yield batch


def exits(batches):
    for batch in batches:
        os._exit(3)
        yield batch


def is_killed(batches):
    for batch in batches:
        os.kill(os.getpid(), signal.SIGKILL)
        yield batch


class RaisesKeyed:
    def process(self, inputs, state):
        helper()


def mapped(function):
    return lambda rows: rows.mapInArrow(function, rows.schema)


def pipeline_of(chain):
    pipeline = Pipeline("broken", config=CONFIG)
    pipeline.source("numbers", SequenceSource({"a": 10})).transform(chain).table("bronze/numbers", id="bronze")
    return plan(pipeline)


def keyed_pipeline():
    pipeline = Pipeline("broken", config=CONFIG)
    rows = StructType().add("key", LongType()).add("n", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": 10}))
    numbers.key_by("key").process("sums", RaisesKeyed(), state=StructType().add("n", LongType()), output=rows)
    return plan(pipeline)


def failed(planned, root, spark):
    report = run_tick(planned, RuntimeSettings(warehouse=root), spark=spark)
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (report.outcome, report.reason)
    assert sentence_of(report.message) in report.trace.read_text()
    assert "\tat " not in sentence_of(report.message)
    return report


@pytest.mark.spark
@pytest.mark.parametrize(
    ("planned", "vertex", "kind"),
    [
        (lambda: pipeline_of(mapped(raises)), "bronze", "ValueError: this row is bad (in helper, "),
        (lambda: pipeline_of(lambda rows: helper()), "bronze", "ValueError: this row is bad (in helper, "),
        (keyed_pipeline, "sums", "ValueError: this row is bad (in helper, "),
        (
            lambda: pipeline_of(lambda rows: rows.withColumn("value", F.col("nowhere"))),
            "bronze",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable",
        ),
    ],
    ids=["worker", "chain", "keyed function", "column"],
)
def test_a_function_that_raises_is_named_with_file_and_line(planned, vertex, kind, tmp_path, spark, capfd):
    report = failed(planned(), tmp_path, spark)
    sentence = sentence_of(report.message)
    assert sentence.startswith(f"micro-batch 1 of vertex {vertex} failed: {kind}")
    assert f"{__file__}, line " in sentence
    assert "correct it and run again" in sentence
    shown = own_lines(traceback_of(report.message))
    assert f'  File "{__file__}", line ' in shown[0]
    assert json.dumps(shown[1])[1:-1] in report.trace.read_text()
    assert "Exception" not in capfd.readouterr().err


@pytest.mark.spark
@pytest.mark.parametrize("function", [exits, is_killed])
def test_a_worker_that_dies_is_a_sentence(function, tmp_path, spark):
    """The message has no Java stack. The sentence names the vertex, and what may have killed the worker."""
    report = failed(pipeline_of(mapped(function)), tmp_path, spark)
    sentence = sentence_of(report.message)
    assert sentence.startswith("micro-batch 1 of vertex bronze failed: a Python worker died while it ran")
    assert "--set micro_batch_rows_max=50000" in sentence


def test_a_checkpoint_that_expires_names_the_vertex_that_hangs(tick, tmp_path):
    gate = tmp_path / "gate"
    config = CheckpointConfig(**(CONFIG.model_dump() | {"timeout_ms": 200}))
    try:
        report = tick(plan=build(config=config), engine=LocalEngine(gate=gate), drain_ms=10)
    finally:
        gate.touch()
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_EXPIRED) == (report.outcome, report.reason)
    assert "no snapshot came from vertex bronze, by_key within 0 s: if a function hangs, correct it" in report.message
    assert "timeout_ms" in report.message
