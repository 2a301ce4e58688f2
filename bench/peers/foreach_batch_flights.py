"""Measures bronze, silver and gold of the flights in one foreachBatch, as a careful engineer writes it today.

It has two appends and a MERGE, each exactly once by `txnAppId`, with one file for each micro-batch. It prints the
seconds and CPU seconds of each micro-batch. Before it prints, it checks the three tables.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.pandas.types import from_arrow_schema

from bench.flights import Tables, require_tables
from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.workload import SPLIT
from jobs.pipelines.flights_data import FLIGHTS_SCHEMA

_TRANSACTION: Final = "spark.databricks.delta.write.txn"
_MERGE: Final = """
merge into delta.`{gold}` t using changes u on t.carrier = u.carrier and t.dest = u.dest
when matched then update set flights = t.flights + u.flights, delay = t.delay + u.delay
when not matched then insert *
"""


def main() -> None:
    """Measure one query over all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        spark = delta_session(asked.cores, "6g", {})
        cpu, started = [cpu_seconds(os.getpid())], time.monotonic()
        seconds = _run(spark, asked.folder / SPLIT, Path(scratch), cpu)
        total_s = time.monotonic() - started
        require_tables(asked.folder, _shown(Path(scratch)))
        print_result(
            {
                "program": "foreach-batch-flights",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "total_s": total_s,
                "total_cpu_s": cpu_seconds(os.getpid()),
                "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            }
        )
        spark.stop()


def _run(spark: SparkSession, folder: Path, scratch: Path, cpu: list[float]) -> list[float]:
    gold_columns = "carrier string, dest string, flights long, delay long"
    spark.createDataFrame([], gold_columns).write.format("delta").save(str(scratch / "gold"))

    def write(flights: DataFrame, batch: int) -> None:
        once = {"txnAppId": "peer", "txnVersion": str(batch)}
        flights.persist()
        flights.write.format("delta").mode("append").options(**once).save(str(scratch / "bronze"))
        silver = flights.where("arr_delay is not null")
        silver.write.format("delta").mode("append").options(**once).save(str(scratch / "silver"))
        _merge(silver, batch, scratch / "gold")
        flights.unpersist()
        cpu.append(cpu_seconds(os.getpid()))

    query = (
        spark.readStream.schema(from_arrow_schema(FLIGHTS_SCHEMA))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


def _merge(silver: DataFrame, batch: int, gold: Path) -> None:
    spark = silver.sparkSession
    changes = silver.groupBy("carrier", "dest").agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))
    changes.createOrReplaceTempView("changes")
    spark.conf.set(f"{_TRANSACTION}AppId", "peer")
    spark.conf.set(f"{_TRANSACTION}Version", str(batch))
    spark.sql(_MERGE.format(gold=gold))
    spark.conf.unset(f"{_TRANSACTION}AppId")
    spark.conf.unset(f"{_TRANSACTION}Version")


def _shown(scratch: Path) -> Tables:
    bronze, silver = (DeltaTable(str(scratch / name)).count() for name in ("bronze", "silver"))
    gold = pl.read_delta(str(scratch / "gold"))
    return Tables(bronze, silver, gold.height, int(gold["flights"].sum()), int(gold["delay"].sum()))


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
