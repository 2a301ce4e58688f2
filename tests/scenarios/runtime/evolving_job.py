"""A job whose tables change their columns between ticks, without Spark."""

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import CheckpointId, TableName, VertexId, job_name
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths, table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline import AggregateColumn, Pipeline, count, max_of, sum_of
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import Boundary
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.faults.orders_job import KEYS, LocalEngine
from tests.scenarios.runtime.sequence_job import copied

JOB = job_name("evolving")
BRONZE, GOLD = TableName("bronze/numbers"), TableName("gold/sums")
STATE = table_of_state(JOB, VertexId("sums"))
TABLES = (BRONZE, GOLD, STATE)
CONFIG = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=9)


@dataclass(frozen=True)
class Version:
    """One version of the pipeline: the aggregates in gold, whether bronze has the column `value`, and names."""

    sums: dict[str, AggregateColumn] = field(default_factory=lambda: {"n": count()})
    values: bool = False
    bronze: str = BRONZE
    gold: str = GOLD
    operator: str = "sums"
    source: str = "numbers"
    bronze_id: str = "bronze"
    was: dict[str, str] = field(default_factory=dict)
    """The renames that this version declares: the earlier names of these fields."""


FIRST = Version()
SECOND = Version({"n": count(), "top": max_of("value")}, values=True)
THIRD = Version({"n": count(), "total": sum_of("value")}, values=True)
RENAMED = Version(
    operator="per_key",
    gold="gold/per_key",
    bronze="bronze/all",
    source="counted",
    bronze_id="kept",
    was={"operator": "sums", "gold": GOLD, "bronze": BRONZE, "source": "numbers", "bronze_id": "bronze"},
)
COUNTED = Version({"rows": count(renamed_from="n"), "most": max_of("value", renamed_from="top")}, values=True)
"""The second version with other names for gold's columns."""

VERSIONS = {"first": FIRST, "second": SECOND, "third": THIRD, "renamed": RENAMED, "counted": COUNTED}


def build(rows: int, version: Version = FIRST) -> JobPlan:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    was = version.was.get
    source = pipeline.source(version.source, SequenceSource({"a": rows}, keys=KEYS), renamed_from=was("source"))
    numbers = source.drop(SPLIT_COLUMN, POSITION_COLUMN)
    kept = (numbers if version.values else numbers.drop("value")).table(
        version.bronze, id=version.bronze_id, renamed_from=was("bronze"), id_renamed_from=was("bronze_id")
    )
    kept.key_by("key").aggregate(version.operator, renamed_from=was("operator"), **version.sums).upsert(
        version.gold, renamed_from=was("gold")
    )
    return plan(pipeline)


def tick(
    root: Path,
    rows: int,
    version: Version = FIRST,
    *,
    listener: TickListener | None = None,
    boundary: Boundary | None = None,
    allowed: bool = False,
) -> TickReport:
    return run(root, build(rows, version), listener=listener, boundary=boundary, allowed=allowed)


def tick_named(root: Path, rows: int, name: str) -> TickReport:
    return tick(root, rows, VERSIONS[name])


def laid_out(root: Path, rows: int, version: Version = FIRST) -> None:
    copied(root, (JOB, rows, repr(version)), lambda made: tick(made, rows, version))


def run(
    root: Path,
    job: JobPlan,
    *,
    listener: TickListener | None = None,
    boundary: Boundary | None = None,
    allowed: bool = False,
) -> TickReport:
    settings = RuntimeSettings(warehouse=root, allow_non_restored_state=allowed)
    report = run_tick(job, settings, listener, engine=LocalEngine(), boundary=boundary)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message), report.message
    return report


class Notes(TickListener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def completed(self, record, notes, versions):
        self.notes.extend(notes)


def at(root: Path) -> Warehouse:
    return Warehouse(root, ProtocolPaths(JOB))


def newest(root: Path) -> CheckpointRecord:
    found = newest_checkpoint(CheckpointStore(at(root)).observe()[1])
    assert found is not None
    return found


def versions(root: Path) -> dict[str, int]:
    return {table: DeltaTable(str(root / table)).version() for table in TABLES}


def columns(root: Path, table: TableName, version: int | None = None) -> list[str]:
    return [field.name for field in DeltaTable(str(root / table), version=version).schema().fields]


def shown(root: Path, table: TableName, version: int | None = None) -> list[tuple[object, ...]]:
    frame = pl.read_delta(str(root / table), version=version)
    return sorted(frame.select(sorted(frame.columns)).rows(), key=repr)


def at_cut(root: Path, checkpoint: int) -> dict[str, tuple[list[str], list[tuple[object, ...]]]]:
    cut = CutStore(at(root)).read(CheckpointId(checkpoint)) or {}
    return {table: (sorted(columns(root, table, cut[table])), shown(root, table, cut[table])) for table in TABLES}


def now(root: Path) -> dict[str, tuple[list[str], list[tuple[object, ...]]]]:
    return {table: (sorted(columns(root, table)), shown(root, table)) for table in TABLES}
