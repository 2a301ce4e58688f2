"""Tasks measure themselves on real Spark, and the user sees which subtask is slow (E6)."""

import time
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructType
from rich.console import Console

from checkpointing.config import CheckpointConfig
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointCounts
from jobs.cli.options import layer
from jobs.cli.read_commands import list_checkpoints, show_checkpoint
from jobs.operators.process import Processed
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.showing.checkpoints import NOT_MEASURED
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

SLOW_KEY = 3
SLOW_S = 1.5
SUBTASKS = 4
N = StructType().add("n", LongType())
COUNTED = StructType().add("key", LongType()).add("n", LongType())


class CountsSlowly:
    """Counts rows by key, and sleeps before it counts those of one key."""

    def process(self, inputs, state):
        (rows,) = inputs
        if SLOW_KEY in rows["key"]:
            time.sleep(SLOW_S)
        counted = pl.concat([state, rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("n"))])
        after = counted.group_by("key").agg(pl.col("n").sum())
        return Processed(state=after, output=after)


def build(_data: Path) -> Pipeline:
    config = CheckpointConfig(every_rows=48, slice_rows_max=48, micro_batch_rows_max=48)
    pipeline = Pipeline("slowly", config=config, parallelism=SUBTASKS)
    numbers = pipeline.source("numbers", SequenceSource({"a": 96}, keys=16))
    counted = numbers.key_by("key").process("counts", CountsSlowly(), state=N, output=COUNTED)
    counted.upsert("gold/counts")
    return pipeline


def said(show, *arguments, **options):
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        show(*arguments, console, **options)
    return console.export_text()


@pytest.mark.spark
def test_the_slow_subtask_is_the_one_that_checkpoints_show_names(spark, tmp_path):
    """One key group sleeps: its subtask's task time is longer than the sleep, and every other one's is shorter."""
    report = run_tick(plan(build(tmp_path)), RuntimeSettings(warehouse=tmp_path), spark=spark)
    assert TickOutcome.CAUGHT_UP is report.outcome
    newest = report.completed[-1]
    (vertex,) = (each for each in newest.statistics.vertices if each.vertex == "counts")
    (own,) = (each for each in newest.vertices if each.vertex == "counts")
    times = vertex.subtasks.task_ms
    slow = times.index(max(times))
    held = [pl.read_parquet(tmp_path / keyed.file.path) for keyed in own.subtasks[slow].state]
    assert SLOW_KEY in pl.concat(held)["key"]
    assert sorted(times)[-2] < SLOW_S * 1000 <= times[slow]
    assert all(sync_ms < SLOW_S * 1000 for sync_ms in vertex.subtasks.sync_ms)
    assert 48 == sum(vertex.subtasks.rows_in)
    files = [keyed.file for keyed in own.subtasks[slow].state]
    assert 0 < vertex.subtasks.checkpointed_bytes[slow] <= sum(file.bytes for file in files)
    given = layer({"warehouse": tmp_path})
    shown = said(show_checkpoint, f"{__name__}:build", None, given)
    table = shown[shown.index("subtasks, since") :].splitlines()
    cells = {row[1].strip(): row for row in (line.strip("│ ").split("│") for line in table) if len(row) == 9}
    assert f"{times[slow] / 1000:.2f} s" == cells[str(slow)][2].strip() == cells["most"][2].strip()
    assert NOT_MEASURED not in shown
    listed = said(list_checkpoints, f"{__name__}:build", given)
    assert "2 triggered, 2 completed, 0 failed, started without a checkpoint" in listed
    assert CheckpointCounts(total=2, completed=1, in_progress=1) == newest.statistics.counts
