"""Chooses the rows that an overwrite table may show, inside Spark's tasks, and writes down their version."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from checkpointing.identifiers import TableName
from checkpointing.metadata.paths import PART_BYTES_MAX
from checkpointing.table_versions import TableVersion, VersionKind


class VersionError(ValueError):
    """Rows have no version that Tidemark can compare. The message names the table, the column and the way out."""


def require_versions(table: TableName, rows: pa.Table, column: str) -> None:
    """Raise VersionError if a row has no version: nobody could say whether it is newer than another row."""
    lacking = rows.column(column).null_count
    if lacking:
        raise VersionError(
            f"table {table}: version column {column} is null in {lacking} of {rows.num_rows} rows: filter them out "
            "before overwrite, or put them aside there with check_rows(..., quarantine=..., id=...)"
        )


def newest_rows(table: TableName, rows: pa.Table, column: str) -> tuple[TableVersion, pa.Table]:
    """Return the greatest version of these rows (at least one), and its rows in their order. No version is null.

    Raises VersionError for a version that makes a folder's name too long, or a date that no text can have.
    """
    values = rows.column(column)
    greatest = pc.max(values)
    version = _version(table, column, greatest)
    if len(version.folder) > PART_BYTES_MAX:
        raise VersionError(
            f"table {table}: a value of version column {column} makes a name of more than {PART_BYTES_MAX} bytes "
            f"({version.text[:40]!r} ...): use a shorter one"
        )
    return version, rows.filter(pc.equal(values, greatest))


def _version(table: TableName, column: str, value: pa.Scalar) -> TableVersion:
    try:
        known = value.as_py()
    except (ValueError, OverflowError) as error:
        raise VersionError(
            f"table {table}: version column {column} holds a date outside of the years 1 to 9999: correct it"
        ) from error
    match known:
        case datetime(tzinfo=None):
            return TableVersion(VersionKind.TIME, known.isoformat(timespec="microseconds"))
        case datetime():
            moment = known.astimezone(UTC).replace(tzinfo=None)
            return TableVersion(VersionKind.TIME, f"{moment.isoformat(timespec='microseconds')}Z")
        case date():
            return TableVersion(VersionKind.DATE, known.isoformat())
        case int():
            return TableVersion(VersionKind.NUMBER, str(known))
        case str():
            return TableVersion(VersionKind.TEXT, known)
        case _:
            raise TypeError(f"table {table}: no version is a {value.type}")
