"""Computes the times of the periodic trigger from the present time and a seed.

It has no timer and no clock (A1, A2).
"""

from collections import deque
from dataclasses import dataclass, field

from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import CoordinatorEffect
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.identifiers import CheckpointId

_MASK = 0xFFFF_FFFF_FFFF_FFFF


def initial_delay_ms(seed: int, min_pause_ms: int, interval_ms: int) -> int:
    """Return a delay in [min_pause_ms, interval_ms] that `seed` decides (Flink: `getRandomInitDelay`).

    The delay comes from SplitMix64's final mix. So neighbouring seeds give very different delays, and one seed gives
    the same delay on each machine.
    """
    mixed = (seed + 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    mixed ^= mixed >> 31
    return min_pause_ms + mixed % (interval_ms - min_pause_ms + 1)


@dataclass(slots=True)
class PeriodicScheduler:
    """When the next periodic trigger is due. `next_ms` is None without a timer.

    If `interval_ms` is None, there is never a timer, even while the scheduler runs.
    """

    interval_ms: int | None
    min_pause_ms: int
    running: bool = False
    next_ms: int | None = None

    def start(self, now_ms: int, seed: int) -> None:
        """Start. The first trigger comes after a random delay (A2)."""
        self.running = True
        if self.interval_ms is not None:
            self.next_ms = now_ms + initial_delay_ms(seed, self.min_pause_ms, self.interval_ms)

    def stop(self) -> None:
        """Stop, and drop the timer."""
        self.running = False
        self.next_ms = None

    def fire(self, now_ms: int) -> bool:
        """Handle one firing of the timer. Return whether there was a timer.

        The rate is fixed: the next firing is due a whole number of intervals after this one was due. If a late clock
        missed several firings, they count as one. A firing before its time starts a new interval.
        """
        if self.next_ms is None or self.interval_ms is None:
            return False
        if now_ms < self.next_ms:
            self.next_ms = now_ms + self.interval_ms
        else:
            self.next_ms += ((now_ms - self.next_ms) // self.interval_ms + 1) * self.interval_ms
        return True

    def postpone_to(self, at_ms: int) -> None:
        """Move the timer to the end of the minimum pause. From there the fixed rate starts again (A3)."""
        if self.running and self.interval_ms is not None:
            self.next_ms = at_ms


# ------------------------------------------------------------------
# The data that the coordinator's modules share. The rules are in those modules.


EXPIRED_REMEMBERED = 16
"""Flink: `CheckpointCoordinator.NUM_GHOST_CHECKPOINT_IDS`."""


@dataclass(slots=True, kw_only=True)
class Books:
    """The coordinator's state. `effects` are the effects of the current step."""

    settings: CoordinatorSettings
    topology: Topology
    store: CompletedCheckpointStore
    scheduler: PeriodicScheduler
    failures: FailurePolicy
    statistics: StatisticsTracker
    hooks: list[str]
    now_ms: int = 0
    effects: list[CoordinatorEffect] = field(default_factory=list)
    pending: dict[CheckpointId, PendingCheckpoint] = field(default_factory=dict)
    committing: CheckpointId | None = None
    """The one checkpoint that is FINALISING."""
    recent_expired: deque[CheckpointId] = field(default_factory=lambda: deque(maxlen=EXPIRED_REMEMBERED))
    last_completion_ms: int | None = None
    deleting: int = 0
    """How many deletions are in progress."""
    force_full: bool = False
    """True if the job was restored without a claim on the files, and no checkpoint has completed since (G3)."""
    is_shut_down: bool = False
    queue_stirred: bool = False
    """True if a queued request may be able to start, after a completion, an abort or the end of a trigger procedure."""
    timers_touched: bool = False

    def emit(self, effect: CoordinatorEffect) -> None:
        """Add an effect to the current step."""
        self.effects.append(effect)
