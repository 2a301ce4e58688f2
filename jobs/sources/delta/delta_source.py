"""Finds the version of a Delta table with which a new job begins."""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, reduce
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.engine_paths import typed
from jobs.sources.delta.delta_history import (
    DataFile,
    DeltaHistory,
    HistoryReader,
    NewColumns,
    NewestVersion,
    TakenBack,
    VersionUnreadableError,
    made_anew,
)
from jobs.sources.delta.delta_reader import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    ChangeType,
    DeltaPosition,
    DeltaRange,
    DeltaSlice,
    Like,
    MarkedRows,
    history_scans,
    joined,
    layers,
    read_history,
)
from jobs.sources.delta.mapped_columns import key_of, name_by, nullable, plain
from jobs.sources.files.file_footer import Footer, conversions_of, read_footer
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.places import root_of, store_asked
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    Lag,
    NoSuchPositionError,
    SourceDescription,
    SourceError,
    read_schema,
)
from jobs.sources.position_words import END
from jobs.storage.address import Root
from jobs.storage.parquet import FileScan
from jobs.storage.place import StoragePlace, place_in, together

Start = int | str | datetime | None
"""A version, "latest", a time, or None for a snapshot of the newest version."""


def first_version(history: DeltaHistory, start: Start, newest: int) -> int:
    """Return the first version to read. If `start` is None, the source begins with a snapshot of this version.

    The result may be the next version, which does not exist yet. Raises SourceError for a version or a time at which a
    job cannot begin.
    """
    match start:
        case None:
            return newest
        case str():
            return newest + 1
        case datetime():
            return _first_since(history, start, newest)
        case version if 0 <= version <= newest + 1:
            return version
        case version:
            raise SourceError(f"{history.folder} has no version {version} to begin with: its newest is {newest}")


def _first_since(history: DeltaHistory, moment: datetime, newest: int) -> int:
    """Return the first version committed at or after a time, or the number of the next version if none exists."""
    at_ms = int(moment.astimezone(UTC).timestamp() * 1_000)
    oldest = history.oldest()
    low, high = oldest, newest + 1
    while low < high:
        middle = (low + high) // 2
        if history.commit(middle).at_ms >= at_ms:
            high = middle
        else:
            low = middle + 1
    if low == oldest > 0:
        raise SourceError(
            f"{history.folder}: the log begins with version {oldest}, after {moment.isoformat()}, so what was "
            f"committed between is unknown: name a later time, or begin with start={oldest}"
        )
    return low


# ------------------------------------------------------------------
# A source of a Delta table's rows: first the present rows, then the rows that each later version adds or changes.
#
# The table has one split. A poll reads only the log, and needs no Spark. A slice names files and rows, and Spark reads
# only these rows. `delta_history` decides which rows each kind of commit brings. A file that was compacted away before
# it was read stays in the table's folder until VACUUM deletes it. Until then the source still reads it.


SPLIT: Final = SplitId("table")
"""The single split of a Delta source."""

LATEST: Final = "latest"
"""A value of `start`: begin after the newest version."""

_ALL: Final = 1_000_000_000_000
_NOBODY: Final = VertexId("lag")

_TAKEN: Final = (SPLIT_COLUMN, POSITION_COLUMN, "_metadata")


