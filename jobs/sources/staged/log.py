"""Stores the changes in immutable Parquet files in one folder. Each file begins where the file before it ends.

A file's name has the horizon at which it begins, and its footer has the horizon at which it ends. A file is written
beside the folder and linked into it. So if two processes read the same changes, one of them links its file, and the
other process drops its own. The first file has the snapshot and begins at 0. Rows are numbered through all files. A
file is durable before a slice offers any of its rows.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from jobs.sources.change_rows import COMMITTED_AT, KIND, LSN, TABLE, UNCHANGED, XID
from jobs.sources.files.file_position import SeenFile
from jobs.sources.port import SourceError
from jobs.sources.staged.lsn import written
from jobs.sources.staged.tracked_tables import TrackedTable
from jobs.storage.folder import sync

# ------------------------------------------------------------------
# Turns rows of several tables into Arrow batches with one column for each table.


END: Final = "_end_lsn"
"""A column of staged files that is not read as a column of the source.

In the last row of each transaction, the column has the place after the transaction's commit record. It is null in all
other rows.
"""

_NAMES: Final = pa.list_(pa.field("element", pa.string()))
_HEAD_ARROW: Final = pa.schema(
    [
        pa.field(KIND, pa.string()),
        pa.field(TABLE, pa.string()),
        pa.field(LSN, pa.int64()),
        pa.field(XID, pa.int64()),
        pa.field(COMMITTED_AT, pa.timestamp("us", "UTC")),
        pa.field(UNCHANGED, _NAMES),
        pa.field(END, pa.int64()),
    ]
)
_END_COLUMN: Final = len(_HEAD_ARROW) - 1

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table: their numbers in the batch, rising, and their values, column by column."""

    numbers: Numbers
    columns: Sequence[pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The columns that all rows of a batch have, whatever their table, with a value for each row.

    `tables` has the number of each row's table. `unchanged` maps a row's number to the columns that the server did not
    send.
    """

    kinds: Sequence[str] | pa.Array
    tables: Numbers
    lsns: Numbers
    xids: Numbers | None = None
    committed_us: Numbers | None = None
    unchanged: Mapping[int, list[str]]
    ends: pa.Array | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tables)


class Batches:
    """Makes the batches of one staged file."""

    def __init__(self, tables: Sequence[TrackedTable]) -> None:
        """Take the tables, in the order of their numbers."""
        self._tables = tables
        own = [pa.field(table.column, table.arrow()) for table in tables]
        later = [field for table in tables for field in table.later_arrow()]
        self.schema = pa.schema([*_HEAD_ARROW, *own, *later])

    def made(self, heads: Heads, rows: Mapping[int, TableRows]) -> pa.RecordBatch:
        """Return the rows of all tables. Each row is at its number in the batch.

        Raises SourceError for a value that its column's type cannot hold.
        """
        count, own, later = len(heads), [], []
        for number, table in enumerate(self._tables):
            first = len(table.first)
            if number not in rows:
                own.append(pa.nulls(count, table.arrow()))
                later += [pa.nulls(count, field.type) for field in table.later_arrow()]
                continue
            numbers, columns = rows[number].numbers, self.columns(number, rows[number], heads)
            struct = pa.StructArray.from_arrays(columns[:first], fields=list(table.arrow()))
            own.append(_spread(struct, numbers, count))
            later += [_spread(column, numbers, count) for column in columns[first:]]
        return pa.RecordBatch.from_arrays([*self._head(heads), *own, *later], schema=self.schema)

    def _head(self, heads: Heads) -> list[pa.Array]:
        count = len(heads)
        names = pa.array([table.full_name for table in self._tables], pa.string())
        unchanged: list[list[str] | None] = [None] * count
        for number, columns in heads.unchanged.items():
            unchanged[number] = columns
        committed = pa.nulls(count, pa.int64()) if heads.committed_us is None else pa.array(heads.committed_us)
        return [
            pa.array(heads.kinds, pa.string()),
            names.take(pa.array(heads.tables)),
            pa.array(heads.lsns),
            pa.nulls(count, pa.int64()) if heads.xids is None else pa.array(heads.xids),
            committed.cast(pa.timestamp("us", "UTC")),
            pa.array(unchanged, _NAMES) if heads.unchanged else pa.nulls(count, _NAMES),
            pa.nulls(count, pa.int64()) if heads.ends is None else heads.ends,
        ]

    def columns(self, number: int, rows: TableRows, heads: Heads) -> Sequence[pa.Array]:  # noqa: ARG002
        """Return the values of one table's columns for the table's rows only, in the types of the columns."""
        return rows.columns


def ended(batch: pa.RecordBatch, end_lsn: int) -> pa.RecordBatch:
    """Return the batch with its last row marked as the last row of its transaction."""
    before = batch.column(_END_COLUMN).slice(0, batch.num_rows - 1)
    return batch.set_column(_END_COLUMN, END, pa.concat_arrays([before, pa.array([end_lsn], pa.int64())]))


def _spread(rows: pa.Array, numbers: Numbers, count: int) -> pa.Array:
    """Return `count` rows: the given rows at their numbers, and nulls at all other numbers."""
    if len(numbers) == count:
        return rows
    indices = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    indices[numbers], missing[numbers] = np.arange(len(numbers)), False
    return rows.take(pa.array(indices, mask=missing))


SPLIT: Final = "changes"
_NOTE: Final = b"tidemark"
_ROWS_PER_GROUP: Final = 128 * 1024


class StagedOrigin(BaseModel):
    """Where the rows of a file come from. A file with another origin cannot follow such a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: tuple[TrackedTable, ...]


class StagedNote(BaseModel):
    """The content of a file's footer: the horizons where the file begins and ends, and the rows before the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    start: NonNegativeInt
    end: NonNegativeInt
    before: NonNegativeInt
    origin: StagedOrigin


NoteT = TypeVar("NoteT", bound=StagedNote)


@dataclass(frozen=True, slots=True)
class Words:
    """Words for messages: the name of the database, and how to begin a new series of changes, with a snapshot."""

    database: str
    anew: str


class ChangeFile(Generic[NoteT]):
    """One file of the log."""

    def __init__(self, path: Path, note: NoteT, rows: int) -> None:
        """Describe an existing file. Raise OSError if it is gone."""
        status = path.stat()
        self.path, self.note, self.rows = path, note, rows
        self.seen = SeenFile(name=path.name, size=status.st_size, modified_ns=status.st_mtime_ns, rows=rows)

    @property
    def after(self) -> int:
        """Return the number of rows in the staged log up to the end of this file."""
        return self.note.before + self.rows

    def has_only(self, tables: Sequence[TrackedTable]) -> bool:
        """Return True if these tables have all columns of the file."""
        known = {(table.full_name, each) for table in tables for each in table.columns}
        return known.issuperset((table.full_name, each) for table in self.note.origin.tables for each in table.columns)

    @property
    def is_snapshot(self) -> bool:
        """Return True if the file has the rows of the first snapshot."""
        return self.note.start == 0


class StagedLog(Generic[NoteT]):
    """All files of the folder, in order."""

    def __init__(self, root: Path, notes: type[NoteT], newest_format: int, words: Words) -> None:
        """Store the folder, which may not exist yet, and the type and the format of its files' footers."""
        self.root = root
        self.folder = root / SPLIT
        self.words = words
        self._notes, self._format = notes, newest_format
        self._files: list[ChangeFile[NoteT]] = []

    @property
    def files(self) -> list[ChangeFile[NoteT]]:
        """Return the files that the last `look` found."""
        return self._files

    @property
    def last(self) -> ChangeFile[NoteT] | None:
        """Return the newest file, or None if there is none."""
        return self._files[-1] if self._files else None

    def look(self) -> "StagedLog[NoteT]":
        """Look for new files, and return this log. Raise SourceError if a file is missing between two others."""
        known = {file.path.name for file in self._files}
        names = sorted(path.name for path in self.folder.glob("[0-9A-F]*.parquet"))
        self._files = [file for file in self._files if file.path.name in set(names)]
        for name in names:
            if name not in known:
                self._append(self._opened(self.folder / name))
        return self

    def _append(self, file: ChangeFile[NoteT]) -> None:
        last = self.last
        if last is not None and (file.note.start, file.note.before) != (last.note.end, last.after):
            raise SourceError(
                f"{file.path} begins at {written(file.note.start)}, but the file before it ends at "
                f"{written(last.note.end)}: put the missing files of {self.folder} back, from a backup if need be"
            )
        self._files.append(file)

    def _opened(self, path: Path) -> ChangeFile[NoteT]:
        try:
            footer = pq.read_metadata(path)
            text = (footer.metadata or {})[_NOTE]
            written_in = json.loads(text).get("format", 1)
            if written_in > self._format:
                raise SourceError(
                    f"{path} was written by a newer version of Tidemark (format {written_in}, and this version "
                    f"reads up to {self._format}): run the pipeline with that version"
                )
            note = self._notes.model_validate_json(text)
        except (KeyError, OSError, pa.ArrowException, ValidationError, json.JSONDecodeError) as error:
            raise SourceError(
                f"{path} is not a file of {self.words.database} changes ({type(error).__name__}): put the file back "
                "as it was written, from a backup if need be"
            ) from error
        return ChangeFile(path, note, footer.num_rows)

    def at(self, row: int) -> int | None:
        """Return the index of the file with this row, or None if no file has it."""
        place = bisect_right(self._files, row, key=lambda file: file.note.before) - 1
        while place >= 0 and self._files[place].rows == 0:  # an empty file has the number of the next row too
            place -= 1
        if place < 0 or row >= self._files[place].after:
            return None
        return place

    @contextmanager
    def writing(self, note: NoteT, schema: pa.Schema) -> Iterator["UnfinishedFile[NoteT]"]:
        """Yield a new file. If it is not published, its rows are dropped."""
        beside = self.root / f".{uuid4()}.tmp"
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = UnfinishedFile(self, note, beside, schema)
        try:
            yield draft
        finally:
            draft.close()
            beside.unlink(missing_ok=True)

    def remove_before(self, row: int, modified_ns: int) -> None:
        """Delete files that were written before that time and whose rows all lie before `row`.

        The newest file is never deleted.
        """
        while len(self._files) > 1 and self._files[0].after <= row and self._files[0].seen.modified_ns < modified_ns:
            self._files[0].path.unlink(missing_ok=True)
            del self._files[0]


class UnfinishedFile(Generic[NoteT]):
    """A file that is being written."""

    def __init__(self, log: StagedLog[NoteT], note: NoteT, path: Path, schema: pa.Schema) -> None:
        """Open the file."""
        self._log, self._note, self._path = log, note, path
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(path, schema, compression="zstd")
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if self._writer is not None and batch.num_rows:
            self._writer.write_batch(batch, row_group_size=_ROWS_PER_GROUP)
            self.rows += batch.num_rows

    def publish(self, end: int, **known: object) -> bool:
        """Make the file durable and add it to the log. Return False if another process was first.

        `known` are further fields of the footer, which are not known before the file ends.
        """
        if self._writer is None:
            return False
        note = self._note.model_copy(update={"end": end} | known)
        self._writer.add_key_value_metadata({_NOTE: note.model_dump_json().encode()})
        self.close()
        sync(self._path)
        name = self._log.folder / f"{note.start:016X}.parquet"
        try:
            os.link(self._path, name)
        except FileExistsError:
            return False
        finally:
            sync(self._log.folder)
            sync(self._log.root)
        return True

    def close(self) -> None:
        """Close the file. A second call changes nothing."""
        if self._writer is not None:
            with suppress(pa.ArrowException):
                self._writer.close()
        self._writer = None


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a file's transactions: the row number after each, and the place after its commit record."""

    rows: npt.NDArray[np.int64]
    lsns: npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def ends_of(path: Path) -> Ends:
    """Return the ends of a file's transactions, in order."""
    column = pq.read_table(path, columns=[END]).column(0)
    return Ends(np.flatnonzero(column.is_valid().to_numpy()) + 1, column.drop_null().to_numpy())
