"""Measures a query of Nexmark in Structured Streaming: state in RocksDB, its changelog on, tables in Delta.

`QUERIES` has the queries that Structured Streaming can write into a table without further code. A query whose rows
change would need a foreachBatch with a MERGE, which is the user's program and not Structured Streaming's answer. So q4,
q9, q15 to q19 are not here. Nor are q5, q7 and q12: Structured Streaming has no join of a window with its own maximum,
and cannot append windows in processing time. The program first runs the query over the first files, so that Spark has
started.
"""

# ruff: noqa: S608 - the texts come from here

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from bench.measures import print_result
from bench.nexmark.answers import QUERIES as ANSWERS
from bench.nexmark.generate import first_files
from bench.nexmark.queries import AUCTIONS, BIDS, PERSONS, VALUES
from bench.peers.delta_session import delta_session
from bench.process_tree import cpu_seconds, peak_memory_bytes

_ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
_MEMORY: Final = "6g"
_SCHEMAS: Final = {"person": PERSONS, "auction": AUCTIONS, "bid": BIDS}
_CHANNEL: Final = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"


class Streams:
    """The streams of one query: some files of each kind in a micro-batch."""

    def __init__(self, spark: SparkSession, data: Path, files: int) -> None:
        """Read the files below `data`."""
        self.spark, self.data, self.files = spark, data, files

    def __getitem__(self, kind: str) -> DataFrame:
        """Return a stream, with its watermark."""
        read = self.spark.readStream.schema(_SCHEMAS[kind]).option("maxFilesPerTrigger", self.files)
        return read.parquet(str(self.data / kind)).withWatermark("dateTime", "4 seconds")

    def sql(self, query: str) -> DataFrame:
        """Return the rows of a query in Spark SQL over the streams."""
        for kind in _SCHEMAS:
            self[kind].createOrReplaceTempView(kind)
        values = self.spark.read.schema(VALUES).parquet(str(self.data / "value"))
        values.createOrReplaceTempView("side_input")
        return self.spark.sql(query)


def _q8(streams: Streams) -> DataFrame:
    window = F.window("dateTime", "10 seconds").alias("w")
    persons = streams["person"].select("id", "name", window)
    auctions = streams["auction"].select("seller", window).withColumnRenamed("w", "opened")
    joined = persons.join(auctions, F.expr("id = seller AND w = opened"), "leftsemi")
    return joined.select("id", "name", F.col("w.start").alias("starts"))


def _q11(streams: Streams) -> DataFrame:
    sessions = streams["bid"].groupBy("bidder", F.session_window("dateTime", "10 seconds").alias("w"))
    counts = sessions.agg(F.count("*").alias("bid_count"))
    return counts.select("bidder", "bid_count", F.col("w.start").alias("starts"), F.col("w.end").alias("ends"))


def _as_in_the_answer(name: str) -> Callable[[Streams], DataFrame]:
    return lambda streams: streams.sql(ANSWERS[name])


QUERIES: Final[Mapping[str, Callable[[Streams], DataFrame]]] = {
    **{name: _as_in_the_answer(name) for name in ("q0", "q1", "q2", "q3", "q20", "q22", "q23")},
    "q8": _q8,
    "q10": lambda streams: streams["bid"].selectExpr(
        *("auction", "bidder", "price", "dateTime", "extra"),
        *("date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm"),
    ),
    "q11": _q11,
    "q13": lambda streams: streams.sql(
        "SELECT auction, bidder, price, dateTime, value FROM bid JOIN side_input ON auction % 10000 = key"
    ),
    "q14": _as_in_the_answer("q14"),
    "q21": lambda streams: streams.sql(
        "SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' "
        f"WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_CHANNEL} END AS channel_id FROM bid "
        f"WHERE {_CHANNEL} <> '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"
    ),
}


def main() -> None:
    """Measure one query over the whole data."""
    asked = _arguments()
    spark = delta_session(asked.cores, _MEMORY, _ROCKSDB)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        scratch = Path(folder)
        _run(asked, Streams(spark, first_files(asked.folder), asked.files), scratch / "warm")
        cpu, started = cpu_seconds(os.getpid()), time.monotonic()
        rows = _run(asked, Streams(spark, asked.folder, asked.files), scratch / "whole")
        result = {
            "program": f"nexmark-streaming-{asked.query}",
            "total_s": time.monotonic() - started,
            "cpu_s": cpu_seconds(os.getpid()) - cpu,
            "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            "rows": rows,
        }
        spark.stop()
    print_result(result)


def _run(asked: argparse.Namespace, streams: Streams, to: Path) -> int:
    """Run the query to the end of its files. Return the number of rows in its table."""
    writer = QUERIES[asked.query](streams).writeStream.format("delta").outputMode("append")
    if asked.query == "q10":
        writer = writer.partitionBy("dt", "hm")
    started = writer.option("checkpointLocation", str(to / "checkpoint")).trigger(availableNow=True)
    started.start(str(to / "table")).awaitTermination()
    return streams.spark.read.format("delta").load(str(to / "table")).count()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--query", choices=sorted(QUERIES), required=True)
    parser.add_argument("--files", type=int, default=1, help="files of each kind in a micro-batch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
