"""Computes a file's statistics as a Delta log has them, by which readers skip files (Delta protocol).

A column gets bounds only if all engines agree on its order. Nested, binary and boolean columns get none, and so do
float columns with NaN. Timestamps have microseconds in memory and milliseconds in statistics, so the upper bound is
rounded up.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS_MAX = 32
"""Delta's default for `delta.dataSkippingNumIndexedCols`."""
_TEXT_MAX = 32
_HIGHEST = "\U0010ffff"
_LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(microseconds=999)

_Bound = str | int | float
_ORDERED = (
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

    The partition columns `besides` get none, because the log says their values.
    """
    statistics = FileStatistics(besides)
    statistics.add(rows)
    return statistics.json()


class FileStatistics:
    """The statistics of a file that is written part by part."""

    def __init__(self, besides: Collection[str] = ()) -> None:
        """Begin without rows. The partition columns `besides` get no statistics."""
        self._besides = besides
        self._rows = 0
        self._nulls: Counter[str] = Counter()
        self._extremes: dict[str, tuple[Any, Any] | None] = {}
        """The extremes of each column that has values, or None if it gets no bounds."""

    def add(self, rows: pa.Table) -> None:
        """Count these rows too. They have the same columns as those before."""
        self._rows += rows.num_rows
        named = [name for name in rows.column_names if name not in self._besides]
        for name in named[:_COLUMNS_MAX]:
            column = rows.column(name)
            if pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if column.null_count < len(column):
                found, known = _extremes(column), self._extremes.get(name)
                if name in self._extremes and found is not None:
                    found = None if known is None else (min(known[0], found[0]), max(known[1], found[1]))
                self._extremes[name] = found

    def json(self) -> str:
        """Return the statistics as a log writes them."""
        extremes = {name: found for name, found in self._extremes.items() if found is not None}
        return _json(
            {
                "numRecords": self._rows,
                "minValues": _bounds({name: _lower(low) for name, (low, _) in extremes.items()}),
                "maxValues": _bounds({name: _upper(high) for name, (_, high) in extremes.items()}),
                "nullCount": dict(self._nulls),
            }
        )


def logged_statistics(action: Mapping[str, Any]) -> str:
    """Return the statistics of an add action, as `DeltaTable.get_add_actions` shows it; what it lacks stays absent."""
    found = {
        "numRecords": action.get("num_records"),
        "minValues": _bounds(action.get("min") or {}),
        "maxValues": _bounds(action.get("max") or {}),
        "nullCount": {
            name: nulls for name, nulls in (action.get("null_count") or {}).items() if isinstance(nulls, int)
        },
    }
    return _json({name: each for name, each in found.items() if each is not None and each != {}})


def _json(statistics: Mapping[str, object]) -> str:
    return json.dumps(statistics, separators=(",", ":"), ensure_ascii=False)


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column that has values, or None if it gets no bounds."""
    if not any(is_kind(column.type) for is_kind in _ORDERED):
        return None
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if isinstance(low, float) and not (-float("inf") < low and float(high) < float("inf")):
        return None
    return low, high


def _lower(value: object) -> object:
    return value[:_TEXT_MAX] if isinstance(value, str) else value


def _upper(value: object) -> object:
    if isinstance(value, datetime):
        return min(value, _LATEST.replace(tzinfo=value.tzinfo)) + timedelta(microseconds=999)
    return _longer_than(value) if isinstance(value, str) else value


def _longer_than(value: str) -> str | None:
    """Return a text of at most 33 characters that no text beginning like `value` exceeds, or None."""
    if len(value) <= _TEXT_MAX:
        return value
    return value[:_TEXT_MAX] + _HIGHEST if value[_TEXT_MAX] != _HIGHEST else None


def _bounds(values: Mapping[str, object]) -> dict[str, _Bound]:
    """Return values as a log writes them; those of types without bounds are left out."""
    return {name: bound for name, value in values.items() if (bound := _bound(value)) is not None}


def _bound(value: object) -> _Bound | None:
    match value:
        case bool():
            return None
        case datetime(tzinfo=None):
            return value.isoformat(timespec="milliseconds")
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case int() | float() | str():
            return value
        case _:
            return None
