"""Defines a pipeline whose append table has a PostgreSQL sink: the numbers of two splits."""

from pathlib import Path

from tidemark import CheckpointConfig, Pipeline, PostgresSink, SequenceSource

ROWS = 150
TABLE = "bronze/numbers"


def build(data: Path) -> Pipeline:
    del data
    config = CheckpointConfig(every_rows=20, slice_rows_max=10, retained=20)
    pipeline = Pipeline("numbers", config=config, parallelism=1)
    numbers = pipeline.source("numbers", SequenceSource({"a": ROWS, "b": ROWS}))
    numbers.table(TABLE, id="bronze", sink=PostgresSink("env:TARGET_URL", "numbers"))
    return pipeline
