"""Measures a changelog: orders and customers change, are joined, and the joined rows are summed by region.

`python -m bench.ours.changelog_sums FOLDER` runs one tick over few rows, so that Spark has started. Then it runs
another tick over all rows. It compares the tables of both with the sums of the input. It prints the seconds of the
second tick, and the seconds from each completed checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, LongType, StructType

from bench.changelog_workload import CUSTOMER_COLUMNS, EPOCH, ORDER_COLUMNS, require_sums
from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.sources.files.file_source import FileSource
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.tick import run_tick
from tidemark import Pipeline, Stream, apply_changes, count, join, sum_of

SUMS: Final = "gold/sums"


def build(data: Path) -> Pipeline:
    """Return the pipeline that reads a folder of the workload."""
    config = CheckpointConfig(every_rows=EPOCH, slice_rows_max=EPOCH)
    pipeline = Pipeline("changelog_sums", config=config, parallelism=2)

    def newest(name: str, columns: Sequence[str]) -> Stream:
        key, *rest = (column for column in columns if column not in ("seq", "gone"))
        changes = pipeline.source(f"{name}_changes", FileSource(data / name, _schema(columns)))
        return apply_changes(changes, name, keys=[key], sequence_by="seq", apply_as_deletes="gone", columns=rest)

    orders = newest("orders", ORDER_COLUMNS)
    customers = newest("customers", CUSTOMER_COLUMNS)
    joined = join(orders.key_by("customer"), customers.key_by("customer"), "joined")
    joined.key_by("region").aggregate("sums", orders=count(), amounts=sum_of("amount")).upsert(SUMS)
    return pipeline


def main() -> None:
    """Measure one tick. Before it, a tick with few rows runs in the same Spark session."""
    asked = _arguments()
    spark = open_session(SparkConfig())
    try:
        _tick(asked.folder / "few", spark, asked.scratch)
        laps, started, cpu_before = Laps(), time.monotonic(), cpu_seconds(os.getpid())
        _tick(asked.folder / "whole", spark, asked.scratch, laps)
        total_s, total_cpu_s = time.monotonic() - started, cpu_seconds(os.getpid()) - cpu_before
        memory = peak_memory_bytes(os.getpid())
    finally:
        spark.stop()
    print_result(
        {
            "program": "tidemark-changelog-sums",
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "total_s": total_s,
            "total_cpu_s": total_cpu_s,
            "peak_memory_bytes": memory,
        }
    )


def _tick(folder: Path, spark: SparkSession, scratch: Path | None, laps: Laps | None = None) -> None:
    """Run a tick over the folder in a warehouse of its own, and compare its table with the folder's sums."""
    with tempfile.TemporaryDirectory(dir=scratch) as warehouse:
        given = flags_layer({"data": folder, "warehouse": Path(warehouse)})
        launched = launch("bench.ours.changelog_sums:build", given)
        caught_up(run_tick(launched.plan, launched.runtime(), laps or Laps(), spark=spark))
        require_sums(folder, pl.read_delta(str(Path(warehouse, SUMS))))


def _schema(columns: Sequence[str]) -> StructType:
    schema = StructType()
    for name in columns:
        schema = schema.add(name, BooleanType() if name == "gone" else LongType())
    return schema


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
