"""The keyed state of one subtask: loads its range of keys, and writes the change of a micro-batch (D2).

This code runs inside the task. Files are ordered by version. If the parallelism has changed, a file may hold rows of
other subtasks. Loading leaves these rows out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import polars as pl
import pyarrow as pa

from checkpointing.event_time import END_OF_TIME, Expiry
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from jobs.sinks.staged_files import Encoding, StagedFiles
from jobs.state.files import StateTooLargeError, arrow_of, empty_frame, frame_of, of_its_own, read_verified
from jobs.state.key_joins import join_by_key
from jobs.state.keyed_rows import FoundKeys, KeyedRows, noting_order
from jobs.state.mapped_files import MAPPED, MappedFiles
from jobs.state.merge import DELETED, KEY_GROUP, StateChange, apply_change, apply_delta, in_range, superseded, unchanged
from jobs.state.worker_copy import COPIES, Aged, Copy, RangeName, WorkerCopies
from jobs.storage.place import storage_at, together

# ------------------------------------------------------------------
# Decides by sizes when a subtask writes its whole range (a base) instead of one more delta.
#
# Compaction only adds a new file. The files that it replaces stay until no retained checkpoint uses them (D4).


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Write a base once the files hold `1 + ratio` times the live rows, and merge more than `deltas_max` deltas.

    Normally the size decides. Then at least `ratio` times as many rows as a base has were replaced before it. The limit
    for deltas bounds how many files an entry names and a worker without a copy opens. If there are more, some deltas
    are merged into one without the base. So a large range that changes little is not rewritten.
    """

    ratio: float = 1.0
    deltas_max: int = 32

    def __post_init__(self) -> None:
        """Raise ValueError unless both limits are positive."""
        if self.ratio <= 0 or self.deltas_max < 1:
            raise ValueError(f"compaction ratio {self.ratio} and deltas_max {self.deltas_max} must be positive")


def is_base_due(policy: CompactionPolicy, files: Sequence[KeyedFile], delta_rows: int, live_rows: int) -> bool:
    """Return whether to write a base instead of a delta of `delta_rows` after these state files (oldest first).

    `live_rows` is the number of live rows after the change. The first file of a range is a base, because it has the
    same rows as a delta would have. Sizes are counted in rows, because the number of rows is known before a file is
    written.
    """
    live = live_files(files)
    return not live or sum(file.file.rows for file in live) + delta_rows >= (1 + policy.ratio) * live_rows


def deltas_to_merge(policy: CompactionPolicy, files: Sequence[KeyedFile], delta_rows: int) -> int:
    """Return how many of the newest files to merge into a new delta of `delta_rows`.

    None of these files is a base. At least half of `deltas_max` deltas are merged. Older deltas are merged too, as long
    as each has no more rows than all newer ones together. So a row is merged only a few times, however many deltas
    follow.
    """
    live = live_files(files)
    if sum(file.kind is KeyedFileKind.DELTA for file in live) < policy.deltas_max:
        return 0
    found, rows = 0, delta_rows
    for file in reversed(live):
        if file.kind is KeyedFileKind.BASE or (2 * found >= policy.deltas_max and file.file.rows > rows):
            break
        found, rows = found + 1, rows + file.file.rows
    return found


# ------------------------------------------------------------------
# Finds state files all of whose rows are obsolete, by the times at which the rows were due (N4).
#
# A micro-batch that fires the keys due by a time replaces or drops each row that was due by then. So a file that has
# only such rows is no longer needed, unless it hides a row of an older file. Therefore files are dropped in order,
# beginning with the oldest.


def due_bounds(file: KeyedFile, due: str) -> tuple[int, int] | None:
    """Return the least and the greatest time at which rows of a file are due. None: these times are unknown.

    They are unknown if a row is never due, or if the file has no statistics of that column.
    """
    stats = json.loads(file.file.stats)
    low, high = (stats.get(each, {}).get(due) for each in ("minValues", "maxValues"))
    if stats.get("nullCount", {}).get(due) != 0 or not isinstance(low, int) or not isinstance(high, int):
        return None
    return low, high


