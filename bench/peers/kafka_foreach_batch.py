"""Measures Structured Streaming from Kafka to a Delta table and a keyed sum: one foreachBatch, an append and a MERGE.

Both writes are exactly once by Delta's transaction ids. The program compares both tables with the input, and prints the
seconds and CPU seconds of each micro-batch.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.kafka_workload import SCHEMA, TOPIC, served
from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.upserted_sums import sums_shown
from bench.workload import require_totals
from jobs.spark.jars import KAFKA, delta_jars, jar_set, jars_of

_ROWS_A_BATCH: Final = 500_000
_MEMORY: Final = "6g"
_TRANSACTION: Final = "spark.databricks.delta.write.txn"
_MERGE: Final = """
merge into delta.`{gold}` t using changes u on t.key = u.key
when matched then update set n = t.n + u.n, total = t.total + u.total
when not matched then insert *
"""


def main() -> None:
    """Measure one query over the whole topic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    jars = ",".join(str(jar) for jar in (*delta_jars(), *jars_of(jar_set(KAFKA))))
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, served(asked.folder) as servers:
        broker_cpu = cpu_seconds(os.getpid())
        spark = delta_session(asked.cores, _MEMORY, {"spark.jars": jars})
        cpu, started = [cpu_seconds(os.getpid())], time.monotonic()
        seconds = _run(spark, servers, Path(scratch), cpu)
        total_s = time.monotonic() - started
        bronze, gold = Path(scratch, "bronze"), Path(scratch, "gold")
        require_totals(asked.folder, sums_shown(gold, DeltaTable(str(bronze)).count()))
        print_result(
            {
                "program": "kafka-foreach-batch",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "total_s": total_s,
                "work_s": total_s,
                "total_cpu_s": cpu_seconds(os.getpid()) - broker_cpu,
                "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            }
        )
        spark.stop()


def _run(spark: SparkSession, servers: str, scratch: Path, cpu: list[float]) -> list[float]:
    spark.createDataFrame([], "key long, n long, total long").write.format("delta").save(str(scratch / "gold"))

    def write(events: DataFrame, batch: int) -> None:
        once = {"txnAppId": "peer", "txnVersion": str(batch)}
        events.persist()
        events.write.format("delta").mode("append").options(**once).save(str(scratch / "bronze"))
        _merge(events, batch, scratch / "gold")
        events.unpersist()
        cpu.append(cpu_seconds(os.getpid()))

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", _ROWS_A_BATCH)
        .load()
    )
    parsed = F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")
    query = (
        records.select(parsed, "partition", "offset")
        .select("record.*", "partition", "offset")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


def _merge(events: DataFrame, batch: int, gold: Path) -> None:
    spark = events.sparkSession
    changes = events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    changes.createOrReplaceTempView("changes")
    spark.conf.set(f"{_TRANSACTION}AppId", "peer")
    spark.conf.set(f"{_TRANSACTION}Version", str(batch))
    spark.sql(_MERGE.format(gold=gold))
    spark.conf.unset(f"{_TRANSACTION}AppId")
    spark.conf.unset(f"{_TRANSACTION}Version")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
