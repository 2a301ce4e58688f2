"""Finds the rows of files that match a predicate in Spark SQL. Tasks read only the columns that the predicate names."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from jobs.operators.scan.planned_jobs import is_lasting
from jobs.operators.scan.scanned import numbered, numbers
from jobs.operators.spec import nullable_schema
from jobs.spark.columns import OWN_NAMES, map_in_arrow
from jobs.storage.parquet import parquet_of
from jobs.storage.place import place_in
from jobs.suggestions import WrongInputError

FILE: Final = f"{OWN_NAMES}file"
ROW: Final = f"{OWN_NAMES}row"
_BATCH_ROWS: Final = 64 * 1024
_FILES_PER_TASK: Final = 16


class PredicateError(WrongInputError):
    """A predicate does not select rows by their own columns. The message quotes it, and says how to write it."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A Parquet file of a warehouse. `constants` are the values of columns that the file lacks, as a log writes them.

    `inline` is the file's content as base64 if an entry contains it. Then there need not be such a file.
    """

    path: str
    constants: Mapping[str, str | None] = field(default_factory=dict)
    inline: str = ""


def columns_of_predicate(session: SparkSession, predicate: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a predicate names.

    Raise PredicateError if the predicate does not depend on a row's columns alone.
    """
    try:
        rows = session.createDataFrame([], _spark_schema(schema)).where(predicate)
        lasts = is_lasting(session, rows)
        named = rows._jdf.queryExecution().analyzed().references().toSeq()  # noqa: SLF001 - PySpark does not say it
    except (AnalysisException, ParseException) as error:
        raise _wrong(predicate, _first_line(error)) from error
    found = {str(named.apply(place).name()).lower() for place in range(named.size())}
    if not lasts:
        raise _wrong(
            predicate, "it reads the time, chance, a file's name, a table or Python, so it may mean other rows tomorrow"
        )
    if not found:
        raise _wrong(predicate, "it names no column, so it would mean all rows or none")
    return tuple(name for name in schema.names if name.lower() in found)


def matching_rows(
    session: SparkSession,
    root: str,
    predicate: str,
    schema: pa.Schema,
    files: Sequence[ReadFile],
    renamed: Mapping[str, Sequence[str]],
) -> dict[str, list[int]]:
    """Return a dict from the files' paths to the numbers of the rows that match. Files without such rows are left out.

    `schema` has the columns of the predicate. `renamed` has older names of columns. If a file lacks a column, the
    column is read by an older name, or else from the file's `constants`, or else as null. Raises PredicateError, and
    the other errors of Spark.
    """
    shares = [files[start : start + _FILES_PER_TASK] for start in range(0, len(files), _FILES_PER_TASK)]
    first = range(0, len(files), _FILES_PER_TASK)
    if not shares:
        return {}
    reads = _Reads(root, schema, tuple(zip(first, map(tuple, shares), strict=True)), dict(renamed))
    numbered_rows = StructType([*_spark_schema(schema), StructField(FILE, LongType()), StructField(ROW, LongType())])
    rows = map_in_arrow(numbered(session, len(shares)), reads.run, numbered_rows)
    found: dict[str, list[int]] = {}
    try:
        for file, row in rows.where(predicate).select(FILE, ROW).collect():
            found.setdefault(files[file].path, []).append(row)
    except PySparkException as error:
        raise _wrong(predicate, _first_line(error)) from error
    return {path: sorted(places) for path, places in found.items()}


@dataclass(frozen=True, slots=True)
class _Reads:
    """Reads the files of each task, and numbers their rows."""

    root: str
    schema: pa.Schema
    shares: tuple[tuple[int, tuple[ReadFile, ...]], ...]
    renamed: Mapping[str, Sequence[str]]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the predicate, with the number of the file and of the row in the file."""
        for number in numbers(batches):
            first, files = self.shares[number]
            for place, file in enumerate(files, first):
                yield from self._rows(place, file)

    def _rows(self, place: int, file: ReadFile) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(opened(self.root, file)) as content:
            there = set(content.schema_arrow.names)
            names = {name: _named_in(there, (name, *self.renamed.get(name, ()))) for name in self.schema.names}
            read = sorted({name for name in names.values() if name is not None})
            at = 0
            for batch in _batches(content, read):
                columns = [self._column(batch, each, names[each.name], file) for each in self.schema]
                whole = pa.array(range(at, at + batch.num_rows), pa.int64())
                columns += [pa.repeat(pa.scalar(place, pa.int64()), batch.num_rows), whole]
                at += batch.num_rows
                yield pa.record_batch(columns, names=[*self.schema.names, FILE, ROW])

    def _column(self, batch: pa.RecordBatch, wanted: pa.Field, name: str | None, file: ReadFile) -> pa.Array:
        if name is not None:
            return batch.column(name).cast(wanted.type)
        value = file.constants.get(wanted.name)
        return pa.repeat(pa.scalar(value, pa.string()).cast(wanted.type), batch.num_rows)


def opened(root: str, file: ReadFile) -> Any:  # noqa: ANN401 - what Arrow opens: a path, or bytes
    """Return a file in a form that Arrow can open. Raises OSError for a missing object."""
    if file.inline:
        return pa.BufferReader(base64.b64decode(file.inline))
    return parquet_of(place_in(root, file.path))


def _batches(content: pq.ParquetFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    if names:
        yield from content.iter_batches(_BATCH_ROWS, columns=names)
        return
    for group in range(content.num_row_groups):  # a file without any of the columns still has its rows
        rows = content.metadata.row_group(group).num_rows
        yield pa.record_batch([pa.nulls(rows)], names=["nothing"])


def _named_in(there: set[str], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in there), None)


def _spark_schema(schema: pa.Schema) -> StructType:
    return nullable_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _wrong(predicate: str, why: str) -> PredicateError:
    return PredicateError(f"--where {predicate!r}: {why}. Write a condition of Spark SQL over columns of the table")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
