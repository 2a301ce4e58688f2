"""Measures a tick that reads Kafka and writes a Delta table and a keyed sum.

`python -m bench.ours.kafka_sums FOLDER` serves the topic of a folder (`bench.kafka_workload`), and runs one tick in a
new warehouse. It compares both tables with the input, and prints the seconds from each checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructType

from bench.kafka_workload import TOPIC, served
from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.upserted_sums import sums_shown
from bench.workload import require_totals
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick
from tidemark import KafkaSource, Pipeline, count, sum_of

BRONZE: Final = "bronze/events"
SUMS: Final = "gold/sums"
SERVERS: Final = "BENCH_KAFKA_SERVERS"
ROWS_A_BATCH: Final = 500_000
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType())


def build(data: Path) -> Pipeline:
    """Return the pipeline. An environment variable has the address of the broker."""
    del data
    config = CheckpointConfig(every_rows=ROWS_A_BATCH, slice_rows_max=ROWS_A_BATCH)
    pipeline = Pipeline("kafka_sums", config=config, parallelism=2)
    events = pipeline.source("events", KafkaSource(os.environ[SERVERS], TOPIC, _SCHEMA))
    rows = events.table(BRONZE, id="bronze")
    rows.key_by("key").aggregate("sums", n=count(), total=sum_of("value")).upsert(SUMS)
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, served(asked.folder) as servers:
        os.environ[SERVERS] = servers
        broker_cpu = cpu_seconds(os.getpid())
        laps, started = Laps(), time.monotonic()
        given = flags_layer({"warehouse": Path(scratch), "spark_cores": asked.cores, "spark_memory": asked.memory})
        launched = launch("bench.ours.kafka_sums:build", given)
        caught_up(run_tick(launched.plan, launched.runtime(), laps))
        total_s = time.monotonic() - started
        require_totals(asked.folder, sums_shown(Path(scratch, SUMS), DeltaTable(str(Path(scratch, BRONZE))).count()))
        print_result(
            {
                "program": "tidemark-kafka-sums",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "total_s": total_s,
                "work_s": total_s - laps.spark_start_s,
                "total_cpu_s": cpu_seconds(os.getpid()) - broker_cpu,
                "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            }
        )


if __name__ == "__main__":
    main()
