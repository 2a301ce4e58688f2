"""Keeps the Delta table `cuts`: the versions of all tables at checkpoint n, to read all tables as of n (K1)."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa
from deltalake import Schema
from pydantic import BaseModel, ConfigDict, Field

from checkpointing.commit.cleanup import Reservation, discardable, is_forgotten, standing
from checkpointing.commit.erasure import successors, without
from checkpointing.identifiers import CheckpointId, InvalidNameError, TableName
from checkpointing.metadata.codec import ROW_CHARACTERS_MAX, UnreadableRowError, decode, encode
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, ErasedFile
from checkpointing.metadata.row_validity import NUMBER_MAX
from jobs.storage.json_files import document, read_document
from jobs.storage.place import StoragePlace, both, locked
from jobs.warehouse import log_lengths
from jobs.warehouse.checkpoints import SMALL_TABLE
from jobs.warehouse.delta_log import DeltaLog, FaultHook, no_fault, remove
from jobs.warehouse.internal_tables import RowFiles, is_own, opened
from jobs.warehouse.table_rules import Metadata
from jobs.warehouse.table_snapshot import KnownTable
from jobs.warehouse.warehouse import Warehouse

TRIES: Final = 10
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)

SCHEMA: Final = pa.schema(
    [
        pa.field("checkpoint", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("published_at_ms", pa.int64()),
        pa.field("complete_until", pa.timestamp("us", tz="UTC")),
    ]
)
"""The last column is null for a table without event time, and in rows from before the column existed (N8)."""

Cut = dict[TableName, int]
"""Maps each table to its Delta version."""


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut, and the time at which its last table was published, in ms since the epoch."""

    checkpoint: CheckpointId
    published_at_ms: int
    versions: Cut
    complete: Mapping[TableName, datetime] = field(default_factory=dict)
    """Until when each table is complete. Tables without event time, and cuts from before the column, have no value."""


