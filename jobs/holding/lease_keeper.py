"""Keeps a tick's lease alive. A lease is advisory, so an error here fails nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from checkpointing.metadata.record import Claim
from jobs.stores.lease import LeaseStore
from jobs.stores.renewing import renewed

_log = structlog.get_logger(__name__)


@contextmanager
def kept_lease(leases: LeaseStore, claim: Claim, lease_ms: int) -> Iterator[None]:
    """Write the lease of a claim and renew it until the block ends; then take it away.

    A newer generation's lease stays, and ends the renewing.
    """

    def renew() -> bool:
        return leases.renew(claim.generation, claim.holder, lease_ms)

    try:
        with renewed("lease", renew, lease_ms, at_once=True):
            yield
    finally:
        try:
            leases.release(claim.generation)
        except OSError as failed:
            _log.warning("lease not released", error=str(failed))
