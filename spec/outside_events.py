"""The events of outside sinks."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, TableName


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


OutsideEvent = OutsidePublished | OutsidePassedOver
