"""The keyed state of one subtask: loads its range of keys, and writes the change of a micro-batch (D2).

It runs inside the task. Files are ordered by version. If the parallelism has changed, a file may hold rows of other
subtasks. Loading leaves these out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl
import pyarrow as pa

from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backends import StateBackend
from jobs.state.compaction import live_files
from jobs.state.files import read_verified
from jobs.state.frames import arrow_of, empty_frame, frame_of
from jobs.state.keyed_rows import FoundKeys, KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, StateChange, apply_change, apply_delta, in_range
from jobs.state.worker_copy import COPIES, Copy, RangeName, WorkerCopies
from jobs.storage.location import storage_at
from jobs.storage.together import together

_KEYS: Final = b"tidemark.keys"
"""The metadata field of a state file that names its key columns, as JSON."""


def state_file_schema(state: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return the columns of a state file: key group, key and state columns, tombstone."""
    columns = [pa.field(KEY_GROUP, pa.int32()), *state, pa.field(DELETED, pa.bool_())]
    return pa.schema(columns, metadata={_KEYS: json.dumps(list(keys))})


def keys_of(file: pa.Schema) -> tuple[str, ...] | None:
    """Return the key columns that a state file names, None if it names none."""
    named = (file.metadata or {}).get(_KEYS)
    return None if named is None else tuple(json.loads(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeState:
    """The state of one operator in one range of key groups, read from these files (oldest first).

    `schema` is the schema of a state row: key columns, then state columns. `outdated` says that a file has other
    columns. Then the whole range is rewritten, so that its files fit the table's schema (D6). `renamed` are old column
    names by the new ones. `remembered` takes all rows of the range when they are written as a base, and returns those
    that are to stay.
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
    copies: WorkerCopies = COPIES

    def load(self) -> KeyedRows:
        """Return the live rows of the range: `_key_group` and the state row.

        Raise StateFileError if a file is missing or damaged.
        """
        live = live_files(self.files)
        paths = [file.file.path for file in live]
        nothing = self._nothing()
        found = self.copies.find(self._name, paths, nothing.schema)
        self.copies.note_use(found, paths)
        copy = found or Copy((), KeyedRows.of(nothing))
        rows = copy.rows
        for change in together(storage_at(self.writer.root), self._read, live[len(copy.paths) :]):
            rows = apply_change(rows, change, self.keys)
        if len(copy.paths) < len(paths):
            self.copies.keep(self._name, Copy(tuple(paths), rows))
        return rows

    def write(self, before: FoundKeys, delta: pl.DataFrame) -> KeyedFile:
        """Write the new state of the range and return its file: a base if the backend wants one, else the delta.

        `delta` has the changed rows with their tombstones. `before` is what all keys of `delta`, at least, have in
        the rows that `load` returned. Raise what the backend raises if the rows can't be kept.
        """
        after = apply_delta(before, delta, self.keys)
        kind = KeyedFileKind.BASE if self.outdated else self.backend.kind_after(self.files, delta.height)
        rows = delta
        if kind is KeyedFileKind.BASE:
            every = after.frame()
            after = KeyedRows.of(every if self.remembered is None else self.remembered(every))
            rows = after.frame().with_columns(pl.lit(value=False).alias(DELETED))
        content = arrow_of(rows, self._file_schema())
        handle = self.backend.keep(self.operator, self.writer, self.table, content)
        written = KeyedFile(handle, kind, self.range.first, self.range.last, self.version)
        self._remember(written, after)
        return written

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)

    def _remember(self, written: KeyedFile, after: KeyedRows) -> None:
        paths = tuple(file.file.path for file in live_files([*self.files, written]))
        self.copies.keep(self._name, Copy(paths, after))

    def _read(self, file: KeyedFile) -> StateChange:
        content = read_verified(self.writer.root, self.operator, file.file, self._file_schema(), self.renamed)
        rows = in_range(frame_of(content), self.range)
        return StateChange(file.kind, file.key_groups, rows)

    def _nothing(self) -> pl.DataFrame:
        return empty_frame(self._file_schema()).drop(DELETED)

    def _file_schema(self) -> pa.Schema:
        return state_file_schema(self.schema, self.keys)


def fits(files: Sequence[KeyedFile], key_groups: KeyGroupRange) -> bool:
    """Return whether these files of an upsert table were written for exactly this range."""
    return all(file.key_groups == key_groups for file in files)
