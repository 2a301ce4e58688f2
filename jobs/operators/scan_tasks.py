"""Tasks that read files themselves, of one micro-batch or several. Spark gives each task a number and nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.operators.own_workers import reported


class RunsScans(Protocol):
    """The part of a micro-batch that its tasks carry out from the files on."""

    def run_scans(self, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Do what has these numbers, and yield the reports in REPORT_SCHEMA."""
        ...


@dataclass(frozen=True, slots=True)
class ScanTasks:
    """What each task runs, and with which numbers."""

    tasks: tuple[tuple[RunsScans, tuple[int, ...]], ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the lazy reports of all tasks."""
        return reported(numbered(spark, len(self.tasks)), self.run)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the reports of the tasks whose numbers are the rows of `batches`. Raises what they raise."""
        for number in numbers(batches):
            runner, own = self.tasks[number]
            yield from runner.run_scans(own)


def numbered(spark: SparkSession, tasks: int) -> DataFrame:
    """Return so many tasks, each with its number as its only row."""
    return spark.range(0, tasks, 1, tasks)


def numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers that a task has got: its rows have nothing else."""
    for batch in batches:
        yield from batch.column(0).to_pylist()
