"""Reads ranges of files as one DataFrame with one scan, however many slices a micro-batch has.

In a Parquet file Spark's reader numbers the rows (`_metadata.row_index`), so positions are exact however Spark splits
the files. For a range that ends within a file, Spark reads the whole file and drops the rest. In a file of another
format, the query numbers the rows in the file's order: by the place of their block, then by their order in the block.
Expressions are SQL text, so each is one call to Spark, however many files there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Final, assert_never

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType, TimestampType

from checkpointing.identifiers import SplitId
from jobs.engine_paths import spark_address, spark_options, spark_uri_part
from jobs.sources.arrow_types import Conversion
from jobs.sources.csv_text import option, reads_lines
from jobs.sources.exact_values import (
    SPACE,
    JsonRecords,
    any_of,
    as_spark_reads,
    casted,
    decimal_of,
    has_decimals,
    is_lossy,
    is_time_alone,
    may_take_present_day,
)
from jobs.sources.files.file_columns import Cast, Fit
from jobs.sources.files.file_formats import FileFormat, Options, format_named
from jobs.sources.files.file_position import FileRange
from jobs.sources.files.input_folder import ALL, InputFiles
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.spark.columns import OWN_NAMES, named, quoted

_WHOLE: Final = (0, 2**63 - 1)
_NOTHING: Final = (0, 0)
_BLOCK, _ORDER, _PLACE, _ROW, _PARSED, _BAD = (
    f"{OWN_NAMES}{name}" for name in ("block", "order", "place", "row", "parsed", "bad")
)
_NAME: Final = "_metadata.file_name"
"""The name of a row's file without its folders. Spark has this name ready, but would split a path anew for each row."""
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_SHOWN_MAX: Final = 200

