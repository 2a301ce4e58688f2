"""Measures how fresh the answer of a Nexmark query is while bids come, with a checkpoint every 200 ms.

`python -m bench.ours.nexmark_freshness --query q7` starts a broker and a writer (`bench.nexmark.live`), and runs one
tick. The program prints p50 and p99, in seconds, of the time from a bid's writing until a completed cut has it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql.types import StructType

from bench.measures import print_result
from bench.nexmark.figures import LIVE
from bench.nexmark.live import EVERY_MS, WARM_UP_S, Commit, figures, lay_out_seconds, writing
from bench.nexmark.queries import QUERIES as FUNCTIONS
from bench.nexmark.queries import AuctionHouse
from bench.ours.kafka_sums import SERVERS
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import SplitId, TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.sources.kafka.position import KafkaPosition, place_of
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from tidemark import KafkaSource, Pipeline, Source

QUERY: Final = "NEXMARK_QUERY"


class LiveAuctions(AuctionHouse):
    """The streams of one pipeline, from Kafka."""

    def _source(self, kind: str, schema: StructType, *, ends: bool) -> Source:
        del ends
        return KafkaSource(os.environ[SERVERS], kind, schema)


class Commits(TickListener):
    """Records up to which bids each cut goes, and when the cut was complete."""

    def __init__(self) -> None:
        """Start without a complete cut."""
        self.seen: list[Commit] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the offsets and the time."""
        del notes, versions
        (bids,) = (vertex for vertex in record.vertices if vertex.vertex == "bid")
        offsets = {
            place_of(SplitId(split)).partition: KafkaPosition.parse(subtask.position).offset
            for split, subtask in zip(bids.splits, bids.subtasks, strict=True)
            if subtask.position is not None
        }
        self.seen.append(Commit(offsets, round(time.time() * 1000)))


def build(data: Path) -> Pipeline:
    """Return the pipeline of one query."""
    pipeline = Pipeline("nexmark", config=CheckpointConfig(interval_ms=EVERY_MS), parallelism=2)
    FUNCTIONS[os.environ[QUERY]](LiveAuctions(pipeline, data))
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", choices=LIVE, required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    os.environ[QUERY], commits = asked.query, Commits()
    seconds = asked.seconds + WARM_UP_S
    events = lay_out_seconds(seconds, asked.data)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, writing(events, Path(scratch)) as servers:
        os.environ[SERVERS] = servers
        given = {"warehouse": Path(scratch, "warehouse"), "spark_cores": asked.cores, "until_caught_up": False}
        launched = launch("bench.ours.nexmark_freshness:build", flags_layer(given | {"duration_ms": seconds * 1000}))
        run_tick(launched.plan, launched.runtime(), commits)
        print_result(figures(f"tidemark-nexmark-freshness-{asked.query}", servers, commits.seen))


if __name__ == "__main__":
    main()
