"""Decides when a tick looks whether another process has claimed its job (G5).

A tick that was taken over learns it when its next entry is refused. If each of its checkpoints fails before the commit,
it sends no entry. The other process may have deleted its files, or its tables cannot be looked at. Without a look it
would go on for up to `tolerable_failures` checkpoints, with a longer pause after each of them.

The rule: after each failed checkpoint that counts as a failure of the job, the tick reads the newest claim. If that
claim is of a later generation, the tick ends as fenced.
"""

from checkpointing.coordinator.failure_policy import COUNTED
from checkpointing.identifiers import Generation
from checkpointing.messages import LookForRival, NotifyAborted, RivalSeen


class RivalWatch:
    """Looks for another claim, once at a time."""

    def __init__(self, generation: Generation) -> None:
        """Begin without a look. `generation` is the tick's own."""
        self._generation = generation
        self._looks = False

    def failed(self, aborted: NotifyAborted) -> tuple[LookForRival, ...]:
        """Return the look that a failed checkpoint makes necessary. A look in progress is enough."""
        if self._looks or aborted.reason not in COUNTED:
            return ()
        self._looks = True
        return (LookForRival(self._generation),)

    def seen(self, fact: RivalSeen) -> str | None:
        """Take the answer. Return why the tick must end, or None if it still holds the job."""
        self._looks = False
        if fact.claim is None:
            return None
        return f"the job was claimed by {fact.claim.holder}, generation {fact.claim.generation}"
