"""Compares the columns of an input file with the schema of its source, and decides how each column is read.

| `columns=`   | the file has another column   | it lacks a column         | a column has another type          |
|--------------|-------------------------------|---------------------------|------------------------------------|
| `fail`       | refused                       | refused                   | refused                            |
| `ignore`     | the column is not read        | the column is null        | cast; null where a value cannot be |
| `quarantine` | the column is not read        | its rows are set aside    | its rows are set aside             |
| `evolve`     | the schema gets it, see below | null for a later column   | refused                            |

A row that is set aside has no value in the columns of the schema. The corrupt column has the row as JSON. With
`evolve`, the file waits for the next tick, whose schema has the column (`file_source`). A file that does not name its
columns, such as a CSV file without a header, always fits. A record of JSON lines may lack a column, which is null then.
Spark itself checks the type of each value in such a record (below).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, Final

from pydantic_core import from_json
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from jobs.sources.arrow_types import Conversion
from jobs.sources.csv_text import is_utf8
from jobs.sources.exact_values import has_timestamps
from jobs.sources.files.file_footer import Column, Footer
from jobs.sources.port import SourceError
from jobs.storage.place import StoragePlace


class OnMisfit(Enum):
    """What a source does with a file whose columns differ from the source's schema."""

    FAIL = "fail"
    IGNORE = "ignore"
    QUARANTINE = "quarantine"
    EVOLVE = "evolve"


@dataclass(frozen=True, slots=True)
class Cast:
    """Read a column with its type in the file, and cast it to the type in the schema."""

    type: DataType


