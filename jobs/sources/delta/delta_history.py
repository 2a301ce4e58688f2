"""Reads the history of a Delta table without Spark: the newest version, a single commit, the files of a snapshot.

Log entries never change, and neither do the files that they name. A file that OPTIMIZE or a delete removed from the
table stays in the table's folder until VACUUM. Until then an older version can still be read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from jobs.sources.delta.delta_reader import ChangeType, DeltaPosition, MarkedRows
from jobs.sources.delta.mapped_columns import key_of, named_as, reads_as
from jobs.sources.port import SourceError
from jobs.sources.schema_json import SchemaJsonError, schema_of_json
from jobs.storage.address import StoreUrl
from jobs.storage.objects import StoreError, known_failure
from jobs.storage.place import StoragePlace, both
from jobs.storage.port import Content
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.file_checks import logged_files
from jobs.warehouse.log_entries import entry_place, log_versions
from jobs.warehouse.table_snapshot import delta_table, has_deletion_vectors, kept_rows

_WIDENING: Final = frozenset({"typeWidening", "typeWidening-preview"})
_READ_FEATURES: Final = _WIDENING | {
    "timestampNtz",
    "deletionVectors",
    "columnMapping",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Features of Delta's protocol that this module handles, or that do not change how files are read."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in an action of the log. `rows` is None if the log has no count.

    `rows` includes the rows that a deletion vector marks. `partition` maps the physical names of the partition columns
    to their values. `marked` says which rows are read, or None if all are.
    """

    path: str
    size: int
    rows: int | None
    partition: Mapping[str, str | None]
    deletion_vector: bool = False
    marked: MarkedRows | None = None


