"""Events of a history: what a power cut takes, and what readers by cut would find after it."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation, TableName


@dataclass(frozen=True, slots=True)
class CutsSeen:
    """What readers by cut would find when a generation's door was built: the files of each table, for each cut."""

    generation: Generation
    cuts: tuple[tuple[CheckpointId, tuple[tuple[TableName, frozenset[str]], ...]], ...]


@dataclass(frozen=True, slots=True)
class TableRestored:
    """A user restored the log of a table that had lost entries, as a refused start asks for."""

    table: TableName


@dataclass(frozen=True, slots=True)
class ListsWereStale:
    """A process saw stale lists of the job's entries or cuts. `lacks` are the recorded cuts that it did not see."""

    lacks: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerLost:
    """The power failed, and took versions that a recorded cut names, and files that an entry names."""

    versions: tuple[tuple[CheckpointId, TableName, int], ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedTooEarly:
    """An entry was appended before these files that it names were durable."""

    checkpoint: CheckpointId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """A table's log lost its newest entries."""

    table: TableName
