"""What a commit begins with: the draft of a checkpoint, and what every entry of the tick carries."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import Compacted
from checkpointing.metadata.record import HookState, RowKind, Statistics, VertexRecord


@dataclass(frozen=True, slots=True)
class Draft:
    """A fully acknowledged checkpoint that waits for its turn. Its parent is known when its turn comes.

    `statistics.rows` and `rows_estimated` count rows that the sources sent in this tick. In the entry they
    count from the parent's barrier.
    """

    checkpoint: CheckpointId
    vertices: tuple[VertexRecord, ...]
    statistics: Statistics
    subsumed: tuple[CheckpointId, ...] = ()
    """Retained checkpoints that the same commit drops."""
    kind: RowKind = RowKind.CHECKPOINT
    pinned: bool = False
    hooks: tuple[HookState, ...] = ()
    compacted: tuple[Compacted, ...] = ()
    """What the tick has compacted in append tables. A savepoint that publishes nothing has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitIdentity:
    """What every entry of this tick carries. `nonce` is the claim's, and globally unique."""

    job: str
    generation: Generation
    nonce: str
    max_parallelism: int
