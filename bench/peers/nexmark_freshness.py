"""Measures how fresh Nexmark's q1 is in Structured Streaming while bids come, with a micro-batch every 200 ms.

`python -m bench.peers.nexmark_freshness` starts a broker and a writer (`bench.nexmark.live`), and runs one query into a
Delta table. Structured Streaming cannot run q5, q7 and q9 (`bench.peers.nexmark_streaming`). The program prints p50 and
p99, in seconds, of the time from a bid's writing to its Delta commit.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.measures import print_result
from bench.nexmark.live import EVERY_MS, WARM_UP_S, Commit, figures, lay_out_seconds, writing
from bench.nexmark.queries import BIDS
from bench.peers.delta_session import delta_session
from bench.peers.kafka_freshness import committed
from jobs.spark.jars import KAFKA, delta_jars, jar_set, jars_of

_MANY = "100000"


def main() -> None:
    """Measure one query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    jars = ",".join(str(jar) for jar in (*delta_jars(), *jars_of(jar_set(KAFKA))))
    settings = {"spark.jars": jars, "spark.sql.streaming.minBatchesToRetain": _MANY}
    seconds = asked.seconds + WARM_UP_S
    events = lay_out_seconds(seconds, asked.data)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, writing(events, Path(scratch)) as servers:
        ends_s = time.monotonic() + seconds
        spark = delta_session(asked.cores, "2g", settings)
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", "bid")
            .option("startingOffsets", "earliest")
            .load()
        )
        bids = records.select(F.from_json(F.col("value").cast("string"), BIDS).alias("bid")).select("bid.*")
        euros = F.expr("CAST(0.908 * price AS DECIMAL(23, 3))").alias("price")
        query = (
            bids.select("auction", "bidder", euros, "dateTime", "extra")
            .writeStream.format("delta")
            .option("checkpointLocation", str(Path(scratch, "checkpoint")))
            .trigger(processingTime=f"{EVERY_MS} milliseconds")
            .start(str(Path(scratch, "table")))
        )
        query.awaitTermination(max(round(ends_s - time.monotonic()), 1))
        query.stop()
        commits = _commits(Path(scratch))
        print_result(figures("structured-streaming-nexmark-freshness-q1", servers, commits))
        spark.stop()


def _commits(scratch: Path) -> list[Commit]:
    """Return up to which offsets each batch goes, by the query's own log, and when the batch was in Delta's log."""
    planned = scratch / "checkpoint" / "offsets"
    return [
        Commit({int(place): at for place, at in ends["bid"].items()}, at_ms)
        for batch, at_ms in sorted(committed(scratch / "table").items())
        for ends in [json.loads((planned / str(batch)).read_text().splitlines()[-1])]
    ]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