Ranges = Sequence[tuple[SplitId, FileRange]]


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of one source. `schema` has the columns of the files, `corrupt` is the corrupt column's name.

    `file_column` is the name of the column with the path of a row's file, below the root of the source.
    """

    files: InputFiles
    format: FileFormat
    options: Options
    schema: StructType
    corrupt: str | None
    file_column: str | None = None

    def read(self, spark: SparkSession, ranges: Ranges, fit: Fit) -> DataFrame:
        """Return the rows of `ranges`, at least one, with split and position. Ranges do not overlap.

        All files have the same columns, which are read as `fit` says.
        """
        ranges, by_name = joined(ranges), False
        files_read = (self.files.folder(split) / part.file.name for split, part in ranges)
        paths = list(dict.fromkeys(spark_address(str(each)) for each in files_read))
        if self._parses_lines(fit):
            columns, rows, place, row = *self._of_lines(spark, paths), _PLACE, _ROW
        else:
            stored = None if fit.set_aside and not fit.names else self._stored(fit)
            reader = spark.read.options(**self._options(paths, fit)).format(self.format.spark or self.format.name)
            files = (reader if stored is None else reader.schema(stored)).load(paths)
            own = files.columns
            if self.format.is_whole:
                rows, place, row = self._numbered(files), _PLACE, _ROW
            else:
                by_name = self.file_column is None and _have_names_of_their_own(ranges)
                place, row = _NAME if by_name else self._place(), "_metadata.row_index"
                rows = self._of_ranges(files, ranges, place)
            columns = list(self._columns(fit, own))
            columns, rows = self._checked(rows, fit, own, columns, self._place() if by_name else place)
        if self.file_column is not None:  # `url_decode` takes a plus sign for a space
            columns.append(F.expr(f"url_decode(replace({place}, '+', '%2B'))").alias(self.file_column))
        return rows.select(
            *columns,
            self._split(ranges, place).alias(SPLIT_COLUMN),
            F.expr(f"{row} + {self._before(ranges, place)}").alias(POSITION_COLUMN),
        )

    def _parses_lines(self, fit: Fit) -> bool:
        """Return whether each line of a JSON file is parsed separately, because Spark's reader might misread a line.

        In a column of text, Spark's reader shows a number or list exactly as the file has it. A parsed line shows the
        same value, but can have other digits or spaces.
        """
        return self.format.name == "json" and reads_lines(self.options) and (fit.doubtful or has_decimals(self.schema))

    def _options(self, paths: Sequence[str], fit: Fit) -> dict[str, str]:
        """Return the options of Spark's reader. Spark compares the header of a CSV file with the given columns."""
        mode = (
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": self.corrupt} if self.corrupt else {"mode": "FAILFAST"}
        )
        needed = dict(fit.reading)
        own = {name: value for name, value in self.options.items() if name.lower() not in map(str.lower, needed)}
        header = {"enforceSchema": "false"} if self.format.name == "csv" and fit.names is not None else {}
        return {**(mode if self.format.is_text else {}), **own, **needed, **header, **spark_options(paths)}

    def _of_lines(self, spark: SparkSession, paths: list[str]) -> tuple[list[Column], DataFrame]:
        """Return the columns of JSON records, and the rows that have them. A record is a line that is not empty."""
        separator = {name: value for name, value in self.options.items() if name.lower() == "linesep"}
        lines = spark.read.options(**separator, **spark_options(paths)).format("text").load(paths)
        text, parsed, bad = F.col("value"), F.col(_PARSED), F.col(_BAD)
        some = lines.filter(F.length(F.trim(text, F.lit(SPACE))) > 0)
        records = JsonRecords(self.schema, self.options)
        rows = self._numbered(some, records.parsed(text).alias(_PARSED))
        rows = rows.select("*", records.is_bad(text, parsed).alias(_BAD))
        fields = [parsed.getField(field.name) for field in self.schema]
        if self.corrupt is None:
            rows = self._failing(rows, bad, text)
        else:
            fields = [F.when(~bad, field) for field in fields]
        columns = [field.alias(name) for field, name in zip(fields, self.schema.names, strict=True)]
        if self.corrupt is not None:
            columns.append(F.when(bad, F.make_valid_utf8(text)).alias(self.corrupt))
        return columns, rows

    def _checked(
        self, rows: DataFrame, fit: Fit, own: Sequence[str], columns: list[Column], place: str
    ) -> tuple[list[Column], DataFrame]:
        """Return the columns and the rows.

        A row is bad if Spark would read a value as another value, or if a cast loses a part of a value.
        """
        bad = {**self._seeming(rows, fit, own), **self._lossy(fit)}
        if fit.set_aside or not bad:
            return columns, rows
        is_bad, stored = any_of(bad.values()), [named(name) for name in own if name != self.corrupt]
        is_csv = self.format.name == "csv"
        record = F.to_csv(F.struct(*stored), _csv_options(self.options)) if is_csv else F.to_json(F.struct(*stored))
        if self.corrupt is None:
            told = [F.when(is_true, F.concat(F.lit(f"{why}, in "), record)) for why, is_true in bad.items()]
            return columns, self._failing(rows, is_bad, F.coalesce(*told), place)
        *values, corrupt = columns
        hidden = [F.when(~is_bad, value).alias(name) for value, name in zip(values, self.schema.names, strict=True)]
        return [*hidden, F.coalesce(corrupt, F.when(is_bad, record)).alias(self.corrupt)], rows

    def _seeming(self, rows: DataFrame, fit: Fit, own: Sequence[str]) -> dict[str, Column]:
        """Return a dict from messages to conditions: where Spark would read texts of a CSV file as other values."""
        texts = [field for field in self.schema if self._is_text(field) and field.name in own]
        bad = {
            f"column {each.name!r} has no {each.dataType.simpleString()}": named(each.name).isNotNull()
            & text_value(each, self.options).isNull()
            for each in texts
        }
        if fit.is_broken:
            names = [field.name for field in rows.schema if field.name in own and field.dataType == StringType()]
            bad |= {
                f"column {name!r} has bytes that are no text": F.contains(named(name), F.lit(_REPLACED))
                for name in names
            }
        return bad

    def _lossy(self, fit: Fit) -> dict[str, Column]:
        """Return the conditions, by message, for values of which a cast to the column's type loses a part."""
        types = {field.name: field.dataType for field in self.schema}
        casts = {name: how.type for name, how in fit.conversions if isinstance(how, Cast)}
        return {
            f"column {name!r} has a {kind.simpleString()} that no {types[name].simpleString()} holds exactly": is_lossy(
                named(name), kind, types[name]
            )
            for name, kind in casts.items()
        }

    def _is_text(self, field: StructField) -> bool:
        """Return whether a column is read as text, because Spark would read some texts as other values."""
        if self.format.name != "csv":
            return False
        is_time = isinstance(field.dataType, TimestampType) and may_take_present_day(self.options)
        return is_time or isinstance(field.dataType, DecimalType)

    def _failing(self, rows: DataFrame, bad: Column, record: Column, place: str = _PLACE) -> DataFrame:
        """Return the rows. A bad row fails the micro-batch with an error that names the file (`operators.execute`)."""
        said = (
            F.lit(f"reading file {spark_address(str(self.files.root))}/"),
            F.expr(place),
            F.lit(". MALFORMED_RECORD_IN_PARSING: "),
            F.substring(record, 1, _SHOWN_MAX),
        )
        return rows.filter(F.when(bad, F.raise_error(F.concat(*said))).otherwise(F.lit(True)))  # noqa: FBT003

    def _stored(self, fit: Fit) -> StructType:
        """Return the columns in the form in which Spark reads them from the files."""
        known = {
            field.name: StructField(field.name, StringType()) if self._is_text(field) else field
            for field in self.schema
        }
        if fit.names is not None:
            fields = [
                StructField(name, StringType()) if fit.set_aside or name not in known else known[name]
                for name in fit.names
            ]
        else:
            conversions = dict(fit.conversions)
            fields = [
                each for field in self.schema if (each := stored_field(known[field.name], conversions.get(field.name)))
            ]
        if self.corrupt and self.format.is_text:
            fields.append(StructField(self.corrupt, StringType()))
        return StructType(fields)

    def _columns(self, fit: Fit, own: Sequence[str]) -> Iterator[Column]:
        """Yield the columns of the schema, converted where needed, and the corrupt column if there is one.

        If the files have exactly these columns, one expression selects all of them, because each call to Spark costs
        time.
        """
        converts = fit.set_aside or fit.conversions or self.corrupt or self.format.is_whole
        if list(own) == self.schema.names and not converts:
            yield F.col("*")
            return
        if fit.set_aside:
            yield from (F.lit(None).cast(field.dataType).alias(field.name) for field in self.schema)
            yield F.to_json(F.struct(*map(named, own))).alias(str(self.corrupt))
            return
        conversions = dict(fit.conversions)
        for field in self.schema:
            conversion = conversions.get(field.name)
            is_text = self._is_text(field) and conversion is None
            yield (text_value(field, self.options) if is_text else converted(field, conversion)).alias(field.name)
        if self.corrupt and self.format.is_text:
            yield _of_all_columns(self.corrupt, own).alias(self.corrupt)
        elif self.corrupt:
            yield F.lit(None).cast(StringType()).alias(self.corrupt)

    def _place(self) -> str:
        """Return the expression of a row's file: its path below the root, quoted as in a URI."""
        if self.files.glob is None:
            return f"substring_index(_metadata.file_path, '/', {-1 if self.files.one_split else -2})"
        root = _literal(f"{spark_address(str(self.files.root))}/")
        return f"substring(_metadata.file_path, locate({root}, _metadata.file_path) + length({root}))"

    def _numbered(self, files: DataFrame, *more: Column) -> DataFrame:
        """Return the rows with their file, and their number in the file."""
        ordered = files.select(
            "*",
            *more,
            F.expr(self._place()).alias(_PLACE),
            F.expr("_metadata.file_block_start").alias(_BLOCK),
            F.monotonically_increasing_id().alias(_ORDER),
        )
        number = f"row_number() OVER (PARTITION BY {_PLACE} ORDER BY {_BLOCK}, {_ORDER}) - 1L"
        return ordered.select("*", F.expr(number).alias(_ROW))

    def _of_ranges(self, files: DataFrame, ranges: Ranges, place: str) -> DataFrame:
        """Return the rows, without the rows of partly read files that lie outside of the ranges.

        The bounds are in maps, which Spark passes to its generated code as objects. Numbers in the SQL text would
        become part of the code, which would be compiled again for each micro-batch (Spark's Literal, CodeGenerator).
        """
        partial: dict[str, list[FileRange]] = {}
        for split, part in ranges:
            if part.rows < part.file.rows:
                partial.setdefault(self._place_of(split, part, place), []).append(part)
        # Most files have one range. The first term has the first range of each file, and later terms have further
        # ranges.
        terms = [dict(zip(partial, layer, strict=True)) for layer in zip_longest(*partial.values())]
        others = chain([_WHOLE], repeat(_NOTHING))
        condition = " OR ".join(_inside(parts, place, other) for parts, other in zip(terms, others, strict=False))
        return files.filter(F.expr(condition)) if condition else files

    def _before(self, ranges: Ranges, place: str) -> str:
        """Return the expression of the number of the split's rows before a row's file."""
        before = {self._place_of(split, part, place): part.before for split, part in ranges}
        entries = ", ".join(f"{where}, {rows}L" for where, rows in before.items())
        unknown = f"raise_error(concat('read rows of a file that was not asked for: ', {place}))"
        return f"coalesce(element_at(map({entries}), {place}), cast({unknown} AS bigint))"

    def _split(self, ranges: Ranges, place: str) -> Column:
        """Return the column with a row's split."""
        if self.files.one_split:
            return F.lit(ALL)
        if place != _NAME:
            return F.expr(f"substring_index({place}, '/', 1)")
        of = {self._place_of(split, part, place): _literal(split) for split, part in ranges}
        return F.expr(f"element_at(map({', '.join(chain.from_iterable(of.items()))}), {place})")

    def _place_of(self, split: SplitId, part: FileRange, place: str) -> str:
        """Return the value of the expression `place` for a file, as an SQL literal: the end of its URI."""
        if place == _NAME:
            return _literal(_own_name(part))
        return _literal(part.file.name if self.files.one_split else f"{split}/{part.file.name}")


