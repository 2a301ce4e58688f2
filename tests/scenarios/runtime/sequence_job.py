"""A tiny pipeline over numbers, and an engine that runs it without Spark; also a program that other processes start.

`python sequence_job.py WAREHOUSE [--spark | --connect URL] [--take-over] [--gate FILE] [--wait BYTES] [--bounded |
--hybrid]` runs one tick and prints its outcome as JSON. With a gate its micro-batches wait until that file is there.
With --wait it waits for more until it is stopped, and its traces are full after so many bytes. With --bounded its
source ends, after one checkpoint. With --hybrid it reads history first, and then live rows.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from checkpointing.channel_items import RangeFiles, Segment, SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.key_groups import key_group_ranges
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.paths import table_of_state
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import Source
from jobs.spark.session import SparkConfig
from jobs.storage.address import Root, parsed
from jobs.storage.place import place_in
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.tick.trace_files import DEFAULT_BOUNDS, TraceBounds
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.refusals import JobHeldError
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
    """Return the planned pipeline."""
    return plan(declared(rows, keys=keys, config=config, bounded=bounded))


HISTORY = {"a": 150, "b": 110}
LIVE = {"live": 90}


def hybrid(live: dict[str, int] | None = None, *, bounded: bool = False) -> JobPlan:
    """Return the planned pipeline over two sources, one after the other. The second one begins within an epoch."""
    history = SequenceSource(HISTORY, keys=KEYS, bounded=True)
    source = history.then(SequenceSource(live or LIVE, keys=KEYS, bounded=bounded))
    return plan(over(source, CONFIG.model_copy(update={"retained": 10})))


def as_pipeline(_data: Path) -> Pipeline:
    """Return the pipeline as the command line finds it."""
    return declared()


def without_aggregate(_data: Path) -> Pipeline:
    """Return the pipeline without its gold table."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    return pipeline


def declared(
    rows: dict[str, int] | None = None, *, keys: int = KEYS, config: CheckpointConfig = CONFIG, bounded: bool = False
) -> Pipeline:
    """Return the pipeline: numbers to bronze, their count and sum by key to gold; two keyed subtasks."""
    return over(SequenceSource(rows or ROWS, keys=keys, bounded=bounded), config)


def over(source: Source, config: CheckpointConfig) -> Pipeline:
    """Return the pipeline over any source of numbers."""
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", source).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return pipeline


class LocalEngine:
    """Runs the pipeline's two operators in this process; writes the very files that tasks would."""

    def __init__(self, *, gate: Path | None = None) -> None:
        """Let every micro-batch wait until the file `gate` is there."""
        self._gate = gate

    def run(self, planned: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        """Run one micro-batch."""
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
        """Nothing was opened."""


def _nothing(planned: VertexPlan) -> tuple[SubtaskOutput, ...]:
    subtasks = planned.spec.parallelism if isinstance(planned.spec, KeyedSpec) else 1
    return tuple(SubtaskOutput() for _ in range(subtasks))


_SCHEMAS = dict(build().table_schemas)


def planned_schema(table: TableName):
    """Return the Arrow schema that the planner declared for a table."""
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
    """Return the rows of both tables at the newest cut, in order."""
    from checkpointing.metadata.paths import ProtocolPaths

    cuts = CutStore(Warehouse(root, ProtocolPaths(JOB)))
    newest = max(cuts.recorded())
    versions = cuts.read(newest)
    tables = {}
    for table in (BRONZE, GOLD):
        rows = pl.read_delta(str(place_in(root, table)), version=versions[table])
        tables[str(table)] = sorted(rows.rows())
    return tables


def main() -> None:
    """Run one tick and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("warehouse", type=parsed)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--connect")
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--wait", type=int)
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--hybrid", action="store_true")
    given = parser.parse_args()
    settings = RuntimeSettings(
        warehouse=given.warehouse,
        take_over=given.take_over,
        spark=SparkConfig(cores=1, memory="512m", connect_url=given.connect),
        limits=TickLimits(until_caught_up=given.wait is None),
        trace=DEFAULT_BOUNDS if given.wait is None else TraceBounds(bytes=given.wait),
    )
    engine = None if given.spark or given.connect else LocalEngine(gate=given.gate)
    try:
        ends = build(config=ONE, bounded=True) if given.bounded else build()
        report = run_tick(hybrid() if given.hybrid else ends, settings, engine=engine)
    except JobHeldError as held:
        print(json.dumps({"held": str(held), "pid": held.holder.pid}))
        sys.exit(3)
    print(json.dumps({"outcome": report.outcome.value, "completed": len(report.completed), "message": report.message}))


if __name__ == "__main__":
    main()
