"""Measures a foreachBatch that appends changes to bronze, and merges them into a history and an aggregate.

The query reads the changes of P23 from files, so it needs no PostgreSQL server. Every account already exists. So each
account's first change in a batch ends a version, and the query need not look that up in the table. The program checks
the tables, and prints the seconds and CPU seconds of each micro-batch.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.history_workload import arguments, lay_out_changes, require_history
from bench.measures import differences, print_result
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes
from bench.workload import SPLIT

_COLUMNS: Final = "n long, aid int, bid int, balance long"
_VERSIONS: Final = """
select aid, bid, balance, n valid_from, lead(n) over w valid_to, lead(n) over w is null current,
       row_number() over w place from changes window w as (partition by aid order by n)
"""
_STAGED: Final = """
select aid ends, * from versions where place = 1 union all select cast(null as int) ends, * from versions
"""
_HISTORY: Final = """
merge into delta.`{history}` t using staged s on t.aid = s.ends and t.current
when matched then update set valid_to = s.valid_from, current = false
when not matched then insert (aid, bid, balance, valid_from, valid_to, current)
  values (s.aid, s.bid, s.balance, s.valid_from, s.valid_to, s.current)
"""
_TOTALS: Final = """
merge into delta.`{totals}` t using (select bid, count(*) versions, sum(balance) balances from changes group by bid) s
on t.bid = s.bid
when matched then update set versions = t.versions + s.versions, balances = t.balances + s.balances
when not matched then insert *
"""


def main() -> None:
    """Measure one query over all files."""
    asked = arguments(__doc__)
    folder = lay_out_changes(asked.changes, asked.data)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        root = Path(scratch).resolve()
        spark = delta_session(2, "6g", {})
        _seed(spark, folder, root)
        cpu = [cpu_seconds(os.getpid())]
        seconds = _run(spark, folder / SPLIT, root, cpu)
        memory = peak_memory_bytes(os.getpid())
        history, totals = (
            pl.from_arrow(spark.read.format("delta").load(str(root / name)).toArrow()) for name in ("history", "totals")
        )
        require_history(history, totals, asked.changes)
        print_result(
            {
                "program": "merged-history",
                "seconds": seconds,
                "cpu_seconds": differences(cpu),
                "peak_memory_bytes": memory,
            }
        )
        spark.stop()


def _seed(spark: SparkSession, folder: Path, root: Path) -> None:
    """Write the accounts to the history, with deletion vectors, and make the totals."""
    first = spark.read.parquet(str(folder / "accounts.parquet"))
    versions = first.selectExpr("aid", "bid", "balance", "n valid_from", "cast(null as long) valid_to", "true current")
    versions.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(root / "history"))
    totals = first.groupBy("bid").agg(F.count("*").alias("versions"), F.sum("balance").alias("balances"))
    totals.write.format("delta").save(str(root / "totals"))


def _run(spark: SparkSession, files: Path, root: Path, cpu: list[float]) -> list[float]:
    def write(rows: DataFrame, batch: int) -> None:
        once = {"txnAppId": "peer", "txnVersion": str(batch)}
        rows.persist()
        rows.write.format("delta").mode("append").options(**once).save(str(root / "bronze"))
        rows.createOrReplaceTempView("changes")
        own = rows.sparkSession
        own.sql(_VERSIONS).createOrReplaceTempView("versions")
        own.sql(_STAGED).createOrReplaceTempView("staged")
        own.sql(_HISTORY.format(history=root / "history"))
        own.sql(_TOTALS.format(totals=root / "totals"))
        rows.unpersist()
        cpu.append(cpu_seconds(os.getpid()))

    query = (
        spark.readStream.schema(_COLUMNS)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(files))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
