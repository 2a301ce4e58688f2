"""Computes the Delta statistics of a file, by which readers skip files (Delta protocol, per-file statistics).

A column gets bounds only if all engines agree on its order. Nested, binary and boolean columns get none, and so do
float columns with NaN. Timestamps have microseconds in memory and milliseconds in statistics, so the upper bound is
rounded up.
"""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS_MAX = 32
"""Delta's default for `delta.dataSkippingNumIndexedCols`."""
_TEXT_MAX = 32
_HIGHEST = "\U0010ffff"
_LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(microseconds=999)

_Bound = str | int | float


def statistics_json(rows: pa.Table) -> str:
    """Return the statistics of a file that holds exactly these rows, as Delta's log wants them."""
    lowest: dict[str, _Bound] = {}
    highest: dict[str, _Bound] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names[:_COLUMNS_MAX]:
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            low, high = bounds
            lowest[name] = _lower(low)
            upper = _upper(high)
            if upper is not None:
                highest[name] = upper
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _bounds(column: pa.ChunkedArray) -> tuple[object, object] | None:
    if column.null_count == len(column) or not _is_ordered(column.type):
        return None
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if isinstance(low, float) and not (-float("inf") < low and float(high) < float("inf")):
        return None
    return low, high


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def _lower(value: object) -> _Bound:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if isinstance(value, datetime):
        return _milliseconds(value)
    return _plain(value)


def _upper(value: object) -> _Bound | None:
    if isinstance(value, str):
        return _longer_than(value)
    if isinstance(value, datetime):
        return _milliseconds(min(value, _LATEST.replace(tzinfo=value.tzinfo)) + timedelta(microseconds=999))
    return _plain(value)


def _longer_than(value: str) -> str | None:
    """Return a text of at most 33 characters that no text beginning like `value` exceeds, or None."""
    if len(value) <= _TEXT_MAX:
        return value
    return value[:_TEXT_MAX] + _HIGHEST if value[_TEXT_MAX] != _HIGHEST else None


def _milliseconds(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _plain(value: object) -> _Bound:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int | float):
        return value
    raise TypeError(f"no statistics for a value of {type(value).__name__}")
