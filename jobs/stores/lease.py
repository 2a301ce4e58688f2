"""Keeps the lease of a job's holder: a small JSON file, which is renewed by atomic replacement.

The lease decides only whether other ticks leave the holder alone. A file that is missing, damaged or of another format
counts as no lease. A claim is safe without it, because of the compare-and-swap on `checkpoints`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import Generation
from checkpointing.metadata.record import Claim, Holder
from jobs.storage.documents import document, read_document
from jobs.stores.renewing import renewed
from jobs.stores.warehouse import Warehouse

_log = structlog.get_logger(__name__)


class LeaseFile(BaseModel):
    """The content of the lease file. Times are in ms since the epoch, by the holder's clock."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    generation: Generation
    holder: Holder
    renewed_at_ms: int
    expires_ms: int

    def lease(self) -> Lease:
        """Return the part that the fence needs."""
        return Lease(self.generation, self.expires_ms)


class LeaseStore:
    """The lease file of one job."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Name the file. Nothing is read or written yet."""
        self._warehouse = warehouse
        self._place = warehouse.place(warehouse.paths.lease)

    def read(self) -> LeaseFile | None:
        """Return the lease, or None if there is no readable one."""
        return read_document(LeaseFile, self._place)

    def renew(self, generation: Generation, holder: Holder, lease_ms: int) -> bool:
        """Write the lease for `lease_ms` from now. Return False, and write nothing, if a newer generation has one."""
        there = self.read()
        if there is not None and there.generation > generation:
            return False
        now_ms = self._warehouse.now_ms()
        lease = LeaseFile(generation=generation, holder=holder, renewed_at_ms=now_ms, expires_ms=now_ms + lease_ms)
        self._place.replace(document(lease), durable=False)
        return True

    @contextmanager
    def kept(self, claim: Claim, lease_ms: int) -> Iterator[None]:
        """Write the lease of a claim, renew it until the block ends, and then delete it.

        A newer generation's lease stays, and ends the renewing. An OSError is only logged, since safety does not need a
        lease.
        """

        def renew() -> bool:
            return self.renew(claim.generation, claim.holder, lease_ms)

        try:
            with renewed("lease", renew, lease_ms, at_once=True):
                yield
        finally:
            try:
                self.release(claim.generation)
            except OSError as failed:
                _log.warning("lease not released", error=str(failed))

    def release(self, generation: Generation) -> None:
        """Delete the lease of this generation. The lease of a newer generation stays."""
        there = self.read()
        if there is not None and there.generation <= generation:
            self._place.delete()
