"""Measures bronze, silver and gold of the flights in a tick: two appends and an upsert, a checkpoint for each batch.

`python -m bench.ours.flights_medallion FOLDER` prints the seconds and CPU seconds from each completed checkpoint to the
next. Before it prints, it checks the three tables.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from bench.flights import ROWS, Tables, require_tables
from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.tick_trace import commits
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.pipelines.flights_data import FLIGHTS_SCHEMA
from jobs.settings import flags_layer
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.tick.tick import run_tick
from tidemark import Pipeline, count, sum_of


def arrived(flights: DataFrame) -> DataFrame:
    """Leave out flights that were cancelled or diverted."""
    return flights.where("arr_delay is not null")


def build(data: Path) -> Pipeline:
    """Return the pipeline that reads the folder of the flights."""
    pipeline = Pipeline("medallion", config=CheckpointConfig(every_rows=ROWS, slice_rows_max=ROWS), parallelism=2)
    source = FileSource(data, from_arrow_schema(FLIGHTS_SCHEMA))
    bronze = (
        pipeline.source("flights", source)
        .drop(SPLIT_COLUMN, POSITION_COLUMN)
        .table("bronze/flights", id="bronze_flights")
    )
    silver = bronze.transform(arrived).table("silver/flights", id="silver_flights")
    silver.key_by("carrier", "dest").aggregate("routes", flights=count(), delay=sum_of("arr_delay")).upsert(
        "gold/routes"
    )
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        laps, started = Laps(), time.monotonic()
        given = flags_layer({"data": asked.folder, "warehouse": Path(scratch), "spark_cores": asked.cores})
        launched = launch("bench.ours.flights_medallion:build", given)
        report = caught_up(run_tick(launched.plan, launched.runtime(), laps))
        total_s = time.monotonic() - started
        require_tables(asked.folder, _shown(Path(scratch)))
        print_result(
            {
                "program": "tidemark-flights",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "total_s": total_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": peak_memory_bytes(os.getpid()),
                "commits_ms": [one.whole_ms for one in commits(report.trace)],
            }
        )


def _shown(warehouse: Path) -> Tables:
    bronze, silver = (DeltaTable(str(warehouse / name)).count() for name in ("bronze/flights", "silver/flights"))
    gold = pl.read_delta(str(warehouse / "gold/routes"))
    return Tables(bronze, silver, gold.height, int(gold["flights"].sum()), int(gold["delay"].sum()))


if __name__ == "__main__":
    main()
