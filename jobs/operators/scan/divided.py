"""Large micro-batches with steps of Spark's, where Spark gets only the columns that the steps read.

Each Spark task runs two functions. The first reads the columns that the steps need from its share of the files, and
numbers the rows. Then Spark filters rows and computes new columns. The second function reads the other columns itself,
and combines both by the numbers. So columns that no step reads do not pass through the JVM.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StructField, StructType

from jobs.operators.in_time.measured_times import TimedScan
from jobs.operators.python_workers import freeze_imports, reported
from jobs.operators.scan.scanned import numbered, numbers, shares_of
from jobs.operators.spec import NUMBER, Chain, arrow_schema, nullable_schema, rows_numbered
from jobs.operators.stateless_task import StatelessTask
from jobs.sources.slice_reading import RowScan
from jobs.spark.columns import named

_NUMBER: Final = StructField(NUMBER, LongType())
_PROJECT, _FILTER, _ROWS = "Project", "Filter", "MapInArrow"
_COLUMN, _ALIAS = "AttributeReference", "Alias"
"""Spark's names for the parts of a plan."""


@dataclass(frozen=True, slots=True)
class Division:
    """How steps are divided: Spark computes the columns `computed` from the columns `read`. All others are `copies`.

    `copies` maps a column's name after the steps to its name in the rows.
    """

    read: tuple[str, ...]
    computed: tuple[str, ...]
    copies: Mapping[str, str]


def divided(session: SparkSession, schema: StructType, steps: Chain) -> Division | None:
    """Return how to divide these steps over rows of this schema.

    None: they do more than compute columns and filter rows.

    The result comes from Spark's optimised plan. The session must not be one of Spark Connect.
    """
    rows = numbered(session, 1).mapInArrow(_same, StructType([*nullable_schema(schema).fields, _NUMBER]))
    with rows_numbered():
        done = steps(rows)
    optimized = done._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - PySpark does not say it
    nodes = _in_a_row(optimized)
    if nodes is None:
        return None
    of = {each.exprId().id(): each.name() for each in _listed(nodes[-1].output())}
    found = _Columns(nodes, of)
    copies, computed, read = {}, [], found.in_conditions()
    for column in _listed(optimized.output()):
        copied = found.copied(column.exprId().id(), 0)
        if copied is not None:
            copies[column.name()] = copied
        else:
            computed.append(column.name())
            read |= found.read(column.exprId().id(), 0)
    copies.pop(NUMBER, None)
    return Division(tuple(name for name in schema.names if name in read), tuple(computed), copies)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take the place of the function that will read the rows. Spark only plans with it, and never calls it."""
    return batches


def _in_a_row(plan: Any) -> list[Any] | None:  # noqa: ANN401 - Spark's plan
    """Return the nodes from the last step down to the rows. None: there are nodes of other kinds, such as a join."""
    nodes = [plan]
    while nodes[-1].nodeName() != _ROWS:
        if nodes[-1].nodeName() not in (_PROJECT, _FILTER):
            return None
        nodes.append(nodes[-1].child())
    return nodes


def _listed(found: Any) -> list[Any]:  # noqa: ANN401 - a sequence of Scala's
    return [found.apply(place) for place in range(found.size())]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Traces columns down the nodes of a plan to the columns of the rows. `of` maps the ids of these to their names."""

    nodes: list[Any]
    of: Mapping[int, str]

    def in_conditions(self) -> set[str]:
        """Return the columns of the rows that conditions read."""
        return set(
            chain.from_iterable(
                self._read_by(node.condition(), place + 1)
                for place, node in enumerate(self.nodes)
                if node.nodeName() == _FILTER
            )
        )

    def copied(self, column: int, place: int) -> str | None:
        """Return the column of the rows of which this column is a copy. None: it is computed."""
        for at in range(place, len(self.nodes) - 1):
            made = self._made(column, at)
            if made is None:
                continue
            source = made.child() if _kind(made) == _ALIAS else made
            if _kind(source) != _COLUMN:
                return None
            column = source.exprId().id()
        return self.of[column]

    def read(self, column: int, place: int) -> set[str]:
        """Return the columns of the rows from which this column is computed."""
        for at in range(place, len(self.nodes) - 1):
            made = self._made(column, at)
            if made is not None and _kind(made) == _ALIAS:
                return self._read_by(made.child(), at + 1)
        return {self.of[column]}

    def _read_by(self, expression: Any, place: int) -> set[str]:  # noqa: ANN401 - Spark's expression
        columns = _listed(expression.references().toSeq())
        return set(chain.from_iterable(self.read(each.exprId().id(), place) for each in columns))

    def _made(self, column: int, at: int) -> Any:  # noqa: ANN401 - Spark's expression
        """Return the expression of a column in this node. None: the node is a filter."""
        if self.nodes[at].nodeName() != _PROJECT:
            return None
        return next(each for each in _listed(self.nodes[at].projectList()) if each.exprId().id() == column)


