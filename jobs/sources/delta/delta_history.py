"""Reads the history of a Delta table without Spark: its newest version, one commit, the files of a snapshot.

Log entries never change, and neither do the files that they name. A file that OPTIMIZE or a delete removed from the
table stays in its folder until VACUUM, so an older version can still be read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from jobs.sources.delta.delta_reader import ChangeType, DeltaPosition
from jobs.sources.port import SourceError
from jobs.sources.schema_json import SchemaJsonError, schema_of_json
from jobs.storage.address import StoreUrl
from jobs.storage.objects import StoreError, known_failure
from jobs.storage.place import StoragePlace, both
from jobs.storage.port import Content
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.file_checks import logged_files
from jobs.warehouse.log_entries import entry_place, log_versions
from jobs.warehouse.table_snapshot import paths_with_deletion_vectors

_READ_FEATURES: Final = frozenset(
    {"timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""Features of Delta's protocol that this module handles, or that do not change how files are read."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in an action of the log. `rows` is None if the log has no count."""

    path: str
    size: int
    rows: int | None
    partition: Mapping[str, str | None]
    deletion_vector: bool = False


@dataclass(frozen=True, slots=True)
class DeltaColumns:
    """The table's identity and columns, from a metaData action or a snapshot."""

    id: str
    schema: StructType
    partitioned_by: tuple[str, ...]
    configuration: Mapping[str, str]

    @property
    def mapped(self) -> bool:
        """Return True if the columns have other names in the files than in the table (column mapping)."""
        return self.configuration.get("delta.columnMapping.mode", "none") != "none"

    @property
    def has_feed(self) -> bool:
        """Return True if commits write to the change data feed."""
        return self.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The content of one version's log entry, without files that the commit only rearranges (OPTIMIZE)."""

    version: int
    operation: str
    at_ms: int
    adds: tuple[DataFile, ...]
    removes: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]
    """Files of the change data feed."""
    columns: DeltaColumns | None
    """The table's columns from this version on, if the commit changes them."""


@dataclass(frozen=True, slots=True)
class NewestVersion:
    """The newest version and its columns. `entry` is its log entry, which changes if the table is created again."""

    version: int
    columns: DeltaColumns
    entry: Content


class DeltaHistory:
    """The history of one table. All methods that look at the table raise StoreError if an object store fails."""

    def __init__(self, folder: StoragePlace) -> None:
        """Name the table's folder. Nothing is read yet."""
        self.folder = folder
        self._newest: NewestVersion | None = None
        self._then: tuple[int, DeltaColumns] | None = None
        """The version that was asked for last, and its columns. Log entries tell those of the versions after it."""

    def newest(self) -> NewestVersion:
        """Return the newest version. Raise SourceError if delta-rs or Spark cannot read the table."""
        known = self._newest
        if known is not None and self._is_newest(known):
            return known
        table = self.opened()
        _must_be_readable(self.folder, table)
        version = table.version()
        entry = self._entry(version)
        if entry is None:
            raise SourceError(f"{self.folder}: version {version} is gone from its log while it was read: try again")
        self._newest = NewestVersion(version, self._columns(table), entry)
        return self._newest

    def must_exist(self) -> None:
        """Raise SourceError if no Delta table lies there."""
        if not DeltaLog(self.folder).exists():
            raise SourceError(f"{self.folder} is not a Delta table: write it first, or correct the source's path")

    def has_entry(self, version: int) -> bool:
        """Return True if the log still has the entry of a version."""
        return entry_place(self.folder, version).exists()

    def oldest(self) -> int:
        """Return the oldest version whose entry the log still has."""
        return min(log_versions(self.folder), default=0)

    def commit(self, version: int) -> CommittedVersion:
        """Return the content of a version's log entry. Raise SourceError if the entry is gone or unreadable."""
        entry = self._entry(version)
        if entry is None:
            raise SourceError(f"{self.folder}: the log has no entry of version {version}")
        return _commit(self.folder, version, entry)

    def committed_at_ms(self, version: int) -> int | None:
        """Return the time of a version's commit, or None if its log entry is gone."""
        return self.commit(version).at_ms if self.has_entry(version) else None

    def columns_at(self, version: int) -> DeltaColumns:
        """Return the table's columns at a version. Raise SourceError if the log no longer has them."""
        return self._columns(self.opened(version))

    def columns_when_committed(self, version: int, table: str) -> DeltaColumns | None:
        """Return the columns that the table had at a version, or None if the log no longer has them.

        Ask for versions in rising order: the first question opens the table, and later ones read only the log entries
        in between. `table` is the id that the table has now. Raise SourceError if an entry is gone.
        """
        if self._then is None or self._then[0] > version or self._then[1].id != table:
            try:
                self._then = (version, self.columns_at(version))
            except SourceError:
                return None
        first, columns = self._then
        for number in range(first + 1, version + 1):
            columns = self.commit(number).columns or columns
        self._then = (version, columns)
        return columns

    def files_at(self, version: int) -> tuple[DataFile, ...]:
        """Return the files of the whole table at a version, oldest first.

        Raise SourceError if the log no longer has them.
        """
        return _snapshot(self, version, self.newest().columns.id)

    def file(self, path: str) -> StoragePlace:
        """Return the place of a file. Raise SourceError for a file outside the table's folder (a shallow clone)."""
        if path.startswith(("/", "file:")) or "://" in path:
            raise SourceError(
                f"{self.folder}: {path} belongs to another table, of which this one is a shallow clone. "
                "Read that table, or make a deep copy"
            )
        return self.folder / path

    def opened(self, version: int | None = None) -> DeltaTable:
        """Return the table at a version, by default the newest. Raise SourceError if it cannot be read."""
        self.must_exist()
        try:
            return DeltaTable(str(self.folder), version=version)
        except (DeltaError, OSError, ValueError) as error:
            what = "" if version is None else f" at version {version}"
            root = self.folder.storage.root
            known = known_failure(root, "read", self.folder.name, str(error)) if isinstance(root, StoreUrl) else None
            if known is not None:
                raise known from None
            raise SourceError(
                f"{self.folder} cannot be read{what} by delta-rs ({str(error).splitlines()[0]})"
            ) from error

    def _columns(self, table: DeltaTable) -> DeltaColumns:
        metadata = table.metadata()
        by, configuration = tuple(metadata.partition_columns), dict(metadata.configuration)
        return _columns(self.folder, str(metadata.id), table.schema().to_json(), by, configuration)

    def _is_newest(self, known: NewestVersion) -> bool:
        entry, later = both(
            self.folder.storage, lambda: self._entry(known.version), lambda: self.has_entry(known.version + 1)
        )
        return entry == known.entry and not later

    def _entry(self, version: int) -> Content | None:
        try:
            return entry_place(self.folder, version).described()
        except StoreError:
            raise
        except OSError:
            return None


