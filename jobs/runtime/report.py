"""The report that a tick returns to its caller."""

from dataclasses import dataclass
from pathlib import Path

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """Says how a tick ended. If it failed, `reason` and `message` say why, and `message` names the way out.

    `completed` has the newest checkpoints that the tick completed, oldest first, also one that it rolled forward.
    `generation` and `trace` belong to the last attempt. If the job had finished before, they belong to the tick that
    finished it. `restarts` is the number of attempts before it. `counts` covers
    all attempts.
    """

    outcome: TickOutcome
    generation: Generation
    completed: tuple[CheckpointRecord, ...]
    message: str
    reason: CheckpointFailureReason | None
    seconds: float
    trace: Path
    restarts: int = 0
    counts: CheckpointCounts