@dataclass(frozen=True, slots=True)
class DeltaColumns:
    """The table's identity and columns, from a metaData action or a snapshot."""

    id: str
    schema: StructType
    partitioned_by: tuple[str, ...]
    configuration: Mapping[str, str]

    @property
    def mapped(self) -> bool:
        """Return True if the columns may have other names in the files than in the table (column mapping)."""
        return self.configuration.get("delta.columnMapping.mode", "none") != "none"

    @property
    def by_id(self) -> bool:
        """Return True if a file's columns are found by their field ids."""
        return self.configuration.get("delta.columnMapping.mode") == "id"

    @property
    def has_feed(self) -> bool:
        """Return True if commits write to the change data feed."""
        return self.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The content of one version's log entry.

    `adds` and `removes` leave out files that the commit only rearranges (OPTIMIZE).
    """

    version: int
    operation: str
    at_ms: int
    adds: tuple[DataFile, ...]
    removes: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]
    """Files of the change data feed."""
    columns: DeltaColumns | None
    """The table's columns from this version on, if the commit changes them."""
    merged: frozenset[str] = frozenset()
    """Files that the commit removes, and whose rows lie in the files of `merged_into` from then on."""
    merged_into: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Removes and adds that a reader of appended rows ignores. Each is a version and the path of a file."""

    removes: frozenset[tuple[int, str]] = frozenset()
    """Removed files for which no version is refused: their rows are not read, or other files have them."""
    adds: frozenset[tuple[int, str]] = frozenset()
    """Added files whose rows are not read: a later version removed them, or they were read before."""


def taken_back(commits: Iterable[CommittedVersion]) -> TakenBack:
    """Return the removes and adds that a reader of appended rows ignores in these versions.

    Files that these versions add and later remove are not read. A rollback can undo a compaction: it removes the files
    with the merged rows, and adds again the files that were merged. None of these files is read a second time. A
    version may also remove rows that existed before these versions. Then its removed files are not in the answer, and
    the reader refuses that version.
    """
    added, removes = set[tuple[int, str]](), set[tuple[int, str]]()
    read, read_merged = dict[str, int](), dict[str, int]()
    """The new files in the table, and the new files that were merged: each with the version in which it is read."""
    old_gone, into, ever_into = set[str](), set[str](), set[str]()
    states = {(frozenset[str](), frozenset[str]()): read_merged}
    """Past values of `read_merged`, by the older files that were gone and the files that had merged rows then."""
    for commit in commits:
        version, lost, new = commit.version, _paths(commit.removes), _paths(commit.adds)
        old_gone |= lost - read.keys() - into
        own = {path: read_merged.get(path, version) for path in new - old_gone - ever_into}
        old_gone -= new
        into = (into - lost) | (new & ever_into)
        if lost:
            state = states.get((frozenset(old_gone), frozenset(into)))
            if state is None or lost & new:
                break
            removes |= {(version, path) for path in lost}
            read_merged, read = dict(state), {path: at for path, at in read.items() if path not in lost}
        added |= {(version, path) for path in new}
        read |= own
        if commit.merged:
            old_gone |= commit.merged - read.keys() - into
            read_merged = read_merged | {path: read.pop(path) for path in commit.merged & read.keys()}
            into = (into - commit.merged) | commit.merged_into
            ever_into |= commit.merged_into
            states[frozenset(old_gone), frozenset(into)] = read_merged
    return TakenBack(frozenset(removes), frozenset(added - {(at, path) for path, at in (read_merged | read).items()}))


def _paths(files: Iterable[DataFile]) -> frozenset[str]:
    return frozenset(file.path for file in files)


@dataclass(frozen=True, slots=True)
class NewestVersion:
    """The newest version, its columns and its log entry. The entry differs if the table is created again."""

    version: int
    columns: DeltaColumns
    entry: Content


class DeltaHistory:
    """The history of one table. All methods that look at the table raise StoreError if an object store fails."""

    def __init__(self, folder: StoragePlace) -> None:
        """Store the table's folder. Nothing is read yet."""
        self.folder = folder
        self._newest: NewestVersion | None = None
        self._bound: DeltaColumns | None = None
        self._then: tuple[int, DeltaColumns] | None = None
        """The version that was asked for last, and its columns. Log entries contain the columns of later versions."""

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
        self._newest = NewestVersion(version, self.columns_of(table), entry)
        if self._bound is None or self._bound.id != self._newest.columns.id:
            self._bound = self._newest.columns
        return self._newest

    def bound(self) -> DeltaColumns:
        """Return the columns that the table had when this object first looked at it.

        As long as this object is used, rows are read under the names of these columns. So a column that is renamed
        meanwhile is still read. Raise SourceError if the table cannot be read.
        """
        return self._bound or self.newest().columns

    def must_exist(self) -> None:
        """Raise SourceError if the folder has no Delta table."""
        if not DeltaLog(self.folder).exists():
            raise SourceError(f"{self.folder} is not a Delta table: write it first, or correct the source's path")

    def has_entry(self, version: int) -> bool:
        """Return True if the log still has the entry of a table version."""
        return entry_place(self.folder, version).exists()

    def oldest(self) -> int:
        """Return the oldest version whose entry the log still has."""
        return min(log_versions(self.folder), default=0)

    def commit(self, version: int) -> CommittedVersion:
        """Return the content of a table version's log entry. Raise SourceError if the entry is gone or unreadable."""
        entry = self._entry(version)
        if entry is None:
            raise SourceError(f"{self.folder}: the log has no entry of version {version}")
        return _commit(self.folder, version, entry)

    def committed_at_ms(self, version: int) -> int | None:
        """Return the time when a table version was committed, or None if its log entry is gone."""
        return self.commit(version).at_ms if self.has_entry(version) else None

    def columns_at(self, version: int) -> DeltaColumns:
        """Return the table's columns at a version. Raise SourceError if the log no longer has them."""
        return self.columns_of(self.opened(version))

    def columns_when_committed(self, version: int, table: str) -> DeltaColumns | None:
        """Return the columns that the table had at a version, or None if the log no longer has them.

        Call this with versions in rising order: the first call opens the table, and later calls read only the log
        entries in between. `table` is the id that the table has now. Raise SourceError if an entry is gone.
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

    def kept(self, path: str, rows: int, marked: MarkedRows) -> NDArray[np.bool_]:
        """Return for each row of a file whether the row is read.

        Raises VersionUnreadableError if a deletion vector is gone.
        """
        left = self._left(path, rows, marked.without)
        return left if marked.only is None else left & ~self._left(path, rows, marked.only)

    def _left(self, path: str, rows: int, version: int | None) -> NDArray[np.bool_]:
        """Return for each row of a file whether the file's deletion vector at that version does not mark it."""
        left = np.ones(rows, np.bool_)
        if version is not None:
            found = _vectors(self, version, self.bound().id).get(path)
            if found is not None:
                said = found.values.to_numpy(zero_copy_only=False)
                left[: len(said)] = said[:rows]
        return left

    def file(self, path: str) -> StoragePlace:
        """Return the place of a file. Raise SourceError for a file outside of the table's folder (a shallow clone)."""
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
            return delta_table(self.folder, version)
        except (DeltaError, OSError, ValueError) as error:
            what = "" if version is None else f" at version {version}"
            root = self.folder.storage.root
            known = known_failure(root, "read", self.folder.name, str(error)) if isinstance(root, StoreUrl) else None
            if known is not None:
                raise known from None
            raise SourceError(
                f"{self.folder} cannot be read{what} by delta-rs ({str(error).splitlines()[0]})"
            ) from error

    def columns_of(self, table: DeltaTable) -> DeltaColumns:
        """Return the columns of a table that `opened` returned. Raise SourceError for a schema that cannot be read."""
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
    has = frozenset(table.protocol().reader_features or ())
    unknown = has - _READ_FEATURES
    if not unknown and has & _WIDENING and has_deletion_vectors(table):  # delta-rs decodes no vectors of such a table
        unknown = frozenset({f"{' and '.join(sorted(has & _WIDENING))} together with deletionVectors"})
    if unknown:
        raise SourceError(
            f"{folder} has features that this source does not read: {', '.join(sorted(unknown))}. "
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
    """Return a parsed log entry. `entry` is in the cache's key, because the table may be created anew."""
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
        merged=_rearranged(actions, "remove"),
        merged_into=_rearranged(actions, "add"),
    )