_Recorded = dict[CheckpointId, RecordedCut]
NOT_TOLD: Final[Mapping[TableName, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Change:
    """One commit: the recorded cuts to keep (None: all), the cuts to write, and the note for the log."""

    staying: Collection[CheckpointId] | None
    written: Sequence[RecordedCut]
    says: dict[str, Any]


def event_time(ms: int) -> datetime:
    """Return an event time in UTC. A time outside of the years 1 to 9999 becomes their first or last moment.

    So a table that is complete for ever has the time 9999-12-31 23:59:59.999999.
    """
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _FIRST if ms < 0 else _LAST


class CutsNotRecordedError(RuntimeError):
    """The cut could not be written. Nothing is lost: the next tick publishes and records it again."""


class CutStore:
    """The `cuts` table of one job. A lost row file is ignored, because its cuts can be rebuilt."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Open the table. The job's first tick creates it."""
        self._warehouse = warehouse
        self._log = DeltaLog(warehouse.place(warehouse.paths.cuts), hook=hook, small=True)
        self._files = RowFiles(self._log.folder, SCHEMA, nullable=frozenset({"complete_until"}))
        self._log.create(SCHEMA, dict(SMALL_TABLE))

    def record(
        self,
        checkpoint: CheckpointId,
        versions: Iterable[tuple[TableName, int]],
        retained: Collection[CheckpointId] | None = None,
        complete: Mapping[TableName, int] = NOT_TOLD,
    ) -> None:
        """Record the cut of a checkpoint durably, once, even if the caller asks again.

        `complete` says until when each table is complete, in ms. With `retained`, the same commit drops the cuts of all
        checkpoints except the `retained` ones and `checkpoint`. If a newer cut is recorded, nothing changes. In this
        case another tick has taken over the job and has recorded this cut before its own cut, and the caller's
        `retained` is outdated. Raises CutsNotRecordedError if the log refuses the commit, and OSError if it cannot be
        made durable.
        """
        until = {table: event_time(ms) for table, ms in complete.items()}
        cut = RecordedCut(checkpoint, self._warehouse.now_ms(), dict(versions), until)

        def change(recorded: _Recorded) -> _Change | None:
            newer = any(known >= checkpoint for known in recorded)
            return None if newer else _Change(retained, [cut], {"cut": checkpoint})

        self._change(change, f"the cut of checkpoint {checkpoint} could not be recorded")

    def drop(self, checkpoints: Collection[CheckpointId]) -> None:
        """Drop the cuts of these checkpoints. Raise CutsNotRecordedError if the log refuses the commit."""

        def change(recorded: _Recorded) -> _Change | None:
            dropped = sorted(recorded.keys() & set(checkpoints))
            return _Change(recorded.keys() - set(dropped), [], {"cuts_dropped": dropped}) if dropped else None

        self._change(change, "the cuts of deleted checkpoints could not be dropped")

    def correct(
        self, changed: Mapping[CheckpointId, Mapping[TableName, int]], dropped: Collection[CheckpointId]
    ) -> None:
        """Replace these cuts and drop others, in one durable commit. Replaced cuts keep their time of publication.

        Raises CutsNotRecordedError if the log refuses the commit, and OSError if it cannot be made durable.
        """

        def change(recorded: _Recorded) -> _Change | None:
            now_ms = self._warehouse.now_ms()
            was = {each: recorded.get(each, RecordedCut(each, now_ms, {})) for each in changed}
            wanted = [replace(was[each], versions=dict(cut)) for each, cut in changed.items()]
            if recorded.keys().isdisjoint(dropped) and all(recorded.get(cut.checkpoint) == cut for cut in wanted):
                return None
            staying = recorded.keys() - set(dropped) - changed.keys()
            return _Change(staying, wanted, {"cuts_corrected": sorted(changed), "cuts_dropped": [*dropped]})

        self._change(change, "the corrected cuts could not be recorded")

    def read(self, checkpoint: CheckpointId) -> Cut | None:
        """Return the version of each table at that checkpoint, or None if its cut is not recorded."""
        return self.all().get(checkpoint)

    def entries(self) -> dict[CheckpointId, RecordedCut]:
        """Return every recorded cut, read at one version of the table. Raise UnreadableRowError for a foreign entry."""
        self._log.look_anew()
        return self._seen()

    def all(self) -> dict[CheckpointId, Cut]:
        """Return the versions of every recorded cut. Raises the errors of `entries`."""
        return {checkpoint: cut.versions for checkpoint, cut in self.entries().items()}

    def seen(self) -> dict[CheckpointId, Cut]:
        """Return the versions of every cut recorded at the last look since `look_anew`. Raises the errors of `entries`.

        If there was no look since then, the method looks now.
        """
        return {checkpoint: cut.versions for checkpoint, cut in self._seen().items()}

    def look_anew(self) -> None:
        """Make the next `seen` look at the table, because others may have recorded cuts since."""
        self._log.look_anew()

    def known(self) -> dict[CheckpointId, Cut]:
        """Return the recorded cuts as of this store's last commit or look, without a request to the storage.

        Raises the errors of `entries`.
        """
        return {checkpoint: cut.versions for checkpoint, cut in self._recorded(self._log.known()).items()}

    def recorded(self) -> frozenset[CheckpointId]:
        """Return the checkpoints whose cut is recorded."""
        return frozenset(self.all())

    def maintain(self) -> None:
        """Shorten the log. The caller must hold the job. Do not call it on the commit path."""
        log_lengths.shorten(self._log, now_s=self._warehouse.now_ms() / 1000)

    def _change(self, change: Callable[[_Recorded], _Change | None], failed: str) -> None:
        """Durably commit the change that `change` returns for the recorded cuts. None stands for no change.

        The first attempt does not check whether another process has recorded a cut since the last look. If another
        process has, the commit fails. A commit that raises may still be in the log, so each further attempt reads the
        cuts anew.
        """
        met: Exception | None = None
        for _ in range(TRIES):
            table = self._log.known() if met is None else self._log.current()
            wanted = change(self._recorded(table))
            if wanted is None:
                self._log.sync(table.version())
                return
            try:
                self._commit(table, wanted)
            except Exception as error:  # noqa: BLE001 - the next turn reads the cuts
                met = error
                self._log.reopen()
                continue
            self._log.sync(table.version() + 1)
            return
        raise CutsNotRecordedError(f"{failed}: {met}")

    def _commit(self, table: KnownTable, change: _Change) -> None:
        """Write a file of the new cuts. The same commit removes foreign files, and files with a dropped cut."""
        at_ms = self._warehouse.now_ms()
        found, lost = self._files.read_sound(table.paths())
        actions: list[Any] = [remove(path, at_ms) for path in lost]
        rows: list[dict[str, Any]] = [
            {
                "checkpoint": cut.checkpoint,
                "table": name,
                "version": version,
                "published_at_ms": cut.published_at_ms,
                "complete_until": cut.complete.get(name),
            }
            for cut in change.written
            for name, version in cut.versions.items()
        ]
        for path, entries in found.items():
            kept = [row for row in entries if change.staying is None or row["checkpoint"] in change.staying]
            if len(kept) < len(entries) or not is_own(path):
                actions.append(remove(path, at_ms))
                rows = [*kept, *rows]
        if rows:
            name = f"{max(row['checkpoint'] for row in rows):020d}"
            both(
                self._log.folder.storage,
                lambda: self._log.must_have(table.version()),
                lambda: actions.append(self._files.write(name, rows, at_ms)),
            )
        self._log.commit(table, actions, says=change.says, metadata=_with_all_columns(table))

    def _seen(self) -> _Recorded:
        return self._recorded(opened(self._warehouse, self._log, self._warehouse.paths.cuts))

    def _recorded(self, table: KnownTable) -> _Recorded:
        versions: dict[CheckpointId, Cut] = {}
        at_ms: dict[CheckpointId, int] = {}
        complete: dict[CheckpointId, dict[TableName, datetime]] = {}
        for rows in self._files.read_sound(table.paths())[0].values():
            for row in rows:
                checkpoint, name, version, published_at_ms = self._entry(row)
                versions.setdefault(checkpoint, {})[name] = version
                at_ms[checkpoint] = max(published_at_ms, at_ms.get(checkpoint, 0))
                if row.get("complete_until") is not None:
                    complete.setdefault(checkpoint, {})[name] = row["complete_until"]
        return {each: RecordedCut(each, at_ms[each], cut, complete.get(each, {})) for each, cut in versions.items()}

    def _entry(self, row: dict[str, Any]) -> tuple[CheckpointId, TableName, int, int]:
        """Return the cut in a row of the table. Raise UnreadableRowError if this job cannot have written the row."""
        try:
            name = self._warehouse.paths.known_table(str(row["table"]))
        except InvalidNameError as error:
            raise self._foreign(str(error)) from error
        numbers = (row["checkpoint"], row["version"], row["published_at_ms"])
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
                raise self._foreign(f"{number} is no checkpoint, no version and no time")
        return CheckpointId(numbers[0]), name, numbers[1], numbers[2]

    def _foreign(self, why: str) -> UnreadableRowError:
        return UnreadableRowError(
            f"an entry of {self._log.folder} is not one that Tidemark writes for {self._warehouse.paths.job}: {why}. "
            "Restore the folder from a backup"
        )


def _with_all_columns(table: KnownTable) -> Metadata | None:
    """Return new metadata for a table that an older version of Tidemark created, or None if it has all columns."""
    known, wanted = table.loaded.schema(), Schema.from_arrow(SCHEMA)
    if {each.name for each in known.fields} >= set(SCHEMA.names):
        return None
    was = table.loaded.metadata()
    return Metadata(wanted, was.description, dict(was.configuration))


# ------------------------------------------------------------------
# Keeps readers' reservations of cuts. Each reservation is a small JSON file that expires. Clean-ups respect them.
#
# Beside the file lies a copy of the cut's entry of `checkpoints`. Readers find the operators' state in this copy,
# because a tick can subsume the entry while the cut is read. The copy is written first, so every reservation has one.
#
# Reader and clean-up need no lock, because of the order of their steps. A reader writes its reservation, and then
# checks whether the cut is still recorded. A clean-up reads the recorded cuts, and then the reservations. So if the
# reader still finds its cut recorded, the clean-up has either found the cut recorded, or finds it reserved.


BYTES_MAX: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = ".json"
_ENTRY: Final = ".entry"
_LOCK: Final = "lock"


class InvalidReservationError(ValueError):
    """The name is not valid for a reservation's file."""


class ReservationFile(BaseModel):
    """The content of a reservation's file. Times are in ms since the epoch, by the reader's clock.

    `kept` says that the reader found the cut still recorded after reserving it. If a job reads the cut, `reader` names
    the job and its warehouse. For other readers, `reader` is empty.
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
        """The cut as recorded in `cuts`."""
        versions = {TableName(table): version for table, version in self.versions.items()}
        return RecordedCut(CheckpointId(self.checkpoint), self.published_at_ms, versions)

    def reservation(self, row: CheckpointRecord | None) -> Reservation:
        """Return the part of the reservation that a clean-up needs. `row` is the cut's entry."""
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
        """Store the folder's place. The first reservation creates the folder."""
        self._warehouse = warehouse
        self._folder = warehouse.place(warehouse.paths.reservations)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the reservations while a process chooses the cut to reserve. Raises OSError for a read-only folder."""
        with locked(self._folder / _LOCK):
            yield

    def read(self, name: str) -> ReservationFile | None:
        """Return a reservation, or None if there is no readable one. Raise InvalidReservationError for a bad name."""
        return read_document(ReservationFile, self._place(name), BYTES_MAX)

    def row(self, name: str) -> CheckpointRecord | None:
        """Return the entry beside a reservation, or None if this version of Tidemark can read no entry there."""
        try:
            row = decode(self._entry(name).read(ROW_CHARACTERS_MAX).decode())
        except (OSError, ValueError):
            return None
        return row if isinstance(row, CheckpointRecord) else None

    def keep_row(self, name: str, row: CheckpointRecord | None) -> None:
        """Write the entry of a cut that is about to be reserved under this name. The entry is durable on return.

        If `row` is None, delete the entry that was written under this name before.
        """
        if row is None:
            self._entry(name).delete()
        else:
            self._entry(name).replace(encode(row, writer=self._warehouse.writer).encode())

    def erase(self, erased: Iterable[ErasedFile]) -> None:
        """Replace erased files by their successors in the entries beside reservations (K6). Raises OSError.

        This is needed because an entry contains bounds of values, and the content of small files of state. Readers that
        have opened the cut continue with the erased files. Readers that join later read the successors.
        """
        into = successors(erased)
        if not into or not self._folder.is_folder():
            return
        with self.locked():
            for name in [each.name for each in self._folder.entries() if each.name.endswith(_ENTRY)]:
                row = self.row(name.removesuffix(_ENTRY))
                left = None if row is None else without(row, into)
                if left != row:
                    self.keep_row(name.removesuffix(_ENTRY), left)

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
        """Return the cut of that checkpoint if a reservation of the cut is valid now."""
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
        """Yield the name and file of each reservation.

        A damaged file is ignored, because a reader writes its file whole or not at all.
        """
        for found in sorted(each.name for each in self._folder.entries() if each.name.endswith(_SUFFIX)):
            file = read_document(ReservationFile, self._folder / found, BYTES_MAX)
            if file is not None and _NAME.fullmatch(found.removesuffix(_SUFFIX)):
                yield found.removesuffix(_SUFFIX), file

    def _entry(self, name: str) -> StoragePlace:
        self._place(name)
        return self._folder / f"{name}{_ENTRY}"

    def _place(self, name: str) -> StoragePlace:
        if not _NAME.fullmatch(name):
            raise InvalidReservationError(
                f"the reservation {name!r} needs another name: letters, digits, - and _, at most 64"
            )
        return self._folder / f"{name}{_SUFFIX}"


def deletable(warehouse: Warehouse, paths: Iterable[str]) -> tuple[str, ...]:
    """Return those of the files that may be deleted now, because no reader has reserved them.

    Call this after the cuts that name the files have been dropped. Otherwise a reader can reserve one of them in
    between.
    """
    return discardable(paths, ReservationStore(warehouse).reservations(), warehouse.now_ms())
