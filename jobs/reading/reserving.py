"""Keeps one cut readable while a reader works, even if ticks subsume it and clean-ups run meanwhile."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import structlog

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord
from jobs.reading.failures import CutGoneError, NotReservedError
from jobs.reading.moments import shown
from jobs.stores.cuts import RecordedCut
from jobs.stores.reservations import ReservationFile, ReservationStore
from jobs.stores.warehouse import Warehouse

LEASE_MS: Final = 3_600_000
RENEWALS_PER_LEASE: Final = 3
_TRIES: Final = 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """Functions that find a pipeline's cuts: the wanted one, and the cuts that exist instead of a deleted one."""

    wanted: Callable[[], tuple[RecordedCut, CheckpointRecord | None]]
    """Returns the cut with its entry of `checkpoints`."""
    still: Callable[[CheckpointId], str | None]


class Reserved:
    """Reserves a cut on entering and renews the reservation until it is left.

    Readers that give the same name share one cut. The first one chooses it. Their reservation stays after they leave,
    until it lapses. Without a name the reservation belongs to this reader alone and is deleted when it leaves.
    """

    def __init__(self, warehouse: Warehouse, found: Found, name: str | None, lease_ms: int) -> None:
        """Nothing is written yet."""
        self._job = warehouse.paths.job
        self._now_ms = warehouse.now_ms
        self._store = ReservationStore(warehouse)
        self._found = found
        self._shared = name is not None
        self._name = name or str(uuid4())
        self._lease_ms = lease_ms
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cut-reservation", daemon=True)

    def __enter__(self) -> Self:
        """Reserve the cut; raises what finding it raises, CutGoneError, NotReservedError."""
        try:
            with self._store.locked():
                self.cut = self._chosen()
                self.row = self._store.row(self._name)
        except OSError as error:
            raise NotReservedError(
                f"no cut of {self._job} could be reserved, for its folder in the warehouse cannot be written "
                f"({error.strerror or error}): read without a reservation, as in Cuts(...).latest(), or open the "
                "folder for this user"
            ) from error
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing; delete the reservation unless it has a name, under which others may share it."""
        del kind, error, trace
        self._left.set()
        self._thread.join()
        if not self._shared:
            self._store.release(self._name)

    def _chosen(self) -> RecordedCut:
        """Return the cut of that name, and reserve it."""
        known = self._store.read(self._name)
        if known is not None and known.kept:
            return self._taken_up(known)
        for _ in range(_TRIES):
            cut, row = self._found.wanted()
            self._store.keep_row(self._name, row)
            self._store.reserve(self._name, cut, self._lease_ms, kept=False)
            if self._found.still(cut.checkpoint) is None:  # after writing: see jobs/stores/reservations.py
                self._store.reserve(self._name, cut, self._lease_ms, kept=True)
                return cut
        self._store.release(self._name)
        raise CutGoneError(
            f"{_TRIES} cuts of {self._job} were deleted while they were being reserved: set 'retained' "
            "higher, so that a cut stays longer than a moment"
        )

    def _taken_up(self, known: ReservationFile) -> RecordedCut:
        """Renew another reader's reservation of the same name; a lapsed one counts if its cut is still recorded."""
        cut = known.recorded
        lapsed = known.lapses_ms <= self._now_ms()
        self._store.reserve(self._name, cut, self._lease_ms, kept=True)
        instead = self._found.still(cut.checkpoint) if lapsed else None
        if instead is not None:
            self._store.release(self._name)
            raise CutGoneError(
                f"cut {cut.checkpoint} of {self._job} was reserved until {shown(known.lapses_ms)}, and is no longer "
                f"retained: {instead}; begin again to read another one, and reserve it for longer than "
                f"{self._lease_ms // 1000} s"
            )
        return cut

    def _keep(self) -> None:
        while not self._left.wait(self._lease_ms / RENEWALS_PER_LEASE / 1000):
            try:
                self._store.reserve(self._name, self.cut, self._lease_ms, kept=True)
            except OSError as failed:
                _log.warning("reservation not renewed", job=self._job, error=str(failed))
