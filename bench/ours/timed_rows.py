"""Measures work in event time in a tick, appended to a Delta table (P25 to P28).

`hourly` and `sessions` count and sum by key and window. `doubles` drops rows whose id has come before. `joined` joins
two streams of rows by key and time. `python -m bench.ours.timed_rows FOLDER --work hourly` runs a tick over the first
files, so that Spark has started. Then it runs a tick over all files in a new warehouse, and compares the tick's table
with the batch answer. It prints the seconds and CPU seconds from each completed checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql.types import StructType

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.timed_workload import REQUIRED, first_files
from checkpointing.config import CheckpointConfig
from jobs.launch import Launch, launch
from jobs.pipeline.windows import Window
from jobs.settings import flags_layer
from jobs.testing.trial import session_for
from jobs.tick.tick import run_tick
from tidemark import FileSource, Pipeline, Stream, count, distinct, join, session, sum_of, tumbling

TABLE: Final = "gold/rows"
_SCHEMA: Final = StructType().add("key", "long").add("value", "long").add("at", "timestamp").add("id", "long")
_COLUMNS: Final = ("key", "value", "at")
_ROWS: Final = 500_000


def hourly(data: Path) -> Pipeline:
    """Return the pipeline with hourly windows."""
    return _build(data, tumbling("1h"))


def sessions(data: Path) -> Pipeline:
    """Return the pipeline with sessions."""
    return _build(data, session("10m"))


def doubles(data: Path) -> Pipeline:
    """Return the pipeline that keeps the first row of each id."""
    pipeline = _pipeline()
    events = _rows(pipeline, "events", data, *_COLUMNS, "id").event_time("at", delay="1h")
    distinct(events.key_by("id"), "once", within="1h", late="late/events").table(TABLE)
    return pipeline


def joined(data: Path) -> Pipeline:
    """Return the pipeline that joins two streams."""
    pipeline = _pipeline(2)
    left, right = (
        _rows(pipeline, side, data / side, *_COLUMNS).event_time("at", delay="10s") for side in ("left", "right")
    )
    renamed = right.rename({"value": "r_value", "at": "r_at"})
    join(left.key_by("key"), renamed.key_by("key"), "pairs", within=("-5m", "5m"), late="late/rows").table(TABLE)
    return pipeline


def _rows(pipeline: Pipeline, name: str, folder: Path, *columns: str) -> Stream:
    return pipeline.source(name, FileSource(folder, _SCHEMA)).select(*columns)


def _pipeline(splits: int = 1) -> Pipeline:
    """Return a pipeline that takes a checkpoint for each file of each split, as the peer's micro-batches do."""
    config = CheckpointConfig(every_rows=splits * _ROWS, slice_rows_max=_ROWS)
    return Pipeline("timed_rows", config=config, parallelism=2)


def _build(data: Path, window: Window) -> Pipeline:
    pipeline = _pipeline()
    events = _rows(pipeline, "events", data, *_COLUMNS).event_time("at", delay="10s")
    windows = events.key_by("key").window(window)
    windows.aggregate("windows", n=count(), total=sum_of("value"), late="late/events").table(TABLE)
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", choices=sorted(REQUIRED), required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        scratch = Path(folder)
        warm_up = _launched(asked, first_files(asked.folder), scratch / "warm")
        whole = _launched(asked, asked.folder, scratch / "all")
        spark = session_for(whole.plan.sources.values(), whole.settings)
        caught_up(run_tick(warm_up.plan, warm_up.runtime(), spark=spark))
        laps, cpu, started = Laps(), cpu_seconds(os.getpid()), time.monotonic()
        caught_up(run_tick(whole.plan, whole.runtime(), laps, spark=spark))
        result = {
            "program": f"tidemark-{asked.work}",
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "total_s": time.monotonic() - started,
            "total_cpu_s": cpu_seconds(os.getpid()) - cpu,
            "peak_memory_bytes": peak_memory_bytes(os.getpid()),
        }
        REQUIRED[asked.work](asked.folder, scratch / "all" / TABLE)
        spark.stop()
    print_result(result)


def _launched(asked: argparse.Namespace, data: Path, warehouse: Path) -> Launch:
    given = {"data": data, "warehouse": warehouse, "spark_cores": asked.cores, "spark_memory": asked.memory}
    return launch(f"bench.ours.timed_rows:{asked.work}", flags_layer(given))


if __name__ == "__main__":
    main()
