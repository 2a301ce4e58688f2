"""Tests files that change after they were read, as a user meets them: a touched file, and a replaced one."""

import os
import shlex
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.messages import TickOutcome
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.files.file_source import FileSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = pytest.mark.spark

PIPELINE = f"{__name__}:orders"


def orders(data: Path) -> Pipeline:
    """Return the pipeline: files of numbers to bronze."""
    pipeline = Pipeline("orders")
    source = FileSource(data / "orders", StructType().add("n", LongType()))
    pipeline.source("orders", source).table("bronze/orders", id="bronze")
    return pipeline


def test_a_touched_file_is_accepted_and_a_changed_one_has_a_way_out(spark, tmp_path, capsys):
    """The test types the command that the message names, as it is. The next tick reads the file as it is now."""
    data, warehouse = tmp_path, tmp_path / "warehouse"
    split = data / "orders" / "EWR"
    split.mkdir(parents=True)

    def write(name, *numbers):
        pl.DataFrame({"n": numbers}).write_parquet(split / name)

    def tick():
        return run_tick(plan(orders(data)), RuntimeSettings(warehouse=warehouse), spark=spark)

    def typed(*words):
        where = ["--warehouse", str(warehouse), "--data", str(data)]
        return execute([*words, *where])

    def numbers():
        return sorted(Cuts(warehouse, "orders").latest().polars("bronze/orders").collect()["n"].to_list())

    write("1.parquet", 1, 2)
    write("2.parquet", 3)
    assert TickOutcome.CAUGHT_UP is tick().outcome
    for file in split.iterdir():
        os.utime(file, ns=(7, 7))
    write("3.parquet", 4)
    assert (TickOutcome.CAUGHT_UP, [1, 2, 3, 4]) == (tick().outcome, numbers())
    assert ExitCode.DONE is typed("reset", PIPELINE, "orders", "--to", "1.parquet:1", "--dry-run")

    write("2.parquet", 30, 31)
    capsys.readouterr()
    assert ExitCode.FAILED is typed("run", PIPELINE)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "2.parquet has been read, and its contents have changed" in said
    assert ExitCode.FAILED is typed("doctor", PIPELINE)
    command = said.rpartition("tidemark ")[2]
    assert f"tidemark {command}" in capsys.readouterr().out
    assert ExitCode.DONE is typed(*shlex.split(command)), capsys.readouterr().err
    assert (TickOutcome.CAUGHT_UP, [1, 2, 3, 4, 4, 30, 31]) == (tick().outcome, numbers())
