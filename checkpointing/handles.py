"""State handles: references to immutable files, or the bytes of a small state (Flink: `StateHandle`).

Paths are relative to the warehouse, so that a warehouse can be moved. Every staged file is a shared handle: an
acknowledgement carries all live handles, and aborting a checkpoint deletes no file.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.key_groups import KeyGroupRange

UNKNOWN_CRC32 = -1
"""Stands for the checksum of a file that only a table's log names. Copying the file computes the checksum."""


@dataclass(frozen=True, slots=True, order=True)
class FileHandle:
    """One immutable Parquet file.

    `path` is relative to the warehouse. `crc32` covers the whole file. `stats` is the Delta statistics JSON of the file
    (numRecords, minValues, maxValues, nullCount). `inline` is the file's content as base64, if the handle carries it
    (Flink: `ByteStreamStateHandle`). Such a file is written to `path` only when it is published, and a restore does not
    need it there.
    """

    path: str
    rows: int
    bytes: int
    crc32: int
    stats: str = "{}"
    inline: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """The order of state files: (generation, micro-batch). No version is used twice. The newest file wins for a key."""

    generation: Generation
    micro_batch: int


class KeyedFileKind(Enum):
    """What a keyed file contains of its range of key groups."""

    BASE = "base"
    """Every key of the range. It replaces all older files of the range."""
    DELTA = "delta"
    """Only the keys that one micro-batch changed, including tombstones."""


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file of keyed rows (operator state, or an upsert table) with the key groups first..last.

    If state expires, `touched_ms` says when the newest rows of a state file were written: the time of the first barrier
    after the file. None: the vertex has not passed a barrier since, or had no watermark yet (N5).
    """

    file: FileHandle
    kind: KeyedFileKind
    first_key_group: int
    last_key_group: int
    version: Version
    touched_ms: int | None = None

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the file."""
        return KeyGroupRange(first=self.first_key_group, last=self.last_key_group)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file staged for an append table, and not yet in its log.

    `after` is the last barrier that its vertex had passed when the file was staged. So the net files of an entry with
    parent p are exactly those of its snapshot with `after >= p`.
    """

    table: TableName
    file: FileHandle
    after: CheckpointId
