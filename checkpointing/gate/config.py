"""How one gate treats barriers: its policy and the limits that go with it (C1 to C6)."""

from dataclasses import dataclass
from enum import Enum

UNLIMITED = -1
"""`max_alignment_bytes` that means: no limit."""


class GatePolicy(Enum):
    """How barriers pass the gate."""

    ALIGNED_BLOCKING = "aligned_blocking"
    """Exactly once; what lies behind a barrier stays in its channel (Flink 1.11 and later)."""
    ALIGNED_BUFFERING = "aligned_buffering"
    """Exactly once; what lies behind a barrier is read and put aside, up to a limit (Flink 1.5 to 1.10)."""
    AT_LEAST_ONCE = "at_least_once"
    """Barriers are counted, nothing is ever blocked (Flink: `CheckpointBarrierTracker`)."""
    UNALIGNED = "unaligned"
    """The first barrier triggers and barriers overtake segments; savepoints are aligned all the same."""
    ALTERNATING = "alternating"
    """Aligned; a barrier with a timeout turns its checkpoint unaligned once it is older than that (C6)."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The configuration of one gate.

    `max_alignment_bytes` matters under ALIGNED_BUFFERING only: the pending checkpoint is aborted when more
    bytes than that are put aside. Raise ValueError, naming field and rule, unless it is positive or -1 (C2).
    `checkpoint_after_tasks_finished`: the end of a channel counts as its barrier (FLIP-147); otherwise, and
    always under ALIGNED_BUFFERING, it aborts what is pending.
    """

    policy: GatePolicy = GatePolicy.ALIGNED_BLOCKING
    max_alignment_bytes: int = UNLIMITED
    checkpoint_after_tasks_finished: bool = True

    def __post_init__(self) -> None:
        """Refuse a limit that is neither positive nor -1."""
        if self.max_alignment_bytes <= 0 and self.max_alignment_bytes != UNLIMITED:
            message = f"max_alignment_bytes is {self.max_alignment_bytes}: it must be positive, or -1 for no limit"
            raise ValueError(message)
