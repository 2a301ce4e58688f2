"""Measures how fresh a Delta table of a Kafka topic is with Structured Streaming and its default trigger.

`python -m bench.peers.kafka_freshness` starts a broker and a writer (`bench.freshness`), and runs one query for some
time. It prints p50 and p99, in seconds, of the time from a record's writing to its Delta commit.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.freshness import TOPIC, WARM_UP_S, latencies, percentile, require_rows, writing
from bench.kafka_workload import SCHEMA, make_topic, served
from bench.measures import print_result
from bench.peers.delta_session import delta_session
from jobs.spark.jars import KAFKA, delta_jars, jar_set, jars_of

_MEMORY = "2g"
_MANY = "100000"


def main() -> None:
    """Measure one query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    jars = ",".join(str(jar) for jar in (*delta_jars(), *jars_of(jar_set(KAFKA))))
    settings = {"spark.jars": jars, "spark.sql.streaming.minBatchesToRetain": _MANY}
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, served(Path(scratch, "broker")) as servers:
        make_topic(servers, TOPIC, 1)
        ends_s = time.monotonic() + asked.seconds + WARM_UP_S
        with writing(servers, asked.seconds + WARM_UP_S):
            spark = delta_session(asked.cores, _MEMORY, settings)
            commits = _run(spark, servers, Path(scratch), ends_s)
        require_rows(Path(scratch, "bronze"), commits[-1][0])
        found = latencies(servers, commits)
        print_result(
            {
                "program": "structured-streaming-kafka-freshness",
                "p50_s": percentile(found, 0.5),
                "p99_s": percentile(found, 0.99),
                "commits": len(commits),
                "records": len(found),
            }
        )
        spark.stop()


def _run(spark: SparkSession, servers: str, scratch: Path, ends_s: float) -> list[tuple[int, int]]:
    """Run the query up to that moment.

    Return up to which offset each Delta commit goes, and when the commit was in Delta's log, in ms.
    """
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record"), "partition", "offset")
        .select("record.*", "partition", "offset")
        .writeStream.format("delta")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .start(str(scratch / "bronze"))
    )
    query.awaitTermination(max(round(ends_s - time.monotonic()), 1))
    query.stop()
    offsets = scratch / "checkpoint" / "offsets"
    return sorted((_end(offsets / str(batch)), at) for batch, at in committed(scratch / "bronze").items())


def _end(planned: Path) -> int:
    """Return the offset at which a batch ends, from the last line of the query's own log."""
    return int(json.loads(planned.read_text().splitlines()[-1])[TOPIC]["0"])


def committed(table: Path) -> dict[int, int]:
    """Return when each batch was in Delta's log, in ms. This is the time of the log entry's file."""
    found = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "txn" in action:
                found[int(action["txn"]["version"])] = entry.stat().st_mtime_ns // 1_000_000
    return found


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
