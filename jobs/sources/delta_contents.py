"""Decides which rows a version of a Delta table brings to a reader, and refuses a version by name.

| a commit that                            | brings, by appends        | brings, by changes                         |
|------------------------------------------|---------------------------|--------------------------------------------|
| adds files                               | their rows                | their rows as `insert`                     |
| rearranges files (OPTIMIZE)              | nothing                   | nothing                                    |
| has files of the change data feed        | is refused or skipped     | the rows of these files, and of no other   |
| removes files, and has no feed           | is refused or skipped     | the rows of the removed files as `delete`, |
|                                          |                           | then those of the added ones as `insert`   |
| changes rows by a deletion vector        | is refused or skipped     | is refused                                 |
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pyspark.sql.types import StructType

from jobs.sources.delta_history import CommittedVersion, DataFile, DeltaColumns, DeltaHistory
from jobs.sources.delta_position import ChangeType, DeltaPosition
from jobs.sources.port import SourceError

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
