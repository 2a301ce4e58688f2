"""Measures the bytes of live state after many days of event time, with a time to live of a day, and a drain (P30).

`python -m bench.ours.expired_state --days N` reads a file of new keys for each day, takes a checkpoint after each file,
and drains the job. It prints the bytes of the state files that the last cut names.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType, TimestampType

from bench.measures import Laps, caught_up, print_result
from bench.workload import SPLIT
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import TableName
from checkpointing.messages import SavepointKind, SavepointRequested
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from tidemark import FileSource, Pipeline, count

_SCHEMA: Final = StructType().add("key", LongType()).add("at", TimestampType())
_KEYS: Final = 10_000
_DAY_MS: Final = 86_400_000
_BEGIN_MS: Final = 1_767_225_600_000


class _Last(Laps):
    """Also keeps the newest checkpoint's entry."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        """The bytes of the state files that the newest entry names."""

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the bytes of the live state."""
        super().completed(record, notes, versions)
        subtasks = (each for vertex in record.vertices for each in vertex.subtasks)
        self.bytes = sum(keyed.file.bytes for each in subtasks for keyed in each.state)


def build(data: Path) -> Pipeline:
    """Return the pipeline that counts rows by key, and forgets a key a day after its last row."""
    pipeline = Pipeline("expired_state", config=CheckpointConfig(every_rows=_KEYS, slice_rows_max=_KEYS))
    events = pipeline.source("events", FileSource(data, _SCHEMA)).event_time("at", delay="0s")
    events.key_by("key").aggregate("counts", n=count(), ttl="1d").table("gold/counts")
    return pipeline


def main() -> None:
    """Measure the state after one number of days."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        folder = Path(scratch, "in", SPLIT)
        folder.mkdir(parents=True)
        for day in range(asked.days):
            times = _BEGIN_MS + day * _DAY_MS + np.arange(_KEYS) * (_DAY_MS // _KEYS)
            rows = pl.DataFrame({"key": day * _KEYS + np.arange(_KEYS), "at": times})
            at = pl.from_epoch("at", "ms").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
            rows.with_columns(at).write_parquet(folder / f"{day:05d}.parquet")
        spark = open_session(SparkConfig(cores=asked.cores, memory=asked.memory))
        try:
            state_bytes = _measured(Path(scratch), spark)
        finally:
            spark.stop()
    print_result({"program": f"tidemark-{asked.days}-days-of-state", "state_bytes": state_bytes})


def _measured(scratch: Path, spark: SparkSession) -> int:
    launched = launch(
        "bench.ours.expired_state:build", flags_layer({"data": scratch / "in", "warehouse": scratch / "warehouse"})
    )
    caught_up(run_tick(launched.plan, launched.runtime(), _Last(), spark=spark))
    last, inbox = _Last(), Inbox()
    inbox.put(SavepointRequested("drain", SavepointKind.DRAIN))
    run_tick(launched.plan, launched.runtime(), last, spark=spark, inbox=inbox)
    return last.bytes


if __name__ == "__main__":
    main()