def parquet_reader(root: Path, schema: StructType) -> FileReader:
    """Return a reader of Parquet files in the split folders under `root`. All files have the columns of `schema`."""
    parquet = format_named("parquet")
    return FileReader(InputFiles(root, parquet.title, parquet.suffixes), parquet, {}, schema, None)


def _have_names_of_their_own(ranges: Ranges) -> bool:
    """Return whether no two of these files have the same name, in whichever folders they lie."""
    return len({_own_name(part) for _, part in ranges}) == len({(split, part.file.name) for split, part in ranges})


def _own_name(part: FileRange) -> str:
    return part.file.name.rpartition("/")[2]


def _literal(path: str) -> str:
    """Return the end of a URI as an SQL literal, quoted as Spark quotes it in a query."""
    return "'" + spark_uri_part(path).replace("'", "\\'") + "'"  # it has no backslash, because that is quoted


def text_value(field: StructField, options: Options) -> Column:
    """Return the value of a text in a CSV file, or null if Spark would read the text as another value."""
    text = named(field.name)
    if isinstance(field.dataType, DecimalType):
        if not option(options, "locale"):
            return decimal_of(text, field.dataType)
        read, swapped = as_spark_reads(text, field.dataType, options), F.translate(text, ",.", ".,")
        known = [decimal_of(each, field.dataType) for each in (text, swapped)]
        return F.when((read == known[0]) | (read == known[1]), read)
    own = any(option(options, name) for name in ("timeZone", "timestampFormat"))
    value = as_spark_reads(text, field.dataType, options) if own else text.try_cast(field.dataType)
    return F.when(~is_time_alone(text), value)


