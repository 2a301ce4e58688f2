"""What sources of a database's changes share: their positions, slices and columns come from the staged log (ADR 13).

A source first writes the changes to immutable files, and a slice names rows of such files. So rows can be read again
from every position as long as the files exist, even if the server has removed the changes. All tables are in one split,
and a slice ends where a transaction ends. So in the default mode no cut shows a part of a transaction.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NoReturn

import numpy as np
import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId, split_id
from checkpointing.messages import PollSource
from jobs.sources.change_rows import COMMITTED_AT, HEAD, TABLE
from jobs.sources.files.file_columns import Fit
from jobs.sources.files.file_position import FileRange, SliceDetail
from jobs.sources.files.file_reader import parquet_reader
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, Lag, NoSuchPositionError, SourceAwayError, SourceError
from jobs.sources.position_words import END, moment_named
from jobs.sources.staged.log import SPLIT, ChangeFile, NoteT, StagedLog, ends_of
from jobs.sources.staged.lsn import parsed, written
from jobs.sources.staged.position import ChangesPosition
from jobs.sources.staged.tracked_tables import SnapshotMode, TrackedTable, must_be_declared
from jobs.spark.columns import quoted

Log = StagedLog[Any]
AnyFile = ChangeFile[Any]
# ------------------------------------------------------------------
# Chooses the next rows of the staged log for a slice, which ends where a transaction ends.


_log = structlog.get_logger(__name__)


def next_ranges(
    log: Log, tables: Sequence[TrackedTable], row: int, rows_max: int, *, snapshot_in_parts: bool
) -> tuple[FileRange, ...]:
    """Return the next rows from `row` on: at most `rows_max`, or one transaction if it alone has more.

    No slice ends within a transaction, so no checkpoint can show a part of a transaction. The snapshot is treated as
    one transaction, unless it may be read in parts. A file with a column that these tables lack waits for a tick whose
    tables have the column.
    """
    ranges: list[FileRange] = []
    place, left = log.at(row), rows_max
    for file in log.files[place:] if place is not None else ():
        if not file.rows:
            continue
        if not file.has_only(tables):
            _log.info("waits for the next tick, which has its columns", file=str(file.path))
            break
        first = max(row - file.note.before, 0)
        end = file.rows
        if end - first > left:
            if not file.is_snapshot:
                end = _boundary(file, first, left, at_least_one=not ranges)
            elif snapshot_in_parts:
                end = first + left
        if end == first:
            break
        ranges.append(FileRange(file=file.seen, first=first, end=end, before=file.note.before))
        left -= end - first
        if end < file.rows or left <= 0:
            break
    return tuple(ranges)


def position_after(log: Log, row: int) -> ChangesPosition:
    """Return the position before that row. The log must have the row before it."""
    place = log.at(row - 1)
    if place is None:
        raise SourceError(f"{log.folder} does not have row {row - 1:,}")
    file = log.files[place]
    if file.is_snapshot:
        return ChangesPosition(row=row, lsn=file.note.end if row == file.after else 0)
    ends = ends_of(file.path)
    number = int(np.searchsorted(ends.rows, row - file.note.before))
    if ends.rows[number] != row - file.note.before:
        raise SourceError(f"row {row:,} of {log.folder} lies within a transaction, so no position can be there")
    return ChangesPosition(row=row, lsn=int(ends.lsns[number]))


def committed_at(log: Log, row: int) -> datetime | None:
    """Return the time of the row's commit. None: the log has no such row, or the row belongs to the snapshot."""
    place = log.at(row)
    if place is None:
        return None
    file = log.files[place]
    times = pq.read_table(file.path, columns=[COMMITTED_AT]).column(0)
    found: datetime | None = times[row - file.note.before].as_py()
    return found


def must_hold(log: Log, position: ChangesPosition) -> None:
    """Raise SourceError if a position lies before the log's first row, or follows other changes than in the log."""
    first = log.files[0] if log.files else None
    if first is None:
        if position.row and not position.lsn:
            raise SourceError(
                f"{log.folder} is gone, and with it the snapshot that was read up to row {position.row:,}: put it back "
                f"from a backup, or {log.words.anew}"
            )
        return
    if position.row < first.note.before:
        raise SourceError(
            f"the changes from row {position.row:,} on ({position.named()}) are not in {log.folder}, which begins with "
            f"row {first.note.before:,}: they were removed as `keep` says, or the folder was replaced. Put its older "
            "files back from a backup, or go back to a newer checkpoint"
        )
    if position.row > first.note.before and log.at(position.row - 1) is not None:
        found = position_after(log, position.row)
        if found.lsn != position.lsn:
            raise SourceError(
                f"{log.folder} has other changes before row {position.row:,} than those that were read: the position "
                f"is at {written(position.lsn)}, the files at {written(found.lsn)}. Put the folder back as it was, or "
                f"{log.words.anew}"
            )


