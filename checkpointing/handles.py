"""State handles: references to immutable files, and of a small state its bytes (Flink: `StateHandle`).

Paths are relative to the warehouse, so that a warehouse can be moved. Every staged file is a shared
handle: an acknowledgement carries all live ones, and aborting a checkpoint deletes none.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.key_groups import KeyGroupRange

UNKNOWN_CRC32 = -1
"""The checksum of a file that only a table's log knows. A copy of the file computes it."""


@dataclass(frozen=True, slots=True, order=True)
class FileHandle:
    """One immutable Parquet file.

    `path` is relative to the warehouse; `crc32` is over the whole file; `stats` is the Delta
    statistics JSON of the file (numRecords, minValues, maxValues, nullCount). `inline` is the file's
    content as base64 if the handle carries it (Flink: `ByteStreamStateHandle`): such a file is in its
    place only once it is published, and nobody needs it there to restore.
    """

    path: str
    rows: int
    bytes: int
    crc32: int
    stats: str = "{}"
    inline: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Order of state files: (generation, micro-batch), never reused. Newest wins for a key."""

    generation: Generation
    micro_batch: int


class KeyedFileKind(Enum):
    """What a keyed file says about its range of key groups."""

    BASE = "base"
    """Every key of the range; what lies before it no longer counts."""
    DELTA = "delta"
    """Only the keys touched by one micro-batch, tombstones included."""


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file of keyed rows (operator state, or an upsert table) of the key groups first..last."""

    file: FileHandle
    kind: KeyedFileKind
    first_key_group: int
    last_key_group: int
    version: Version

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the file was written for."""
        return KeyGroupRange(first=self.first_key_group, last=self.last_key_group)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file staged for an append table, not yet in its log.

    `after` is the last barrier that its vertex had passed when it was staged, so the net files of
    row m with parent p are exactly those with `after >= p` that its snapshot carries.
    """

    table: TableName
    file: FileHandle
    after: CheckpointId
