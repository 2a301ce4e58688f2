"""Measures an epoch that closes 1,000 windows while many others stay open (P29).

`python -m bench.ours.open_windows --open N` opens N windows in one tick. In each epoch of the next tick, 1,000 of these
windows close and 1,000 new ones open. The program prints the time of each epoch, and compares the table with the
windows that closed.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType, TimestampType

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import peak_memory_bytes
from bench.workload import SPLIT, WrongTotalsError
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.tick import run_tick
from tidemark import FileSource, Pipeline, count, sum_of, tumbling

_WINDOWS: Final = "gold/windows"
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType()).add("at", TimestampType())
_CLOSE: Final = 1_000
_EPOCHS: Final = 24
_DELAY_S: Final = 10_000
_SEED_ROWS: Final = 1_000_000
_BEGIN_MS: Final = 1_767_225_600_000


def build(data: Path) -> Pipeline:
    """Return the pipeline with windows of a second. They stay open for the delay."""
    pipeline = Pipeline("open_windows", config=CheckpointConfig(), parallelism=2)
    events = pipeline.source("events", FileSource(data, _SCHEMA)).event_time("at", delay=f"{_DELAY_S}s")
    windows = events.key_by("key").window(tumbling("1s"))
    windows.aggregate("windows", n=count(), total=sum_of("value"), late="late/events").table(_WINDOWS)
    return pipeline


def main() -> None:
    """Measure epochs with one number of open windows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        spark = open_session(SparkConfig(cores=asked.cores, memory=asked.memory))
        try:
            laps = _measured(Path(scratch), asked.open, spark)
        finally:
            spark.stop()
        _require(Path(scratch))
    print_result(
        {
            "program": f"tidemark-{asked.open}-open-windows",
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "peak_memory_bytes": peak_memory_bytes(os.getpid()),
        }
    )


def _measured(scratch: Path, windows: int, spark: SparkSession) -> Laps:
    folder, step_ms = scratch / "in" / SPLIT, _DELAY_S * 1_000 * _CLOSE // windows
    folder.mkdir(parents=True)
    for first in range(0, windows, _SEED_ROWS):
        numbers = np.arange(first, min(first + _SEED_ROWS, windows))
        _write(folder / f"a-{first:09d}.parquet", numbers, _BEGIN_MS + numbers // _CLOSE * step_ms)
    _tick(scratch, spark, Laps(), rows=2 * _SEED_ROWS)
    for epoch in range(_EPOCHS):
        at_ms = _BEGIN_MS + (_DELAY_S + 1) * 1_000 + epoch * step_ms
        _write(folder / f"b-{epoch:05d}.parquet", windows + np.arange(_CLOSE), np.full(_CLOSE, at_ms))
    laps = Laps()
    _tick(scratch, spark, laps, rows=_CLOSE)
    return laps


def _write(file: Path, keys: "np.ndarray[tuple[int], np.dtype[np.int64]]", times_ms: object) -> None:
    rows = pl.DataFrame({"key": keys, "value": np.ones(len(keys), dtype=np.int64), "at": times_ms})
    at = pl.from_epoch("at", "ms").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    rows.with_columns(at).write_parquet(file)


def _tick(scratch: Path, spark: SparkSession, laps: Laps, *, rows: int) -> None:
    given = flags_layer(
        {
            "data": scratch / "in",
            "warehouse": scratch / "warehouse",
            "every_rows": rows,
            "slice_rows_max": min(rows, _SEED_ROWS),
            "micro_batch_rows_max": max(rows, _SEED_ROWS),
        }
    )
    launched = launch("bench.ours.open_windows:build", given)
    caught_up(run_tick(launched.plan, launched.runtime(), laps, spark=spark))


def _require(scratch: Path) -> None:
    """Raise WrongTotalsError unless each epoch has closed its windows, and each window has its one row."""
    rows = pl.from_arrow(DeltaTable(str(scratch / "warehouse" / _WINDOWS)).to_pyarrow_table(columns=["n"]))
    if not isinstance(rows, pl.DataFrame) or rows.height != _EPOCHS * _CLOSE or rows["n"].sum() != rows.height:
        raise WrongTotalsError(f"{_EPOCHS * _CLOSE} windows with a row each have closed, found {rows}")


if __name__ == "__main__":
    main()
