"""Measures a tick that reads files into a Delta table, and gives each checkpoint of 500,000 rows to an outside sink.

`python -m bench.ours.outside_sinks FOLDER --to kafka` starts a Kafka broker, or with `--to postgres` a PostgreSQL
server from a wheel. It runs one tick in a new warehouse, and compares what the server has with the totals of the input.
It prints the seconds and CPU seconds from each checkpoint to the next.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql.types import LongType, StringType, StructType

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import peak_memory_bytes
from bench.targets import KINDS, NAME, serving
from bench.workload import require_totals
from checkpointing.config import CheckpointConfig
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick
from tidemark import FileSource, KafkaSink, Pipeline, PostgresSink, Sink

_ADDRESS: Final = "BENCH_TARGET"
_ROWS: Final = 500_000
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType()).add("payload", StringType())


def postgres(data: Path) -> Pipeline:
    """Return the pipeline with a PostgreSQL table. An environment variable has the server's address."""
    return _pipeline(data, PostgresSink(f"env:{_ADDRESS}", NAME))


def kafka(data: Path) -> Pipeline:
    """Return the pipeline with a topic."""
    return _pipeline(data, KafkaSink(os.environ[_ADDRESS], NAME, "key"))


def _pipeline(data: Path, sink: Sink) -> Pipeline:
    config = CheckpointConfig(every_rows=_ROWS, slice_rows_max=_ROWS)
    pipeline = Pipeline("outside_sinks", config=config, parallelism=2)
    pipeline.source("events", FileSource(data, _SCHEMA)).table("bronze/events", id="bronze", sink=sink)
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", choices=KINDS, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, serving(asked.to, Path(scratch)) as target:
        os.environ[_ADDRESS] = target.address
        warehouse = Path(scratch, "warehouse")
        own = {"spark_cores": asked.cores, "spark_memory": asked.memory}
        laps, started = Laps(), time.monotonic()
        launched = launch(
            f"bench.ours.outside_sinks:{asked.to}", flags_layer({"data": asked.folder, "warehouse": warehouse} | own)
        )
        caught_up(run_tick(launched.plan, launched.runtime(), laps))
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        require_totals(asked.folder, target.totals())
        print_result(
            {
                "program": f"tidemark-to-{asked.to}",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "total_s": total_s,
                "work_s": total_s - laps.spark_start_s,
                "peak_memory_bytes": memory,
            }
        )


if __name__ == "__main__":
    main()
