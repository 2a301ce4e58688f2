"""A job that keeps numbers in an append table, whose columns change between ticks."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import IntegerType, LongType

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import CheckpointId, TableName, job_name
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.storage.address import StoreUrl
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import Boundary
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.faults.orders_job import KEYS, LocalEngine
from tests.scenarios.runtime.sequence_job import copied

JOB, TABLE = job_name("kept"), TableName("bronze/kept")
CONFIG = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=9)


@dataclass(frozen=True)
class Version:
    """One version of the pipeline: the table's columns, and what it declares about earlier columns."""

    columns: tuple[str, ...] = ("n", "key", "value")
    renamed_from: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    reorder: bool = False
    by: tuple[str, ...] = ()
    narrow: bool = False
    """Whether the column `value` is an int, and not a bigint."""


FIRST = Version()
RENAMED = Version(("n", "key", "amount"), {"amount": "value"})
AGAIN = Version(("n", "key", "sum"), {"sum": "amount"})
BACK = Version(renamed_from={"value": "amount"})
DROPPED = Version(("n", "key"), drop=("value",))
REORDERED = Version(("value", "n", "key"), reorder=True)
NARROW = Version(narrow=True)
BY_KEY = Version(by=("key",))
BY_KEY_RENAMED = Version(("n", "key", "amount"), {"amount": "value"}, by=("key",))
VERSIONS = {"first": FIRST, "renamed": RENAMED, "dropped": DROPPED, "by_key_renamed": BY_KEY_RENAMED}


def build(rows: int, version: Version = FIRST, table: str = TABLE, was: str | None = None) -> JobPlan:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=1)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).drop(SPLIT_COLUMN, POSITION_COLUMN)
    for name in ("amount", "sum"):
        numbers = numbers.with_column(name, "value", LongType())
    if version.narrow:
        numbers = numbers.with_column("value", "value", IntegerType())
    kept = numbers.select(*version.columns).table(table, id="kept", partition_by=version.by, renamed_from=was)
    kept.change_columns(renamed_from=version.renamed_from, drop=version.drop, reorder=version.reorder)
    return plan(pipeline)


def run(
    root: Path | StoreUrl, job: JobPlan, listener: TickListener | None = None, boundary: Boundary | None = None
) -> TickReport:
    settings = RuntimeSettings(warehouse=root)
    report = run_tick(job, settings, listener, engine=LocalEngine(), boundary=boundary)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message), report.message
    return report


def tick(
    root: Path | StoreUrl,
    rows: int,
    version: Version = FIRST,
    listener: TickListener | None = None,
    boundary: Boundary | None = None,
) -> TickReport:
    return run(root, build(rows, version), listener, boundary)


def laid_out(root: Path, rows: int, version: Version = FIRST) -> None:
    copied(root, (JOB, rows, repr(version)), lambda made: tick(made, rows, version))


def at(root: Path | StoreUrl) -> Warehouse:
    return Warehouse(root, ProtocolPaths(JOB))


def newest(root: Path | StoreUrl) -> CheckpointRecord:
    found = newest_checkpoint(CheckpointStore(at(root)).observe()[1])
    assert found is not None
    return found


def columns(root: Path, version: int | None = None) -> list[str]:
    return [field.name for field in DeltaTable(str(root / TABLE), version=version).schema().fields]


def shown(root: Path, *names: str, version: int | None = None) -> list[tuple[object, ...]]:
    return pl.read_delta(str(root / TABLE), version=version).select(names).sort("n").rows()


def numbers(rows: Iterable[int]) -> list[tuple[int, int]]:
    return [(n, n) for n in rows]


def version_at(root: Path, checkpoint: int) -> int:
    return (CutStore(at(root)).read(CheckpointId(checkpoint)) or {})[TABLE]


def foreign(root: Path, *ns: int, name: str | None = "value") -> None:
    values = pa.array(ns, pa.int64())
    rows = {"n": values, "key": pa.array([n % KEYS for n in ns], pa.int64())} | ({name: values} if name else {})
    write_deltalake(str(root / TABLE), pa.table(rows), mode="append")
