"""Decodes JSON records in a task by columns, where it is certain that Spark's `from_json` finds the same values.

A record is *plain* if it is one JSON object by the letter of the standard, and if the value of each column has the JSON
type that the column asks for. Arrow's reader takes no other records, except for those that this module finds. Spark
also reads some records that are not plain, and gives others to `_undecoded`. Only Spark knows which ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from jobs.sources.slice_reading import LeftToSparkError

_ARROW: Final[dict[DataType, pa.DataType]] = {
    BooleanType(): pa.bool_(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    DateType(): pa.date32(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
}
_DAY: Final = r"(?:19|20)\d\d-\d\d-\d\d"
_PATTERNS: Final = {
    pa.date32(): rf"^{_DAY}$",
    pa.timestamp("us", tz="UTC"): rf"^{_DAY}T\d\d:\d\d:\d\d(?:\.\d{{1,6}})?(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d)$",
}
"""The texts of dates and times that mean the same to everybody. Without a zone, they mean that of Spark's session."""

_NOT_FINITE: Final = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")
_LONG_NUMBER: Final = re.compile(rb"[0-9.eE+-]{1000}")
"""Spark's reader takes no longer number, also in a column that nobody asked for."""
_DEEP: Final = 500
"""Spark's reader takes objects in objects up to 1,000 deep. So many brackets are counted in all."""
_LONG: Final = 1000


def can_be_plain(schema: StructType) -> bool:
    """Return whether this module decodes columns of these types."""
    return all(field.dataType in _ARROW for field in schema.fields)


@dataclass(frozen=True, slots=True)
class PlainJson:
    """Decodes the column `value` of JSON records into these columns. `undecoded` is a column of nulls after them."""

    value: str
    columns: tuple[tuple[str, pa.DataType], ...]
    undecoded: str

    @classmethod
    def of(cls, schema: StructType, value: str, undecoded: str) -> "PlainJson":
        """Return the decoding into the columns of a schema that `can_be_plain`."""
        return cls(value, tuple((field.name, _ARROW[field.dataType]) for field in schema.fields), undecoded)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the decoded columns before its others. Raises LeftToSparkError."""
        for batch in batches:
            values = batch.column(self.value)
            others = [name for name in batch.schema.names if name != self.value]
            decoded = self._decoded(values)
            yield pa.RecordBatch.from_arrays(
                [*decoded, pa.nulls(len(values), pa.binary()), *(batch.column(name) for name in others)],
                names=[*(name for name, _ in self.columns), self.undecoded, *others],
            )

    def _decoded(self, values: pa.BinaryArray) -> list[pa.Array]:
        """Return the columns. A record without a value has nulls."""
        present = values.drop_null()
        if len(present) == 0:
            return [pa.nulls(len(values), kind) for _, kind in self.columns]
        found = self._parsed(_lines(present))
        if found.num_rows != len(present):
            raise LeftToSparkError("a record has several JSON objects")
        columns = [_typed(found.column(name), kind) for name, kind in self.columns]
        return columns if len(present) == len(values) else [_spread(column, values) for column in columns]

    def _parsed(self, lines: pa.Buffer) -> pa.Table:
        schema = pa.schema([(name, pa.string() if kind in _PATTERNS else kind) for name, kind in self.columns])
        try:
            found = pj.read_json(
                pa.BufferReader(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            found.validate(full=True)  # the texts, too
        except pa.ArrowInvalid as error:
            raise LeftToSparkError(f"a record is no plain JSON of its schema: {error}") from error
        return found.combine_chunks()


def _lines(values: pa.BinaryArray) -> pa.Buffer:
    """Return the records as lines. Raise LeftToSparkError if a line is surely not plain, or may be several objects."""
    all_values = pa.ListArray.from_arrays([0, len(values)], values)
    lines = pc.binary_join(all_values, b"\n")[0].as_buffer()
    text = lines.to_pybytes()
    breaks = len(values) - 1
    if not (text.startswith(b"{") and text.endswith(b"}") and text.count(b"}\n{") == text.count(b"\n") == breaks):
        raise LeftToSparkError("a record is no JSON object in one line")
    if b"\r" in text or _NOT_FINITE.search(text):
        raise LeftToSparkError("a record has a value that JSON does not know, or a line break")
    if not text.isascii():
        _require_utf8(text)
    if pc.max(pc.binary_length(values)).as_py() > _LONG:
        _require_modest(text)
    return lines


def _require_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise LeftToSparkError("a record is no UTF-8") from error


def _require_modest(text: bytes) -> None:
    deep = any(line.count(b"{") + line.count(b"[") > _DEEP for line in text.split(b"\n") if len(line) > _LONG)
    if deep or _LONG_NUMBER.search(text):
        raise LeftToSparkError("a record has a longer number, or more objects in objects, than Spark reads")


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column in its type. Raise LeftToSparkError for a value that Spark may read otherwise."""
    (values,) = column.chunks
    if kind in _PATTERNS:
        return _moments(values, kind)
    if kind == pa.float64() and not _is_certain(values):
        raise LeftToSparkError("a record has a number that is not finite, or a zero with a sign")
    return values


def _moments(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _PATTERNS[kind])).as_py() is False:
        raise LeftToSparkError("a record has a date or a time in another form, or without its zone")
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise LeftToSparkError("a record has a date or a time that does not exist") from error


def _is_certain(numbers: pa.DoubleArray) -> bool:
    negative_zero = pc.and_(pc.equal(numbers, 0.0), pc.less(pc.divide(1.0, numbers), 0.0))
    return pc.all(pc.is_finite(numbers)).as_py() is not False and pc.any(negative_zero).as_py() is not True


def _spread(column: pa.Array, values: pa.BinaryArray) -> pa.Array:
    """Return the column with a null for each value that is null."""
    present = pc.cast(pc.is_valid(values), pa.int64())
    places = pc.if_else(pc.is_valid(values), pc.subtract(pc.cumulative_sum(present), 1), pa.scalar(None, pa.int64()))
    return column.take(places)
