"""The lease of a job's holder: one small JSON file, renewed by atomic replace. It decides politeness, never safety.

So whatever is wrong with it (missing, damaged, of another format) means "no lease", and whoever claims
the job is safe by the compare-and-swap on `checkpoints` alone.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import Generation
from checkpointing.metadata.record import Holder
from jobs.stores.files import read_document, replace
from jobs.stores.warehouse import Warehouse


class LeaseFile(BaseModel):
    """What the lease file says. Times in ms since the epoch, on the holder's clock."""

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
        self._path = warehouse.path(warehouse.paths.lease)

    def read(self) -> LeaseFile | None:
        """Return the lease, or None if there is none that can be read."""
        return read_document(LeaseFile, self._path)

    def renew(self, generation: Generation, holder: Holder, lease_ms: int) -> bool:
        """Write the lease for `lease_ms` from now; return False, writing nothing, if a newer generation's is there."""
        there = self.read()
        if there is not None and there.generation > generation:
            return False
        now_ms = self._warehouse.now_ms()
        lease = LeaseFile(generation=generation, holder=holder, renewed_at_ms=now_ms, expires_ms=now_ms + lease_ms)
        replace(self._path, lease.model_dump_json(indent=1).encode())
        return True

    def release(self, generation: Generation) -> None:
        """Take the lease of that generation away; a newer generation's stays."""
        there = self.read()
        if there is not None and there.generation <= generation:
            self._path.unlink(missing_ok=True)
