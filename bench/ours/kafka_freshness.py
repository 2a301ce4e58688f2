"""Measures how fresh three tables of a Kafka topic are if checkpoints are taken as often as possible.

`python -m bench.ours.kafka_freshness` starts a broker and a writer (`bench.freshness`), and runs one tick for some
time. The program prints p50 and p99, in seconds, of the time from a record's writing until a completed cut has it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from bench.freshness import TOPIC, WARM_UP_S, latencies, percentile, require_rows, writing
from bench.kafka_workload import make_topic, served
from bench.measures import print_result
from bench.ours.kafka_sums import SERVERS
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.sources.kafka.position import KafkaPosition
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from tidemark import KafkaSource, Pipeline, count, sum_of

BRONZE: Final = "bronze/ticks"
_INTERVAL_MS: Final = 100
_SCHEMA: Final = StructType().add("key", LongType()).add("value", LongType())


class Commits(TickListener):
    """Records up to which offset each cut goes, and when the cut was complete."""

    def __init__(self) -> None:
        """Start without a complete cut."""
        self.seen: list[tuple[int, int]] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the offset and the time."""
        del notes, versions
        (source,) = (vertex for vertex in record.vertices if vertex.splits)
        position = source.subtasks[0].position
        if position is not None:
            self.seen.append((KafkaPosition.parse(position).offset, round(time.time() * 1000)))


def build(data: Path) -> Pipeline:
    """Return the pipeline. Its tables have all records, the even ones, and sums by key."""
    del data
    config = CheckpointConfig(interval_ms=_INTERVAL_MS)
    pipeline = Pipeline("freshness", config=config, parallelism=1)
    records = pipeline.source("ticks", KafkaSource(os.environ[SERVERS], TOPIC, _SCHEMA))
    bronze = records.table(BRONZE, id="bronze")
    bronze.transform(_even).table("silver/ticks", id="silver")
    bronze.key_by("key").aggregate("sums", n=count(), total=sum_of("value")).upsert("gold/sums")
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, served(Path(scratch, "broker")) as servers:
        os.environ[SERVERS] = servers
        make_topic(servers, TOPIC, 1)
        commits = Commits()
        given = {"warehouse": Path(scratch, "warehouse"), "spark_cores": asked.cores, "until_caught_up": False}
        limit = {"duration_ms": round((asked.seconds + WARM_UP_S) * 1000)}
        launched = launch("bench.ours.kafka_freshness:build", flags_layer(given | limit))
        with writing(servers, asked.seconds + WARM_UP_S):
            run_tick(launched.plan, launched.runtime(), commits)
        require_rows(Path(scratch, "warehouse", BRONZE), commits.seen[-1][0])
        found = latencies(servers, commits.seen)
        print_result(
            {
                "program": "tidemark-kafka-freshness",
                "p50_s": percentile(found, 0.5),
                "p99_s": percentile(found, 0.99),
                "commits": len(commits.seen),
                "records": len(found),
            }
        )


def _even(rows: DataFrame) -> DataFrame:
    return rows.filter("value % 2 = 0")


if __name__ == "__main__":
    main()