def _csv_options(options: Options) -> dict[str, str]:
    """Return those of the reader's options that a writer has too."""
    known = ("sep", "delimiter", "quote", "escape", "nullvalue", "escapequotes")
    return {name: value for name, value in options.items() if name.lower() in known}


def _of_all_columns(corrupt: str, own: Sequence[str]) -> Column:
    """Return the corrupt column as an expression for which Spark must read all columns.

    Spark parses only the columns that a query uses. So without this expression, the query would decide which records
    are corrupt.
    """
    rest = F.xxhash64(*map(named, own)).cast(StringType())
    return F.substring(F.concat(named(corrupt), rest), F.lit(1), F.length(named(corrupt)))


def stored_field(field: StructField, conversion: Conversion | Cast | None) -> StructField | None:
    """Return a column in the form in which it is read from the files, or None if it is not read."""
    match conversion:
        case None:
            return field
        case Conversion.NOTHING:
            return None
        case Conversion.NANOSECONDS | Conversion.NANOSECONDS_WITHOUT_ZONE:
            return StructField(field.name, LongType())
        case Cast(type=own):
            return StructField(field.name, own)
        case _ as unreachable:
            assert_never(unreachable)


def converted(field: StructField, conversion: Conversion | Cast | None) -> Column:
    """Return a column of the schema, made from the stored column."""
    name = quoted(field.name)
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
        case Cast():
            return casted(F.col(name), conversion.type, field.dataType)
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


def _inside(parts: Mapping[str, FileRange | None], place: str, other: tuple[int, int]) -> str:
    """Return the condition that a row is in the range of its file.

    `other` are the bounds for files without a range in `parts`.
    """
    known = {where: (part.first, part.end) for where, part in parts.items() if part is not None}
    first, end = (
        f"coalesce(element_at(map({', '.join(f'{where}, {bounds[side]}L' for where, bounds in known.items())}),"
        f" {place}), {other[side]}L)"
        for side in (0, 1)
    )
    return f"(_metadata.row_index >= {first} AND _metadata.row_index < {end})"
