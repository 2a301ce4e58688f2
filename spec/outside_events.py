"""The events of outside sinks."""

from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import CheckpointId, Generation, TableName

LEAVES_OUTSIDE_EVERY: Final = 3
"""A rollback to one checkpoint in this many leaves the sinks of upsert tables as they are."""


@dataclass(frozen=True, slots=True)
class OutsidePublished:
    """A target took the rows of a checkpoint, and noted the checkpoint in the same transaction."""

    checkpoint: CheckpointId
    table: TableName
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutsidePassedOver:
    """A target took nothing, because it had this checkpoint or a newer one."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsidePreCommitted:
    """A target has these rows in a transaction that it can commit in any case. Nobody sees them yet."""

    generation: Generation
    checkpoint: CheckpointId
    table: TableName
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutsideRefused:
    """A target voted against a checkpoint."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsideRolledBack:
    """A target dropped a transaction that it had pre-committed."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsideRecovered:
    """A starting tick has settled what dead ones left, here the transactions of older generations."""

    generation: Generation


OutsideEvent = (
    OutsidePublished | OutsidePassedOver | OutsidePreCommitted | OutsideRefused | OutsideRolledBack | OutsideRecovered
)
