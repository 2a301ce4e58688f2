"""A job whose overwrite table shows the greatest number of each key. Each number is a version, and is read twice."""

from pathlib import Path

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import TableName, job_name
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.hybrid import SequenceSource
from jobs.storage.address import StoreUrl
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.faults.orders_job import KEYS, LocalEngine

JOB, TABLE = job_name("newest"), TableName("silver/newest")
CONFIG = CheckpointConfig(slice_rows_max=4, micro_batch_rows_max=8, retained=9)


def build(rows: int) -> JobPlan:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows, "b": rows}, keys=KEYS))
    numbers.overwrite(TABLE, version="n", partition_by=["key"], id="newest")
    return plan(pipeline)


def tick(root: Path | StoreUrl, rows: int, *, hold: bool = False) -> TickReport:
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(hold=hold))
    report = run_tick(build(rows), settings, engine=LocalEngine())
    assert report.outcome is not TickOutcome.FAILED, report.message
    return report


def at(root: Path | StoreUrl) -> Warehouse:
    return Warehouse(root, ProtocolPaths(JOB))


def expected(rows: int) -> list[tuple[int, int]]:
    last = {n % KEYS: n for n in range(rows)}
    return sorted((key, n) for key, n in last.items() for _ in range(2))


def shown(root: Path | StoreUrl) -> list[tuple[int, int]]:
    return sorted(Cuts(root, JOB).latest().polars(TABLE).collect().select("key", "n").rows())
