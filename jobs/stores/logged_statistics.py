"""A file's statistics as a table's log has them, written anew as the log wants them."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

_Bound = str | int | float


def logged_statistics(action: dict[str, Any]) -> str:
    """Return the statistics JSON of one add action as `DeltaTable.get_add_actions` shows it.

    Bounds of nested and boolean columns are left out, as the sinks do; what the log lacks stays absent.
    """
    statistics: dict[str, object] = (
        {"numRecords": action["num_records"]} if action.get("num_records") is not None else {}
    )
    for name, key in (("minValues", "min"), ("maxValues", "max")):
        bounds = {column: bound for column, value in _of(action, key) if (bound := _bound(value)) is not None}
        if bounds:
            statistics[name] = bounds
    nulls = {column: value for column, value in _of(action, "null_count") if isinstance(value, int)}
    if nulls:
        statistics["nullCount"] = nulls
    return json.dumps(statistics, separators=(",", ":"), ensure_ascii=False)


def _of(action: dict[str, Any], key: str) -> list[tuple[str, object]]:
    return list((action.get(key) or {}).items())


def _bound(value: object) -> _Bound | None:
    match value:
        case bool() | bytes():
            return None
        case datetime():
            return _milliseconds(value)
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case int() | float() | str():
            return value
        case _:
            return None


def _milliseconds(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