def _kind(expression: Any) -> str:  # noqa: ANN401 - Spark's expression
    return str(expression.getClass().getSimpleName())


# ------------------------------------------------------------------
# The rows of a micro-batch


@dataclass(frozen=True, slots=True)
class Divided:
    """The rows of an input whose steps are divided: parts of files, each of which may be read repeatedly."""

    scans: tuple[RowScan, ...]
    schema: StructType
    steps: Chain
    division: Division


def divided_rows(session: SparkSession, rows: Divided, task: StatelessTask) -> DataFrame:
    """Return the lazy job that writes these rows. Its rows are the tasks' reports.

    No other rows may share its tasks.
    """
    division, types = rows.division, arrow_schema(rows.schema)
    shares = shares_of(rows.scans)
    read = division.read or rows.schema.names[:1]
    copied = pa.schema([types.field(name) for name in dict.fromkeys(division.copies.values())])
    needed = _Needed(
        tuple(tuple(map(_untimed, share)) for share in shares), pa.schema([types.field(name) for name in read])
    )
    fields = [StructField(name, rows.schema[name].dataType) for name in read]
    found = numbered(session, len(shares)).mapInArrow(needed.run, StructType([*fields, _NUMBER]))
    whole = found.select(
        *(
            named(field.name) if field.name in read else F.lit(None).cast(field.dataType).alias(field.name)
            for field in rows.schema
        ),
        NUMBER,
    )
    with rows_numbered():
        stepped = rows.steps(whole)
    last = _Assembled(shares, copied, dict(division.copies), task)
    return reported(stepped.select(*map(named, division.computed), NUMBER), last.run)


def _untimed(scan: RowScan) -> RowScan:
    """Return the scan without measuring of times, because the second function measures them."""
    return scan.scan if isinstance(scan, TimedScan) else scan


@dataclass(frozen=True, slots=True)
class _Needed:
    """Reads the columns that steps need, by share."""

    shares: tuple[tuple[RowScan, ...], ...]
    schema: pa.Schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the shares whose numbers are in `batches`. Each row has its number within the share."""
        schema = self.schema.append(pa.field(NUMBER, pa.int64()))
        for share in numbers(batches):
            first = 0
            for batch in chain.from_iterable(scan.batches(self.schema) for scan in self.shares[share]):
                own = pa.array(np.arange(first, first + batch.num_rows))
                yield pa.record_batch([*batch.columns, own], schema=schema)
                first += batch.num_rows
        freeze_imports()


@dataclass(frozen=True, slots=True)
class _Assembled:
    """Puts the columns that Spark computed beside those that it reads itself.

    The share has the same number as the Spark partition.
    """

    shares: tuple[tuple[RowScan, ...], ...]
    copied: pa.Schema
    copies: Mapping[str, str]
    task: StatelessTask

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, and yield the reports. Raises ScanError."""
        timed = replace(self.task, writer=self.task.writer.timed())
        context: Any = TaskContext.get()
        share = self.shares[context.partitionId()]
        read = chain.from_iterable(scan.batches(self.copied) for scan in share)
        own = pa.Table.from_batches(read, self.copied).combine_chunks()
        yield from timed.carry_out(self._beside(own, batch) for batch in batches)
        freeze_imports()

    def _beside(self, own: pa.Table, computed: pa.RecordBatch) -> pa.RecordBatch:
        places = computed.column(NUMBER)
        rows = own.take(places).combine_chunks() if self.copies else own
        columns = {
            name: computed.column(name) if name not in self.copies else _chunk(rows, self.copies[name], len(places))
            for name in self.task.schema.names
        }
        return pa.RecordBatch.from_pydict(columns)


def _chunk(rows: pa.Table, name: str, count: int) -> pa.Array:
    chunks = rows.column(name).chunks
    return chunks[0] if chunks else pa.nulls(count, rows.schema.field(name).type)