@dataclass(frozen=True, slots=True)
class Fit:
    """How a file is read. `conversions` are the columns that Spark cannot read as the schema says, in its order.

    `names` are the file's columns in their order, if Spark finds them by their place (CSV). If all rows of the file are
    set aside, `set_aside` is the path of the file. `unknown` are the columns of the file that the schema does not have.
    `reading` are options with which Spark must read the file. A file `is_broken` if it has bytes that are no text. A
    JSON file is `doubtful` if Spark's reader might misread a record (`JsonLook`).
    """

    conversions: tuple[tuple[str, Conversion | Cast], ...] = ()
    names: tuple[str, ...] | None = None
    set_aside: str | None = None
    unknown: tuple[Column, ...] = ()
    reading: tuple[tuple[str, str], ...] = ()
    is_broken: bool = False
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """The columns that files must have. `found` are columns that were found in some files. Other files may lack them.

    With `keeps_corrupt`, records that cannot be read become rows. With `taught`, there are found columns of which no
    checkpoint has read a value yet.
    """

    schema: StructType
    on_misfit: OnMisfit
    found: frozenset[str] = frozenset()
    keeps_corrupt: bool = False
    taught: bool = False

    def fit(self, path: StoragePlace, footer: Footer) -> Fit:
        """Return how the file is read. Raise SourceError if it must not be read.

        The file's columns may be in any order.
        """
        if footer.broken_at is not None and not self.keeps_corrupt:
            raise SourceError(
                f"{path}: line {footer.broken_at} is no text in the file's encoding: name the right one, as in "
                'options={"encoding": "ISO-8859-1"}, or give the source a corrupt_column, which holds such lines'
            )
        fit = self._fit(path, footer)
        is_broken = footer.broken_at is not None
        return replace(fit, reading=footer.reading, is_broken=is_broken, doubtful=footer.doubtful)

    def _fit(self, path: StoragePlace, footer: Footer) -> Fit:
        if footer.columns is None:
            self._must_be_values(path, footer.first)
            return Fit()
        by_name = _by_name(path, footer.columns)
        if not footer.may_lack:
            _must_differ(path, by_name)
        unknown = tuple(column for name, column in by_name.items() if name not in self.schema.names)
        if footer.may_lack:
            self._must_have_days(path, footer.times)
            self._must_fit(path, [], unknown)
            return Fit(unknown=unknown if self.on_misfit is OnMisfit.EVOLVE else ())
        names = tuple(by_name) if all(column.said is None for column in footer.columns) else None
        wrong = [why for field in self.schema if (why := self._misfit(by_name, field)) is not None]
        if wrong and self.on_misfit is OnMisfit.QUARANTINE:
            if footer.has_user_types:
                raise SourceError(
                    f"{path}: its footer names user-defined types of Spark, so its rows cannot be set aside: write it "
                    "anew with plain types, or remove it"
                )
            return Fit(names=names, set_aside=str(path))
        self._must_fit(path, wrong, unknown)
        _must_not_differ_in_case(path, by_name, self.schema.names)
        read = ((field.name, _conversion(by_name.get(field.name), field)) for field in self.schema)
        return Fit(tuple((name, how) for name, how in read if how is not None), names, None, unknown)

    def _misfit(self, columns: Mapping[str, Column], field: StructField) -> str | None:
        """Return what is wrong with a column of the file, or None if the column fits."""
        column = columns.get(field.name)
        if column is None:
            return None if field.name in self.found else f" has no column {field.name!r} (it has {', '.join(columns)})"
        if column.fits(field.dataType):
            return None
        wanted = field.dataType.simpleString()
        return f": column {field.name!r} is {column.said}, but the source's schema says {wanted}"

    def _must_be_values(self, path: StoragePlace, first: tuple[str, ...]) -> None:
        """Raise SourceError if the first record of a CSV file has the names of the schema's columns."""
        if first and sorted(first) == sorted(self.schema.names):
            raise SourceError(
                f"{path}: its first line names the columns, and would be read as a row: give its FileSource "
                'options={"header": "true"}'
            )

    def _must_have_days(self, path: StoragePlace, times: frozenset[str] | None) -> None:
        """Raise SourceError for a time without a day in a column of timestamps. Spark would add the present day."""
        for field in self.schema:
            if not has_timestamps(field.dataType):
                continue
            if times is None:
                raise SourceError(
                    f"{path}: it is no strict JSON, and a text of it may be a time without a day, for which Spark "
                    f"would take the present one in column {field.name!r}: write names and texts in double quotes, or "
                    "read the column as text"
                )
            if field.name in times:
                raise SourceError(
                    f"{path}: column {field.name!r} has a time without a day, for which Spark would take the present "
                    "one: correct it, or read the column as text"
                )

    def _must_fit(self, path: StoragePlace, wrong: list[str], unknown: tuple[Column, ...]) -> None:
        if self.on_misfit in {OnMisfit.IGNORE, OnMisfit.QUARANTINE}:
            return
        for why in wrong:
            raise SourceError(
                f"{path}{why}: write it with the columns of the source's schema, change the schema, or let the source "
                'read it all the same (columns="ignore") or set its rows aside (columns="quarantine")'
            )
        if self.on_misfit is OnMisfit.EVOLVE:
            return
        for column in unknown:
            raise SourceError(
                f"{path} has a column {column.name!r} that the source's schema does not have: add it to the schema, or "
                'let the source pass over such columns (columns="ignore") or add them itself (columns="evolve")'
            )


