"""The event of a compaction: a tick was told that files are ready."""

from dataclasses import dataclass

from checkpointing.identifiers import Generation


@dataclass(frozen=True, slots=True)
class CompactionTold:
    """A tick was told of files that are ready to take the place of small ones."""

    generation: Generation
    into: frozenset[str]
