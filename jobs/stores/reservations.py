"""Keeps readers' reservations of cuts. Each is a small JSON file that expires. A clean-up respects them.

Beside it lies the cut's entry of `checkpoints`. Readers use it to find the operators' state, because a tick may subsume
the entry while the cut is read. The entry is written first, so every reservation has one.

Reader and clean-up need no lock, because of the order of their steps. A reader writes its reservation, and then looks
whether the cut is still recorded. A clean-up reads the recorded cuts, and then the reservations. So if the reader still
finds its cut recorded, the clean-up has either read it as recorded or finds it reserved.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from checkpointing.commit.cleanup import Reservation, discardable, is_forgotten, standing
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.codec import ROW_CHARACTERS_MAX, decode, encode
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord
from jobs.storage.documents import document, read_document
from jobs.storage.lock import locked
from jobs.storage.place import StoragePlace
from jobs.stores.cuts import Cut, RecordedCut
from jobs.stores.warehouse import Warehouse

BYTES_MAX: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = ".json"
_LOCK: Final = "lock"


class InvalidReservationError(ValueError):
    """The name is not one that a reservation's file may have."""


class ReservationFile(BaseModel):
    """The content of a reservation's file. Times are in ms since the epoch, by the reader's clock.

    `kept` says that the reader found the cut still recorded after reserving it. `reader` names the job that reads from
    the cut, and its warehouse. For other readers it is empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    checkpoint: int = Field(ge=1)
    published_at_ms: int
    versions: dict[str, int]
    given_ms: int
    lapses_ms: int
    kept: bool = False
    reader: str = ""

    @property
    def recorded(self) -> RecordedCut:
        """The cut, as it is in `cuts`."""
        versions = {TableName(table): version for table, version in self.versions.items()}
        return RecordedCut(CheckpointId(self.checkpoint), self.published_at_ms, versions)

    def reservation(self, row: CheckpointRecord | None) -> Reservation:
        """Return the part that a clean-up needs. `row` is the cut's entry."""
        files = frozenset[str]() if row is None else files_of(row)
        return Reservation(self.recorded.versions, self.given_ms, self.lapses_ms, files, by_job=bool(self.reader))


@dataclass(frozen=True, slots=True)
class ReservedCut:
    """A reserved cut and its entry of `checkpoints`, or None if no such entry could be read."""

    recorded: RecordedCut
    row: CheckpointRecord | None


class ReservationStore:
    """The reservations of one job. Several processes use it at the same time."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Name the folder. The first reservation creates it."""
        self._warehouse = warehouse
        self._folder = warehouse.place(warehouse.paths.reservations)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock a name while a process chooses the cut to reserve under it. Raises OSError for a read-only folder."""
        with locked(self._folder / _LOCK):
            yield

    def read(self, name: str) -> ReservationFile | None:
        """Return a reservation, or None if there is no readable one. Raise InvalidReservationError for the name."""
        return read_document(ReservationFile, self._place(name), BYTES_MAX)

    def row(self, name: str) -> CheckpointRecord | None:
        """Return the entry beside a reservation, or None if there is none that this version of Tidemark can read."""
        try:
            row = decode(self._entry(name).read(ROW_CHARACTERS_MAX).decode())
        except (OSError, ValueError):
            return None
        return row if isinstance(row, CheckpointRecord) else None

    def keep_row(self, name: str, row: CheckpointRecord | None) -> None:
        """Write the entry of the cut that will be reserved under this name. It is durable on return."""
        if row is None:
            self._entry(name).delete()
        else:
            self._entry(name).replace(encode(row, writer=self._warehouse.writer).encode())

    def reserve(self, name: str, cut: RecordedCut, lease_ms: int, *, kept: bool, reader: str = "") -> None:
        """Write a reservation of that cut, for `lease_ms` from now. It is durable on return."""
        now_ms = self._warehouse.now_ms()
        content = ReservationFile(
            checkpoint=cut.checkpoint,
            published_at_ms=cut.published_at_ms,
            versions={str(table): version for table, version in sorted(cut.versions.items())},
            given_ms=now_ms,
            lapses_ms=now_ms + lease_ms,
            kept=kept,
            reader=reader,
        )
        self._place(name).replace(document(content))

    def release(self, name: str) -> None:
        """Delete a reservation, if it exists."""
        self._place(name).delete()
        self._entry(name).delete()

    def reservations(self) -> tuple[Reservation, ...]:
        """Return all reservations, expired ones included. Read the recorded cuts first."""
        return tuple(file.reservation(self.row(name)) for name, file in self._files())

    def reserved(self) -> list[Cut]:
        """Return the table versions of every cut that is reserved now. Read the recorded cuts first."""
        files = [file.reservation(None) for _, file in self._files()]
        return [dict(each.versions) for each in standing(files, self._warehouse.now_ms())]

    def by_jobs(self) -> list[ReservationFile]:
        """Return the reservations of other jobs by the job's name, expired ones included."""
        return sorted((file for _, file in self._files() if file.reader), key=lambda file: file.reader)

    def of(self, checkpoint: CheckpointId) -> ReservedCut | None:
        """Return the cut of that checkpoint if a reservation of it counts now."""
        for name, file in self._files():
            found = file.kept and file.checkpoint == checkpoint
            if found and standing((file.reservation(None),), self._warehouse.now_ms()):
                return ReservedCut(file.recorded, self.row(name))
        return None

    def forget(self) -> None:
        """Delete the files of reservations that expired so long ago that no reader will come back."""
        for name, file in self._files():
            if is_forgotten(file.reservation(None), self._warehouse.now_ms()):
                self.release(name)

    def _files(self) -> Iterator[tuple[str, ReservationFile]]:
        """Yield all reservations by name. A damaged file is ignored, because a reader writes it whole or not at all."""
        for found in sorted(each.name for each in self._folder.entries() if each.name.endswith(_SUFFIX)):
            file = read_document(ReservationFile, self._folder / found, BYTES_MAX)
            if file is not None and _NAME.fullmatch(found.removesuffix(_SUFFIX)):
                yield found.removesuffix(_SUFFIX), file

    def _entry(self, name: str) -> StoragePlace:
        self._place(name)
        return self._folder / f"{name}.entry"

    def _place(self, name: str) -> StoragePlace:
        if not _NAME.fullmatch(name):
            raise InvalidReservationError(
                f"the reservation {name!r} needs another name: letters, digits, - and _, at most 64"
            )
        return self._folder / f"{name}{_SUFFIX}"


def deletable(warehouse: Warehouse, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the files among these that may be deleted now, because no reader has reserved them.

    Call it after the cuts that name the files have been dropped. Otherwise a reader may reserve one of them in between.
    """
    return discardable(paths, ReservationStore(warehouse).reservations(), warehouse.now_ms())
