"""Builds Spark expressions that find bad JSON records, and values that Spark silently reads as other values.

Spark's parsers are lenient, and in no mode do they report these records and values:

| in the text                          | Spark reads                        | here                  |
|--------------------------------------|------------------------------------|-----------------------|
| anything after a record's object     | the object                         | a bad record          |
| a list in place of an object         | its first object, or all of them   | a bad record          |
| bytes that are no UTF-8              | U+FFFD                             | a bad record          |
| `12:00` in a column of timestamps    | noon of the day of the read        | a value that is bad   |
| `1,5` in a column of decimals        | 15                                 | a value that is bad   |
| more digits than a decimal has       | a rounded number                   | a value that is bad   |

So a record becomes the same row on any day, and no digit is lost. A value that is cast to another type must become the
same value again when it is cast back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobs.sources.csv_text import is_on, option

_DIGITS_MAX: Final = 38
_TIME_ALONE: Final = r"^[\x00-\x20]*(T|[0-9]+[\x00-\x20]*:)"
"""Matches the texts that Spark reads as a time without a day."""
_MAY_BE_TIME: Final = r'"[\x00-\x20]*(T|\\|[0-9]+[\x00-\x20]*[:\\])'
_THOUSANDS: Final = r"^[+-]?[0-9]{1,3}(,[0-9]{3})+([.][0-9]*)?$"
_VALUE: Final = "value"
_END: Final = "end of the record"
SPACE: Final = " \t\r\n"
"""The characters that may surround a record."""
_OWN_OPTIONS: Final = frozenset({"mode", "columnnameofcorruptrecord", "linesep", "encoding", "charset", "multiline"})


CORRUPT: Final = "_corrupt"
KEYS_ARE_TEXTS: Final = "whose keys are no texts, and in JSON all are: make the key a string, and cast it in a step"


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """Parses texts of one JSON object each into the columns of `schema`, with the options of Spark's reader."""

    schema: StructType
    options: Mapping[str, str]

    def parsed(self, text: Column) -> Column:
        """Return a struct with the columns."""
        fields = [StructField(field.name, field.dataType) for field in self.schema]
        told = StructType([*fields, StructField(CORRUPT, StringType())])
        return F.from_json(text, told, self._options(told=True))

    def is_bad(self, text: Column, parsed: Column) -> Column:
        """Return whether a text is no record of this schema, never null. `parsed` is the text's struct."""
        options = self._options(told=False)
        unlike = [parsed.isNull(), parsed.getField(CORRUPT).isNotNull(), ~F.is_valid_utf8(text)]
        values = has_bad_values(text, self.schema, options)
        return any_of([*unlike, ~F.coalesce(is_whole(text, options), F.lit(False)), *values])  # noqa: FBT003

    def _options(self, *, told: bool) -> dict[str, str]:
        own = {name: value for name, value in self.options.items() if name.lower() not in _OWN_OPTIONS}
        return {**own, "mode": "PERMISSIVE", **({"columnNameOfCorruptRecord": CORRUPT} if told else {})}


def is_time_alone(text: Column) -> Column:
    """Return whether a text is a time without a day. Spark would read it as that time of the present day."""
    return F.rlike(text, F.lit(_TIME_ALONE))


def may_take_present_day(options: Mapping[str, str]) -> bool:
    """Return whether Spark adds the present day to a time. With `timestampFormat`, it adds 1970-01-01 instead."""
    return not option(options, "timestampFormat") or is_on(options, "enableDateTimeParsingFallback")


