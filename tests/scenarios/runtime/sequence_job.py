"""A tiny pipeline over numbers, an engine that runs it without Spark, and functions for tests of its warehouse."""

import atexit
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import polars as pl
from deltalake import write_deltalake

from checkpointing.channel_items import RangeFiles, Segment, SourceSlice
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.config import CheckpointConfig
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.key_groups import key_group_ranges
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.paths import ProtocolPaths, table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import Source
from jobs.spark.session import SparkConfig
from jobs.storage.address import Root
from jobs.storage.place import place_in
from jobs.tick.at_rest.import_entry import ForeignRow, Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.tick.trace_files import DEFAULT_BOUNDS, TraceBounds
from jobs.warehouse.boundaries import KillAt
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.savepoint_copy import Copied, copy_savepoint
from jobs.warehouse.warehouse import Warehouse

ROWS = {"a": 150, "b": 150}
KEYS = 7
BRONZE = TableName("bronze/numbers")
GOLD = TableName("gold/by_key")
JOB = JobName("numbers")
ONE = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=3)
"""The configuration with one checkpoint, at the end."""
CONFIG = CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=2)


def build(
    rows: dict[str, int] | None = None, *, keys: int = KEYS, config: CheckpointConfig = CONFIG, bounded: bool = False
) -> JobPlan:
    return plan(declared(rows, keys=keys, config=config, bounded=bounded))


HISTORY = {"a": 150, "b": 110}
LIVE = {"live": 90}


def hybrid(live: dict[str, int] | None = None, *, bounded: bool = False) -> JobPlan:
    """Return the planned pipeline over two sources, one after the other. The second begins midway in an epoch."""
    history = SequenceSource(HISTORY, keys=KEYS, bounded=True)
    source = history.then(SequenceSource(live or LIVE, keys=KEYS, bounded=bounded))
    return plan(over(source, CONFIG.model_copy(update={"retained": 10})))


def as_pipeline(_data: Path) -> Pipeline:
    return declared()


def without_aggregate(_data: Path) -> Pipeline:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    return pipeline


def declared(
    rows: dict[str, int] | None = None, *, keys: int = KEYS, config: CheckpointConfig = CONFIG, bounded: bool = False
) -> Pipeline:
    """Return the pipeline: numbers to bronze, and their count and sum by key to gold, with two keyed subtasks."""
    return over(SequenceSource(rows or ROWS, keys=keys, bounded=bounded), config)


def over(source: Source, config: CheckpointConfig) -> Pipeline:
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", source).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return pipeline


