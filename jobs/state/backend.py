"""The incremental state backend of one subtask: loads its range, writes what a micro-batch changed (D2).

Runs inside the task. Order of files is the order of versions; the range that a file was written for
may be wider than the subtask's (another parallelism): rows of other subtasks are left out on loading.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import TableName
from jobs.sinks.staged_files import StagedFiles
from jobs.state.compaction import CompactionPolicy, is_base_due, live_files
from jobs.state.files import read_verified
from jobs.state.frames import arrow_of, empty_frame, frame_of
from jobs.state.key_groups import KeyGroupRange
from jobs.state.merge import DELETED, KEY_GROUP, StateChange, apply_change, in_range
from jobs.state.worker_copy import COPIES, Copy, RangeName, WorkerCopies


def state_file_schema(state: pa.Schema) -> pa.Schema:
    """Return the columns of a state file: key group, key and state columns, tombstone."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *state, pa.field(DELETED, pa.bool_())])


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeState:
    """The state of one operator in one range of key groups, as these files (oldest first) tell it.

    `schema` is that of a state row: key columns, then state columns.
    """

    operator: str
    table: TableName
    keys: tuple[str, ...]
    schema: pa.Schema
    range: KeyGroupRange
    files: tuple[KeyedFile, ...]
    writer: StagedFiles
    version: Version
    policy: CompactionPolicy
    copies: WorkerCopies = COPIES

    def load(self) -> pl.DataFrame:
        """Return the live rows of the range: `_key_group` and the state row.

        Raise StateFileError if a file is missing or damaged.
        """
        live = live_files(self.files)
        paths = [file.file.path for file in live]
        copy = self.copies.find(self._name, paths) or Copy((), self._nothing())
        rows = copy.rows
        for file in live[len(copy.paths) :]:
            rows = apply_change(rows, self._read(file), self.keys)
        if len(copy.paths) < len(paths):
            self.copies.keep(self._name, Copy(tuple(paths), rows))
        return rows

    def write(self, before: pl.DataFrame, delta: pl.DataFrame) -> KeyedFile:
        """Write what became of the range and return its file: a base if one is due, else the delta.

        `before` is what `load` returned, `delta` the changed rows with their tombstones.
        """
        change = StateChange(KeyedFileKind.DELTA, self.range, delta)
        after = apply_change(before, change, self.keys)
        kind = KeyedFileKind.BASE if is_base_due(self.policy, self.files, delta.height) else KeyedFileKind.DELTA
        rows = after.with_columns(pl.lit(value=False).alias(DELETED)) if kind is KeyedFileKind.BASE else delta
        handle = self.writer.write(self.table, arrow_of(rows, state_file_schema(self.schema)))
        written = KeyedFile(handle, kind, self.range.first, self.range.last, self.version)
        self._remember(written, after)
        return written

    @property
    def _name(self) -> RangeName:
        return (self.writer.root, self.table, self.range.first, self.range.last)

    def _remember(self, written: KeyedFile, after: pl.DataFrame) -> None:
        paths = tuple(file.file.path for file in live_files([*self.files, written]))
        self.copies.keep(self._name, Copy(paths, after))

    def _read(self, file: KeyedFile) -> StateChange:
        schema = state_file_schema(self.schema)
        rows = in_range(frame_of(read_verified(self.writer.root, self.operator, file.file, schema)), self.range)
        return StateChange(file.kind, KeyGroupRange(file.first_key_group, file.last_key_group), rows)

    def _nothing(self) -> pl.DataFrame:
        return empty_frame(state_file_schema(self.schema)).drop(DELETED)


def fits(files: Sequence[KeyedFile], key_groups: KeyGroupRange) -> bool:
    """Say whether these files of an upsert table were written for just this range."""
    return all((file.first_key_group, file.last_key_group) == (key_groups.first, key_groups.last) for file in files)