def _must_be_readable(folder: StoragePlace, table: DeltaTable) -> None:
    features = frozenset(table.protocol().reader_features or ()) - _READ_FEATURES
    if features:
        raise SourceError(
            f"{folder} has features that this source does not read: {', '.join(sorted(features))}. "
            f"Drop them (ALTER TABLE ... DROP FEATURE ...), or copy the table into one without them"
        )


def _columns(
    folder: StoragePlace, table: str, schema: str, partitioned_by: tuple[str, ...], configuration: Mapping[str, str]
) -> DeltaColumns:
    try:
        return DeltaColumns(table, schema_of_json(schema), partitioned_by, configuration)
    except SchemaJsonError as error:
        raise SourceError(
            f"{folder}: the schema in its log cannot be read: {error}. Copy the table into one without it"
        ) from error


@lru_cache(maxsize=64)
def _commit(folder: StoragePlace, version: int, entry: Content) -> CommittedVersion:
    """Return a parsed log entry. `entry` is part of the cache's key: the table may be created again."""
    try:
        text = entry_place(folder, version).read().decode()
        actions = [json.loads(line) for line in text.split("\n") if line.strip()]
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{folder}: the log entry of version {version} cannot be read ({type(error).__name__}): restore it"
        ) from error
    info: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    said = next((each["metaData"] for each in actions if "metaData" in each), None)
    at_ms = info.get("inCommitTimestamp", entry.changed_ms)
    return CommittedVersion(
        version=version,
        operation=str(info.get("operation", "a commit")),
        at_ms=int(at_ms),
        adds=_files(actions, "add"),
        removes=_files(actions, "remove"),
        changes=_files(actions, "cdc"),
        columns=None if said is None else _said(folder, said),
    )


def _said(folder: StoragePlace, said: dict[str, Any]) -> DeltaColumns:
    by = tuple(said.get("partitionColumns", ()))
    return _columns(folder, said["id"], said["schemaString"], by, said.get("configuration") or {})


def _files(actions: list[dict[str, Any]], kind: str) -> tuple[DataFile, ...]:
    """Return the files in the actions of that kind. An add or remove counts only if it changes the table's rows."""
    found = (each[kind] for each in actions if kind in each)
    return tuple(_file(each) for each in found if kind == "cdc" or each.get("dataChange", True))