def _boundary(file: AnyFile, first: int, left: int, *, at_least_one: bool) -> int:
    """Return the end of the last transaction that fits into `left` rows, or `first` if none fits.

    With `at_least_one`, return the end of the first transaction if none fits.
    """
    rows = ends_of(file.path).rows
    last = int(np.searchsorted(rows, first + left, side="right")) - 1
    if last >= 0 and rows[last] > first:
        return int(rows[last])
    return int(rows[np.searchsorted(rows, first, side="right")]) if at_least_one else first


# ------------------------------------------------------------------
# Finds the position that a user names in the staged log: a place between two transactions.


CHANGES = "changes"
"""The word for the place after the snapshot, where the changes begin."""


def position_named(log: Log, words: str) -> ChangesPosition:
    """Return the position of `end`, `changes`, a number of rows, a place of the server's log, or a moment.

    A place of the server's log stands for the position after all transactions that were committed before the place. A
    moment stands for the position before the first transaction that was committed at that time or later. Raises
    NoSuchPositionError, which lists the valid words.
    """
    places = tuple(_places(log))
    found = _found(log, places, words) if places else None
    if found is None:
        rows = f", a number of rows after which a transaction ends, from {places[0].row} to {places[-1].row}"
        raise NoSuchPositionError(
            f"write 'start', 'end', '{CHANGES}' (behind the snapshot), a place of the server's log such as 0/16B3748, "
            f"a moment such as 2026-01-31T12:00:00Z{rows if places else ''}"
        )
    return found


def _found(log: Log, places: tuple[ChangesPosition, ...], words: str) -> ChangesPosition | None:
    if words == END:
        return places[-1]
    if words == CHANGES:
        return next((_end_of(file) for file in log.files if file.is_snapshot), None)
    if words.isdecimal():
        return next((place for place in places if place.row == int(words)), None)
    moment = moment_named(words)
    if moment is not None:
        row = _first_since(log, moment)
        return places[-1] if row is None else next((each for each in reversed(places) if each.row <= row), None)
    try:
        lsn = parsed(words)
    except ValueError:
        return None
    return next((place for place in reversed(places) if place.lsn <= lsn), None)


def _places(log: Log) -> Iterator[ChangesPosition]:
    """Yield each place between two transactions, in order."""
    for file in log.files:
        if file.is_snapshot:
            yield _end_of(file)
        elif file.rows:
            ends = ends_of(file.path)
            for row, lsn in zip(ends.rows.tolist(), ends.lsns.tolist(), strict=True):
                yield ChangesPosition(row=file.note.before + row, lsn=lsn)


def _end_of(file: AnyFile) -> ChangesPosition:
    return ChangesPosition(row=file.after, lsn=file.note.end)


def _first_since(log: Log, moment: datetime) -> int | None:
    """Return the number of the first row that was committed at this moment or later. None if there is none."""
    wanted = np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us")
    for file in log.files:
        times = pq.read_table(file.path, columns=[COMMITTED_AT]).column(0).to_numpy()
        later = np.flatnonzero(times >= wanted)  # a row of the snapshot has no time, and is never later
        if later.size:
            return int(file.note.before) + int(later[0])
    return None


_CHANGES_MIN: Final = 50_000
"""The least number of changes that the source asks the server for at once."""
_ROWS_MAX: Final = 1_000_000
"""A poll stages at most about this many rows before it answers, even if it asks for more."""


