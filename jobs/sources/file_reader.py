"""Reads ranges of files as one DataFrame with one scan, however many slices a micro-batch has.

Row numbers come from the Parquet reader (`_metadata.row_index`), so ordinals are exact however Spark splits the
files. For a range that ends within a file, Spark reads the whole file and drops the rest. Expressions are SQL text,
so each is one call to Spark, however many files there are.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import assert_never

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StructField, StructType

from checkpointing.identifiers import SplitId
from jobs.engine_paths import spark_options, spark_uri_part
from jobs.sources.arrow_types import Conversion
from jobs.sources.file_position import FileRange
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN

_WHOLE = (0, 2**63 - 1)
_NOTHING = (0, 0)

_PLACE = "substring_index(_metadata.file_path, '/', -2)"

Ranges = Sequence[tuple[SplitId, FileRange]]


def read_ranges(
    spark: SparkSession, root: Path, schema: StructType, ranges: Ranges, conversions: Mapping[str, Conversion]
) -> DataFrame:
    """Return the rows of `ranges`, at least one, with split and ordinal; ranges do not overlap.

    `conversions` has the columns that Spark cannot read with the schema's type.
    """
    ranges = joined(ranges)
    paths = dict.fromkeys(str(root / split / part.file.name) for split, part in ranges)
    stored = StructType([each for field in schema.fields if (each := stored_field(field, conversions.get(field.name)))])
    files = spark.read.schema(stored).options(**spark_options(paths)).parquet(*paths)
    condition = _within(ranges)
    wanted = files if condition is None else files.filter(F.expr(condition))
    return wanted.select(
        *_columns(schema, conversions),
        F.expr(f"substring_index({_PLACE}, '/', 1)").alias(SPLIT_COLUMN),
        F.expr(_ordinal(ranges)).alias(POSITION_COLUMN),
    )


def stored_field(field: StructField, conversion: Conversion | None) -> StructField | None:
    """Return a column as it is read from the files; None if it is not read."""
    match conversion:
        case None:
            return field
        case Conversion.NOTHING:
            return None
        case Conversion.NANOSECONDS | Conversion.NANOSECONDS_WITHOUT_ZONE:
            return StructField(field.name, LongType())
        case _ as unreachable:
            assert_never(unreachable)


def _columns(schema: StructType, conversions: Mapping[str, Conversion]) -> list[Column]:
    """Return the columns of the schema, converted where needed; one `*` if no column needs it."""
    if not conversions:
        return [F.col("*")]
    return [converted(field, conversions.get(field.name)).alias(field.name) for field in schema.fields]


def converted(field: StructField, conversion: Conversion | None) -> Column:
    """Return a column of the schema, made of the stored one."""
    name = f"`{field.name.replace('`', '``')}`"
    micros = f"({name} div 1000L - if({name} < 0 AND {name} % 1000L <> 0, 1L, 0L))"
    match conversion:
        case None:
            return F.col(name)
        case Conversion.NOTHING:
            return F.lit(None).cast(field.dataType)
        case Conversion.NANOSECONDS:
            return F.expr(f"timestamp_micros({micros})")
        case Conversion.NANOSECONDS_WITHOUT_ZONE:
            seconds = f"cast({micros} AS decimal(20, 0)) / 1000000BD"
            return F.expr(f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})")
        case _ as unreachable:
            assert_never(unreachable)


def joined(ranges: Ranges) -> Ranges:
    """Return the ranges sorted, with adjoining ranges of a file merged into one."""
    result: list[tuple[SplitId, FileRange]] = []
    for split, part in sorted(
        ranges, key=lambda entry: (entry[0], entry[1].before, entry[1].file.name, entry[1].first)
    ):
        if result and result[-1][0] == split and _follows(result[-1][1], part):
            result[-1] = (split, result[-1][1].model_copy(update={"end": part.end}))
        else:
            result.append((split, part))
    return result


def _follows(earlier: FileRange, later: FileRange) -> bool:
    return earlier.file == later.file and earlier.end == later.first


def _ordinal(ranges: Ranges) -> str:
    """Return the expression of a row's ordinal: the number of rows before its file, plus its number in the file."""
    before = {_place(split, part): part.before for split, part in ranges}
    entries = ", ".join(f"{place}, {rows}L" for place, rows in before.items())
    unknown = f"raise_error(concat('read rows of a file that was not asked for: ', {_PLACE}))"
    return f"_metadata.row_index + coalesce(element_at(map({entries}), {_PLACE}), cast({unknown} AS bigint))"


def _within(ranges: Ranges) -> str | None:
    """Return the condition that drops the rows of partial files outside their ranges; None if all are whole.

    The bounds are in maps, which Spark passes to its generated code. Numbers in the text would be compiled into the
    code, and compiled again for each micro-batch (Spark's Literal, CodeGenerator).
    """
    partial: dict[str, list[FileRange]] = {}
    for split, part in ranges:
        if part.rows < part.file.rows:
            partial.setdefault(_place(split, part), []).append(part)
    # A file's ranges rarely are several: one term has the first of each file, the next what is left of some.
    terms = [dict(zip(partial, layer, strict=True)) for layer in zip_longest(*partial.values())]
    others = chain([_WHOLE], repeat(_NOTHING))
    return " OR ".join(_inside(parts, other) for parts, other in zip(terms, others, strict=False)) or None


def _inside(parts: Mapping[str, FileRange | None], other: tuple[int, int]) -> str:
    """Return the condition that a row is in the range of its file; `other` are the bounds for files not named."""
    known = {place: (part.first, part.end) for place, part in parts.items() if part is not None}
    first, end = (
        f"coalesce(element_at(map({', '.join(f'{place}, {bounds[side]}L' for place, bounds in known.items())}),"
        f" {_PLACE}), {other[side]}L)"
        for side in (0, 1)
    )
    return f"(_metadata.row_index >= {first} AND _metadata.row_index < {end})"


def _place(split: SplitId, part: FileRange) -> str:
    """Return `split/file` as an SQL literal: the end of the file's URI, which is how Spark names it to a query."""
    place = spark_uri_part(f"{split}/{part.file.name}")
    return "'" + place.replace("'", "\\'") + "'"  # a backslash cannot be in it: it is quoted
