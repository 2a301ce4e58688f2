"""Defines a pipeline that reads a Delta table beside its data folder: rows to bronze, count and sum by key to gold."""

from pathlib import Path

from checkpointing.config import CheckpointConfig
from jobs.pipeline import Pipeline, count, sum_of
from jobs.sources.delta.delta_source import DeltaSource

CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=3, retained=3)
FOLDER = "orders"


def appends(data: Path) -> Pipeline:
    pipeline = Pipeline("appends", config=CONFIG)
    rows = pipeline.source("orders", DeltaSource(data / FOLDER)).table("bronze/orders", id="bronze")
    rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of("id")).upsert("gold/by_key")
    return pipeline


def changes(data: Path) -> Pipeline:
    pipeline = Pipeline("changes", config=CONFIG)
    pipeline.source("orders", DeltaSource(data / FOLDER, changes=True)).table("bronze/changes", id="bronze")
    return pipeline
