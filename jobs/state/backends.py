"""State backends decide what a micro-batch writes of its range, and where (D2; Flink: `StateBackend`).

All three store the same state and read each other's files, so a job may change its backend between two ticks.
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
    """Decides whether to write the whole range or its change, and writes it."""

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return what to write after these live files, oldest first, when so many rows changed."""
        ...

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Return the handle of these rows; raise StateTooLargeError, StagedFileError if they can't be kept."""
        ...


@dataclass(frozen=True, slots=True)
class IncrementalBackend:
    """Writes deltas and bases, in files that checkpoints share (Flink: `EmbeddedRocksDBStateBackend`, incremental)."""

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
    """Writes the whole range with each micro-batch, in one file (Flink: `HashMapStateBackend`, file storage)."""

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
    """Stores the whole range inside the checkpoint's own entry (Flink: `JobManagerCheckpointStorage`).

    For small states only: the whole entry is written at each checkpoint, and read for each retained one.
    `bytes_max` bounds one subtask's state as a compressed file.
    """

    bytes_max: int

    def kind_after(self, files: Sequence[KeyedFile], changed_rows: int) -> KeyedFileKind:
        """Return a base, so that each entry can be restored without another one."""
        del files, changed_rows
        return KeyedFileKind.BASE

    def keep(self, operator: str, writer: StagedFiles, table: TableName, rows: pa.Table) -> FileHandle:
        """Put the file into its handle; raise StateTooLargeError above the limit."""
        handle = writer.inline(table, rows)
        if handle.bytes > self.bytes_max:
            raise StateTooLargeError(operator, handle.bytes, self.bytes_max)
        return handle
