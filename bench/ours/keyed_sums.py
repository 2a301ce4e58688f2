"""Measures a keyed count and sum in a tick. The changed keys go to a Delta table. A checkpoint has some rows each.

`python -m bench.ours.keyed_sums FOLDER` runs one tick in a new warehouse, and compares its table with the totals of the
input. It prints the seconds and CPU seconds from each completed checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql.types import LongType, StringType, StructType

from bench.changed_keys import totals_shown
from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.tick_trace import commits
from bench.workload import require_totals
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.sources.files.file_source import FileSource
from jobs.tick.tick import run_tick
from tidemark import Pipeline, count, sum_of

SUMS: Final = "gold/sums"
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType()).add("payload", StringType())
_ROWS: Final = 500_000


def build(data: Path) -> Pipeline:
    """Return the pipeline that reads a folder of the workload."""
    config = CheckpointConfig(every_rows=_ROWS, slice_rows_max=_ROWS)
    pipeline = Pipeline("keyed_sums", config=config, parallelism=2)
    (
        pipeline.source("events", FileSource(data, _SCHEMA))
        .key_by("key")
        .aggregate("sums", n=count(), total=sum_of("value"))
        .table(SUMS)
    )
    return pipeline


def main() -> None:
    """Measure one tick."""
    asked = _arguments()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        laps, started = Laps(), time.monotonic()
        given = flags_layer(
            {
                "data": asked.folder,
                "warehouse": Path(scratch),
                "spark_cores": asked.cores,
                "spark_memory": asked.memory,
                "parallelism": asked.parallelism,
                "every_rows": asked.every_rows,
                "slice_rows_max": asked.slice_rows,
                "micro_batch_rows_max": asked.micro_batch_rows,
            }
        )
        launched = launch("bench.ours.keyed_sums:build", given)
        report = caught_up(run_tick(launched.plan, launched.runtime(), laps))
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        require_totals(asked.folder, totals_shown(Path(scratch, SUMS)))
        print_result(
            {
                "program": "tidemark-keyed-sums",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "total_s": total_s,
                "work_s": total_s - laps.spark_start_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": memory,
                "commits_ms": [one.whole_ms for one in commits(report.trace)],
            }
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every-rows", type=int, default=_ROWS)
    parser.add_argument("--slice-rows", type=int, default=_ROWS)
    parser.add_argument("--micro-batch-rows", type=int)
    parser.add_argument("--parallelism", type=int)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
