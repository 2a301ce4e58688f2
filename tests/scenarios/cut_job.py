"""Defines two pipelines: one writes orders and payments, and the other reads both tables at the cuts of the first."""

from pathlib import Path

from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig
from jobs.pipeline import Pipeline
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.files.file_source import FileSource

SCHEMA = StructType().add("id", LongType())
TABLES = ("orders", "payments")


def upstream(data: Path) -> Pipeline:
    config = CheckpointConfig(every_rows=6, rows_of=("orders",), slice_rows_max=3, retained=20)
    pipeline = Pipeline("shop", config=config)
    for name in TABLES:
        source = FileSource(data / name, SCHEMA)
        pipeline.source(name, source, rows_per_epoch=6).drop("_split", "_position").table(
            f"silver/{name}", id=f"silver_{name}"
        )
    return pipeline


def downstream(data: Path) -> Pipeline:
    pipeline = Pipeline("report", config=CheckpointConfig(every_rows=2, slice_rows_max=2, retained=20))
    for name in TABLES:
        source = CutSource(data / "upstream" / "warehouse", "shop", f"silver/{name}")
        pipeline.source(name, source).table(f"gold/{name}", id=f"gold_{name}")
    return pipeline
