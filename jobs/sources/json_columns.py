"""Finds the columns of a file of JSON lines: the fields that its first records have.

No other part of the file names its columns, so whole records are parsed, up to a bound. A field that only later records
have is not found, and Spark does not read it. A record that is no JSON object is left to Spark, and so is its type.
"""

import json
from collections.abc import Iterable, Iterator
from typing import IO, Final

from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType

from jobs.sources.file_footer import Column

RECORDS_BYTES_MAX: Final = 1024 * 1024
"""So many bytes of records are parsed, after decompression."""
_TYPES: Final[dict[type, DataType]] = {bool: BooleanType(), int: LongType(), float: DoubleType()}
_LONG_MAX: Final = 2**63 - 1


def json_columns(opened: IO[bytes], encoding: str) -> tuple[Column, ...]:
    """Return the fields of the first records, with the types of their values, in the order in which they come.

    A field that has no value in any of them is left out: nothing is lost without it.
    """
    types: dict[str, DataType] = {}
    for record in _records(opened, encoding):
        for name, value in record.items():
            if value is not None:
                found = _type(value)
                types[name] = found if name not in types else _wider(types[name], found)
    return tuple(Column(name, None, each) for name, each in types.items())


def _records(opened: IO[bytes], encoding: str) -> Iterator[dict[str, object]]:
    for line in _lines(opened):
        try:
            found = json.loads(line.decode(encoding).removeprefix("\ufeff"))
        except (ValueError, LookupError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _lines(opened: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines until the bound. The file may end within one, since only its beginning was opened."""
    left = RECORDS_BYTES_MAX
    try:
        for line in opened:
            left -= len(line)
            if left < 0:
                return
            yield line
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