def number_over(files: Sequence[KeyedFile], due: str, fired_ms: int) -> int:
    """Return how many of the oldest files, up to the first other file, have only rows that were due by `fired_ms`."""
    bounds = (due_bounds(file, due) for file in files)
    return next((place for place, each in enumerate(bounds) if each is None or each[1] > fired_ms), len(files))


def some_over(files: Sequence[KeyedFile], due: str, fired_ms: int) -> list[KeyedFile]:
    """Return the files that may have rows that were due by `fired_ms`."""
    return [file for file in files if (bounds := due_bounds(file, due)) is None or bounds[0] <= fired_ms]


def live_files(files: Sequence[KeyedFile]) -> tuple[KeyedFile, ...]:
    """Return the live files. A file is live until a later base covers all of its key groups."""
    return tuple(
        file for place, file in enumerate(files) if not any(_ends(later, file) for later in files[place + 1 :])
    )


def _ends(later: KeyedFile, file: KeyedFile) -> bool:
    return (
        later.kind is KeyedFileKind.BASE
        and later.first_key_group <= file.first_key_group
        and file.last_key_group <= later.last_key_group
    )


# ------------------------------------------------------------------
# State backends decide which part of a range a micro-batch writes, and where (D2; Flink: `StateBackend`).
#
# All three store the same state and read each other's files, so a job may change its backend between two ticks.


class StateBackend(Protocol):
    """Decides whether to write the whole range or its change, and writes it."""

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int, live_rows: int) -> KeyedFileKind:
        """Return the kind of file to write after these live files (oldest first), for so many changed and live rows."""
        ...

    def merged_after(self, files: Sequence[KeyedFile], changed_rows: int) -> int:
        """Return how many of these live files, beginning with the newest, a delta of `changed_rows` replaces."""
        ...

    def keep(
        self, operator: str, writer: StagedFiles, table: TableName, parts: Iterator[pa.Table], schema: pa.Schema
    ) -> FileHandle:
        """Return the handle of these rows. Raise StateTooLargeError or StagedFileError if the rows can't be kept."""
        ...


@dataclass(frozen=True, slots=True)
class IncrementalBackend:
    """Writes deltas and bases, in files that checkpoints share (Flink: `EmbeddedRocksDBStateBackend`, incremental)."""

    policy: CompactionPolicy = field(default_factory=CompactionPolicy)

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int, live_rows: int) -> KeyedFileKind:
        """Return a base if one is due by size, else a delta."""
        is_due = is_base_due(self.policy, files, changed_rows, live_rows)
        return KeyedFileKind.BASE if is_due else KeyedFileKind.DELTA

    def merged_after(self, files: Sequence[KeyedFile], changed_rows: int) -> int:
        """Return how many deltas to merge, if there are too many."""
        return deltas_to_merge(self.policy, files, changed_rows)

    def keep(
        self, operator: str, writer: StagedFiles, table: TableName, parts: Iterator[pa.Table], schema: pa.Schema
    ) -> FileHandle:
        """Write a file."""
        del operator
        return writer.write_parts(table, parts, schema, Encoding.DIFFERENCES)


@dataclass(frozen=True, slots=True)
class FullBackend:
    """Writes the whole range with each micro-batch, in one file (Flink: `HashMapStateBackend`, file storage)."""

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int, live_rows: int) -> KeyedFileKind:
        """Return a base."""
        del files, changed_rows, live_rows
        return KeyedFileKind.BASE

    def merged_after(self, files: Sequence[KeyedFile], changed_rows: int) -> int:
        """Return 0, because a base replaces all files."""
        del files, changed_rows
        return 0

    def keep(
        self, operator: str, writer: StagedFiles, table: TableName, parts: Iterator[pa.Table], schema: pa.Schema
    ) -> FileHandle:
        """Write a file."""
        del operator
        return writer.write_parts(table, parts, schema, Encoding.DIFFERENCES)


