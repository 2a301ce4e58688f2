"""Computes a file's statistics as a Delta log has them, by which readers skip files (Delta protocol).

A column gets bounds only if all engines agree on its order. Nested and binary columns get none. Some values have no
bound that every reader understands: NaN, an infinity, a date or moment outside of the years 1 to 9999, and a text that
is not UTF-8. A file with such a value gets no bounds at all. The reason is that if a file has bounds of some columns
only, the dataset of delta-rs takes the missing bounds for null, and skips the file. So booleans get bounds too, which
Spark ignores. A bound never lies inside the values:

- Decimals are written with all their digits.
- Timestamps have microseconds in memory and milliseconds in statistics, so the upper bound is rounded up.
- For some engines, -0.0 is less than 0.0. So a lower bound of zero is -0.0, and an upper bound of zero is 0.0.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS_MAX: Final = 32
"""Delta's default for `delta.dataSkippingNumIndexedCols`."""
_TEXT_MAX: Final = 32
_HIGHEST: Final = "\U0010ffff"
_ZERO_HOUR: Final = datetime(1970, 1, 1, tzinfo=UTC)
_A_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MILLISECONDS: Final = 10**3

_Bound = str | int | float | Decimal
"""A bound. Dates and moments are texts, which sort like the values."""

_ORDERED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def statistics_json(rows: pa.Table, *, besides: Collection[str] = ()) -> str:
    """Return the statistics of a file that holds exactly these rows.

    The partition columns `besides` get none, because the log has their values.
    """
    statistics = FileStatistics(besides)
    statistics.add(rows)
    return statistics.json()


class FileStatistics:
    """The statistics of a file that is written part by part."""

    def __init__(self, besides: Collection[str] = ()) -> None:
        """Start without rows. The partition columns `besides` get no statistics."""
        self._besides = besides
        self._rows = 0
        self._nulls: Counter[str] = Counter()
        self._lowest: dict[str, _Bound | None] = {}
        self._highest: dict[str, _Bound | None] = {}
        """The bound of each column that has values, or None if a log cannot hold it."""

    def add(self, rows: pa.Table) -> None:
        """Add these rows to the statistics. They have the same columns as the rows before."""
        self._rows += rows.num_rows
        named = [name for name in rows.column_names if name not in self._besides]
        for name in named[:_COLUMNS_MAX]:
            column = rows.column(name)
            if pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if column.null_count < len(column) and any(is_kind(column.type) for is_kind in _ORDERED):
                low, high = _extremes(column)
                known, before = self._lowest.get(name, low), self._highest.get(name, high)
                self._lowest[name] = None if low is None or known is None else min(known, low)
                self._highest[name] = None if high is None or before is None else max(before, high)

    def json(self) -> str:
        """Return the statistics as a log writes them."""
        least = {name: _lower(low) for name, low in self._lowest.items()}
        greatest = {name: _upper(high) for name, high in self._highest.items()}
        return _json(_statistics(self._rows, least, greatest, self._nulls))


def logged_statistics(rows: int | None, least: pa.Scalar, greatest: pa.Scalar, nulls: Mapping[str, object]) -> str:
    """Return the statistics of an add action of `DeltaTable.get_add_actions`. What the action lacks stays absent.

    `least` and `greatest` are structs of the columns' bounds, or nulls.
    """
    low = {name: _bound(each, up=False) for name, each in _fields(least).items()}
    high = {name: _bound(each, up=True) for name, each in _fields(greatest).items()}
    numbers = {name: number for name, number in nulls.items() if isinstance(number, int)}
    found = _statistics(rows, low, high, numbers)
    return _json({name: each for name, each in found.items() if each is not None and each != {}})


def leaves_out(column: pa.ChunkedArray, least: Any, greatest: Any) -> bool:  # noqa: ANN401 - of JSON
    """Return whether a value of a column lies outside of the column's bounds in a log. None stands for no bound.

    A moment may be up to a millisecond after its upper bound, since other writers round the bound down and readers
    allow for that.
    """
    if not any(is_kind(column.type) for is_kind in _ORDERED) or column.null_count == len(column):
        return False
    found = pc.min_max(column)
    low, high = (_bound(found[end], up=False) for end in ("min", "max"))
    least, greatest = (_in_type(said, column.type) for said in (least, greatest))
    too_high = None not in (least, low) and least > low
    return too_high or (None not in (greatest, high) and greatest < high)


def _in_type(said: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - of JSON
    """Return a bound of the log as a value of this type. Decimals keep all digits, and texts stay as they are."""
    return pa.scalar(float(said), kind).as_py() if isinstance(said, Decimal) and pa.types.is_floating(kind) else said


def _statistics(
    rows: int | None,
    least: Mapping[str, _Bound | None],
    greatest: Mapping[str, _Bound | None],
    nulls: Mapping[str, int],
) -> dict[str, object]:
    """Return the statistics, without any bounds if a column lacks one."""
    whole = None not in least.values() and None not in greatest.values()
    bounds = {"minValues": least, "maxValues": greatest} if whole and least and greatest else {}
    return {"numRecords": rows, **bounds, "nullCount": dict(nulls)}


def _json(value: object) -> str:
    match value:
        case Mapping():
            return "{" + ",".join(f"{_json(name)}:{_json(each)}" for name, each in value.items()) + "}"
        case Decimal():
            return format(value, "f")
        case _:
            return json.dumps(value, ensure_ascii=False)


def _fields(bounds: pa.Scalar) -> dict[str, pa.Scalar]:
    """Return the bounds that a log has, without the bounds of nested columns."""
    found = bounds.items() if bounds.is_valid else ()
    return {name: each for name, each in found if each.is_valid and not pa.types.is_nested(each.type)}


def _extremes(column: pa.ChunkedArray) -> tuple[_Bound | None, _Bound | None]:
    """Return bounds of a column that has values. A text is not shortened yet."""
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    extremes = pc.min_max(column)
    return _bound(extremes["min"], up=False), _bound(extremes["max"], up=True)


def _bound(value: pa.Scalar, *, up: bool) -> _Bound | None:
    """Return a value as a log can hold it, rounded up (`up`) or down if necessary.

    None: a log cannot hold a bound of it.
    """
    kind = value.type
    try:
        if pa.types.is_timestamp(kind):
            return _moment(value.value, kind, up=up)
        if pa.types.is_date32(kind):
            return date.fromordinal(_ZERO_HOUR.toordinal() + value.value).isoformat()
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    if isinstance(plain, float):
        return (plain or (0.0 if up else -0.0)) if math.isfinite(plain) else None
    return plain if isinstance(plain, str | int | Decimal) else None


def _moment(value: int, kind: pa.TimestampType, *, up: bool) -> str:
    """Return the text of a moment or local time, in milliseconds.

    Raises OverflowError outside of the years 1 to 9999.
    """
    unit = _A_SECOND[kind.unit]
    milliseconds = -(-value * _MILLISECONDS // unit) if up else value * _MILLISECONDS // unit
    text = (_ZERO_HOUR + timedelta(milliseconds=milliseconds)).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if kind.tz is None else f"{text}Z"


def _lower(value: _Bound | None) -> _Bound | None:
    return value[:_TEXT_MAX] if isinstance(value, str) else value


def _upper(value: _Bound | None) -> _Bound | None:
    """Return an upper bound, or None if there is none.

    A long text is cut to 32 characters. The highest character is added, so that no text with this beginning exceeds the
    bound.
    """
    if not isinstance(value, str) or len(value) <= _TEXT_MAX:
        return value
    return value[:_TEXT_MAX] + _HIGHEST if value[_TEXT_MAX] != _HIGHEST else None