def _said(folder: StoragePlace, said: dict[str, Any]) -> DeltaColumns:
    by = tuple(said.get("partitionColumns", ()))
    return _columns(folder, said["id"], said["schemaString"], by, said.get("configuration") or {})


def _files(actions: list[dict[str, Any]], kind: str) -> tuple[DataFile, ...]:
    """Return the files in the actions of that kind, without adds and removes that do not change the table's rows."""
    found = (each[kind] for each in actions if kind in each)
    return tuple(_file(each) for each in found if kind == "cdc" or each.get("dataChange", True))


def _rearranged(actions: list[dict[str, Any]], kind: str) -> frozenset[str]:
    found = (each[kind] for each in actions if kind in each)
    return frozenset(unquote(each["path"]) for each in found if not each.get("dataChange", True))


def _file(action: dict[str, Any]) -> DataFile:
    stats = action.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    partition = {name: value or None for name, value in (action.get("partitionValues") or {}).items()}
    vector = action.get("deletionVector") is not None
    return DataFile(unquote(action["path"]), int(action.get("size") or 0), rows, partition, vector)


@lru_cache(maxsize=4)
def _vectors(history: DeltaHistory, version: int, table_id: str) -> Mapping[str, pa.ListScalar]:
    """Return for each file the rows that its deletion vector leaves in the table. Raise VersionUnreadableError."""
    del table_id  # it is part of the key of the cache, because the table may be created again
    try:
        return kept_rows(history.opened(version))
    except StoreError:
        raise
    except (SourceError, DeltaError, OSError, ValueError) as error:
        raise VersionUnreadableError(
            f"{history.folder}: the deletion vectors of version {version} cannot be read "
            f"({str(error).splitlines()[0]}). VACUUM deletes those that are no longer in the table. Put the files "
            "back, or keep them for longer than a pipeline may stand still ('delta.deletedFileRetentionDuration')",
            version + 1,
        ) from error