def _by_name(path: StoragePlace, columns: tuple[Column, ...]) -> dict[str, Column]:
    by_name = {column.name: column for column in columns}
    if len(by_name) < len(columns):
        names = [column.name for column in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceError(f"{path} has two columns {twice!r} (it has {', '.join(names)}): write one of each name")
    return by_name


def _must_differ(path: StoragePlace, names: Iterable[str]) -> None:
    """Raise SourceError for names that differ only in case. Spark treats them as one column."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SourceError(
                f"{path} has columns {other!r} and {name!r}, which Spark takes for one: rename one of them in the file"
            )


def _must_not_differ_in_case(path: StoragePlace, names: Iterable[str], wanted: Iterable[str]) -> None:
    """Raise SourceError if a column of the file differs from one of the schema only in case.

    Its values would be lost.
    """
    has = {name.lower(): name for name in names}
    for name in wanted:
        other = has.get(name.lower(), name)
        if other != name:
            raise SourceError(
                f"{path}: column {other!r} has the name of column {name!r} of the source's schema but for its case: "
                "rename it in the file or in the schema"
            )


def _conversion(column: Column | None, field: StructField) -> Conversion | Cast | None:
    if column is None:
        return Conversion.NOTHING
    if not column.fits(field.dataType) and column.type is not None:
        return Cast(column.type)
    return column.conversion


# ------------------------------------------------------------------
# Finds the columns of a file of JSON lines. They are the fields of its records.
#
# No part of the file names its columns, so each record is parsed. A field's type is taken from its values in the first
# records, up to a number of bytes. A field that first has a value in a later record gets the type of that value. A
# record that is no JSON object is left to Spark.


RECORDS_BYTES_MAX: Final = 1024 * 1024
"""The bytes of records, after decompression, from whose values the types of fields are taken."""
_BLOCK_BYTES: Final = 1024 * 1024
_MARK: Final = b"\xef\xbb\xbf"
_MAY_BE_TIME: Final = re.compile(rb'"[\x00-\x20]*+(?:T[0-9]|\\|[0-9]++[\x00-\x20]*+[:\\])')
"""Matches a text that may be a time without a day, or has escapes, so that only a parser can decide."""
_TIME_ALONE: Final = re.compile(r"[\x00-\x20]*(?:T|[0-9]+[\x00-\x20]*:)")
_LIKE_TIME_ALONE: Final = re.compile(r"""["'][\x00-\x20]*+(?:T[0-9]|\\|[0-9]++[\x00-\x20]*+[:\\])""")
"""Matches such texts in the lenient JSON that Spark reads, which may have single quotes."""
_SHOWN_MAX: Final = 40
_TYPES: Final[dict[type, DataType]] = {bool: BooleanType(), int: LongType(), float: DoubleType()}
_LONG_MAX: Final = 2**63 - 1
_DOUBLE_MAX: Final = 2**53
_LONG_ALONE: Final = DecimalType(19, 0)
"""The type of a bigint of which a double would lose digits. This type is used only inside of this module."""


@dataclass(frozen=True, slots=True)
class JsonLook:
    """What a scan of all records of a file finds: the records' fields, and the records' approximate number.

    A file is `doubtful` if Spark's reader might silently misread a record (`exact_values`). If the lines of the file
    cannot be parsed one by one in Spark, `times` are the fields with a text that is a time without a day. `times` is
    None if any field may have such a text, since only Spark can parse the record. `bad_line` is the first line that is
    not one JSON object.
    """

    columns: tuple[Column, ...]
    lines: int
    doubtful: bool = False
    times: frozenset[str] | None = frozenset()
    bad_line: int | None = None


def json_columns(opened: IO[bytes], encoding: str) -> JsonLook:
    """Return the fields of the records, in order of appearance, with the types of their first values.

    A field that never has a value is left out, because no value is lost. Raises OSError or EOFError for a packed file
    that is damaged. If the file is not in UTF-8, raises ValueError for a line with several objects.
    """
    types: dict[str, DataType] = {}
    lines = _Lines(opened, encoding)
    for record in lines.telling():
        _add(types, record)
    if is_utf8(encoding):
        return JsonLook(_columns(types), lines.count, lines.doubtful, bad_line=lines.bad_line)
    times = None if lines.unclear else frozenset(lines.times)
    return JsonLook(_columns(types), lines.count, times=times, bad_line=lines.bad_line)


def document_columns(text: str) -> JsonLook:
    """Return the fields of the records in a JSON text of several lines. The text is an object or a list of objects.

    Raises ValueError if other text follows the JSON text, because Spark would not read that text.
    """
    try:
        found, end = json.JSONDecoder().raw_decode(text.removeprefix("\ufeff").lstrip())
    except (ValueError, RecursionError):  # Spark says what is wrong
        return JsonLook((), 1, times=None if _LIKE_TIME_ALONE.search(text) else frozenset())
    rest = text.removeprefix("\ufeff").lstrip()[end:].strip()
    if rest:
        raise ValueError(f"{rest[:_SHOWN_MAX]!r} stands behind its end")
    types: dict[str, DataType] = {}
    records = [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]
    for record in records:
        _add(types, record)
    times = (name for record in records for name, value in record.items() if _has_time(value))
    return JsonLook(_columns(types), max(1, len(records)), times=frozenset(times))


def _has_time(value: object) -> bool:
    if isinstance(value, str):
        return _TIME_ALONE.match(value) is not None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_time, inner))