class DeltaSource(ReadsFirst):
    """Reads the rows of a Delta table, or with `changes` its change data feed (see `port.Source`).

    `path` is the table's folder, or its URL in an object store, such as `s3://bucket/table`. `schema` has the columns
    to read. By default these are all columns that the table has when the pipeline is built. `new_columns` says what the
    source does at a version with a column that a declared `schema` lacks. `start` says where to begin. None is the
    whole table and all later versions, and "latest" is later versions only. A number is the first version to read. A
    time stands for the first version that was committed at that time or later.

    With `skip_change_commits`, the source skips versions that delete or change rows, instead of refusing them. With
    `bounded`, the source ends when no version is left to read. Versions that are committed later are never read.
    """

    def __init__(
        self,
        path: Root | str,
        changes: bool = False,  # noqa: FBT001, FBT002 - the one option that has a name of its own in the guide
        *,
        schema: StructType | None = None,
        start: int | str | datetime | None = None,
        new_columns: Literal["fail", "ignore"] = "fail",
        skip_change_commits: bool = False,
        bounded: bool = False,
    ) -> None:
        """Read nothing yet. Raise SourceError for contradicting options or an invalid URL.

        Raises ValueError for an invalid time.
        """
        self._history = DeltaHistory(place_in(root_of(path), ""))
        if changes and skip_change_commits:
            raise SourceError(f"{path}: changes=True reads all changes: leave skip_change_commits out")
        self._changes = changes
        self._declared = schema
        self._start: Start = datetime.fromisoformat(start) if isinstance(start, str) and start != LATEST else start
        self._new_columns = NewColumns.NEXT_TICK if schema is None else NewColumns(new_columns)
        self._skip_change_commits = skip_change_commits
        self.bounded = bounded
        self._reader: HistoryReader | None = None
        self._origin: DeltaPosition | None = None

    @property
    def stores(self) -> tuple[Root, ...]:
        """The folder or store that Spark reads; see `port.ReadsStores`."""
        return (self._history.folder.storage.root,)

    @store_asked()
    def schema(self) -> StructType:
        """Return the columns to read. Raise SourceError if the table must be read for them and cannot be read."""
        columns = self._reading().columns
        if not self._changes:
            return columns
        feed = StructType(list(columns.fields))
        return feed.add(CHANGE_TYPE, StringType()).add(COMMIT_VERSION, LongType())

    @store_asked()
    def splits(self) -> tuple[SplitId, ...]:
        """Return the single split; see `port.Source.splits`. Raise SourceError if there is no such table."""
        self._history.must_exist()
        return (SPLIT,)

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of the table's history; see `port.Source.poll`.

        Raises SourceError, which names the version, if a version cannot be read.
        """
        return self._offered(request, looks_for_files=True)

    @store_asked()
    def _offered(self, request: PollSource, *, looks_for_files: bool) -> SourceSlice | None:
        try:
            found = self._found(request)
            if found is not None and looks_for_files:
                self._must_have_files(found)
        except VersionUnreadableError as error:
            raise self._unreadable(request, error) from error
        return found

    def _found(self, request: PollSource) -> SourceSlice | None:
        """Return the answer to a poll, without checking that its files exist. Raise VersionUnreadableError."""
        if request.split != SPLIT:
            raise SourceError(f"there is no split {request.split!r}: a Delta table has the one split {SPLIT!r}")
        newest = self._newest()
        start = self._first(newest) if request.position is None else DeltaPosition.parse(request.position)
        self._must_be_of(newest, start)
        end, ranges = self._walk(start, newest, request.max_rows)
        begins = request.position is None and self._start == LATEST
        if not ranges and not begins:
            return None
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=request.position or start.text(),
            end=end.text(),
            detail=DeltaSlice(ranges=tuple(ranges)).model_dump_json(),
            rows=sum(part.count for part in ranges) or 1,
            rows_estimated=not ranges,  # a slice without rows keeps the place where "latest" begins
            bytes=sum(part.bytes for part in ranges),
        )

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return True if no row of the table is left to read; see `port.Bounded`."""
        del split, position
        return self.bounded

    @store_asked()
    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices; see `port.Source.read`."""
        folder, schema = self._history.folder, self.schema()
        alike: dict[Like, list[DeltaRange]] = {}
        parts = joined(part for piece in slices for part in DeltaSlice.parse(piece.detail).ranges)
        for part, like in zip(parts, together(folder.storage, self._like, parts), strict=True):
            alike.setdefault(like, []).append(part)
        frames = [
            read_history(spark, folder, SPLIT, schema, like, layer, kept=self._kept)
            for like, parts in alike.items()
            for layer in layers(parts)
        ]
        return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], read_schema(self))

    @store_asked()
    def scans(self, slices: Sequence[SourceSlice]) -> tuple[FileScan, ...] | None:
        """Return the parts of the files, or None if Spark must read one of them; see `slice_reading.OffersScans`.

        A subclass that overrides `read` has no scans, so that its `read` is used.
        """
        if self._changes or type(self).read is not DeltaSource.read:
            return None
        folder = self._history.folder
        parts = joined(part for piece in slices for part in DeltaSlice.parse(piece.detail).ranges)
        alike = together(folder.storage, self._like, parts)
        if not all(like.is_plain for like in alike):
            return None
        return history_scans(folder, SPLIT, zip(parts, alike, strict=True), self._kept)

    def named(self, split: SplitId, position: str) -> str:
        """Return a position in words, such as `version 12, file 3, row 1,200`; see `port.NamesPositions`."""
        del split
        return str(DeltaPosition.parse(position))

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows between two positions; see `port.CountsRows`.

        Rows that a reset to a version skips are not counted.
        """
        del split
        first, last = (0 if text is None else DeltaPosition.parse(text).before for text in (start, end))
        return last - first

    @store_asked()
    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position before a version's rows; see `port.SeeksPositions`. `_position` continues to rise."""
        del split
        newest = self._newest()
        number = f"version {newest.version + 1}" if words == END else words
        version = re.fullmatch(r"version (\d+)", number)
        if version is None or int(version[1]) > newest.version + 1:
            raise NoSuchPositionError(f"write 'start', 'end' or 'version N', with N from 0 to {newest.version + 1}")
        before = 0 if position is None else DeltaPosition.parse(position).before
        return DeltaPosition(table=newest.columns.id, version=int(version[1]), before=before).text()

    def described(self) -> SourceDescription:
        """Return the kind of source, and the table's place; see `port.DescribesItself`."""
        return SourceDescription("delta", str(self._history.folder))

    @store_asked()
    def lag(self, positions: Mapping[SplitId, str]) -> Mapping[SplitId, Lag]:
        """Return the number of unread rows, and the age of the oldest version with unread rows; see `port.KnowsLag`."""
        found = self._offered(PollSource(_NOBODY, SPLIT, positions.get(SPLIT), _ALL), looks_for_files=False)
        ranges = DeltaSlice.parse(found.detail).ranges if found is not None else ()
        if not ranges:
            return {SPLIT: Lag(0, 0.0)}
        committed_ms = self._history.committed_at_ms(ranges[0].version)
        seconds = None if committed_ms is None else max(0.0, time.time() - committed_ms / 1_000)
        return {SPLIT: Lag(sum(part.count for part in ranges), seconds)}

    # -------------------------------------------------------------- where to begin

    def _reading(self) -> HistoryReader:
        if self._reader is None:
            taken = {*_TAKEN, *((CHANGE_TYPE, COMMIT_VERSION) if self._changes else ())}
            columns = self._declared or _without(plain(self._history.newest().columns.schema), taken)
            wrong = next((name for name in columns.names if name in taken), None)
            if wrong is not None:
                raise SourceError(f"{self._history.folder}: the source adds a column {wrong!r} itself: leave it out")
            self._reader = HistoryReader(
                history=self._history,
                columns=columns,
                left_out=frozenset(taken),
                new_columns=self._new_columns,
                changes=self._changes,
                skip_change_commits=self._skip_change_commits,
            )
        return self._reader

    def _newest(self) -> NewestVersion:
        """Return the newest version. Raise SourceError if changes are read and the table has no feed."""
        newest = self._history.newest()
        if self._changes and not newest.columns.has_feed:
            raise SourceError(
                f"{self._history.folder} has no change data feed: ALTER TABLE ... SET TBLPROPERTIES "
                "('delta.enableChangeDataFeed' = 'true'), or leave changes=True out to read appended rows"
            )
        return newest

    def _first(self, newest: NewestVersion) -> DeltaPosition:
        """Return the position of the first row.

        This object stores the position, because a position must name the same rows for ever.
        """
        if self._origin is None or self._origin.table != newest.columns.id:
            version = first_version(self._history, self._start, newest.version)
            snapshot = self._start is None
            self._origin = DeltaPosition(table=newest.columns.id, version=version, snapshot=snapshot)
        return self._origin

    def _must_be_of(self, newest: NewestVersion, start: DeltaPosition) -> None:
        if start.table != newest.columns.id:
            raise VersionUnreadableError(made_anew(self._history, start, newest.columns.id), None)
        if start.version > newest.version + 1:
            raise SourceError(
                f"{self._history.folder}: versions up to {start.version - 1} were read, and the log ends at "
                f"{newest.version}: its newest entries are lost. Put them back"
            )

    # -------------------------------------------------------------- going through the history

    def _walk(
        self, start: DeltaPosition, newest: NewestVersion, rows_max: int, passed_over: TakenBack | None = None
    ) -> tuple[DeltaPosition, list[DeltaRange]]:
        """Return the position after at most `rows_max` more rows, and the ranges up to it.

        A file with at most `rows_max` rows is not divided. If it does not fit into this slice, it is left to the next
        slice.
        """
        place, ranges, left = start, list[DeltaRange](), rows_max
        reading = replace(self._reading(), taken_back=passed_over or TakenBack())
        while place.version <= newest.version:
            contents = reading.contents(place)
            while place.file < len(contents):
                file, change = contents[place.file]
                rows = self._rows(file, place)
                kept = None if file.marked is None else self._history.kept(file.path, rows, file.marked)
                whole = rows if kept is None else int(np.count_nonzero(kept))
                rest = rows - place.row if kept is None else int(np.count_nonzero(kept[place.row :]))
                if not left or (ranges and rest > left and whole <= rows_max):
                    return place, ranges
                taken = min(rest, left)
                end = _end(place.row, taken, rest, rows, kept)
                if taken:
                    if place.version < newest.version and not place.snapshot:
                        reading.must_keep_values(place.version, newest.columns)
                    ranges.append(_range(file, change, place, rows, end, taken))
                place, left = place.after(taken, end, ends_file=taken == rest), left - taken
            place = place.next_version()
        reading.must_fit(newest.columns, newest.version, newest=True)
        return place, ranges

    def _rows(self, file: DataFile, place: DeltaPosition) -> int:
        path = self._history.file(file.path)
        if file.rows is not None:
            return file.rows
        if not path.exists():
            raise _gone(path, place.version)
        return _footer(path, file.size).rows

    def _must_have_files(self, found: SourceSlice) -> None:
        """Raise VersionUnreadableError if a file of the slice is gone."""
        parts = DeltaSlice.parse(found.detail).ranges
        places = [self._history.file(part.path) for part in parts]
        for part, place, exists in zip(
            parts, places, together(self._history.folder.storage, StoragePlace.exists, places), strict=True
        ):
            if not exists:
                raise _gone(place, part.version)

    def _unreadable(self, request: PollSource, error: VersionUnreadableError) -> SourceError:
        return SourceError(f"{error}. {_OTHER_WAYS if error.changed else ''}{go_on(request, error.go_on_at)}")

    def _like(self, part: DeltaRange) -> Like:
        """Return how the file of a range is read. Raise SourceError if the file is missing or has changed."""
        path = self._history.file(part.path)
        footer = _footer(path, part.size)
        if footer.rows != part.rows:
            raise SourceError(f"{path} has {footer.rows} rows, and its log says {part.rows}: write the table anew")
        names = self._reading().columns.names
        columns = {field.name: field for field in self._history.bound().schema.fields if field.name in names}
        inside = self._inside(columns.values(), footer, path)
        stored = {name: field.name for name, field in inside.items()}
        found = dict(conversions_of(footer, [stored.get(name, name) for name in names]))
        conversions = tuple((name, how) for name in names if (how := found.get(stored.get(name, name))) is not None)
        return Like(
            conversions,
            says_change=part.change is ChangeType.SAID_IN_FILE,
            partitioned_by=tuple((name, key) for name in names if (key := _key(columns, name)) in part.partition),
            as_arrow=footer.is_plain,
            stored=tuple((name, field.name, StructType([field]).json()) for name, field in inside.items()),
            renames_fields=any(field.dataType != nullable(columns[name].dataType) for name, field in inside.items()),
            marked=part.marked is not None,
        )

    def _inside(self, columns: Iterable[StructField], footer: Footer, path: StoragePlace) -> dict[str, StructField]:
        """Return a dict from columns' names in the table to a file's columns. It is empty without column mapping."""
        bound = self._history.bound()
        if not bound.mapped:
            return {}
        absent = [name for name in self._reading().columns.names if name not in bound.schema.names]
        if absent:
            raise SourceError(
                f"{self._history.folder} has no column {absent[0]!r} (it has {', '.join(bound.schema.names)}): correct "
                "the source's schema"
            )
        if bound.by_id and not footer.field_ids:
            raise SourceError(
                f"{path} has no field ids, by which its table finds columns (delta.columnMapping.mode is 'id'): write "
                "the file's rows anew with Spark"
            )
        name_of = name_by(dict(footer.field_ids) if bound.by_id else None)
        return {field.name: StructField(name_of(field), nullable(field.dataType, name_of)) for field in columns}

    def _kept(self, part: DeltaRange) -> NDArray[np.bool_]:
        """Return for each row of a range with `marked` whether it is read. Raise SourceError if a vector changed."""
        try:
            kept = self._history.kept(part.path, part.rows, part.marked or MarkedRows())[part.first : part.end]
        except VersionUnreadableError as error:
            raise SourceError(str(error)) from error
        if int(np.count_nonzero(kept)) != part.count:
            raise SourceError(
                f"{self._history.folder}: the deletion vectors of version {part.version} have changed since its rows "
                "were planned: put the table's log back as it was"
            )
        return kept


