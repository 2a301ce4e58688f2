"""What a warehouse is like when nothing goes on any more."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId


@dataclass(frozen=True, slots=True)
class CameToRest:
    """Nothing goes on any more, and a clean-up is over: our files that are there, what tables and cuts show."""

    files: frozenset[str]
    shown: frozenset[str]
    cuts: tuple[tuple[CheckpointId, frozenset[str]], ...]
