"""A job whose overwrite table shows the newest ten numbers of each key: each ten numbers are a version."""

from pathlib import Path

from pyspark.sql.types import LongType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import TableName, job_name
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.pipeline import Pipeline
from jobs.planner import JobPlan, plan
from jobs.reading import Cuts
from jobs.runtime.report import TickReport
from jobs.runtime.settings import RuntimeSettings
from jobs.runtime.tick import run_tick
from jobs.sources.sequence import SequenceSource
from jobs.storage.address import StoreUrl
from jobs.stores.warehouse import Warehouse
from tests.scenarios.faults.orders_job import LocalEngine

JOB, TABLE = job_name("newest"), TableName("silver/newest")
KEYS = 3
CONFIG = CheckpointConfig(slice_rows_max=4, micro_batch_rows_max=8, every_rows=16, retained=9)


def build(rows: int) -> JobPlan:
    """Return the planned job over so many numbers."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS))
    ten = numbers.with_column("ten", "cast(floor(n / 10) AS bigint)", LongType()).select("n", "key", "ten")
    ten.overwrite(TABLE, version="ten", partition_by=["key"], id="newest")
    return plan(pipeline)


def tick(root: Path | StoreUrl, rows: int, *, hold: bool = False) -> TickReport:
    """Run one tick, by the tasks that Spark would run."""
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(hold=hold))
    return run_tick(build(rows), settings, engine=LocalEngine())


def at(root: Path | StoreUrl) -> Warehouse:
    """Return the job's warehouse in that folder."""
    return Warehouse(root, ProtocolPaths(JOB))


def expected(rows: int) -> list[tuple[int, int]]:
    """Return what the table shows after so many numbers: of each key, the numbers of its last ten."""
    numbers = [(n % KEYS, n) for n in range(rows)]
    last = {key: max(n // 10 for each, n in numbers if each == key) for key in {key for key, _ in numbers}}
    return sorted((key, n) for key, n in numbers if n // 10 == last[key])


def shown(root: Path | StoreUrl) -> list[tuple[int, int]]:
    """Return what the newest cut shows."""
    return sorted(Cuts(root, JOB).latest().polars(TABLE).collect().select("key", "n").rows())
