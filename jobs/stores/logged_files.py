"""Reads what a Delta log says of the files that a table shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from jobs.sinks.statistics import logged_statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFile:
    """One file of a table: its path in the table's folder, and what the log says of it.

    `encoded` is the path as the log writes it, a part of a URL. `partition` has the values of the partition columns as
    a log writes them. `statistics` is the JSON text of an add action, without what the log lacks.
    """

    path: str
    encoded: str
    rows: int | None
    bytes: int
    written_ms: int
    partition: tuple[tuple[str, str | None], ...]
    statistics: str


def logged_files(table: DeltaTable) -> dict[str, LoggedFile]:
    """Return the files that a table shows, by their paths in its folder.

    No value of a log is too far away or too long for it. A value that no bound can hold costs its bound.
    """
    actions = pa.table(table.get_add_actions())
    plain = ("path", "num_records", "size_bytes", "modification_time", "null_count")
    named = {name: actions.column(name).to_pylist() for name in plain if name in actions.column_names}
    found = (_file(actions, row, {name: each[row] for name, each in named.items()}) for row in range(actions.num_rows))
    return {file.path: file for file in found}


def _file(actions: pa.Table, row: int, said: Mapping[str, Any]) -> LoggedFile:
    least, greatest, partition = (
        actions.column(name)[row] if name in actions.column_names else pa.scalar(None)
        for name in ("min", "max", "partition")
    )
    rows: int | None = said["num_records"]
    encoded = str(said["path"])
    return LoggedFile(
        path=unquote(encoded),
        encoded=encoded,
        rows=rows,
        bytes=said["size_bytes"],
        written_ms=said["modification_time"],
        partition=tuple((name, _text(value)) for name, value in partition.items()) if partition.is_valid else (),
        statistics=logged_statistics(rows, least, greatest, said.get("null_count") or {}),
    )


def _text(scalar: pa.Scalar) -> str | None:
    """Return a value of a partition column as a log writes it. An empty text means null there."""
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # a date or a moment outside of the years 1 to 9999
        return str(scalar.cast(pa.string()).as_py())
    match value:
        case None | "" | b"":
            return None
        case bool():
            return str(value).lower()
        case bytes():
            return value.decode(errors="surrogateescape")
        case datetime():
            return value.isoformat(sep=" ")
        case _:
            return format(value, "f") if pa.types.is_decimal(scalar.type) else str(value)