@dataclass(frozen=True, slots=True)
class MemoryBackend:
    """Stores the whole range inside the checkpoint's own entry (Flink: `JobManagerCheckpointStorage`).

    This is for small states only: the whole entry is written at each checkpoint, and read for each retained checkpoint.
    `bytes_max` bounds one subtask's state as a compressed file.
    """

    bytes_max: int

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int, live_rows: int) -> KeyedFileKind:
        """Return a base, so that each entry can be restored without other entries."""
        del files, changed_rows, live_rows
        return KeyedFileKind.BASE

    def merged_after(self, files: Sequence[KeyedFile], changed_rows: int) -> int:
        """Return 0, because a base replaces all files."""
        del files, changed_rows
        return 0

    def keep(
        self, operator: str, writer: StagedFiles, table: TableName, parts: Iterator[pa.Table], schema: pa.Schema
    ) -> FileHandle:
        """Put the file's content into its handle. Raise StateTooLargeError above the limit."""
        handle = writer.inline(table, pa.concat_tables([schema.empty_table(), *parts]))
        if handle.bytes > self.bytes_max:
            raise StateTooLargeError(operator, handle.bytes, self.bytes_max)
        return handle


@dataclass(frozen=True, slots=True)
class Expires:
    """When rows of keyed state expire: this long after they were last written.

    With `on_read`, a new row of the key has the effect of a write.
    """

    expiry: Expiry
    on_read: bool = False


_PIECE_BYTES: Final = 64 * 1024 * 1024
"""A base is written in pieces of about so many bytes, so that a range is not in memory twice."""
_MANY_TIMES: Final = 8
"""A base with so many times the rows of the change is sorted by time. Of a smaller one, a full scan is faster."""
_KEYS: Final = b"tidemark.keys"
"""The metadata field of a state file that names its key columns, as JSON."""


