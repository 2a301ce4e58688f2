"""Defines pipelines that read one of Spark's examples of Python data sources to its end."""

from pathlib import Path

from pyspark.sql.datasource import DataSource

from checkpointing.config import CheckpointConfig
from jobs.pipeline import Pipeline
from jobs.sources.python.data_source import SparkSource
from tests.python_data_sources import PartitionedNumbers, SimpleNumbers


def simple(data: Path) -> Pipeline:
    del data
    return _pipeline(SimpleNumbers)


def partitioned(data: Path) -> Pipeline:
    del data
    return _pipeline(PartitionedNumbers)


def _pipeline(kind: type[DataSource]) -> Pipeline:
    pipeline = Pipeline("numbers", config=CheckpointConfig(every_rows=2, slice_rows_max=2))
    pipeline.source("numbers", SparkSource(kind, bounded=True)).table("bronze/numbers", id="bronze")
    return pipeline
