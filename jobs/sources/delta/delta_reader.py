"""The position of a Delta source in a table's history, and the rows of a slice.

A position is the next row to read: a version, a file of that version, and a row of that file. A source first reads the
files of the whole table at one version (`snapshot`), and then the files that each later version's commit added. Both
lists of files have a fixed order. So a position names the same rows for as long as the log has the version's entry.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, model_validator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from jobs.engine_paths import spark_address, spark_options, spark_uri_part
from jobs.sources.arrow_types import Conversion
from jobs.sources.delta.mapped_columns import nullable
from jobs.sources.files.file_footer import Conversions
from jobs.sources.files.file_reader import converted, stored_field
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.sources.schema_json import schema_of_json
from jobs.storage.parquet import FileScan, KeptRows, Numbering
from jobs.storage.place import StoragePlace


class ChangeType(Enum):
    """What a commit did to the rows of a file, in the words of the change data feed."""

    INSERT = "insert"
    DELETE = "delete"
    SAID_IN_FILE = "in the file"
    """The file has a column that names the change of each row."""


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MarkedRows(_Persisted):
    """The rows of a file that are read, by the file's deletion vectors at versions of the table.

    Rows that the vector at version `without` marks are left out. If `only` is given, only rows that the vector at
    version `only` marks are read. A version always identifies the same vector, because no later commit changes the
    vector.
    """

    without: NonNegativeInt | None = None
    only: NonNegativeInt | None = None


class DeltaPosition(_Persisted):
    """The next row to read: row `row` of file `file` of a table version, both counted from 0, after `before` rows.

    `table` is the id that the table got when it was created.
    """

    format: Literal[1] = 1
    table: str
    version: NonNegativeInt
    snapshot: bool = False
    file: NonNegativeInt = 0
    row: NonNegativeInt = 0
    before: NonNegativeInt = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position in this canonical JSON text. Raise SourceError if no Delta source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text[:200]!r} is not a position of a Delta source; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text. The same position always has the same text."""
        return self.model_dump_json()

    def after(self, rows: int, row: int, *, ends_file: bool) -> Self:
        """Return the position after `rows` more rows: at row `row` of the file, or after the file."""
        place = {"file": self.file + 1, "row": 0} if ends_file else {"row": row}
        return self.model_copy(update=place | {"before": self.before + rows})

    def next_version(self) -> Self:
        """Return the position before the first row of the next version."""
        return self.model_copy(update={"version": self.version + 1, "snapshot": False, "file": 0, "row": 0})

    def __str__(self) -> str:
        """Return the position in words. Files and rows are counted from 1 there."""
        if self.snapshot or self.file or self.row:
            of = "table at version" if self.snapshot else "version"
            return f"{of} {self.version}, file {self.file + 1}, row {self.row + 1:,}"
        return f"version {self.version}"


class DeltaRange(_Persisted):
    """Rows `first` to `end` (exclusive) of a Parquet file of the table, and the place of row `first` in the split.

    `path` is the decoded path from the log. Row `first` follows `before + first` rows of the split. So `before` may be
    negative, because a range need not begin at the file's first row. `marked` names the deletion vectors that leave
    rows of the range out, and `left_out` is the number of rows left out. `partition` maps the partition columns' names
    in the log, which are physical names, to their values.
    """

    path: str
    size: NonNegativeInt
    rows: PositiveInt
    first: NonNegativeInt
    end: PositiveInt
    before: int
    version: NonNegativeInt
    change: ChangeType
    partition: dict[str, str | None] = {}
    marked: MarkedRows | None = None
    left_out: NonNegativeInt = 0

    @model_validator(mode="after")
    def _of_its_file(self) -> Self:
        if not self.first < self.end <= self.rows:
            raise ValueError("must be rows of the file")
        return self

    @property
    def count(self) -> int:
        """Return how many rows are read."""
        return self.end - self.first - self.left_out

    @property
    def bytes(self) -> int:
        """Return the range's estimated share of the file's bytes."""
        return self.size * (self.end - self.first) // self.rows


