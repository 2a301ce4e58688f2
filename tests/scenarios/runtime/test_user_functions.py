"""A user's function that raises, kills its worker or hangs: the tick fails with one sentence that names it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from jobs.cli.errors import ExitCode
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.user_code import own_lines, sentence_of, traceback_of
from tests.scenarios.runtime.sequence_job import CONFIG, LocalEngine, build

ROOT = Path(__file__).resolve().parents[3]


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
    """A keyed function that raises."""

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
    """The sentence has vertex, error, file and line. The traceback follows, in the trace too."""
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
    """There is no Java stack. The sentence names the vertex, and what may have killed the worker."""
    report = failed(pipeline_of(mapped(function)), tmp_path, spark)
    sentence = sentence_of(report.message)
    assert sentence.startswith("micro-batch 1 of vertex bronze failed: a Python worker died while it ran")
    assert "--set micro_batch_rows_max=50000" in sentence


KILLS_THE_JVM = """
import os, signal
from pyspark import SparkContext
from jobs.pipeline import Pipeline
from jobs.sources.hybrid import SequenceSource
from checkpointing.config import CheckpointConfig
from pathlib import Path

SPARED = Path(__file__).with_name("spared")


def kill(rows):
    if not SPARED.exists() and (Path(__file__).parent / "w/bronze/numbers/_delta_log" / f"{1:020d}.json").exists():
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    return rows


def build(data):
    pipeline = Pipeline("jvm", config=CheckpointConfig(every_rows=50, slice_rows_max=50, micro_batch_rows_max=50))
    pipeline.source("numbers", SequenceSource({"a": 150})).transform(kill).table("bronze/numbers", id="bronze")
    return pipeline
"""


@pytest.mark.dear
@pytest.mark.kill
@pytest.mark.spark
def test_a_tick_whose_jvm_died_ends_with_a_sentence(tmp_path):
    """The JVM is killed after the first checkpoint: no trace of py4j's, and the next tick makes the table whole."""
    (tmp_path / "kills_the_jvm.py").write_text(KILLS_THE_JVM)
    command = [
        str(Path(sys.executable).with_name("tidemark")),
        "run",
        "kills_the_jvm:build",
        "--warehouse",
        str(tmp_path / "w"),
    ]
    command += ["--spark-cores", "1", "--spark-memory", "512m"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def run():
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)

    ended = run()
    assert ExitCode.FAILED == ended.returncode
    said = ended.stderr.splitlines()[-1]
    assert "micro-batch" in said
    assert "of vertex bronze failed: Spark died: its JVM" in said
    assert "--set restart_strategy=fixed_delay" in said
    assert "Traceback" not in ended.stderr
    committed = numbers(tmp_path / "w")
    assert committed in (list(range(50)), list(range(100)))
    (tmp_path / "spared").touch()
    assert ExitCode.DONE == run().returncode
    assert list(range(150)) == numbers(tmp_path / "w")


def numbers(root):
    """Return the numbers that the table holds, in order."""
    return sorted(pl.read_delta(str(root / "bronze/numbers"))["n"].to_list())


def test_a_checkpoint_that_expires_names_the_vertex_that_hangs(tick, tmp_path):
    """When the checkpoint's time is over, the message names the vertex that hangs, and what to set."""
    gate = tmp_path / "gate"
    config = CheckpointConfig(**(CONFIG.model_dump() | {"timeout_ms": 200}))
    try:
        report = tick(plan=build(config=config), engine=LocalEngine(gate=gate), drain_ms=10)
    finally:
        gate.touch()
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_EXPIRED) == (report.outcome, report.reason)
    assert "no snapshot came from vertex bronze, by_key within 0 s: if a function hangs, correct it" in report.message
    assert "timeout_ms" in report.message
