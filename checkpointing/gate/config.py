"""The configuration of one gate: its policy for barriers, and the limits that belong to it (C1 to C6)."""

from dataclasses import dataclass
from enum import Enum

from checkpointing.config import UNLIMITED


class GatePolicy(Enum):
    """How barriers pass the gate."""

    ALIGNED_BLOCKING = "aligned_blocking"
    """Exactly once. What lies behind a barrier stays in its channel (Flink 1.11 and later)."""
    ALIGNED_BUFFERING = "aligned_buffering"
    """Exactly once. What lies behind a barrier is read and put aside, up to a limit (Flink 1.5 to 1.10)."""
    AT_LEAST_ONCE = "at_least_once"
    """Barriers are counted, and no channel is ever blocked (Flink: `CheckpointBarrierTracker`)."""
    UNALIGNED = "unaligned"
    """The first barrier triggers, and barriers overtake segments. Savepoints are aligned nevertheless."""
    ALTERNATING = "alternating"
    """Aligned. A barrier with a timeout turns its checkpoint unaligned when the checkpoint is older than that (C6)."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The configuration of one gate. Raises ValueError, naming field and rule.

    `max_alignment_bytes` matters under ALIGNED_BUFFERING only: if more bytes are put aside, the pending checkpoint is
    aborted. It must be positive, or -1 for no limit (C2). `checkpoint_after_tasks_finished`: the end of a channel
    counts as its barrier (FLIP-147). Otherwise, and always under ALIGNED_BUFFERING, it aborts the pending checkpoint.
    """

    policy: GatePolicy = GatePolicy.ALIGNED_BLOCKING
    max_alignment_bytes: int = UNLIMITED
    checkpoint_after_tasks_finished: bool = True

    def __post_init__(self) -> None:
        """Refuse a limit that is neither positive nor -1."""
        if self.max_alignment_bytes <= 0 and self.max_alignment_bytes != UNLIMITED:
            message = f"max_alignment_bytes is {self.max_alignment_bytes}: it must be positive, or -1 for no limit"
            raise ValueError(message)
