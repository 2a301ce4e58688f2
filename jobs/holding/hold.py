"""Holding a job, from the claim to the release row."""

from uuid import uuid4

import structlog

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import Claim, Release
from jobs.holding.boundaries import RELEASE, Boundary, around
from jobs.holding.claiming import newest_generation
from jobs.holding.job_stores import JobStores
from jobs.stores.checkpoints import Appended

_log = structlog.get_logger(__name__)


class Hold:
    """A claim that is in, and what its release has to say: the first unused id, behind the newest own row."""

    def __init__(self, stores: JobStores, claim: Claim, at_version: int, boundary: Boundary) -> None:
        """Hold the job by this claim, which lies at that version of `checkpoints`."""
        self._stores = stores
        self._boundary = boundary
        self.claim = claim
        self.at_version = at_version
        self.next_id = claim.first_id
        self._drops: tuple[CheckpointId, ...] = ()

    def drop(self, checkpoints: tuple[CheckpointId, ...]) -> None:
        """Let the rows of these checkpoints and savepoints go in the release's commit."""
        self._drops = checkpoints

    def release(self) -> bool:
        """Append the release row; return False if the job is no longer ours, or the row cannot be written.

        A release that is missing costs the next tick nothing but a look at whether this process lives.
        """
        try:
            with around(self._boundary, RELEASE):
                return self._append(self.at_version) or self._append_behind_own_rows()
        except Exception as error:  # noqa: BLE001 - logged; the next tick finds its way without
            _log.warning("job not released", job=self._stores.warehouse.paths.job, error=f"{error}")
            return False

    def _append(self, at_version: int) -> bool:
        release = Release(
            generation=self.claim.generation,
            next_id=self.next_id,
            at_ms=self._stores.warehouse.now_ms(),
            nonce=uuid4().hex,
        )
        return isinstance(self._stores.append(release, at_version, disposed=self._drops), Appended)

    def _append_behind_own_rows(self) -> bool:
        """A row of ours whose outcome was unknown may lie in between: look once more, if nobody else has claimed."""
        seen = self._stores.observe()
        return newest_generation(seen) == self.claim.generation and self._append(seen.version)