def _file(action: dict[str, Any]) -> DataFile:
    stats = action.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    partition = {name: value or None for name, value in (action.get("partitionValues") or {}).items()}
    vector = action.get("deletionVector") is not None
    return DataFile(unquote(action["path"]), int(action.get("size") or 0), rows, partition, vector)


@lru_cache(maxsize=4)
def _snapshot(history: DeltaHistory, version: int, table_id: str) -> tuple[DataFile, ...]:
    """Return the files of a snapshot, ordered by the time of writing, then by name."""
    del table_id  # it is part of the key of the cache, because the table may be created again
    table = history.opened(version)
    vectors = paths_with_deletion_vectors(table)
    files = sorted(logged_files(table).values(), key=lambda file: (file.written_ms, file.encoded))
    return tuple(
        DataFile(file.path, file.bytes, file.rows, dict(file.partition), file.path in vectors) for file in files
    )


# ------------------------------------------------------------------
# Decides which rows a version of a Delta table brings to a reader, and refuses a version by name.
#
# | a commit that                            | brings, by appends        | brings, by changes                         |
# |------------------------------------------|---------------------------|--------------------------------------------|
# | adds files                               | their rows                | their rows as `insert`                     |
# | rearranges files (OPTIMIZE)              | nothing                   | nothing                                    |
# | has files of the change data feed        | is refused or skipped     | the rows of these files, and of no other   |
# | removes files, and has no feed           | is refused or skipped     | the rows of the removed files as `delete`, |
# |                                          |                           | then those of the added ones as `insert`   |
# | changes rows by a deletion vector        | is refused or skipped     | is refused                                 |


Contents = tuple[tuple[DataFile, ChangeType], ...]

_ANEW = "Or begin anew with a source of another id"


class NewColumns(Enum):
    """Says what the source does with a column that the table has and the source's schema lacks."""

    FAIL = "fail"
    IGNORE = "ignore"
    NEXT_TICK = "next tick"
    """The source has no declared schema. The next tick takes the table's columns."""


