"""Keeps readers' reservations of cuts: a small JSON file each, which lapses by itself. A clean-up respects them.

Beside it lies the cut's entry of `checkpoints`, by which a reader finds the operators' state, since a tick may subsume
the entry while the cut is read. The entry is written first, so every reservation has its entry.

The order makes it safe without a lock between reader and clean-up. A reader writes its reservation, and then looks
whether the cut is still recorded. A clean-up reads the recorded cuts, and then the reservations. So if the reader still
found its cut recorded, the clean-up either read it as recorded or finds it reserved.
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
    """A name that a reservation's file may not have."""


class ReservationFile(BaseModel):
    """The content of a reservation's file. Times in ms since the epoch, on the reader's clock.

    `kept` says that the reader found the cut still recorded after it had reserved it. `reader` names the job that reads
    on from the cut, with its warehouse; it is empty for any other reader.
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
        """The cut, as `cuts` recorded it."""
        versions = {TableName(table): version for table, version in self.versions.items()}
        return RecordedCut(CheckpointId(self.checkpoint), self.published_at_ms, versions)

    def reservation(self, row: CheckpointRecord | None) -> Reservation:
        """Return what a clean-up needs of it; `row` is the cut's entry."""
        files = frozenset[str]() if row is None else files_of(row)
        return Reservation(self.recorded.versions, self.given_ms, self.lapses_ms, files, by_job=bool(self.reader))


@dataclass(frozen=True, slots=True)
class ReservedCut:
    """A cut that somebody has reserved, and its entry of `checkpoints`; None if that was out of reach."""

    recorded: RecordedCut
    row: CheckpointRecord | None


class ReservationStore:
    """The reservations of one job. Several processes use it at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Name the folder; it comes into being with the first reservation."""
        self._warehouse = warehouse
        self._folder = warehouse.place(warehouse.paths.reservations)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time choose the cut that a name stands for. Raises OSError for a read-only folder."""
        with locked(self._folder / _LOCK):
            yield

    def read(self, name: str) -> ReservationFile | None:
        """Return a reservation, None if there is none that can be read. Raises InvalidReservationError for the name."""
        return read_document(ReservationFile, self._place(name), BYTES_MAX)

    def row(self, name: str) -> CheckpointRecord | None:
        """Return the entry that lies beside a reservation; None if there is none that this version can read."""
        try:
            row = decode(self._entry(name).read(ROW_CHARACTERS_MAX).decode())
        except (OSError, ValueError):
            return None
        return row if isinstance(row, CheckpointRecord) else None

    def keep_row(self, name: str, row: CheckpointRecord | None) -> None:
        """Write the entry of the cut that is to be reserved next under this name; it is durable on return."""
        if row is None:
            self._entry(name).delete()
        else:
            self._entry(name).replace(encode(row, writer=self._warehouse.writer).encode())

    def reserve(self, name: str, cut: RecordedCut, lease_ms: int, *, kept: bool, reader: str = "") -> None:
        """Write a reservation of that cut, from now on for `lease_ms`; it is durable on return."""
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
        """Take a reservation away, if it is there."""
        self._place(name).delete()
        self._entry(name).delete()

    def reservations(self) -> tuple[Reservation, ...]:
        """Return all reservations, lapsed ones too. Read the recorded cuts before this."""
        return tuple(file.reservation(self.row(name)) for name, file in self._files())

    def reserved(self) -> list[Cut]:
        """Return the table versions of every cut that is reserved now. Read the recorded cuts before this."""
        files = [file.reservation(None) for _, file in self._files()]
        return [dict(each.versions) for each in standing(files, self._warehouse.now_ms())]

    def by_jobs(self) -> list[ReservationFile]:
        """Return the reservations of other jobs, by the job's name, lapsed ones too."""
        return sorted((file for _, file in self._files() if file.reader), key=lambda file: file.reader)

    def of(self, checkpoint: CheckpointId) -> ReservedCut | None:
        """Return the cut of that checkpoint if somebody has reserved it, and the reservation counts now."""
        for name, file in self._files():
            found = file.kept and file.checkpoint == checkpoint
            if found and standing((file.reservation(None),), self._warehouse.now_ms()):
                return ReservedCut(file.recorded, self.row(name))
        return None

    def forget(self) -> None:
        """Delete the files of reservations that lapsed so long ago that no reader comes back to them."""
        for name, file in self._files():
            if is_forgotten(file.reservation(None), self._warehouse.now_ms()):
                self.release(name)

    def _files(self) -> Iterator[tuple[str, ReservationFile]]:
        """Yield all reservations by name. A damaged file reserves nothing: a reader writes it whole or not at all."""
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
    """Return which of these files may be deleted now: those that no reader has reserved.

    Ask after the cuts that name the files have been dropped, or a reader may reserve one of them meanwhile.
    """
    return discardable(paths, ReservationStore(warehouse).reservations(), warehouse.now_ms())