class LocalEngine:
    """Runs the pipeline's two vertices in this process. It writes the same files as Spark's tasks."""

    def __init__(self, *, gate: Path | None = None) -> None:
        self._gate = gate

    def run(self, planned: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        while self._gate is not None and not self._gate.exists():
            time.sleep(0.01)
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        segments = [segment for entry in effect.inputs for segment in entry.segments]
        if not segments:  # the end of the input: sums and counts keep nothing back
            return MicroBatchFinished(effect.vertex, effect.micro_batch, _nothing(planned), duration_ms=1)
        rows = pl.concat([_rows(segment, warehouse) for segment in segments])
        match planned.spec:
            case StatelessSpec():
                file = writer.write(BRONZE, rows.to_arrow().cast(planned_schema(BRONZE)))
                outputs = (SubtaskOutput(emitted=(file,), staged=((BRONZE, file),)),)
            case KeyedSpec() as spec:
                ranges = key_group_ranges(parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
                outputs = tuple(
                    _aggregated(rows, effect, writer, index, (own.first, own.last), spec.max_parallelism, warehouse)
                    for index, own in enumerate(ranges)
                )
        return MicroBatchFinished(effect.vertex, effect.micro_batch, outputs, duration_ms=1)

    def close(self) -> None:
        """Do nothing, since nothing was opened."""


def _nothing(planned: VertexPlan) -> tuple[SubtaskOutput, ...]:
    subtasks = planned.spec.parallelism if isinstance(planned.spec, KeyedSpec) else 1
    return tuple(SubtaskOutput() for _ in range(subtasks))


_SCHEMAS = dict(build().table_schemas)


def planned_schema(table: TableName):
    return _SCHEMAS[table]


def _rows(segment: Segment, warehouse: Root) -> pl.DataFrame:
    if isinstance(segment, SourceSlice):
        n = pl.Series("n", range(*json.loads(segment.detail)), dtype=pl.Int64)
        key = (n % KEYS).alias("key")
        split = pl.lit(segment.split)
        return pl.DataFrame([n, key, n.alias("value"), n.alias("_position")]).select(
            split.alias("split"), "n", "key", "value", split.alias("_split"), "_position"
        )
    return pl.concat([_read(warehouse, file.path) for file in segment.files])


def _read(warehouse: Root, path: str) -> pl.DataFrame:
    return pl.read_parquet(place_in(warehouse, path).read())


def _aggregated(
    rows: pl.DataFrame,
    effect: RunMicroBatch,
    writer: StagedFiles,
    subtask: int,
    own: tuple[int, int],
    max_parallelism: int,
    warehouse: Root,
) -> SubtaskOutput:
    mine = rows.filter((pl.col("key") * 37 % max_parallelism).is_between(*own))
    if mine.is_empty():
        return SubtaskOutput()
    new = mine.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum().alias("total"))
    live: Sequence[KeyedFile] = effect.state[subtask]
    old = [_read(warehouse, live[-1].file.path).select("key", "rows", "total")] if live else []
    merged = pl.concat([*old, new]).group_by("key").agg(pl.sum("rows"), pl.sum("total")).sort("key")
    state_table = table_of_state(JOB, VertexId("by_key"))
    stored = merged.select(
        (pl.col("key") * 37 % max_parallelism).cast(pl.Int32).alias("_key_group"),
        "key",
        "rows",
        "total",
        pl.lit(value=False).alias("_deleted"),
    )
    state = writer.write(state_table, stored.to_arrow().cast(planned_schema(state_table)))
    gold = writer.write(GOLD, merged.to_arrow().cast(planned_schema(GOLD)))
    version = Version(Generation(effect.generation), effect.micro_batch)
    return SubtaskOutput(
        state=(KeyedFile(state, KeyedFileKind.BASE, *own, version),),
        ranges=(RangeFiles(GOLD, (KeyedFile(gold, KeyedFileKind.BASE, *own, version),)),),
    )


def read_cut(root: Root) -> dict[str, list[tuple[object, ...]]]:
    from checkpointing.metadata.paths import ProtocolPaths

    cuts = CutStore(Warehouse(root, ProtocolPaths(JOB)))
    newest = max(cuts.recorded())
    versions = cuts.read(newest)
    tables = {}
    for table in (BRONZE, GOLD):
        rows = pl.read_delta(str(place_in(root, table)), version=versions[table])
        tables[str(table)] = sorted(rows.rows())
    return tables


def ticked(
    root: Root,
    *,
    plan: Callable[[], JobPlan] | None = None,
    gate: Path | None = None,
    on_spark: SparkConfig | None = None,
    trace_bytes: int | None = None,
    take_over: bool = False,
) -> TickReport:
    waits = trace_bytes is not None
    settings = RuntimeSettings(
        warehouse=root,
        take_over=take_over,
        spark=on_spark or SparkConfig(),
        limits=TickLimits(until_caught_up=not waits),
        trace=TraceBounds(bytes=trace_bytes) if waits else DEFAULT_BOUNDS,
    )
    return run_tick((plan or build)(), settings, engine=None if on_spark else LocalEngine(gate=gate))


_MADE: dict[Hashable, Path] = {}


def copied(root: Path, name: Hashable, make: Callable[[Path], object]) -> None:
    if name not in _MADE:
        made = Path(tempfile.mkdtemp(prefix="tidemark-prepared-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        make(made)
        for traces in made.glob("_tidemark/*/traces"):
            shutil.rmtree(traces)
        _MADE[name] = made
    shutil.copytree(_MADE[name], root, dirs_exist_ok=True)


def run(root: Path, checkpoints: int | None = None, **how: object) -> TickReport:
    limits = TickLimits(checkpoints=checkpoints)
    planned = how.pop("plan", None) or build()
    return run_tick(planned, RuntimeSettings(warehouse=root, limits=limits, **how), engine=LocalEngine())


def contents(root):
    return {str(table): sorted(pl.read_delta(str(root / table)).rows()) for table in (BRONZE, GOLD)}


def at(root: Path) -> Warehouse:
    return Warehouse(root, ProtocolPaths(JOB))


def records(root: Path) -> dict[int, CheckpointRecord]:
    _, rows = CheckpointStore(at(root)).observe()
    return {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}


def wanted(text: str, root: Path, **how: object) -> Import:
    origin = find_origin(text, root, JOB)
    assert isinstance(origin, ForeignRow)
    return Import(origin=origin, root=root, plan=how.pop("plan", None) or build(), **how)


def dies_copying(root: Root, checkpoint: int, to: Root, after: int) -> None:
    def die(copied: Copied) -> None:
        if copied.files == after:
            os.kill(os.getpid(), signal.SIGKILL)

    copy_savepoint(at(root), CheckpointId(checkpoint), to, die)


def dies_importing(text: str, into: Path, boundary: str, *, claim: bool = False) -> None:
    import_row(wanted(text, into, claim=claim), boundary=KillAt(boundary))


KEEPS_ALL = build(config=CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=9))
STATE = f"_tidemark/{JOB}/state/by_key"


def tick(root: Path, checkpoints: int | None = None, *, plan: JobPlan = KEEPS_ALL) -> TickReport:
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(checkpoints=checkpoints))
    return run_tick(plan, settings, engine=LocalEngine())


def ticks(root: Path, times: int, *, plan: JobPlan = KEEPS_ALL) -> list[int]:
    for _ in range(times):
        tick(root, 1, plan=plan)
    return sorted(records(root))


def laid_out(root: Path, checkpoints: int) -> list[int]:
    copied(root, (JOB, checkpoints), lambda made: ticks(made, checkpoints))
    return sorted(records(root))


def newest(root: Path) -> CheckpointRecord:
    found = newest_checkpoint(tuple(records(root).values()))
    assert found is not None
    return found


def at_cut(root: Path, checkpoint: int) -> dict[str, list[tuple[object, ...]]]:
    versions = CutStore(at(root)).read(CheckpointId(checkpoint)) or {}
    tables = (BRONZE, GOLD)
    return {str(each): sorted(pl.read_delta(str(root / each), version=versions[each]).rows()) for each in tables}


def append_foreign(root: Root, n: int) -> None:
    row = {"split": ["x"], "n": [n], "key": [1], "value": [1], "_split": ["x"], "_position": [n]}
    write_deltalake(str(place_in(root, BRONZE)), pl.DataFrame(row).to_arrow(), mode="append")


def dies_going_back(root: Path, checkpoint: int, boundary: str) -> None:
    roll_back(at(root), checkpoint, boundary=KillAt(boundary))
