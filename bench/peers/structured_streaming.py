"""Measures keyed sums, or work in event time, in Structured Streaming: a file for each micro-batch, appended to Delta.

The writes are exactly once by Delta's `txnAppId`. RocksDB runs with its changelog. The program compares the table with
the totals of the input, and prints the seconds and CPU seconds of each micro-batch.
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
from bench.timed_workload import DELAY, GAP, REACH, REQUIRED, WITHIN
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
        query = _timed(spark, asked.folder, asked.work) if asked.work else _sums(spark, asked.folder / SPLIT)
        seconds = _run(query, "append" if asked.work else "update", Path(scratch), cpu)
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        if asked.work:
            REQUIRED[asked.work](asked.folder, Path(scratch, "sink"))
        else:
            require_totals(asked.folder, totals_shown(Path(scratch, "sink")))
        print_result(
            {
                "program": f"structured-streaming-{asked.provider}{f'-{asked.work}' if asked.work else ''}",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "total_s": total_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": memory,
            }
        )
        spark.stop()


def _sums(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the count and sum of each key."""
    events = spark.readStream.schema("key long, value long, payload string").option("maxFilesPerTrigger", 1)
    rows = events.parquet(str(folder))
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def _timed(spark: SparkSession, folder: Path, work: str) -> DataFrame:
    """Return the rows of a kind of work in event time."""
    if work == "joined":
        return _pairs(spark, folder)
    rows = _stream(spark, folder, WITHIN if work == "doubles" else DELAY)
    if work == "doubles":
        return rows.dropDuplicatesWithinWatermark(["id"])
    window = F.window("at", "1 hour") if work == "hourly" else F.session_window("at", GAP)
    sums = rows.groupBy("key", window.alias("w")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    return sums.select("key", F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), "n", "total")


def _pairs(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the pairs of rows of the two streams with the same key, at most `REACH` apart."""
    left = _stream(spark, folder / "left", DELAY).select("key", "value", "at")
    right = _stream(spark, folder / "right", DELAY).select(
        F.col("key").alias("r_key"), F.col("value").alias("r_value"), F.col("at").alias("r_at")
    )
    near = F.expr(f"key = r_key and r_at between at - interval {REACH} and at + interval {REACH}")
    return left.join(right, near).drop("r_key")


def _stream(spark: SparkSession, folder: Path, delay: str) -> DataFrame:
    rows = spark.readStream.schema("key long, value long, at timestamp, id long").option("maxFilesPerTrigger", 1)
    return rows.parquet(str(folder / SPLIT)).withWatermark("at", delay)


def _run(sums: DataFrame, mode: str, scratch: Path, cpu: list[float]) -> list[float]:
    """Run the query to its end. Return the time of each of its triggers. Note the CPU time after each write."""

    def write(changed: DataFrame, batch: int) -> None:
        once = {"txnAppId": "peer", "txnVersion": str(batch)}
        changed.write.format("delta").mode("append").options(**once).save(str(scratch / "sink"))
        cpu.append(cpu_seconds(os.getpid()))

    query = (
        sums.writeStream.outputMode(mode)
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
    parser.add_argument("--work", choices=sorted(REQUIRED))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