def _add(types: dict[str, DataType], record: dict[str, object]) -> None:
    for name, value in record.items():
        if value is not None:
            found = _type(value)
            types[name] = found if name not in types else _wider(types[name], found)


def _columns(types: dict[str, DataType]) -> tuple[Column, ...]:
    found = {name: LongType() if each == _LONG_ALONE else each for name, each in types.items()}
    return tuple(Column(name, None, each) for name, each in found.items())


class _Lines:
    """The lines of a file, and the number of lines that are not empty."""

    def __init__(self, opened: IO[bytes], encoding: str) -> None:
        """Read nothing yet."""
        self._opened, self._encoding, self._is_utf8 = opened, encoding, is_utf8(encoding)
        self.count, self.doubtful, self.times, self.unclear = 0, False, set[str](), False
        self.bad_line: int | None = None

    def telling(self) -> Iterator[dict[str, object]]:
        """Yield the first records, and then the fields of later records that had no value before."""
        left, known, parsed = RECORDS_BYTES_MAX, set[str](), self._utf8 if self._is_utf8 else self._decoded
        for number, line in enumerate(self._lines(), 1):
            left -= len(line) + 1
            if not line or line.isspace():
                continue
            self.count += 1
            record = parsed(line)
            if record is None:
                self.doubtful, self.bad_line = True, self.bad_line or number
            elif left >= 0:
                known.update(name for name, value in record.items() if value is not None)
                yield record
            elif not record.keys() <= known:
                new = {name: value for name, value in record.items() if value is not None and name not in known}
                known |= new.keys()
                yield new

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines, and look for times in whole blocks of lines."""
        for block in iter(lambda: self._opened.read(_BLOCK_BYTES) + self._opened.readline(), b""):
            self.doubtful = self.doubtful or _MAY_BE_TIME.search(block) is not None
            yield from block.removesuffix(b"\n").split(b"\n")

    def _utf8(self, line: bytes) -> dict[str, object] | None:
        """Return the record of a line, or None if the line is not exactly one object."""
        try:
            found = from_json(line.removeprefix(_MARK))
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _decoded(self, line: bytes) -> dict[str, object] | None:
        """Return the record of a line that is not in UTF-8. Raise ValueError if the line has several records."""
        text = line.decode(self._encoding, "replace").removeprefix("\ufeff")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
                raise ValueError(f"line {self.count} has more than one record") from error
            self.unclear = self.unclear or _LIKE_TIME_ALONE.search(text) is not None
            return None
        if not isinstance(found, dict):
            return None
        self.times.update(name for name, value in found.items() if _has_time(value))
        return found


def _type(value: object) -> DataType:
    """Return the type for a value's column. Lists and objects are read as text."""
    if isinstance(value, int) and abs(value) > _LONG_MAX:
        return StringType()
    if isinstance(value, int) and abs(value) > _DOUBLE_MAX:
        return _LONG_ALONE
    return _TYPES.get(type(value), StringType())


def _wider(one: DataType, other: DataType) -> DataType:
    """Return a type that can hold the values of both types."""
    if one == other:
        return one
    if {one, other} == {LongType(), _LONG_ALONE}:
        return _LONG_ALONE
    return DoubleType() if {one, other} == {LongType(), DoubleType()} else StringType()
