"""State backends: what a micro-batch writes of its range, and where that lies (D2; Flink: `StateBackend`).

All three hold the same state and read each other's files, so a job may change its backend between ticks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind
from checkpointing.identifiers import TableName
from jobs.sinks.staged_files import Encoding, StagedFiles
from jobs.state.compaction import CompactionPolicy, is_base_due
from jobs.state.failures import StateTooLargeError


class StateBackend(Protocol):
    """Chooses between the whole range and its change, and keeps what was chosen."""

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return what to write after these live files, oldest first, when so many rows changed."""
        ...

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Return the handle of these rows; raise StateTooLargeError, StagedFileError if they can't be kept."""
        ...


@dataclass(frozen=True, slots=True)
class IncrementalBackend:
    """Deltas beside bases, in files that checkpoints share (Flink: `EmbeddedRocksDBStateBackend`, incremental)."""

    policy: CompactionPolicy = field(default_factory=CompactionPolicy)

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return a base where one is due by size, else a delta."""
        return KeyedFileKind.BASE if is_base_due(self.policy, files, changed_rows) else KeyedFileKind.DELTA

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Write a file."""
        del operator
        return writer.write(table, rows, Encoding.DIFFERENCES)


@dataclass(frozen=True, slots=True)
class FullBackend:
    """The whole range with each micro-batch, one file of it (Flink: `HashMapStateBackend`, file storage)."""

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return a base."""
        del files, changed_rows
        return KeyedFileKind.BASE

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Write a file."""
        del operator
        return writer.write(table, rows, Encoding.DIFFERENCES)


@dataclass(frozen=True, slots=True)
class MemoryBackend:
    """The whole range inside the checkpoint's own row (Flink: `JobManagerCheckpointStorage`).

    For small states: the row is written and read whole, once a checkpoint and for each retained one.
    `bytes_max` bounds one subtask's state as a compressed file.
    """

    bytes_max: int

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return a base: a row that needs no other can be restored from alone."""
        del files, changed_rows
        return KeyedFileKind.BASE

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Put the file into its handle; raise StateTooLargeError above the limit."""
        handle = writer.inline(table, rows)
        if handle.bytes > self.bytes_max:
            raise StateTooLargeError(operator, handle.bytes, self.bytes_max)
        return handle
