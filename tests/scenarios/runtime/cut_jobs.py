"""Two jobs without Spark: `shop` writes two tables, and `report` copies both at the cuts of `shop`.

This is also a program. `python cut_jobs.py shop|report FOLDER ROWS` runs one tick over ROWS rows, and prints a line for
each checkpoint.
"""

import json
import sys

import polars as pl
from pyspark.sql.types import StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.spec import VertexPlan, arrow_schema
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_reader import DeltaSlice
from jobs.sources.hybrid import SequenceSource
from jobs.storage.address import Root, parsed
from jobs.storage.place import place_in
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

SHOP, REPORT = "shop", "report"
SOURCES = ("orders", "payments")
CONFIG = CheckpointConfig(every_rows=20, rows_of=("orders",), slice_rows_max=4, retained=500)


def shop(rows: int) -> Pipeline:
    pipeline = Pipeline(SHOP, config=CONFIG)
    for name in SOURCES:
        pipeline.source(name, SequenceSource({"all": rows}), rows_per_epoch=20).table(
            f"silver/{name}", id=name + "_kept"
        )
    return pipeline


def report(folder: Root, config: CheckpointConfig = CONFIG) -> Pipeline:
    pipeline = Pipeline(REPORT, config=config)
    for name in SOURCES:
        source = CutSource(folder / SHOP, SHOP, f"silver/{name}", schema=schema())
        pipeline.source(name, source).table(f"gold/{name}", id=name + "_copied")
    return pipeline


def schema() -> StructType:
    """Return the columns of the upstream tables, which a pipeline must know before the upstream job has run."""
    return SequenceSource({}).schema()


class CopyEngine:
    """Runs, in this process, vertices that only write the rows of a source to a table."""

    def __init__(self, folder: Root) -> None:
        self._folder = folder

    def run(self, planned: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        table = planned.spec.table
        segments = [segment for entry in effect.inputs for segment in entry.segments]
        if not segments:
            return MicroBatchFinished(effect.vertex, effect.micro_batch, (SubtaskOutput(),), duration_ms=1)
        rows = pl.concat([self._rows(segment) for segment in segments]).select(table.schema.names)
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        file = writer.write(table.name, rows.to_arrow().cast(arrow_schema(table.schema)))
        output = SubtaskOutput(emitted=(file,), staged=((table.name, file),))
        return MicroBatchFinished(effect.vertex, effect.micro_batch, (output,), duration_ms=1)

    def close(self) -> None:
        """Do nothing, since nothing was opened."""

    def _rows(self, segment: SourceSlice) -> pl.DataFrame:
        if segment.cut is None:
            n = pl.Series("n", range(*json.loads(segment.detail)), dtype=pl.Int64)
            rows = pl.DataFrame([n, (n % 7).alias("key"), n.alias("value"), n.alias("_position")])
            return rows.with_columns(pl.lit(segment.split).alias("split"), pl.lit(segment.split).alias("_split"))
        return pl.concat([self._copied(segment.source, part) for part in DeltaSlice.parse(segment.detail).ranges])

    def _copied(self, source: str, part) -> pl.DataFrame:
        file = place_in(self._folder / SHOP, f"silver/{source}/{part.path}")
        rows = pl.read_parquet(file.read()).slice(part.first, part.end - part.first)
        places = pl.int_range(part.before + part.first, part.before + part.end, eager=True)
        return rows.with_columns(pl.lit("table").alias("_split"), places.alias("_position"))


class Prints(TickListener):
    def completed(self, record: CheckpointRecord, notes, versions) -> None:
        print(record.checkpoint, flush=True)


def planned(job: str, folder: Root, rows: int = 0) -> JobPlan:
    return plan(shop(rows) if job == SHOP else report(folder))


def tick(job: str, folder: Root, rows: int = 0, *, warehouse: Root | None = None, **settings):
    settings = RuntimeSettings(warehouse=warehouse or folder / job, **settings)
    return run_tick(planned(job, folder, rows), settings, Prints(), engine=CopyEngine(folder))


if __name__ == "__main__":
    tick(sys.argv[1], parsed(sys.argv[2]), int(sys.argv[3]))