class DeltaSlice(_Persisted):
    """The content of a slice: ranges of files, in order."""

    ranges: tuple[DeltaRange, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a slice's detail; raise SourceError if no Delta source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text[:200]!r} describes no rows of a Delta source") from error


# ------------------------------------------------------------------
# Reads ranges of a Delta table's files as one DataFrame with Spark's Parquet reader, without Delta.
#
# Delta itself reads whole versions. A slice names files and rows, so the slice can be read again whatever happens to
# the table later. Some values are not in a file, such as the values of partition columns. These values are in the
# slice, and Spark's generated code gets them as maps (see `file_reader`).


CHANGE_TYPE: Final = "_change_type"
"""The column with the kind of change: insert, update_preimage, update_postimage or delete."""
COMMIT_VERSION: Final = "_commit_version"
"""The column with the version of the row's commit; bigint."""

_ZONE: Final = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True, slots=True)
class Like:
    """The properties that files must have in common so that one scan can read them.

    `stored` has the columns that may have other names in the files, at any depth: each with its name in the files, and
    its type there as JSON. `partitioned_by` has the columns that are not in the files, each with its key in the log.
    """

    conversions: Conversions
    says_change: bool
    partitioned_by: tuple[tuple[str, str], ...]
    as_arrow: bool
    """Whether Arrow reads the values of the file as Spark does."""
    stored: tuple[tuple[str, str, str], ...] = ()
    renames_fields: bool = False
    """Whether a struct's field has another name in the files."""
    marked: bool = False
    """Whether deletion vectors decide which rows are read."""

    @property
    def is_plain(self) -> bool:
        """Return whether all columns are in the file, and Arrow reads them as Spark does."""
        in_spark = self.conversions or self.says_change or self.partitioned_by or self.renames_fields
        return self.as_arrow and not in_spark


def joined(ranges: Iterable[DeltaRange]) -> list[DeltaRange]:
    """Return the ranges in the order of the history, with adjoining ranges of a file merged into one."""
    result: list[DeltaRange] = []
    for part in sorted(ranges, key=lambda each: each.before + each.first):
        last = result[-1] if result else None
        if (
            last is not None
            and last.end == part.first
            and last.before + last.first + last.count == part.before + part.first
        ):
            whole = {"end": part.end, "left_out": last.left_out + part.left_out}
            same = {"first": last.first, "before": last.before} | whole
            if part.model_copy(update=same) == last.model_copy(update=whole):
                result[-1] = last.model_copy(update=whole)
                continue
        result.append(part)
    return result


def layers(ranges: Iterable[DeltaRange]) -> list[list[DeltaRange]]:
    """Distribute the ranges over as few lists as possible, so that no list has two ranges of the same file."""
    by_path: dict[str, list[DeltaRange]] = {}
    for part in ranges:
        by_path.setdefault(part.path, []).append(part)
    return [[part for part in layer if part is not None] for layer in zip_longest(*by_path.values())]


Kept = Callable[[DeltaRange], NDArray[np.bool_]]
"""Returns for each row of a range with `marked` whether it is read. Raises SourceError if a deletion vector is gone."""


def history_scans(
    folder: StoragePlace, split: str, ranges: Iterable[tuple[DeltaRange, Like]], kept: Kept
) -> tuple[FileScan, ...]:
    """Return scans of these ranges, all of plain files (`Like.is_plain`)."""
    places = ((folder / part.path, part, like) for part, like in ranges)
    return tuple(
        FileScan(
            root=str(place.storage.root),
            name=place.name,
            first=part.first,
            end=part.end,
            bytes=part.size,
            numbering=Numbering(SPLIT_COLUMN, split, POSITION_COLUMN, part.before),
            names=tuple((name, stored) for name, stored, _ in like.stored),
            kept=None if part.marked is None else KeptRows(np.packbits(kept(part)).tobytes(), part.left_out),
        )
        for place, part, like in places
    )


def read_history(
    spark: SparkSession,
    folder: StoragePlace,
    split: str,
    schema: StructType,
    like: Like,
    ranges: Sequence[DeltaRange],
    *,
    kept: Kept,
) -> DataFrame:
    """Return the rows of these ranges (at least one), with split and position. `schema` is the schema of the source."""
    conversions, partitions = dict(like.conversions), dict(like.partitioned_by)
    given = {*partitions, COMMIT_VERSION, *(() if like.says_change else (CHANGE_TYPE,))}
    inside = {name: StructField(stored, _type(kind)) for name, stored, kind in like.stored}
    in_files = [field for field in schema.fields if field.name not in given]
    stored = [
        each for field in in_files if (each := stored_field(inside.get(field.name, field), conversions.get(field.name)))
    ]
    paths = [_address(folder, part) for part in ranges]
    files = spark.read.schema(StructType(stored)).options(**spark_options(paths)).parquet(*paths)
    at = _Places(folder, ranges)
    place = f"_metadata.row_index + {at.numbers(part.before for part in ranges)}"
    if like.marked or any((part.first, part.end) != (0, part.rows) for part in ranges):
        first, end = at.numbers(part.first for part in ranges), at.numbers(part.end for part in ranges)
        files = files.filter(F.expr(f"_metadata.row_index >= {first} AND _metadata.row_index < {end}"))
        if like.marked:
            files, place = _marked(files, at, ranges, kept)
    columns = [
        _given(field, at, ranges, partitions)
        if field.name in given
        else _read(field, inside.get(field.name), conversions.get(field.name))
        for field in schema.fields
    ]
    return files.select(
        *[column.alias(name) for name, column in zip(schema.names, columns, strict=True)],
        F.lit(split).alias(SPLIT_COLUMN),
        F.expr(place).alias(POSITION_COLUMN),
    )


