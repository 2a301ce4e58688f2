"""Small micro-batches with steps of Spark's: a task reads the files, Spark does the steps, a task does the rest.

If the steps do not depend on the micro-batch, no other part of the plan does. So Spark can reuse one plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointing.identifiers import VertexId
from jobs.operators.python_workers import freeze_imports
from jobs.operators.scan.scanned import ScanTasks, numbered, numbers
from jobs.operators.spec import Chain, arrow_schema, nullable_schema
from jobs.sources.slice_reading import RowScan

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The type of the function that `DataFrame.mapInArrow` takes."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of an input before its steps, as the parts of files that a task reads."""

    scans: tuple[RowScan, ...]
    schema: pa.Schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, once for each row of `batches`. Raises ScanError."""
        for batch in batches:
            for _ in range(batch.num_rows):
                for scan in self.scans:
                    yield from scan.batches(self.schema)
        freeze_imports()


@dataclass(frozen=True, slots=True)
class _PartOfTask:
    """The rows of one part of a file for each task, with the columns of `schema`."""

    scans: tuple[RowScan, ...]
    schema: pa.Schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts whose numbers are the rows of `batches`. Raises ScanError."""
        for number in numbers(batches):
            yield from self.scans[number].batches(self.schema)
        freeze_imports()


def rows_by_tasks(spark: SparkSession, scans: Sequence[RowScan], schema: StructType) -> DataFrame:
    """Return the lazy rows of parts of files that Spark has no reader for: one task reads each part."""
    read = _PartOfTask(tuple(scans), arrow_schema(schema))
    return numbered(spark, len(scans)).mapInArrow(read.run, nullable_schema(schema))


@dataclass(frozen=True, slots=True)
class Stepped:
    """The rows of an input: the rows of files, which have this schema, after the input's steps in Spark."""

    scans: tuple[RowScan, ...]
    schema: StructType
    steps: Chain

    @property
    def rows(self) -> FileRows:
        """Return the rows before the steps."""
        return FileRows(self.scans, arrow_schema(self.schema))


class RunsRows(Protocol):
    """The part of a micro-batch that a task carries out with the rows that come from Spark."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the reports, in REPORT_SCHEMA."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedWork:
    """A micro-batch of one task before the steps of each input, and one task after them.

    `plan` takes the inputs' rows by ordinal, and the function that the last task runs. It returns the lazy job.
    """

    vertex: VertexId
    inputs: Mapping[int, Stepped]
    after: RunsRows
    plan: Callable[[Mapping[int, DataFrame], ArrowFunction], DataFrame]

    @property
    def key(self) -> tuple[VertexId, tuple[tuple[int, Chain], ...]]:
        """Return the key of the plan: all that it depends on.

        Steps are functions, so they are equal only if they are the same.
        """
        return self.vertex, tuple((number, self.inputs[number].steps) for number in sorted(self.inputs))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the lazy job, with all that its tasks need."""
        return self.plan({number: rows_of(spark, each) for number, each in self.inputs.items()}, self.after.run)


Part = DataFrame | ScanTasks | SteppedWork
"""A part of a micro-batch's job, which yields the reports of its tasks."""


def rows_of(spark: SparkSession, stepped: Stepped, read: ArrowFunction | None = None) -> DataFrame:
    """Return the lazy rows after the steps.

    One task reads the rows before the steps, with the function `read` if given.
    """
    rows = numbered(spark, 1).mapInArrow(read or stepped.rows.run, nullable_schema(stepped.schema))
    return stepped.steps(rows)
