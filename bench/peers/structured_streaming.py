"""Measures the keyed sums in Structured Streaming: one file for each micro-batch, changed keys appended to Delta.

It is exactly once by Delta's `txnAppId`. With RocksDB, its changelog is on. It compares the table with the totals of
the input, and prints the seconds and CPU seconds of each micro-batch.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.changed_keys import totals_shown
from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.workload import SPLIT, require_totals

_ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_MEMORY: Final = "6g"


def main() -> None:
    """Measure one query over the whole workload."""
    asked = _arguments()
    settings = _ROCKSDB if asked.provider == "rocksdb" else {}
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        spark = delta_session(asked.cores, _MEMORY, settings)
        cpu, started = [cpu_seconds(os.getpid())], time.monotonic()
        seconds = _run(spark, asked.folder / SPLIT, Path(scratch), cpu)
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        require_totals(asked.folder, totals_shown(Path(scratch, "sink")))
        print_result(
            {
                "program": f"structured-streaming-{asked.provider}",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "total_s": total_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": memory,
            }
        )
        spark.stop()


def _run(spark: SparkSession, folder: Path, scratch: Path, cpu: list[float]) -> list[float]:
    """Run the query to its end. Return the time of each of its triggers. Note the CPU time after each write."""
    events = (
        spark.readStream.schema("key long, value long, payload string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
    )
    sums = events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    def write(changed: DataFrame, batch: int) -> None:
        once = {"txnAppId": "peer", "txnVersion": str(batch)}
        changed.write.format("delta").mode("append").options(**once).save(str(scratch / "sink"))
        cpu.append(cpu_seconds(os.getpid()))

    query = (
        sums.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--provider", choices=["rocksdb", "hdfs"], default="rocksdb")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
