"""The end of a tick waits for savepoints: no tick ends in order while a request that it has taken is not answered.

A user who asks for a savepoint while the last rows are being committed gets it. Such a tick ends only because it was
asked to stop, has reached a limit, or fails.
"""

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.messages import Effect, EndTick, SavepointFailed, TickOutcome
from spec.watching import DoorJudge, Watched

_IN_ORDER = (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED)


class WaitsForSavepoints(DoorJudge):
    """Judges requests that a tick gives up because it ends."""

    def __init__(self, door: Watched) -> None:
        """Begin with nothing given up."""
        super().__init__(door)
        self._given_up: list[str] = []

    def asked(self, effect: Effect) -> None:
        """Judge the end of the tick. It answers what it gives up in the same step, and never before."""
        if isinstance(effect, SavepointFailed) and effect.reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN:
            self._given_up.append(effect.request)
        elif isinstance(effect, EndTick) and effect.outcome in _IN_ORDER and self._given_up:
            self.wrong(f"the tick has {effect.outcome.value}, and gives up {self._given_up} for that")
