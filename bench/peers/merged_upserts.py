"""Measures upserts of a large table by a MERGE in foreachBatch, as Delta's documentation shows it.

The table is written once with every key, in files of about the size that OPTIMIZE makes. Then each micro-batch has the
rows of one file. The program checks the table, and prints the seconds and CPU seconds of each micro-batch.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.upsert_workload import arguments, files_of, lay_out_upserts, require_sums

_COLUMNS: Final = "key long, value long, payload string"
_MERGE: Final = """
merge into delta.`{table}` t using changes u on t.key = u.key
when matched then update set n = t.n + u.n, total = t.total + u.total
when not matched then insert *
"""
_DELETION_VECTORS: Final = "delta.enableDeletionVectors"


def main() -> None:
    """Measure one query over all files with changes."""
    asked = arguments(__doc__)
    every, some = lay_out_upserts(asked.keys, asked.which, asked.data)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        scratch = Path(folder).resolve()
        spark = delta_session(asked.cores, "6g", {})
        _seed(spark, every, scratch / "sums")
        cpu = [cpu_seconds(os.getpid())]
        seconds = _run(spark, some, scratch, cpu)
        memory = peak_memory_bytes(os.getpid())
        require_sums(scratch / "sums", every, some)
        print_result(
            {
                "program": f"merged-upserts-{asked.keys}-{asked.which}",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "peak_memory_bytes": memory,
            }
        )
        spark.stop()


def _seed(spark: SparkSession, every: Path, table: Path) -> None:
    """Write the table with deletion vectors, which new tables of recent releases have."""
    rows = spark.read.parquet(*(str(file) for file in files_of(every)))
    first = rows.select("key", F.lit(1).cast("long").alias("n"), F.col("value").alias("total"))
    ordered = first.repartitionByRange(8, "key").sortWithinPartitions("key")
    ordered.write.format("delta").option(_DELETION_VECTORS, "true").save(str(table))


def _run(spark: SparkSession, some: Path, scratch: Path, cpu: list[float]) -> list[float]:
    def write(rows: DataFrame, batch: int) -> None:
        del batch
        changes = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        changes.createOrReplaceTempView("changes")
        rows.sparkSession.sql(_MERGE.format(table=scratch / "sums"))
        cpu.append(cpu_seconds(os.getpid()))

    landing = scratch / "in"
    landing.mkdir()
    for file in files_of(some):
        shutil.copyfile(file, landing / file.name)
    query = (
        spark.readStream.schema(_COLUMNS)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(landing))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