def _read(field: StructField, stored: StructField | None, conversion: Conversion | None) -> Column:
    """Return a column of the files. A cast gives struct fields the table's names, since it matches by order."""
    if stored is None:
        return converted(field, conversion)
    column = converted(StructField(stored.name, field.dataType), conversion)
    return column if stored.dataType == nullable(field.dataType) else column.cast(nullable(field.dataType))


def _type(text: str) -> DataType:
    """Return the type in a JSON text of `Like.stored`."""
    return schema_of_json(text).fields[0].dataType


_BITS: Final = 32


def _marked(files: DataFrame, at: "_Places", ranges: Sequence[DeltaRange], kept: Kept) -> tuple[DataFrame, str]:
    """Return the rows that deletion vectors leave in the table, and the expression of each row's place in the split.

    Each 32 rows of a range have one bigint: the number of rows of the range that are read before these 32, and a bit
    for each of the 32 rows that is set if the row is read. Spark computes the lists once, when it plans the query.
    """
    row = f"(_metadata.row_index - {at.numbers(part.first for part in ranges)})"
    group = f"get({at.lists(_groups(kept(part)) for part in ranges)}, cast({row} div {_BITS} AS int))"
    bit = f"cast({row} % {_BITS} AS int)"
    files = files.filter(F.expr(f"getbit({group}, {bit}) = 1"))
    first = at.numbers(part.before + part.first for part in ranges)
    inside = f"bit_count({group} & (shiftleft(1L, {bit}) - 1L))"
    return files, f"{first} + shiftright({group}, {_BITS}) + {inside}"


def _groups(kept: NDArray[np.bool_]) -> list[int]:
    padded = np.zeros(-(-len(kept) // _BITS) * _BITS, np.bool_)
    padded[: len(kept)] = kept
    bits = np.packbits(padded, bitorder="little").view("<u4").astype(np.int64)
    counts = padded.reshape(-1, _BITS).sum(axis=1, dtype=np.int64)
    before = np.cumsum(counts) - counts
    return [int(each) for each in (before << _BITS) | bits]


class _Places:
    """SQL expressions whose value depends on a row's file."""

    def __init__(self, folder: StoragePlace, ranges: Sequence[DeltaRange]) -> None:
        depth = max(part.path.count("/") + 1 for part in ranges)
        ends = ("/".join(_address(folder, part).split("/")[-depth:]) for part in ranges)
        self._names = [_literal(spark_uri_part(end)) for end in ends]
        self._path = f"substring_index(_metadata.file_path, '/', -{depth})"

    def numbers(self, values: Iterable[int]) -> str:
        """Return an expression of type bigint. It fails for a file without a value."""
        unknown = f"raise_error(concat('read rows of a file that was not asked for: ', {self._path}))"
        return f"coalesce({self._of(f'{value}L' for value in values)}, cast({unknown} AS bigint))"

    def texts(self, values: Iterable[str | None]) -> str:
        """Return an expression of type string."""
        return self._of("cast(NULL AS string)" if value is None else _literal(value) for value in values)

    def lists(self, values: Iterable[Iterable[int]]) -> str:
        """Return an expression of type array of bigint. It splits a text, since Spark parses many literals slowly."""
        return self._of(f"cast(split('{','.join(map(str, each))}', ',') AS array<bigint>)" for each in values)

    def _of(self, values: Iterable[str]) -> str:
        entries = ", ".join(f"{name}, {value}" for name, value in zip(self._names, values, strict=True))
        return f"element_at(map({entries}), {self._path})"


def _given(field: StructField, at: _Places, ranges: Sequence[DeltaRange], partitions: Mapping[str, str]) -> Column:
    """Return a column that is not in the files."""
    if field.name == COMMIT_VERSION:
        return F.expr(at.numbers(part.version for part in ranges))
    if field.name == CHANGE_TYPE:
        return F.expr(at.texts(part.change.value for part in ranges))
    values = (part.partition[partitions[field.name]] for part in ranges)
    if isinstance(field.dataType, TimestampType):
        values = (_with_zone(value) for value in values)
    return F.expr(at.texts(values)).cast(field.dataType)


def _with_zone(value: str | None) -> str | None:
    """Return the text of a moment with a zone. A text without a zone is in UTC, because delta-rs writes UTC."""
    return value if value is None or _ZONE.search(value) else f"{value}Z"


def _address(folder: StoragePlace, part: DeltaRange) -> str:
    return spark_address(str(folder / part.path))


def _literal(text: str) -> str:
    """Return a text as an SQL literal. Spark would replace `${...}`, so the dollar sign is written as its code."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
