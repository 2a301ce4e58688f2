"""Keeps a tick's lease alive from a thread of its own: advisory, so whatever goes wrong here fails nothing."""

import threading
from types import TracebackType
from typing import Final, Self

import structlog

from checkpointing.metadata.record import Claim
from jobs.stores.lease import LeaseStore

_log = structlog.get_logger(__name__)

RENEWALS_PER_LEASE: Final = 3


class LeaseKeeper:
    """Writes the lease of a claim on entering, renews it thrice in its length, takes it away on leaving."""

    def __init__(self, leases: LeaseStore, claim: Claim, lease_ms: int) -> None:
        """Nothing is written yet."""
        self._leases = leases
        self._claim = claim
        self._lease_ms = lease_ms
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        """Write the lease and begin to renew it."""
        self._renew()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing and take the lease away, unless a newer generation's is there."""
        del kind, error, trace
        self._ended.set()
        self._thread.join()
        try:
            self._leases.release(self._claim.generation)
        except OSError as failed:
            _log.warning("lease not released", error=str(failed))

    def _keep(self) -> None:
        while not self._ended.wait(self._lease_ms / RENEWALS_PER_LEASE / 1000):
            if not self._renew():
                return

    def _renew(self) -> bool:
        """Return whether to go on: not once a newer generation's lease is there."""
        try:
            return self._leases.renew(self._claim.generation, self._claim.holder, self._lease_ms)
        except OSError as failed:
            _log.warning("lease not renewed", error=str(failed))
            return True
