"""Measures a count and sum by key and window in a tick: hourly windows or sessions, appended to a Delta table.

`python -m bench.ours.windowed_sums FOLDER --windows hourly` runs one tick in a new warehouse, and compares its table
with the batch answer. It prints the seconds and CPU seconds from each completed checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql.types import LongType, StructType, TimestampType

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.window_workload import require_windows
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.pipeline.windows import Window
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick
from tidemark import FileSource, Pipeline, count, session, sum_of, tumbling

WINDOWS: Final = "gold/windows"
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType()).add("at", TimestampType())
_ROWS: Final = 500_000


def hourly(data: Path) -> Pipeline:
    """Return the pipeline with hourly windows."""
    return _build(data, tumbling("1h"))


def sessions(data: Path) -> Pipeline:
    """Return the pipeline with sessions."""
    return _build(data, session("10m"))


def _build(data: Path, window: Window) -> Pipeline:
    config = CheckpointConfig(every_rows=_ROWS, slice_rows_max=_ROWS)
    pipeline = Pipeline("windowed_sums", config=config, parallelism=2)
    events = pipeline.source("events", FileSource(data, _SCHEMA)).event_time("at", delay="10s")
    windows = events.key_by("key").window(window)
    windows.aggregate("windows", n=count(), total=sum_of("value"), late="late/events").table(WINDOWS)
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", choices=["hourly", "sessions"], required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        laps, started = Laps(), time.monotonic()
        folders = {"data": asked.folder, "warehouse": Path(scratch)}
        given = flags_layer(folders | {"spark_cores": asked.cores, "spark_memory": asked.memory})
        launched = launch(f"bench.ours.windowed_sums:{asked.windows}", given)
        caught_up(run_tick(launched.plan, launched.runtime(), laps))
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        require_windows(asked.folder, asked.windows, Path(scratch, WINDOWS))
        print_result(
            {
                "program": f"tidemark-windows-{asked.windows}",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "total_s": total_s,
                "work_s": total_s - laps.spark_start_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": memory,
            }
        )


if __name__ == "__main__":
    main()
