"""Measures Spark's own writers: each micro-batch of a file goes by JDBC to PostgreSQL, or as JSON records to Kafka.

Both writers write at least once: if a batch is repeated, its rows are in the target twice. Two tasks write at a time.
JDBC sends many rows in one statement (`reWriteBatchedInserts`). The program compares what the server has with the
totals of the input, and prints the seconds and CPU seconds of each micro-batch.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.jdbc_jars import JDBC
from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.targets import KINDS, NAME, Target, serving
from bench.workload import SPLIT, require_totals
from jobs.spark.jars import KAFKA, delta_jars, fetch, jar_set, jars_folder, jars_of

_MEMORY: Final = "6g"
_ROWS_A_STATEMENT: Final = 10_000


def main() -> None:
    """Measure one query over the whole workload."""
    asked = _arguments()
    fetch(jars_folder(), JDBC)
    jars = ",".join(str(jar) for jar in (*delta_jars(), *jars_of(JDBC), *jars_of(jar_set(KAFKA))))
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, serving(asked.to, Path(scratch)) as target:
        spark = delta_session(asked.cores, _MEMORY, {"spark.jars": jars})
        cpu, started = [cpu_seconds(os.getpid())], time.monotonic()
        write = (_by_jdbc if asked.to == "postgres" else _to_kafka)(target)
        seconds = _run(spark, asked.folder / SPLIT, Path(scratch), asked.cores, write, cpu)
        total_s = time.monotonic() - started
        memory = peak_memory_bytes(os.getpid())
        require_totals(asked.folder, target.totals())
        print_result(
            {
                "program": f"spark-to-{asked.to}",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "total_s": total_s,
                "work_s": total_s,
                "peak_memory_bytes": memory,
            }
        )
        spark.stop()


def _run(
    spark: SparkSession,
    folder: Path,
    scratch: Path,
    cores: int,
    write: Callable[[DataFrame], None],
    cpu: list[float],
) -> list[float]:
    def batch(rows: DataFrame, number: int) -> None:
        del number
        write(rows.repartition(cores))
        cpu.append(cpu_seconds(os.getpid()))

    events = spark.readStream.schema("key long, value long, payload string").option("maxFilesPerTrigger", 1)
    query = (
        events.parquet(str(folder))
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


def _by_jdbc(target: Target) -> Callable[[DataFrame], None]:
    place = target.address.partition("@")[2]
    options = {
        "url": f"jdbc:postgresql://{place}?reWriteBatchedInserts=true",
        "user": "postgres",
        "driver": "org.postgresql.Driver",
        "dbtable": NAME,
        "batchsize": str(_ROWS_A_STATEMENT),
    }
    return lambda rows: rows.write.format("jdbc").options(**options).mode("append").save()


def _to_kafka(target: Target) -> Callable[[DataFrame], None]:
    options = {"kafka.bootstrap.servers": target.address, "topic": NAME}

    def write(rows: DataFrame) -> None:
        columns = [F.col(name) for name in rows.columns]
        records = rows.select(F.col("key").cast("string").alias("key"), F.to_json(F.struct(*columns)).alias("value"))
        records.write.format("kafka").options(**options).save()

    return write


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", choices=KINDS, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