class VersionUnreadableError(Exception):
    """Rows of the history cannot be read.

    `go_on_at` is the first version after them. If it is None, the user must read the table anew.
    """

    def __init__(self, message: str, go_on_at: int | None) -> None:
        super().__init__(message)
        self.go_on_at = go_on_at


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """Says how a source reads a table's history: its columns, and whether it reads appends or changes."""

    history: DeltaHistory
    columns: StructType
    left_out: frozenset[str]
    """Columns that the source adds itself. Columns of the table with these names are not read."""
    new_columns: NewColumns
    changes: bool
    skip_change_commits: bool
    taken_back: Mapping[str, int]
    """Files whose rows are ignored because a later version has removed them, each with that version."""

    def contents(self, place: DeltaPosition) -> Contents:
        """Return the files with rows to read in a position's version, in order. Raise VersionUnreadableError."""
        return self._snapshot(place.version) if place.snapshot else self._committed(place)

    def must_fit(self, columns: DeltaColumns, version: int, *, newest: bool = False) -> None:
        """Raise SourceError if the columns of a version are not those that the source reads.

        Versions before the newest may lack nullable columns.
        """
        where = f"{self.history.folder}, version {version}"
        if columns.mapped:
            raise SourceError(
                f"{where}: the table maps its columns to other names in its files (column mapping), which this source "
                "does not read. Turn it off: ALTER TABLE ... SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')"
            )
        there = {field.name: field for field in columns.schema.fields}
        for field in self.columns.fields:
            found = there.get(field.name)
            if found is None and (newest or not field.nullable):
                raise SourceError(
                    f"{where} has no column {field.name!r} (it has {', '.join(there)}): correct the source's schema"
                )
            if found is not None and found.dataType.simpleString() != field.dataType.simpleString():
                raise SourceError(
                    f"{where}: column {field.name!r} is {found.dataType.simpleString()}, but is read as "
                    f"{field.dataType.simpleString()}: correct the source's schema. {_ANEW}"
                )
        extra = [name for name in there if name not in self.columns.names and name not in self.left_out]
        if extra and self.new_columns is not NewColumns.IGNORE:
            raise SourceError(self._has_more(version, extra))

    def must_keep_values(self, version: int, now: DeltaColumns) -> None:
        """Raise SourceError if rows of this version have values in columns that the table no longer has.

        Somebody renamed or dropped the columns before the source read the rows. A renamed column would be null.
        """
        if self.new_columns is NewColumns.IGNORE:
            return
        then = self.history.columns_when_committed(version, now.id)
        gone = [] if then is None else self._gone(then.schema.names, now)
        if gone:
            raise SourceError(self._has_more(version, gone))

    def _gone(self, names: Iterable[str], now: DeltaColumns) -> list[str]:
        return [name for name in names if name not in now.schema.names and name not in self.left_out]

    def _has_more(self, version: int, columns: Sequence[str]) -> str:
        where, names = f"{self.history.folder}, version {version}", ", ".join(map(repr, columns))
        if self._gone(columns, self.history.newest().columns) and self.new_columns is not NewColumns.IGNORE:
            return (
                f"{where} has columns that the table no longer has: {names}. They were renamed or dropped before this "
                "source had read all rows of that version. To read the whole table under its present names, give the "
                "source another id. To go on without the old values, give a DeltaSource a schema and "
                'new_columns="ignore"'
            )
        if self.new_columns is NewColumns.NEXT_TICK:
            return f"{where} has new columns, added since this tick began: {names}. Run the tick again, it reads them"
        return (
            f"{where} has columns that the source's schema does not have: {names}. Add them to the schema as nullable "
            'columns, or pass new_columns="ignore"'
        )

    def _snapshot(self, version: int) -> Contents:
        history = self.history
        try:
            files, columns = history.files_at(version), history.columns_at(version)
        except SourceError as error:
            raise VersionUnreadableError(
                f"{error}. What the whole table had at version {version} can no longer be told",
                max(history.oldest(), version + 1),
            ) from error
        self.must_fit(columns, version)
        vector = next((file for file in files if file.deletion_vector), None)
        if vector is not None:
            raise VersionUnreadableError(
                f"{history.folder}, version {version}: rows of {vector.path} were deleted by a deletion vector, which "
                f"this source does not read. Purge them (REORG TABLE ... APPLY (PURGE)), and begin anew with a source "
                "of another id",
                version + 1,
            )
        return tuple((file, ChangeType.INSERT) for file in files)

    def _committed(self, place: DeltaPosition) -> Contents:
        history, version = self.history, place.version
        if not history.has_entry(version):
            oldest = history.oldest()
            raise VersionUnreadableError(
                f"{history.folder}: the log has no entries of versions {version} to {oldest - 1} any more, so their "
                "rows can no longer be told from older ones. Keep entries for longer than a pipeline may stand still "
                "('delta.logRetentionDuration')",
                oldest,
            )
        commit = history.commit(version)
        if commit.columns is not None:
            if commit.columns.id != place.table:
                raise VersionUnreadableError(made_anew(history, place, commit.columns.id), None)
            self.must_fit(commit.columns, version)
        return self._changes_of(commit) if self.changes else self._appends_of(commit)

    def _appends_of(self, commit: CommittedVersion) -> Contents:
        vector = any(file.deletion_vector for file in commit.adds)
        if not vector and all(file.path in self.taken_back for file in commit.removes):
            stay = (file for file in commit.adds if self.taken_back.get(file.path, -1) < commit.version)
            return tuple((file, ChangeType.INSERT) for file in stay)
        if self.skip_change_commits:
            return ()
        raise VersionUnreadableError(
            f"{self.history.folder}: version {commit.version} ({commit.operation}) deletes or changes rows that were "
            "read as appended. Read the table by changes=True, with a change data feed and under another id, or pass "
            "skip_change_commits=True, which skips such versions whole, their added rows too",
            commit.version + 1,
        )

    def _changes_of(self, commit: CommittedVersion) -> Contents:
        if commit.changes:
            return tuple((file, ChangeType.SAID_IN_FILE) for file in commit.changes)
        vector = next((file for file in (*commit.removes, *commit.adds) if file.deletion_vector), None)
        if vector is not None:
            raise VersionUnreadableError(
                f"{self.history.folder}: version {commit.version} ({commit.operation}) changes rows of {vector.path} "
                "by a deletion vector, which this source does not read. Turn deletion vectors off: ALTER TABLE ... SET "
                "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false'), then REORG TABLE ... APPLY (PURGE)",
                commit.version + 1,
            )
        removed = tuple((file, ChangeType.DELETE) for file in commit.removes)
        return removed + tuple((file, ChangeType.INSERT) for file in commit.adds)


def made_anew(history: DeltaHistory, place: DeltaPosition, now: str) -> str:
    """Return the message for a table with another id than the position's."""
    return (
        f"{history.folder} is another table than the one that was read (its id is {now}, not {place.table}): somebody "
        "dropped it and made it anew. Put the old one back"
    )