@lru_cache(maxsize=4)
def _snapshot(history: DeltaHistory, version: int, table_id: str) -> tuple[DataFile, ...]:
    """Return the files of a snapshot, ordered by the time when they were written, then by name."""
    table = history.opened(version)
    vectors = _vectors(history, version, table_id) if has_deletion_vectors(table) else {}
    keys = {field.name: key_of(field) for field in history.columns_of(table).schema.fields}
    marked = MarkedRows(without=version)
    files = sorted(logged_files(table).values(), key=lambda file: (file.written_ms, file.encoded))
    return tuple(
        DataFile(
            file.path,
            file.bytes,
            file.rows,
            {keys[name]: value for name, value in file.partition},
            file.path in vectors,
            marked if file.path in vectors else None,
        )
        for file in files
    )


# ------------------------------------------------------------------
# Decides which rows a reader gets from a version of a Delta table. The error for a version that cannot be read names
# the version.
#
# | a commit that                            | brings, by appends        | brings, by changes                         |
# |------------------------------------------|---------------------------|--------------------------------------------|
# | adds files                               | their rows                | their rows as `insert`                     |
# | rearranges files (OPTIMIZE)              | nothing                   | nothing                                    |
# | has files of the change data feed        | is refused or skipped     | the rows of these files, and of no other   |
# | removes files, and has no feed           | is refused or skipped     | the rows of the removed files as `delete`, |
# |                                          |                           | then those of the added ones as `insert`   |
# | marks rows by a deletion vector          | is refused or skipped     | the rows that only the new vector marks as |
# |                                          |                           | `delete`, those that only the old one      |
# |                                          |                           | marks as `insert` (RESTORE)                |
#
# Rows that a deletion vector marked in an earlier version are neither rows of an added file nor rows of a removed file.


Contents = tuple[tuple[DataFile, ChangeType], ...]

_ANEW = "Or begin anew with a source of another id"


class NewColumns(Enum):
    """What the source does with a column that the table has and the source's schema lacks."""

    FAIL = "fail"
    IGNORE = "ignore"
    NEXT_TICK = "next tick"
    """The source has no declared schema. The next tick takes the table's columns."""


