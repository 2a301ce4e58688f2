"""Decides which request may start a checkpoint now (A3; Flink: `CheckpointRequestDecider`)."""

from bisect import insort
from dataclasses import dataclass

from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.failures import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request in the queue. `sequence` is its place in the order of arrival.

    `name` is None if the periodic timer asked, so that nobody waits for the result.
    """

    name: str | None
    properties: CheckpointProperties
    periodic: bool
    sequence: int

    @property
    def urgency(self) -> tuple[bool, bool, bool, int]:
        """Sort key: savepoint before checkpoint, forced before not, user before periodic, older first."""
        return (not self.properties.is_savepoint, not self.properties.forced, self.periodic, self.sequence)


@dataclass(frozen=True, slots=True)
class DeciderView:
    """What the decision depends on, besides the queue. If `pause_left_ms` <= 0, the minimum pause is over."""

    triggering: bool
    pending: int
    deleting: int
    pause_left_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The request to run, the refused one with its reason, and when the periodic timer tries again."""

    chosen: CheckpointRequest | None = None
    refused: tuple[CheckpointRequest, CheckpointFailureReason] | None = None
    retry_after_ms: int | None = None


NOTHING = Decision()


class RequestDecider:
    """A bounded queue of requests. One is chosen at a time."""

    __slots__ = ("_max_concurrent", "_queue", "_queue_max")

    def __init__(self, *, max_concurrent: int | None, queue_max: int | None) -> None:
        """Take the limits. None means no limit."""
        self._max_concurrent = max_concurrent
        self._queue_max = queue_max
        self._queue: list[CheckpointRequest] = []

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue)

    def submit(self, request: CheckpointRequest, view: DeciderView) -> tuple[Decision, ...]:
        """Queue a request, then choose. A full queue refuses its least urgent periodic request, or else the new one."""
        full = self._queue_max is not None and len(self._queue) >= self._queue_max
        if full and self._queue and not self._queue[-1].periodic:
            return (Decision(refused=(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)),)
        insort(self._queue, request, key=lambda waiting: waiting.urgency)
        if not full:
            return (self.choose(view),)
        dropped = self._queue.pop()
        refusal = Decision(refused=(dropped, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        return (refusal, self.choose(view))

    def choose(self, view: DeciderView) -> Decision:
        """Take the first request if it may run now. Refuse it if it is periodic and the minimum pause is not over."""
        if view.triggering or not self._queue or self._reached(view.deleting - 1):
            return NOTHING
        head = self._queue[0]
        if self._reached(view.pending):
            return Decision(chosen=self._queue.pop(0)) if head.properties.forced else NOTHING
        if head.periodic and not head.properties.forced and view.pause_left_ms > 0:
            self._queue.pop(0)
            reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
            return Decision(refused=(head, reason), retry_after_ms=view.pause_left_ms)
        return Decision(chosen=self._queue.pop(0))

    def drop_all(self) -> tuple[CheckpointRequest, ...]:
        """Empty the queue and return what waited in it."""
        dropped = tuple(self._queue)
        self._queue.clear()
        return dropped

    def _reached(self, count: int) -> bool:
        return self._max_concurrent is not None and count >= self._max_concurrent
