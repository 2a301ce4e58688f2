"""Keeps one cut readable while a reader works, even if ticks subsume it and clean-ups run meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord
from jobs.reading.failures import CutGoneError, NotReservedError
from jobs.reading.moments import shown
from jobs.stores.cuts import RecordedCut
from jobs.stores.renewing import renewed
from jobs.stores.reservations import ReservationFile, ReservationStore
from jobs.stores.warehouse import Warehouse

LEASE_MS: Final = 3_600_000
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Found:
    """Functions that find a pipeline's cuts: the wanted one, and the cuts that exist instead of a deleted one."""

    wanted: Callable[[], tuple[RecordedCut, CheckpointRecord | None]]
    """Returns the cut with its entry of `checkpoints`."""
    still: Callable[[CheckpointId], str | None]


@contextmanager
def reserved(
    warehouse: Warehouse, found: Found, name: str | None, lease_ms: int
) -> Iterator[tuple[RecordedCut, CheckpointRecord | None]]:
    """Reserve a cut and lend it with its entry; the reservation is renewed until the block ends.

    Readers that give the same name share one cut. The first one chooses it. Their reservation stays after they leave,
    until it lapses. Without a name the reservation belongs to this reader alone and is deleted when it leaves. Raises
    what finding the cut raises, CutGoneError and NotReservedError.
    """
    mine = _Reservation(warehouse, found, name or str(uuid4()), lease_ms)
    try:
        with mine.store.locked():
            cut = mine.chosen()
            row = mine.store.row(mine.name)
    except OSError as error:
        raise NotReservedError(
            f"no cut of {mine.job} could be reserved, for its folder in the warehouse cannot be written "
            f"({error.strerror or error}): read without a reservation, as in Cuts(...).latest(), or open the "
            "folder for this user"
        ) from error
    try:
        with renewed("reservation", lambda: mine.reserve(cut), lease_ms):
            yield cut, row
    finally:
        if name is None:
            mine.store.release(mine.name)


class _Reservation:
    """One reader's reservation, under its name."""

    def __init__(self, warehouse: Warehouse, found: Found, name: str, lease_ms: int) -> None:
        self.job = warehouse.paths.job
        self.store = ReservationStore(warehouse)
        self.name = name
        self._now_ms = warehouse.now_ms
        self._found = found
        self._lease_ms = lease_ms

    def reserve(self, cut: RecordedCut, *, kept: bool = True) -> bool:
        """Write the reservation; return that it may be renewed."""
        self.store.reserve(self.name, cut, self._lease_ms, kept=kept)
        return True

    def chosen(self) -> RecordedCut:
        """Return the cut of that name, and reserve it."""
        known = self.store.read(self.name)
        if known is not None and known.kept:
            return self._taken_up(known)
        for _ in range(_TRIES):
            cut, row = self._found.wanted()
            self.store.keep_row(self.name, row)
            self.reserve(cut, kept=False)
            if self._found.still(cut.checkpoint) is None:  # after writing: see jobs/stores/reservations.py
                self.reserve(cut)
                return cut
        self.store.release(self.name)
        raise CutGoneError(
            f"{_TRIES} cuts of {self.job} were deleted while they were being reserved: set 'retained' "
            "higher, so that a cut stays longer than a moment"
        )

    def _taken_up(self, known: ReservationFile) -> RecordedCut:
        """Renew another reader's reservation of the same name; a lapsed one counts if its cut is still recorded."""
        cut = known.recorded
        lapsed = known.lapses_ms <= self._now_ms()
        self.reserve(cut)
        instead = self._found.still(cut.checkpoint) if lapsed else None
        if instead is not None:
            self.store.release(self.name)
            raise CutGoneError(
                f"cut {cut.checkpoint} of {self.job} was reserved until {shown(known.lapses_ms)}, and is no longer "
                f"retained: {instead}; begin again to read another one, and reserve it for longer than "
                f"{self._lease_ms // 1000} s"
            )
        return cut
