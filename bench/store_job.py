"""A job with the tables and states of the flights, and an S3 server that takes 30 ms for each request.

The job's micro-batches run in this process without Spark (`tiny_job`), because only its checkpoints and stores are
measured. The server (moto) and a proxy before it have processes of their own, so neither uses this process's time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql.types import LongType

from bench.tiny_job import ROWS
from jobs.planner import JobPlan, plan
from jobs.quality.expectation import Expectation
from jobs.sources.sequence import SequenceSource
from tests.object_store import serving
from tests.store_proxy import Proxy
from tidemark import CheckpointConfig, Pipeline, count, sum_of

LATENCY_MS: Final = 30
BUCKET: Final = "lake"


def job(epochs: int) -> JobPlan:
    """Return a job with this many epochs. It has nine tables, and three of them are states."""
    config = CheckpointConfig(every_rows=ROWS, rows_of=("flights",), slice_rows_max=ROWS, retained=3)
    pipeline = Pipeline("flights", config=config, parallelism=2)
    source = SequenceSource({"all": ROWS * epochs}, keys=ROWS)
    flights = (
        pipeline.source("flights", source)
        .table("bronze/flights", id="bronze_flights")
        .check_rows(
            Expectation("expect_column_values_to_not_be_null", {"column": "value"}), quarantine="quarantine/flights"
        )
    )
    weather = pipeline.source("weather", source, rows_per_epoch=ROWS).table("bronze/weather", id="bronze_weather")
    silver = (
        flights.key_by("key")
        .connect(weather.with_column("temp", "value", LongType()).key_by("key"))
        .enrich("silver_flights", "temp")
        .table("silver/flights")
    )
    silver.key_by("key").aggregate("delays_by_route", flights=count(), total=sum_of("value")).upsert(
        "gold/delays_by_route"
    )
    silver.key_by("n").aggregate("delays_by_wind", flights=count(), total=sum_of("value")).upsert("gold/delays_by_wind")
    return plan(pipeline)


@contextmanager
def slow_store(holding: Path | None = None) -> Iterator[Proxy]:
    """Yield the proxy before a server with a bucket. Both are stopped at the end, by their process ids.

    The bucket begins with the files of the folder `holding`/BUCKET, or empty.
    """
    with serving(holding=holding) as server, Proxy(server, latency_ms=LATENCY_MS) as slow:
        if holding is None:
            server.make_bucket(BUCKET)
        yield slow
