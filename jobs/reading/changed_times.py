"""Finds the times for which a table has other rows at one Delta version than at another, from the table's files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any, Final

import polars as pl

from checkpointing.identifiers import TableName
from jobs.storage.place import StoragePlace
from jobs.warehouse.log_entries import entry_actions
from jobs.warehouse.warehouse import Warehouse

_STEP: Final = "15m"
"""Time zones differ by whole quarters of an hour. So in any zone, such a quarter lies in one hour and in one day."""
_AT: Final = "_at"
_SIGN: Final = "_sign"
_HASH: Final = "_hash"

Files = Mapping[str, Mapping[str, Any]]
"""From the paths of files relative to the table's folder to the log's add or remove actions."""


def changed_times(
    warehouse: Warehouse, table: TableName, after: int, until: int, time: tuple[str, int], before: datetime
) -> tuple[datetime, ...]:
    """Return each quarter of an hour in which the version `until` has other rows than the version `after`.

    `time` is the column with the rows' times, and how many ms the times lie before the column's values. Times that are
    not before `before`, in UTC, are left out. If no file was removed, as in an append table, only this column is read,
    and files whose statistics say that all their rows are later are not read. Raises OSError if a file or an entry of
    the log has been deleted.
    """
    folder = warehouse.place(warehouse.paths.table(table))
    column, before_ms = time
    before += timedelta(milliseconds=before_ms)
    added, removed = _net(folder, range(after + 1, until + 1))
    wanted = [path for path, action in added.items() if not _is_later(action, column, before)]
    if not removed:
        parts = [_frame(folder, path, [column]) for path in wanted]
        rows = pl.concat(parts) if parts else pl.DataFrame({column: []}, schema={column: pl.Datetime("us", "UTC")})
        return _quarters(rows, column, before, before_ms)
    signed = [*_signed(folder, removed, column, -1), *_signed(folder, added, column, 1)]
    changed = pl.concat(signed).group_by(_AT, _HASH).agg(pl.col(_SIGN).sum()).filter(pl.col(_SIGN) != 0)
    return _quarters(changed, _AT, before, before_ms)


def _net(folder: StoragePlace, versions: Iterable[int]) -> tuple[Files, Files]:
    """Return the files that were added and the files that were removed, without files that were both."""
    added: dict[str, Mapping[str, Any]] = {}
    removed: dict[str, Mapping[str, Any]] = {}
    for version in versions:
        for line in entry_actions(folder, version):
            if "remove" in line and added.pop(line["remove"]["path"], None) is None:
                removed[line["remove"]["path"]] = line["remove"]
            if "add" in line and removed.pop(line["add"]["path"], None) is None:
                added[line["add"]["path"]] = line["add"]
    return added, removed


def _is_later(action: Mapping[str, Any], column: str, before: datetime) -> bool:
    """Return whether the file's statistics show that no row of the file is before that time."""
    least = json.loads(action.get("stats") or "{}").get("minValues", {}).get(column)
    if not isinstance(least, str):
        return False
    at = datetime.fromisoformat(least)
    return (at if at.tzinfo is not None else at.replace(tzinfo=before.tzinfo)) >= before


def _frame(folder: StoragePlace, path: str, columns: list[str] | None = None) -> pl.DataFrame:
    return pl.read_parquet(BytesIO((folder / path).read()), columns=columns)


def _signed(folder: StoragePlace, files: Files, column: str, sign: int) -> Iterator[pl.DataFrame]:
    """Yield the time of each row of each file, with the sign and a hash of the row and its partition."""
    for path in files:
        rows = _frame(folder, path)
        place = "/".join(part for part in path.split("/") if "=" in part)
        rows = rows.select(sorted(rows.columns)).with_columns(pl.lit(place).alias(_SIGN))
        yield rows.select(pl.col(column).alias(_AT), pl.lit(sign).alias(_SIGN), rows.hash_rows().alias(_HASH))


def _quarters(rows: pl.DataFrame, column: str, before: datetime, before_ms: int) -> tuple[datetime, ...]:
    utc = pl.col(column).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    at = (pl.col(_AT) - timedelta(milliseconds=before_ms)).dt.truncate(_STEP)
    found = rows.select(utc.alias(_AT)).filter(pl.col(_AT) < before).select(at)
    return tuple(found[_AT].unique().sort().to_list())
