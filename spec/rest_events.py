"""The events of a warehouse at rest, of a reader that loses a file, of manifests, and of entries as texts."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class CameToRest:
    """Nothing goes on any more, and a clean-up is over. It has our remaining files, and what tables and cuts show."""

    files: frozenset[str]
    shown: frozenset[str]
    cuts: tuple[tuple[CheckpointId, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class ReservedGone:
    """A file was deleted that a reader had reserved, and its reservation had not run out."""

    path: str


@dataclass(frozen=True, slots=True)
class EntryStored:
    """An entry was stored with these manifests, of which the `new` ones were written for it.

    `unfit` are those that lie elsewhere, or whose content is not what their names say. `changed` is false if an entry
    before it has the same handles in manifests.
    """

    checkpoint: CheckpointId
    named: tuple[str, ...]
    new: tuple[str, ...]
    unfit: tuple[str, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class EntryRead:
    """An entry was read with its manifests. `missing` are those that had been deleted.

    `differs` says whether it is another entry than the one that was appended.
    """

    checkpoint: CheckpointId
    missing: tuple[str, ...]
    differs: bool


@dataclass(frozen=True, slots=True)
class EntryTranslated:
    """An entry was written as a version with this format wrote it, and was read.

    `differs` is the first field that reads otherwise than it was meant, or why nothing was read. It is empty if the
    entry was read as it was meant.
    """

    kind: str
    format: int
    differs: str


@dataclass(frozen=True, slots=True)
class LieTold:
    """The codec was given an entry that Tidemark cannot have written. The only right answer is "refused"."""

    kind: str
    lie: str
    answer: str


@dataclass(frozen=True, slots=True)
class FoundFinished:
    """A tick ended before its claim, because the job has finished (B4). The rest is what the stores said then."""

    newest: CheckpointRecord | None
    recorded: frozenset[CheckpointId]
    """The checkpoints whose cuts are recorded."""
    behind: frozenset[TableName]
    """The tables that show less than a recorded cut."""


@dataclass(frozen=True, slots=True)
class EntryAtRest:
    """A process worked on a job at rest, appended this entry, and then ended well."""

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class ImportBegun:
    """A process that holds an empty warehouse with this generation copies the files of another warehouse's entry.

    `line` is that entry with its ancestors there, oldest first, and `drained` are those of them that drains took. The
    rest are the highest generation and the highest committed id of the other warehouse.
    """

    generation: Generation
    line: tuple[CheckpointRecord, ...]
    drained: tuple[CheckpointRecord, ...]
    last_generation: Generation
    last_id: CheckpointId


RestEvent = (
    CameToRest
    | ReservedGone
    | EntryStored
    | EntryRead
    | EntryTranslated
    | LieTold
    | FoundFinished
    | EntryAtRest
    | ImportBegun
)