class VersionUnreadableError(Exception):
    """Rows of the history cannot be read.

    `go_on_at` is the first version after these rows. If it is None, the user must read the table from the start again.
    `changed` is True if the version changes rows, and the source reads only appended rows.
    """

    def __init__(self, message: str, go_on_at: int | None, *, changed: bool = False) -> None:
        super().__init__(message)
        self.go_on_at = go_on_at
        self.changed = changed


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """How a source reads a table's history: its columns, and whether it reads appended rows or changes."""

    history: DeltaHistory
    columns: StructType
    left_out: frozenset[str]
    """Columns that the source itself adds. Columns of the table with these names are not read."""
    new_columns: NewColumns
    changes: bool
    skip_change_commits: bool
    taken_back: TakenBack = TakenBack()

    def contents(self, place: DeltaPosition) -> Contents:
        """Return the files with rows to read in a position's version, in order. Raise VersionUnreadableError."""
        return self._snapshot(place.version) if place.snapshot else self._committed(place)

    def must_fit(self, columns: DeltaColumns, version: int, *, newest: bool = False) -> None:
        """Raise SourceError if the columns of a table version do not fit the columns that the source reads.

        The newest version must have all columns. Earlier versions may lack nullable columns.
        """
        where = f"{self.history.folder}, version {version}"
        now = self.history.bound()
        self._must_be_mapped_alike(columns, version, now)
        there = {field.name: field for field in named_as(columns.schema, now.schema).fields}
        for field in self.columns.fields:
            found = there.get(field.name)
            if found is None and (newest or not field.nullable):
                raise SourceError(
                    f"{where} has no column {field.name!r} (it has {', '.join(there)}): correct the source's schema"
                )
            if found is None or reads_as(found.dataType, field.dataType):
                continue
            if self.new_columns is NewColumns.NEXT_TICK and reads_as(field.dataType, found.dataType):
                raise SourceError(
                    f"{where}: column {field.name!r} was widened to {found.dataType.simpleString()} since this tick "
                    "began. Run the tick again, it reads it so"
                )
            raise SourceError(
                f"{where}: column {field.name!r} is {found.dataType.simpleString()}, but is read as "
                f"{field.dataType.simpleString()}: correct the source's schema. {_ANEW}"
            )
        extra = [name for name in there if name not in self.columns.names and name not in self.left_out]
        if extra and self.new_columns is not NewColumns.IGNORE:
            raise SourceError(self._has_more(columns, version, extra))

    def must_keep_values(self, version: int, now: DeltaColumns) -> None:
        """Raise SourceError if rows of this version have values in columns that the table no longer has.

        This happens if a user renames or drops a column before the source has read the rows. A renamed column would be
        null.
        """
        then = self.history.columns_when_committed(version, now.id)
        if then is None:
            return
        self._must_be_mapped_alike(then, version, now)
        gone = [] if self.new_columns is NewColumns.IGNORE else self._gone(then, then.schema.names, now)
        if gone:
            raise SourceError(self._has_more(then, version, gone))

    def _must_be_mapped_alike(self, then: DeltaColumns, version: int, now: DeltaColumns) -> None:
        if then.mapped and not now.mapped and any(key_of(field) != field.name for field in then.schema.fields):
            raise VersionUnreadableError(
                f"{self.history.folder}, version {version}: the files have other names for the columns (column "
                "mapping), and the table no longer says which: somebody turned column mapping off",
                None,
            )

    def _gone(self, then: DeltaColumns, names: Iterable[str], now: DeltaColumns) -> list[str]:
        """Return the columns of an older table version that the table no longer has under any name."""
        kept = {key_of(field) for field in now.schema.fields}
        keys = {field.name: key_of(field) for field in then.schema.fields}
        return [name for name in names if keys.get(name, name) not in kept and name not in self.left_out]

    def _has_more(self, then: DeltaColumns, version: int, columns: Sequence[str]) -> str:
        where, names = f"{self.history.folder}, version {version}", ", ".join(map(repr, columns))
        if self._gone(then, columns, self.history.newest().columns) and self.new_columns is not NewColumns.IGNORE:
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
        version, passed = commit.version, self.taken_back
        if not vector and all((version, file.path) in passed.removes for file in commit.removes):
            stay = (file for file in commit.adds if (version, file.path) not in passed.adds)
            return tuple((file, ChangeType.INSERT) for file in stay)
        if self.skip_change_commits:
            return ()
        raise VersionUnreadableError(
            f"{self.history.folder}: version {commit.version} ({commit.operation}) deletes or changes rows that were "
            "read as appended",
            commit.version + 1,
            changed=True,
        )

    def _changes_of(self, commit: CommittedVersion) -> Contents:
        if commit.changes:
            return tuple((file, ChangeType.SAID_IN_FILE) for file in commit.changes)
        was, now = commit.version - 1, commit.version
        old, new = ({file.path: file for file in files} for files in (commit.removes, commit.adds))
        stay = {path for path in old.keys() & new.keys() if old[path].deletion_vector or new[path].deletion_vector}

        def read(file: DataFile, version: int, other: int) -> DataFile:
            only = other if file.path in stay else None
            marked = file.path in stay or file.deletion_vector
            return replace(file, marked=MarkedRows(without=version, only=only)) if marked else file

        return (
            *((read(file, was, now), ChangeType.DELETE) for file in commit.removes),
            *((read(file, now, was), ChangeType.INSERT) for file in commit.adds),
        )


def made_anew(history: DeltaHistory, place: DeltaPosition, now: str) -> str:
    """Return the message for a table whose id differs from the id in the position."""
    return (
        f"{history.folder} is another table than the one that was read (its id is {now}, not {place.table}): somebody "
        "dropped it and made it anew. Put the old one back"
    )