class StagedChanges(ABC, Generic[NoteT]):
    """The rows of a database's tables, then every change of them (see `port.Source`). A subclass queries the server."""

    def __init__(
        self,
        log: StagedLog[NoteT],
        wanted: Sequence[str] | None,
        declared: tuple[TrackedTable, ...] | None,
        *,
        snapshot: SnapshotMode,
        keep: timedelta | None,
    ) -> None:
        """Read the wanted tables (None: all tables) into a log.

        If the user declares the columns of all tables, the pipeline can be built without the server.
        """
        self._log = log
        self._wanted = None if wanted is None else tuple(wanted)
        self._declared = declared
        self._snapshot = snapshot
        self._keep = keep
        self._tables: tuple[TrackedTable, ...] = ()
        self._completed = ChangesPosition()
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: the source may hold a password."""
        raise TypeError(f"{type(self).__name__} stays in its process: it may hold a password")

    # -------------------------------------------------------------- what a subclass does

    @abstractmethod
    def _discovered(self) -> tuple[TrackedTable, ...]:
        """Return the tables that the server has. Raise SourceError if they cannot be read."""

    @abstractmethod
    def _must_be_of(self, note: NoteT) -> None:
        """Raise SourceError if the newest file has changes from another origin than this source reads."""

    @abstractmethod
    def _begin(self, tables: tuple[TrackedTable, ...]) -> None:
        """Write the first file: the snapshot, or an empty file if no snapshot is read. Raise SourceError."""

    @abstractmethod
    def _append(self, tables: tuple[TrackedTable, ...], position: ChangesPosition, changes: int) -> bool:
        """Write whole transactions with at least `changes` changes, or all there are. Return True if there may be more.

        Raise SourceError.
        """

    @abstractmethod
    def _let_go(self, *, rests: bool) -> None:
        """Allow the server to remove the changes of complete checkpoints, if it keeps changes for this source.

        Called when a checkpoint is complete, and (`rests`) when the server has no more changes. Raise SourceError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all connections and processes; see `port.Closes`."""

    # -------------------------------------------------------------- for pipelines

    def schema(self) -> StructType:
        """Return the columns of a change, then one column for each table, with the table's columns in it.

        The tables and columns are those of the staged files. If there are no staged files yet, they are those that the
        user declared. Without a declaration, the source asks the server.
        """
        tables = self.tables()
        fields = [StructField(table.column, table.fields()) for table in tables]
        return StructType([*HEAD.fields, *fields, *(field for table in tables for field in table.later_fields())])

    def tables(self) -> tuple[TrackedTable, ...]:
        """Return the tables that the source reads. Raise SourceError if they are unknown or cannot be read."""
        with self._lock:
            if self._declared is None or self._tables or self._log.look().last is not None:
                return self._known_tables()
            _must_be_distinct(self._declared)
            return self._in_order(self._declared)

    def of(self, table: str) -> tuple[Callable[[DataFrame], DataFrame], StructType]:
        """Return a step that selects one table's changes, as in `changes.transform(*bank.of("public.accounts"))`.

        The step's columns are the columns of a change, `_split`, `_position`, and then the table's own columns. Raises
        SourceError for a table that is not read, and for a table with a column of the same name as one of the columns
        before.
        """
        found = next((each for each in self.tables() if each.full_name == table), None)
        if found is None:
            names = ", ".join(each.full_name for each in self.tables())
            raise SourceError(f"{self!r}: no table {table} is read, only {names}")
        head = [*HEAD.fields, StructField(SPLIT_COLUMN, StringType()), StructField(POSITION_COLUMN, LongType())]
        kept = [field for field in head if field.name != TABLE]
        outside = [field.name for field in kept]
        inside = [f"{quoted(found.column)}.{quoted(name)}" for name in found.fields().names]
        later = dict(zip((each.name for each in found.columns[len(inside) :]), found.later_fields(), strict=True))
        beside = [f"{quoted(field.name)} AS {quoted(name)}" for name, field in later.items()]
        added = [StructField(name, field.dataType) for name, field in later.items()]
        taken = [name for name in (*found.fields().names, *later) if name.lower() in outside]
        if taken:
            raise SourceError(
                f"{table}: its column {taken[0]!r} has the name of a column that each change has: rename it in the "
                f"database, or take it from the column {found.column} under another name, in a transform of your own"
            )

        def only(rows: DataFrame) -> DataFrame:
            return rows.filter(F.col(TABLE) == F.lit(table)).selectExpr(*outside, *inside, *beside)

        return only, StructType([*kept, *found.fields(), *added])

    # -------------------------------------------------------------- port.Source

    def splits(self) -> tuple[SplitId, ...]:
        """Return the only split. It has all tables, so that one position is a cut through all of them."""
        return (split_id(SPLIT),)

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next transactions; see `port.Source.poll`.

        If the staged files have too few rows, the method first stages what the server has. A transaction of more than
        `max_rows` rows is a slice of its own, and so is the first snapshot unless it is read in parts.
        """
        start = ChangesPosition.parse(request.position)
        with self._lock:
            self._fill(start, min(request.max_rows, _ROWS_MAX))
            in_parts = self._snapshot == "parts"
            tables = self._known_tables()
            ranges = next_ranges(self._log, tables, start.row, request.max_rows, snapshot_in_parts=in_parts)
            if not ranges:
                return None
            end = position_after(self._log, ranges[-1].before + ranges[-1].end)
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=start.text() if request.position is None else request.position,
            end=end.text(),
            detail=SliceDetail(ranges=ranges).model_dump_json(),
            rows=sum(part.rows for part in ranges),
            bytes=sum(part.bytes for part in ranges),
        )

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the changes of the slices by one scan of their files; see `port.Source.read`."""
        ranges = [(split_id(SPLIT), part) for piece in slices for part in SliceDetail.parse(piece.detail).ranges]
        for _, part in ranges:
            path = self._log.folder / part.file.name
            if not path.is_file():
                raise SourceError(f"{path} is gone, with {part.rows:,} changes to read: put it back from a backup")
        return parquet_reader(self._log.root, self.schema()).read(spark, ranges, Fit())

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:  # noqa: ARG002
        """Allow the server to remove the checkpoint's changes, and delete files older than `keep` (F2)."""
        position = ChangesPosition.parse(positions.get(split_id(SPLIT)))
        if not position.lsn:
            return
        with self._lock:
            self._completed = position
            self._log.look()
            self._let_go(rests=False)
            if self._keep is not None:
                self._log.remove_before(position.row, time.time_ns() - int(self._keep.total_seconds() * 1e9))

    # -------------------------------------------------------------- for people and Dagster

    def named(self, split: SplitId, position: str) -> str:
        """Return the horizon and the number of rows in words; see `port.NamesPositions`."""
        del split
        return ChangesPosition.parse(position).named()

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int:
        """Return the number of rows between two positions; see `port.CountsRows`."""
        del split
        return ChangesPosition.parse(end).row - ChangesPosition.parse(start).row

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position of `end`, `changes`, a number of rows, a place of the log or a moment.

        See `port.SeeksPositions` and `position_named`.
        """
        del split
        start = ChangesPosition.parse(position)
        with self._lock:
            self._fill(start, _ROWS_MAX)
            return position_named(self._log, words).text()

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the number of unread changes, and the age of the oldest unread commit; see `port.KnowsLag`.

        To count the changes, the method stages at most about a million of them. Rows of a snapshot have no commit, so
        their age is unknown.
        """
        split = split_id(SPLIT)
        start = ChangesPosition.parse(positions.get(split))
        with self._lock:
            self._fill(start, _ROWS_MAX)
            rows = _after(self._log, start) - start.row
            at = committed_at(self._log, start.row)
        return {split: Lag(rows, 0.0 if not rows else None if at is None else max(time.time() - at.timestamp(), 0.0))}

    # -------------------------------------------------------------- details

    def _known_tables(self) -> tuple[TrackedTable, ...]:
        if self._tables:
            return self._tables
        last = self._log.look().last
        if last is None:
            try:
                found = self._discovered()
            except SourceAwayError as error:
                if self._declared is not None:
                    raise
                raise SourceAwayError(
                    f"{error}. Only the server knows the columns yet. With schema= the pipeline is built without it"
                ) from None
        else:
            self._must_be_of(last.note)
            found = tuple(last.note.origin.tables)
            self._must_be_wanted(found)
        _must_be_distinct(found)
        if self._declared is not None:
            must_be_declared(found, self._declared)
        self._tables = found
        return found

    def _must_be_wanted(self, known: Sequence[TrackedTable]) -> None:
        """Raise SourceError if the staged files have other tables than those that the user names."""
        names = [table.full_name for table in known]
        if self._wanted is not None and sorted(names) != sorted(self._wanted):
            raise SourceError(
                f"{self._log.folder} has changes of {', '.join(names)}, and the pipeline reads "
                f"{', '.join(self._wanted)}: name the same tables, or {self._log.words.anew}"
            )

    def _in_order(self, tables: Sequence[TrackedTable]) -> tuple[TrackedTable, ...]:
        """Return the tables in the order in which the source reads them."""
        names = self._wanted or ()
        return tuple(sorted(tables, key=lambda table: names.index(table.full_name)))

    def _fill(self, start: ChangesPosition, rows: int) -> None:
        """Write changes to files until enough rows follow the position, or the server has no more."""
        log, tables = self._log.look(), self._known_tables()
        must_hold(log, start)
        if log.last is None and not start.lsn:
            self._begin(tables)
            log.look()
        more = True
        while more and (unread := _after(log, start) - start.row) < rows:
            try:
                more = self._append(tables, start, max(rows, _CHANGES_MIN))
            except SourceError:
                if unread > 0:
                    return  # without the server, the staged files can still be read
                raise
        self._rest(start)

    def _rest(self, start: ChangesPosition) -> None:
        """Check the staged log, and allow the server to remove changes. Called when the server has no more changes."""
        must_hold(self._log, start)
        last = self._log.last
        if last is not None and start.row > last.after:
            raise SourceError(
                f"{self._log.folder} ends at row {last.after:,}, before the checkpoint's position ({start.named()}): "
                "put its newer files back from a backup"
            )
        self._let_go(rests=True)


def _after(log: Log, start: ChangesPosition) -> int:
    return start.row if log.last is None else log.last.after


def _must_be_distinct(tables: Sequence[TrackedTable]) -> None:
    """Raise SourceError if two tables or two columns would have the same name in Spark, which ignores case."""
    for what, names in [
        ("the tables", [name for table in tables for name in (table.column, *table.later_fields().names)]),
        *((table.full_name, [column.name for column in table.columns]) for table in tables),
    ]:
        seen: set[str] = set()
        for name in names:
            if name.casefold() in seen:
                raise SourceError(f"{what} have two columns {name!r} for Spark, which ignores case: leave one out")
            seen.add(name.casefold())
