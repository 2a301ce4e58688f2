"""Finds the columns of a file of JSON lines: the fields of its records.

No part of the file names its columns, so each record is parsed. The types of a field are those of its values in the
first records, up to a bound, or of its first value behind them. A record that is no JSON object is left to Spark.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

from pydantic_core import from_json
from pyspark.sql.types import BooleanType, DataType, DecimalType, DoubleType, LongType, StringType

from jobs.sources.csv_text import is_utf8
from jobs.sources.file_footer import Column

RECORDS_BYTES_MAX: Final = 1024 * 1024
"""The values of so many bytes of records, after decompression, say which type a field has."""
_BLOCK_BYTES: Final = 1024 * 1024
_MARK: Final = b"\xef\xbb\xbf"
_MAY_BE_TIME: Final = re.compile(rb'"[\x00-\x20]*+(?:T[0-9]|\\|[0-9]++[\x00-\x20]*+[:\\])')
"""Matches a text that may be a time without a day, or is written so that only a parser can tell."""
_TIME_ALONE: Final = re.compile(r"[\x00-\x20]*(?:T|[0-9]+[\x00-\x20]*:)")
_LIKE_TIME_ALONE: Final = re.compile(r"""["'][\x00-\x20]*+(?:T[0-9]|\\|[0-9]++[\x00-\x20]*+[:\\])""")
"""The same in JSON as Spark reads it, which may have single quotes, comments and more."""
_SHOWN_MAX: Final = 40
_TYPES: Final[dict[type, DataType]] = {bool: BooleanType(), int: LongType(), float: DoubleType()}
_LONG_MAX: Final = 2**63 - 1
_DOUBLE_MAX: Final = 2**53
_LONG_ALONE: Final = DecimalType(19, 0)
"""Stands for a bigint of which a double would lose digits. It never leaves this module."""


@dataclass(frozen=True, slots=True)
class JsonLook:
    """What a look at all records of a file finds: their fields, and about their number.

    A file is `doubtful` if Spark's reader could take a record for another one without a word (`exact_values`). `times`
    are the fields with a text that is a time without a day, if each line cannot be parsed by itself. It is None if any
    field may have one, since only Spark can read the text. `bad_line` is the
    first line that was parsed and is no object.
    """

    columns: tuple[Column, ...]
    lines: int
    doubtful: bool = False
    times: frozenset[str] | None = frozenset()
    bad_line: int | None = None


def json_columns(opened: IO[bytes], encoding: str) -> JsonLook:
    """Return the fields of the records, in the order in which they come, with the types of their first values.

    A field that never has a value is left out: nothing is lost without it. Raises OSError or EOFError for a
    packed file that is damaged. If the file is no UTF-8, it raises ValueError for a line with several objects.
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
    """Return the fields of the records of one JSON text that goes over several lines: an object, or a list of them.

    Raises ValueError if something stands behind the text. Of that Spark would read nothing.
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
    """The lines of a file. It counts those that are not empty."""

    def __init__(self, opened: IO[bytes], encoding: str) -> None:
        """Read nothing yet."""
        self._opened, self._encoding, self._is_utf8 = opened, encoding, is_utf8(encoding)
        self.count, self.doubtful, self.times, self.unclear = 0, False, set[str](), False
        self.bad_line: int | None = None

    def telling(self) -> Iterator[dict[str, object]]:
        """Yield the records up to the bound, and later ones whose values are the first ones of their field."""
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
        """Yield the lines, and look for times in many of them at once."""
        for block in iter(lambda: self._opened.read(_BLOCK_BYTES) + self._opened.readline(), b""):
            self.doubtful = self.doubtful or _MAY_BE_TIME.search(block) is not None
            yield from block.removesuffix(b"\n").split(b"\n")

    def _utf8(self, line: bytes) -> dict[str, object] | None:
        """Return the record of a line, or None if the line is no object and nothing else."""
        try:
            found = from_json(line.removeprefix(_MARK))
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _decoded(self, line: bytes) -> dict[str, object] | None:
        """Return the record of a line that is no UTF-8. Raise ValueError if the line has several."""
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
    """Return the type as which Spark reads a value. It reads lists and objects as their text."""
    if isinstance(value, int) and abs(value) > _LONG_MAX:
        return StringType()
    if isinstance(value, int) and abs(value) > _DOUBLE_MAX:
        return _LONG_ALONE
    return _TYPES.get(type(value), StringType())


def _wider(one: DataType, other: DataType) -> DataType:
    """Return a type that holds the values of both."""
    if one == other:
        return one
    if {one, other} == {LongType(), _LONG_ALONE}:
        return _LONG_ALONE
    return DoubleType() if {one, other} == {LongType(), DoubleType()} else StringType()