def as_spark_reads(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """Return the value that Spark's readers of CSV and JSON make of a text, with these options, or null."""
    known = ("locale", "timezone", "timestampformat", "enabledatetimeparsingfallback")
    own = {name: value for name, value in options.items() if name.lower() in known}
    schema = StructType([StructField(_VALUE, kind)])
    return F.from_json(F.to_json(F.struct(text.alias(_VALUE))), schema, own).getField(_VALUE)


def decimal_of(text: Column, kind: DecimalType) -> Column:
    """Return the decimal that a text contains, or null if the text is no decimal or has too many digits."""
    plain = F.when(F.instr(text, ",") == 0, text).when(F.rlike(text, F.lit(_THOUSANDS)), F.replace(text, F.lit(",")))
    widest = DecimalType(_DIGITS_MAX, _DIGITS_MAX - (kind.precision - kind.scale))
    value = plain.try_cast(kind)
    more = F.rlike(text, F.lit(f"[.][0-9]{{{kind.scale}}}[0-9]*[1-9]"))  # than even the widest decimal holds
    shifted = F.rlike(text, F.lit("[eE]"))
    same = F.when(shifted, value.cast("double") == plain.try_cast("double")).otherwise(~more)
    return F.when((value == plain.try_cast(widest)) & same, value)


def is_whole(record: Column, options: Mapping[str, str]) -> Column:
    """Return whether a text is one JSON object, and nothing else. The result may be null for any other text."""
    first = F.instr(record, "}") == F.length(F.rtrim(record, F.lit(SPACE)))
    alone = F.startswith(F.ltrim(record, F.lit(SPACE)), F.lit("{")) & first
    schema = ArrayType(StructType([StructField(_END, StringType())]))
    listed = F.from_json(F.concat(F.lit("["), record, F.lit(f',{{"{_END}":"{_END}"}}]')), schema, dict(options))
    last = F.get(listed, F.lit(1)).getField(_END)
    whole = (F.size(listed) == F.lit(2)) & F.get(listed, F.lit(0)).isNotNull() & (last == F.lit(_END))
    return F.when(alone, F.lit(True)).otherwise(whole)  # noqa: FBT003 - a value of Spark


def has_bad_values(record: Column, schema: StructType, options: Mapping[str, str]) -> list[Column]:
    """Return conditions that are true if a JSON object has a value that Spark reads as another value."""
    doubtful: list[Column] = []
    for kind, may_be in ((TimestampType, F.rlike(record, F.lit(_MAY_BE_TIME))), (DecimalType, None)):
        if kind is TimestampType and not may_take_present_day(options):
            continue
        fields = [field for field in schema if _has(field.dataType, kind)]
        if not fields:
            continue
        texts = StructType([StructField(field.name, _as_text(field.dataType, kind)) for field in fields])
        said = F.from_json(record, texts, dict(options))
        read = F.from_json(record, StructType(fields), dict(options)) if kind is DecimalType else said
        look = _Look(record, kind)
        bad = any_of(look.bad(said.getField(field.name), read.getField(field.name), field.dataType) for field in fields)
        doubtful.append(bad if may_be is None else F.when(may_be, bad))
    return doubtful


def any_of(conditions: Iterable[Column]) -> Column:
    """Return whether one of the conditions is true. It is never null."""
    return reduce(Column.__or__, (F.coalesce(each, F.lit(False)) for each in conditions))  # noqa: FBT003


def map_without_texts(schema: StructType) -> str | None:
    """Return the first column with a map whose keys are not texts, or None. Spark cannot read such a map from JSON."""
    return next((field.name for field in schema if _has_other_keys(field.dataType)), None)


def _has_other_keys(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_other_keys(field.dataType) for field in kind)
        case ArrayType(elementType=element):
            return _has_other_keys(element)
        case MapType(keyType=key, valueType=value):
            return not isinstance(key, StringType) or _has_other_keys(value)
        case _:
            return False


def has_decimals(schema: StructType) -> bool:
    """Return whether a column is a decimal, or has decimals inside of it."""
    return _has(schema, DecimalType)


def has_timestamps(kind: DataType) -> bool:
    """Return whether a column is a timestamp, or has timestamps inside of it."""
    return _has(kind, TimestampType)


def _has(kind: DataType, wanted: type[DataType]) -> bool:
    match kind:
        case StructType():
            return any(_has(field.dataType, wanted) for field in kind)
        case ArrayType():
            return _has(kind.elementType, wanted)
        case MapType():
            return _has(kind.valueType, wanted)
        case _:
            return isinstance(kind, wanted)


def _as_text(kind: DataType, wanted: type[DataType]) -> DataType:
    match kind:
        case StructType():
            return StructType(
                [
                    StructField(each.name, _as_text(each.dataType, wanted))
                    for each in kind
                    if _has(each.dataType, wanted)
                ]
            )
        case ArrayType():
            return ArrayType(_as_text(kind.elementType, wanted))
        case MapType():
            return MapType(kind.keyType, _as_text(kind.valueType, wanted))
        case _:
            return StringType()


@dataclass(frozen=True, slots=True)
class _Look:
    """Looks for bad values of one type, decimals or timestamps, in a record."""

    record: Column
    wanted: type[DataType]

    def bad(self, said: Column, read: Column, kind: DataType) -> Column:
        """Return whether a value is bad: `said` is its text, and `read` is the value that Spark reads from it."""
        match kind:
            case StructType():
                inner = [each for each in kind if _has(each.dataType, self.wanted)]
                parts = ((said.getField(each.name), read.getField(each.name), each.dataType) for each in inner)
                return any_of(self.bad(*part) for part in parts)
            case ArrayType(elementType=element):
                return self._any(said, read, element)
            case MapType(valueType=element):
                return self._any(F.map_values(said), F.map_values(read), element)
            case DecimalType():
                return said.isNotNull() & decimal_of(said, kind).isNull() & self._loses(said, read)
            case _:
                return is_time_alone(said)

    def _any(self, said: Column, read: Column, element: DataType) -> Column:
        return F.exists(F.zip_with(said, read, lambda one, other: self.bad(one, other, element)), lambda bad: bad)

    def _loses(self, said: Column, read: Column) -> Column:
        """Return whether a decimal differs from its text in the record.

        Spark turns a JSON number into text by way of a double, so this text has only the number's first 17 digits. The
        text of a quoted value has all digits of the record.
        """
        quoted = F.contains(self.record, F.concat(F.lit('"'), said, F.lit('"')))
        differs = F.coalesce(read.cast("double") != said.try_cast("double"), F.lit(True))  # noqa: FBT003
        return quoted | differs


def casted(value: Column, own: DataType, wanted: DataType) -> Column:
    """Return a file's column, cast to another type. A value that cannot be cast becomes null."""
    match own, wanted:
        case StringType(), DecimalType():
            return decimal_of(value, wanted)
        case StringType(), TimestampType():
            return F.when(~is_time_alone(value), value.try_cast(wanted))
        case BinaryType(), StringType():
            return F.when(F.is_valid_utf8(value.cast(wanted)), value.cast(wanted))
        case _:
            return value.try_cast(wanted)


def is_lossy(value: Column, own: DataType, wanted: DataType) -> Column:
    """Return whether a value that can be cast becomes another value when it is cast back."""
    cast = casted(value, own, wanted)
    if isinstance(own, StringType | BinaryType):  # a text has many forms
        return F.lit(False)  # noqa: FBT003
    before, back = value, cast.try_cast(own)
    if isinstance(own, MapType):
        before, back = F.map_entries(before), F.map_entries(back)
    differs = cast.isNotNull() & ~before.eqNullSafe(back)
    if isinstance(own, LongType) and isinstance(wanted, DoubleType | FloatType):
        return differs | (cast.cast(DoubleType()) >= F.lit(2.0**63))  # which comes back as the largest long
    return differs