def _without(schema: StructType, names: Collection[str]) -> StructType:
    """Return the columns without these names. The source adds such columns itself."""
    return StructType([field for field in schema.fields if field.name not in names])


@lru_cache(maxsize=4_096)
def _footer(path: StoragePlace, size: int) -> Footer:
    """Return the footer of a file. It is cached, because files of a table never change."""
    del size
    return read_footer(path)


def _gone(path: StoragePlace, version: int) -> VersionUnreadableError:
    return VersionUnreadableError(
        f"{path} is gone, before its rows of version {version} were read: VACUUM deletes what is no longer in the "
        "table, and so does the clean-up of a job that compacts it. Put the file back, or let both keep files for "
        "longer than a pipeline may stand still ('delta.deletedFileRetentionDuration', 'reader_grace_ms')",
        version + 1,
    )


def _end(row: int, taken: int, rest: int, rows: int, kept: NDArray[np.bool_] | None) -> int:
    """Return the end of a range that begins at `row` and has `taken` of the `rest` rows that are still to be read."""
    if kept is None:
        return row + taken
    if taken == rest:
        return rows
    return row + int(np.flatnonzero(kept[row:])[taken - 1]) + 1


def _key(columns: Mapping[str, StructField], name: str) -> str:
    return key_of(columns[name]) if name in columns else name


def _range(file: DataFile, change: ChangeType, place: DeltaPosition, rows: int, end: int, taken: int) -> DeltaRange:
    return DeltaRange(
        path=file.path,
        size=file.size,
        rows=rows,
        first=place.row,
        end=end,
        before=place.before - place.row,
        version=place.version,
        change=change,
        partition=dict(file.partition),
        marked=file.marked,
        left_out=end - place.row - taken,
    )


_OTHER_WAYS: Final = (
    "Read the table by changes=True, with a change data feed and under another id, or pass skip_change_commits=True, "
    "which skips such versions whole, their added rows too. "
)


def go_on(request: PollSource, version: int | None) -> str:
    """Return the command with which the user skips rows that cannot be read."""
    command = f"tidemark reset PIPELINE {request.source} --split {request.split} --to"
    if version is None:
        return f"To read all of the present table: {command} start"
    return f"To go on without those rows: {command} {typed(f'version {version}')}"
