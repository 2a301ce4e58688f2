"""Finds the columns of a file of JSON lines: the fields of its records.

No part of the file names its columns, so each record is looked at. The first ones are parsed whole, up to a bound. Of
the later ones only those are parsed that have a name that no record before them has. A record that is no JSON object is
left to Spark, and so is its type.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, Final

from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType

from jobs.sources.file_footer import Column

RECORDS_BYTES_MAX: Final = 1024 * 1024
"""So many bytes of records are parsed whatever they have, after decompression."""
_TEXTS: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*+:)?')
"""The texts of a record. Those with a colon are names, of its fields or of fields inside them."""
_TYPES: Final[dict[type, DataType]] = {bool: BooleanType(), int: LongType(), float: DoubleType()}
_LONG_MAX: Final = 2**63 - 1


def json_columns(opened: IO[bytes], encoding: str) -> tuple[Column, ...]:
    """Return the fields of the records, in the order in which they come, with the types of the values that were parsed.

    A field that has no value in any of these is left out: nothing is lost without it.
    """
    types: dict[str, DataType] = {}
    for record in _records(opened, encoding):
        for name, value in record.items():
            if value is not None:
                found = _type(value)
                types[name] = found if name not in types else _wider(types[name], found)
    return tuple(Column(name, None, each) for name, each in types.items())


def _records(opened: IO[bytes], encoding: str) -> Iterator[dict[str, object]]:
    for line in _telling(_lines(opened)):
        try:
            found = json.loads(line.decode(encoding).removeprefix("\ufeff"))
        except (ValueError, LookupError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines up to the bound, and the later ones that have a name that no line before them has."""
    left, known = RECORDS_BYTES_MAX, set[bytes]()
    for line in lines:
        left -= len(line)
        names = {name for name, colon in _TEXTS.findall(line) if colon}
        if left >= 0 or not names <= known:
            yield line
        known |= names


def _lines(opened: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines. A damaged file ends where it cannot be read on, and Spark says so."""
    try:
        yield from opened
    except (OSError, EOFError):
        return


def _type(value: object) -> DataType:
    """Return the type as which Spark reads a value. It reads lists and objects as their text."""
    if isinstance(value, int) and abs(value) > _LONG_MAX:
        return StringType()
    return _TYPES.get(type(value), StringType())


def _wider(one: DataType, other: DataType) -> DataType:
    """Return a type that holds the values of both."""
    if one == other:
        return one
    numbers = {LongType(), DoubleType()}
    return DoubleType() if {one, other} == numbers else StringType()
