"""Decides when a tick checks whether another process has claimed its job (G5).

Usually, a tick that was taken over finds out when its next entry is refused. But if each of its checkpoints fails
before the commit, it sends no entry. This happens if the other process deletes its files, or if the tables cannot be
read. Without a check, the tick would go on for up to `tolerable_failures` checkpoints, with a longer pause after each.

The rule: after each failed checkpoint that counts as a failure of the job, the tick reads the newest claim. If that
claim is of a later generation, the tick ends as fenced.
"""

from checkpointing.coordinator.failure_policy import COUNTED
from checkpointing.identifiers import Generation
from checkpointing.messages import LookForRival, NotifyAborted, RivalSeen


class RivalWatch:
    """Asks for the newest claim after a failed checkpoint, one request at a time."""

    def __init__(self, generation: Generation) -> None:
        """Begin without a request. `generation` is the tick's own."""
        self._generation = generation
        self._looks = False

    def failed(self, aborted: NotifyAborted) -> tuple[LookForRival, ...]:
        """Return the request that a failed checkpoint makes necessary, unless one is under way."""
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