def state_file_schema(state: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return the columns of a state file: key group, key and state columns, tombstone."""
    columns = [pa.field(KEY_GROUP, pa.int32()), *state, pa.field(DELETED, pa.bool_())]
    return pa.schema(columns, metadata={_KEYS: json.dumps(list(keys))})


def keys_of(file: pa.Schema) -> tuple[str, ...] | None:
    """Return the key columns that a state file names. None: it names no key columns."""
    named = (file.metadata or {}).get(_KEYS)
    return None if named is None else tuple(json.loads(named))


@dataclass(frozen=True, slots=True)
class StateWritten:
    """The result of writing a range: new files, and the paths of the files that have `ended`.

    A file that has ended is no longer part of the state. Each of its rows is obsolete, or is also in a new file.
    """

    files: tuple[KeyedFile, ...] = ()
    ended: tuple[str, ...] = ()


NOTHING_WRITTEN = StateWritten()


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeState:
    """The state of one operator in one range of key groups, read from these files (oldest first).

    `schema` is the schema of a state row: key columns, then state columns, and `TOUCHED` if rows expire. `outdated`
    says that a file has other columns. Then the whole range is rewritten, so that its files fit the table's schema
    (D6). `renamed` maps new column names to old ones. When the whole range is written as a base, `remembered` takes its
    rows and returns those to keep. With `aged`, rows expire: neither `load` nor a base returns expired rows (N5).
    `lapsed` says how rows expired up to the restored cut, if rows do not expire any more. `due` is the column with the
    time at which a row is due, if there is one (N4). All rows that were due by `fired_ms` have been fired, so a change
    includes all of them.
    """

    operator: str
    table: TableName
    keys: tuple[str, ...]
    schema: pa.Schema
    range: KeyGroupRange
    files: tuple[KeyedFile, ...]
    writer: StagedFiles
    version: Version
    backend: StateBackend
    outdated: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    remembered: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    aged: Aged | None = None
    lapsed: Aged | None = None
    due: str | None = None
    fired_ms: int | None = None
    copies: WorkerCopies = COPIES
    mapped: MappedFiles = MAPPED

    def load(self) -> KeyedRows:
        """Return the live rows of the range: `_key_group` and the state row.

        Raise StateFileError if a file is missing or damaged.
        """
        live = live_files(self.files)
        paths = [file.file.path for file in live]
        nothing = self._nothing()
        found = self.copies.find(self._name, paths, nothing.schema, self.aged)
        self.copies.note_use(found, paths)
        copy = found or Copy((), KeyedRows.of(nothing), self.aged)
        rows = copy.rows if self.aged is None else _stamped(copy.rows, live[: len(copy.paths)], self.aged.column)
        for change in together(storage_at(self.writer.root), self._read, live[len(copy.paths) :]):
            rows = apply_change(rows, change, self.keys)
        if self.aged is not None:
            rows = _living(rows, self.aged)
        if len(copy.paths) < len(paths) or self.aged != copy.aged:
            self.copies.keep(self._name, Copy(tuple(paths), rows, self.aged))
        return rows if self.aged is None else rows.hiding(self.aged.column)

    def write(self, before: FoundKeys, delta: pl.DataFrame) -> StateWritten:
        """Write the new state of the range: a base if the backend wants one, else the delta.

        `delta` has the changed rows with their tombstones. `before` has the rows from `load` of all keys in `delta`,
        and possibly of more keys. Raises the backend's errors if the rows can't be kept.
        """
        if self.aged is not None and before.among.beneath is not None:
            before = before.among.beneath.at(before.places)
            written_now = pl.lit(None, pl.Int64).alias(self.aged.column)
            delta = delta.with_columns(written_now).select(self._file_schema().names)
        content = arrow_of(delta, self._file_schema())
        delta = of_its_own(delta, content)
        live = live_files(self.files)
        over = 0 if self.due is None or self.fired_ms is None else number_over(live, self.due, self.fired_ms)
        stay, ended = live[over:], live[:over]
        needed = delta
        if self.due is not None and self.fired_ms is not None and not self.outdated:
            needed = self._needed(delta, before.rows, some_over(stay, self.due, self.fired_ms))
            if needed.is_empty():
                return self._written(None, stay, ended, apply_delta(before, delta, self.keys))
        if self.outdated or self._wants_base(stay, before, delta, needed.height):
            return self._write_base(apply_delta(before, delta, self.keys), needed.height)
        merged = self.backend.merged_after(stay, needed.height)
        if not merged:
            written = content if needed is delta else arrow_of(needed, self._file_schema())
            file, mapped = self._kept([(needed, written)], KeyedFileKind.DELTA)
            return self._written(file, stay, ended, apply_delta(before, delta, self.keys, mapped))
        stay, ended = stay[:-merged], (*ended, *stay[-merged:])
        for change in reversed(together(storage_at(self.writer.root), self._read, live[-merged:])):
            needed = superseded(change.rows.select(needed.columns), needed, self.keys)
        file, _ = self._kept([(needed, arrow_of(needed, self._file_schema()))], KeyedFileKind.DELTA)
        return self._written(file, stay, ended, apply_delta(before, delta, self.keys))

    def _wants_base(self, stay: Sequence[KeyedFile], before: FoundKeys, delta: pl.DataFrame, changed_rows: int) -> bool:
        """Return whether to write the whole range instead of the change of `changed_rows`."""
        added = delta.height - int(delta[DELETED].sum())
        rows = before.among.height - before.rows.height + unchanged(before, delta, self.keys).height + added
        return self.backend.kind_after(stay, changed_rows, rows) is KeyedFileKind.BASE

    def _needed(self, delta: pl.DataFrame, before: pl.DataFrame, hiding: Sequence[KeyedFile]) -> pl.DataFrame:
        """Return the delta without tombstones that hide no row, because files with obsolete rows were dropped.

        A row that was due by `fired_ms` lies in a dropped file, or in one of the files `hiding`, which may have such
        rows. If these files have more rows than there are tombstones, all tombstones stay.
        """
        keys, gone = list(self.keys), delta.filter(DELETED)
        if sum(file.file.rows for file in hiding) > gone.height:
            return delta
        later = before.filter((pl.col(self.due or "") <= self.fired_ms).fill_null(value=False).not_()).select(keys)
        read = (change.rows.select(keys) for change in together(storage_at(self.writer.root), self._read, hiding))
        needed = join_by_key(gone, pl.concat([later, *read]), keys, "semi")
        return pl.concat([delta.filter(~pl.col(DELETED)), needed])

    def _write_base(self, after: KeyedRows, changed_rows: int) -> StateWritten:
        if self.remembered is not None:
            after = KeyedRows.of(self.remembered(after.frame()))
        if self.due is not None and changed_rows * _MANY_TIMES < after.height:
            after = KeyedRows.of(after.frame().sort(self.due))
        schema, stays = self._file_schema(), pl.lit(value=False).alias(DELETED)
        rows = (piece.with_columns(stays) for piece in after.pieces(_PIECE_BYTES))
        pieces = ((piece, arrow_of(piece, schema)) for piece in rows)
        file, mapped = self._kept(pieces, KeyedFileKind.BASE)
        now = KeyedRows.of(after.frame()) if mapped is None else KeyedRows.of(mapped.drop(DELETED), is_mapped=True)
        return self._written(file, (), (), now)

    def _kept(
        self, pieces: Iterable[tuple[pl.DataFrame, pa.Table]], kind: KeyedFileKind
    ) -> tuple[KeyedFile, pl.DataFrame | None]:
        """Write a file of these rows and their Arrow tables. Return the file, and its rows if they are mapped."""
        with self.mapped.keeping(self._name) as kept:

            def parts() -> Iterator[pa.Table]:
                for rows, content in pieces:
                    kept.add(of_its_own(rows, content))
                    yield content
                    self.mapped.let_go()  # a piece may come from mapped files

            handle = self.backend.keep(self.operator, self.writer, self.table, parts(), self._file_schema())
            mapped = kept.named(handle.path)
        return KeyedFile(handle, kind, self.range.first, self.range.last, self.version), mapped

    def _written(
        self, file: KeyedFile | None, stay: Sequence[KeyedFile], ended: Sequence[KeyedFile], after: KeyedRows
    ) -> StateWritten:
        """Keep a copy of the rows for the next micro-batch. Return the new and the ended files."""
        new = () if file is None else (file,)
        paths = tuple(keyed.file.path for keyed in (*stay, *new))
        self.copies.keep(self._name, Copy(paths, after, self.aged))
        self.mapped.keep_only(self._name, paths)
        return StateWritten(new, tuple(keyed.file.path for keyed in ended))

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)

    def _read(self, file: KeyedFile) -> StateChange:
        schema, aged = self._file_schema(), self.aged or self.lapsed
        if self.aged is None and aged is not None:
            schema = schema.append(pa.field(aged.column, pa.int64()))
        every, is_mapped = self.mapped.read(
            self._name,
            file.file.path,
            empty_frame(schema).schema,
            lambda: frame_of(read_verified(self.writer.root, self.operator, file.file, schema, self.renamed)),
        )
        rows = in_range(every, self.range)
        if aged is not None and file.touched_ms is not None:
            rows = rows.with_columns(pl.col(aged.column).fill_null(file.touched_ms))
        if self.aged is None and aged is not None and aged.now_ms is not None:
            rows = rows.filter(~_is_over(aged, aged.now_ms)).drop(aged.column)
        rows = rows if self.due is None else noting_order(rows, self.due)
        return StateChange(file.kind, file.key_groups, rows, is_mapped and rows.height == every.height)

    def _nothing(self) -> pl.DataFrame:
        return empty_frame(self._file_schema()).drop(DELETED)

    def _file_schema(self) -> pa.Schema:
        return state_file_schema(self.schema, self.keys)


def _stamped(rows: KeyedRows, files: Sequence[KeyedFile], column: str) -> KeyedRows:
    """Return the rows of these files. If the newest file has a write time, fill it in for rows without a time.

    Such rows come from files that had no time when they were read. All of these files got their time at the same
    barrier.
    """
    touched_ms = files[-1].touched_ms if files else None
    return rows if touched_ms is None else rows.filled(column, touched_ms)


def _living(rows: KeyedRows, aged: Aged) -> KeyedRows:
    """Return the rows that have not expired."""
    if aged.now_ms is None:
        return rows
    return rows.where(_is_over(aged, aged.now_ms)).replaced_by(rows.nothing)


def _is_over(aged: Aged, now_ms: int) -> pl.Expr:
    return pl.col(aged.column).fill_null(END_OF_TIME) <= now_ms - aged.expiry.ttl_ms


def fits(files: Sequence[KeyedFile], key_groups: KeyGroupRange) -> bool:
    """Return whether these files of an upsert table were written for exactly this range."""
    return all(file.key_groups == key_groups for file in files)
