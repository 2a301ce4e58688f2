"""The checkpoint ids of one tick. They rise strictly, and come from the block that its claim reserved (A6)."""

from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import Claim


class CheckpointIds:
    """Hands out ids. When the block is used up, another claim of the same generation reserves the next one."""

    def __init__(self, claim: Claim) -> None:
        """Begin with the claim's block."""
        self._claim = claim
        self.next_id = claim.first_id

    def take(self) -> CheckpointId | None:
        """Return the next id, or None if a further block must be reserved first."""
        if self.next_id > self._claim.last_id:
            return None
        taken, self.next_id = self.next_id, CheckpointId(self.next_id + 1)
        return taken

    def further(self, now_ms: int) -> Claim:
        """Return the claim to append for the next block."""
        first = CheckpointId(self._claim.last_id + 1)
        self._claim = self._claim.model_copy(
            update={
                "first_id": first,
                "last_id": CheckpointId(first + IDS_PER_CLAIM - 1),
                "at_ms": now_ms,
                "nonce": f"{self._claim.nonce.split('+')[0]}+{first}",
            }
        )
        return self._claim
