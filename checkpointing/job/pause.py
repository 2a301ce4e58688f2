"""Decides how long a tick waits after one of its own checkpoints failed, before it asks for the next one.

The tick asks for a checkpoint of its own when it has read everything, and when a vertex waits for a barrier. Without
the pause it would use up `tolerable_failures` within milliseconds, before a short trouble can pass. Periodic
checkpoints keep their interval, and checkpoints by rows come with the rows.
"""

from typing import Final

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.failure_policy import COUNTED
from checkpointing.messages import SavepointKind

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 60_000


class Pause:
    """The pause after failures that count. It begins with a second, and doubles with each failure in a row."""

    def __init__(self) -> None:
        """Begin without a failure."""
        self._in_a_row = 0
        self.until_ms: int | None = None
        """When the pause is over. None: the last checkpoint did not fail."""

    def is_over(self, now_ms: int) -> bool:
        """Return whether the next checkpoint may be asked for."""
        return self.until_ms is None or now_ms >= self.until_ms

    def answered(
        self, effect: told.RequestSucceeded | told.RequestFailed, kind: SavepointKind | None, now_ms: int
    ) -> None:
        """Take the result of a request. A user's request for a savepoint has a `kind`, and changes nothing here."""
        if kind is not None:
            return
        if isinstance(effect, told.RequestSucceeded):
            self._in_a_row, self.until_ms = 0, None
        elif effect.reason in COUNTED:
            self.until_ms = now_ms + min(LONGEST_MS, FIRST_MS * 2**self._in_a_row)
            self._in_a_row += 1
