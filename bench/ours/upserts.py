"""Measures upserts of a large table: one tick writes every key, and another changes one key in a hundred each epoch.

`python -m bench.ours.upserts --keys N --which random` prints the seconds from one published checkpoint to the next. It
compares the table with the totals of the input.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import peak_memory_bytes
from bench.upsert_workload import SEED_ROWS, arguments, epoch_rows, files_of, lay_out_upserts, require_sums
from bench.workload import SPLIT
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.sources.files.file_source import FileSource
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.tick import run_tick
from tidemark import Pipeline, count, sum_of

SUMS: Final = "gold/sums"
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType()).add("payload", StringType())


def build(data: Path) -> Pipeline:
    """Return the pipeline that reads a folder of the workload."""
    pipeline = Pipeline("upserts", parallelism=2)
    events = pipeline.source("events", FileSource(data, _SCHEMA))
    events.key_by("key").aggregate("sums", n=count(), total=sum_of("value")).upsert(SUMS)
    return pipeline


def main() -> None:
    """Measure one table."""
    asked = arguments(__doc__)
    every, some = lay_out_upserts(asked.keys, asked.which, asked.data)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        scratch = Path(folder)
        spark = open_session(SparkConfig(cores=asked.cores, memory=asked.memory))
        try:
            _tick(scratch, spark, files_of(every), "a", SEED_ROWS)
            laps = _tick(scratch, spark, files_of(some), "b", epoch_rows(asked.keys))
            memory = peak_memory_bytes(os.getpid())
        finally:
            spark.stop()
        require_sums(scratch / "warehouse" / SUMS, every, some)
    print_result(
        {
            "program": f"tidemark-upserts-{asked.keys}-{asked.which}",
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "peak_memory_bytes": memory,
        }
    )


def _tick(scratch: Path, spark: SparkSession, files: Sequence[Path], prefix: str, rows: int) -> Laps:
    """Add these files to the source's split, and run a tick with an epoch for each file."""
    (scratch / "in" / SPLIT).mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, scratch / "in" / SPLIT / f"{prefix}-{file.name}")
    given = flags_layer(
        {
            "data": scratch / "in",
            "warehouse": scratch / "warehouse",
            "every_rows": rows,
            "slice_rows_max": rows,
            "micro_batch_rows_max": SEED_ROWS,
        }
    )
    launched, laps = launch("bench.ours.upserts:build", given), Laps()
    caught_up(run_tick(launched.plan, launched.runtime(), laps, spark=spark))
    return laps


if __name__ == "__main__":
    main()
