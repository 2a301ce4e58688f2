"""The events of a warehouse in which nothing goes on any more, and of a reader that loses a file before that."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId


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
