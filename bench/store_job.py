"""A job with the tables and states of the flights, and an S3 server that takes 30 ms for each request.

The job's micro-batches run in this process without Spark (`tiny_job`), because only its checkpoints and stores are
measured. The server and a proxy in front of it run in processes of their own, so they use no time of this process.

If versitygw is installed, it is the server. It stores objects as files, and answers requests in parallel, as every real
store does. Otherwise the server is moto, which answers one request after the other.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql.types import LongType

from bench.tiny_job import ROWS
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.sources.hybrid import SequenceSource
from tests.local_server import free_port
from tests.object_store import KEY, SECRET, Server, serving
from tests.store_proxy import Proxy
from tidemark import CheckpointConfig, Pipeline, count, sum_of

LATENCY_MS: Final = 30
BUCKET: Final = "lake"
_VERSITYGW: Final = "versitygw"
_START_S: Final = 30
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it


def job(epochs: int) -> JobPlan:
    """Return a job with this many epochs. It has nine tables, of which three are state tables."""
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


def server_name() -> str:
    """Return the name of the server that `slow_store` starts."""
    return "moto" if shutil.which(_VERSITYGW) is None else _VERSITYGW


def scratch_folder() -> Path | None:
    """Return a folder that lies in memory, where the sync of a file costs nothing. Return None for the usual place."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


@contextmanager
def slow_store(holding: Path | None = None) -> Iterator[Proxy]:
    """Yield the proxy in front of a server with a bucket. Both are stopped at the end, by their process ids.

    At first, the bucket has the files of the folder `holding`/BUCKET, or is empty.
    """
    start = serving if server_name() == "moto" else _versitygw
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as empty:
        Path(empty, BUCKET).mkdir()
        with start(holding=holding or Path(empty)) as server, Proxy(server, latency_ms=LATENCY_MS) as slow:
            yield slow


@contextmanager
def _versitygw(*, holding: Path) -> Iterator[Server]:
    """Run versitygw on a folder, which holds the objects."""
    port = free_port()
    process = subprocess.Popen(  # noqa: S603 - a program that somebody has installed
        [_VERSITYGW, "--port", f"127.0.0.1:{port}", "posix", str(holding)],
        env=os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield Server(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
