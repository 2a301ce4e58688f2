"""Keeps the lease of a job's holder, a small JSON file that is renewed by atomic replace. It decides politeness only.

A file that is missing, damaged or of another format means "no lease". A claim is safe without it, by the
compare-and-swap on `checkpoints` alone.
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
    """The content of the lease file. Times in ms since the epoch, on the holder's clock."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    generation: Generation
    holder: Holder
    renewed_at_ms: int
    expires_ms: int

    def lease(self) -> Lease:
        """Return what the fence needs of it."""
        return Lease(self.generation, self.expires_ms)


class LeaseStore:
    """The lease file of one job."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Name the file; nothing is read or written yet."""
        self._warehouse = warehouse
        self._place = warehouse.place(warehouse.paths.lease)

    def read(self) -> LeaseFile | None:
        """Return the lease, or None if there is none that can be read."""
        return read_document(LeaseFile, self._place)

    def renew(self, generation: Generation, holder: Holder, lease_ms: int) -> bool:
        """Write the lease for `lease_ms` from now; return False, writing nothing, if a newer generation has one."""
        there = self.read()
        if there is not None and there.generation > generation:
            return False
        now_ms = self._warehouse.now_ms()
        lease = LeaseFile(generation=generation, holder=holder, renewed_at_ms=now_ms, expires_ms=now_ms + lease_ms)
        self._place.replace(document(lease), durable=False)
        return True

    @contextmanager
    def kept(self, claim: Claim, lease_ms: int) -> Iterator[None]:
        """Write the lease of a claim and renew it until the block ends; then take it away.

        A newer generation's lease stays, and ends the renewing. An OSError is logged, since a lease is advisory.
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
        """Take the lease of that generation away; a newer generation's stays."""
        there = self.read()
        if there is not None and there.generation <= generation:
            self._place.delete()
