"""Finds the cuts of one pipeline in one warehouse by checkpoint or by time, whether a tick runs or not."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, assert_never
from uuid import uuid4

from checkpointing.commit.at_rest import held_cut, waits_for_approval
from checkpointing.completeness import complete_until_ms, is_complete_before, writer_in_time
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName, job_name
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from jobs.reading.cut import Cut
from jobs.reading.moments import (
    AsOf,
    CutGoneError,
    Moment,
    Newest,
    NoEventTimeError,
    NoSuchCutError,
    NotReservedError,
    Numbered,
    at_ms_of,
    moment_of,
    shown,
)
from jobs.reading.pending import PendingCut
from jobs.storage.address import StoreUrl, absolute, parsed
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore, RecordedCut, ReservationFile, ReservationStore
from jobs.warehouse.job_stores import must_have_run
from jobs.warehouse.lease import renewed
from jobs.warehouse.log_lengths import EVERY_VERSIONS
from jobs.warehouse.warehouse import Warehouse

# ------------------------------------------------------------------
# Keeps one cut readable while a reader works, even if ticks subsume it and clean-ups run meanwhile.


LEASE_MS: Final = 3_600_000
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Found:
    """Functions that find a pipeline's cuts: the wanted cut, and the cuts that are recorded if a given cut is not."""

    wanted: Callable[[], tuple[RecordedCut, CheckpointRecord | None]]
    """Returns the wanted cut and its entry of `checkpoints`."""
    still: Callable[[CheckpointId], str | None]


@contextmanager
def reserved(
    warehouse: Warehouse, found: Found, name: str | None, lease_ms: int
) -> Iterator[tuple[RecordedCut, CheckpointRecord | None]]:
    """Reserve a cut and yield it with its entry. The reservation is renewed until the block ends.

    Readers that give the same name share one cut, which the first reader chooses. Their reservation stays until it
    lapses, even after they have left. Without a name, the reservation belongs to this reader alone, and is deleted when
    the block ends. Raises what finding the cut raises, CutGoneError and NotReservedError.
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
        """Write the reservation. Return True, so that it is renewed again."""
        self.store.reserve(self.name, cut, self._lease_ms, kept=kept)
        return True

    def chosen(self) -> RecordedCut:
        """Return the cut that is reserved under this name, or else reserve the wanted cut."""
        known = self.store.read(self.name)
        if known is not None and known.kept:
            return self._taken_up(known)
        for _ in range(_TRIES):
            cut, row = self._found.wanted()
            self.store.keep_row(self.name, row)
            self.reserve(cut, kept=False)
            if self._found.still(cut.checkpoint) is None:  # after writing: see jobs/warehouse/cuts_table.py
                self.reserve(cut)
                return cut
        self.store.release(self.name)
        raise CutGoneError(
            f"{_TRIES} cuts of {self.job} were deleted while they were being reserved: set 'retained' "
            "higher, so that a cut stays longer than a moment"
        )

    def _taken_up(self, known: ReservationFile) -> RecordedCut:
        """Renew another reader's reservation of the same name. A lapsed one is valid if its cut is still recorded."""
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


_LOOK_BACK: Final = EVERY_VERSIONS
"""Even when it is shortened, the log of `checkpoints` keeps this many versions. Their data files stay for an hour."""

Recorded = Mapping[CheckpointId, RecordedCut]


@dataclass(frozen=True, slots=True)
class _Stores:
    cuts: CutStore
    checkpoints: CheckpointStore


class Cuts:
    """All published and retained cuts of a pipeline. Each call looks for the cuts that exist now.

    Keep the object if you poll, since each call then reads only what is new. Threads may share it.
    """

    def __init__(self, warehouse: str | Path | StoreUrl, pipeline: str) -> None:
        """Name the warehouse's folder or URL, and the pipeline; nothing is read yet. Raises InvalidNameError."""
        self._warehouse = Warehouse(absolute(parsed(str(warehouse))), ProtocolPaths(job_name(pipeline)))
        self._stores: _Stores | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        """Return a text with pipeline and warehouse; reads nothing."""
        return f"<Cuts of {self._job} in {self._warehouse.root}>"

    def latest(self) -> Cut:
        """Return the newest published cut, which has the highest id. After a rollback, it is the rollback's own cut.

        Raises NoSuchCutError if none is published yet, NeverRunError if the pipeline never ran in that warehouse.
        """
        return self._found(Newest())

    def at(self, checkpoint: int) -> Cut:
        """Return the cut of that checkpoint, if it is retained or a reader has reserved it.

        Raises NoSuchCutError listing the retained cuts, NeverRunError.
        """
        return self._found(Numbered(CheckpointId(checkpoint)))

    def as_of(self, moment: datetime | str) -> Cut:
        """Return the newest cut whose publication was complete at that time (ISO 8601, local unless it has a zone).

        Raises NoSuchCutError naming the oldest and the newest cut, InvalidMomentError, NeverRunError.
        """
        return self._found(AsOf(at_ms_of(moment)))

    def first_complete(self, table: str, moment: datetime | str) -> Cut | None:
        """Return the oldest kept cut in which a table has every row with an event time before `moment`.

        If `moment` is the end of a day, this is the cut that completed the day, if it is still kept. `moment` is
        written as for `as_of`. None means that no cut has reached the moment yet. Raises NoSuchTableError,
        NoEventTimeError if the newest cut does not record until when the table is complete, InvalidMomentError,
        NeverRunError.
        """
        name, end_ms, newest = TableName(table), at_ms_of(moment), self.latest()
        newest.version(table)
        entry = newest.entry()
        if entry is not None and writer_in_time(entry, name) is None:
            raise NoEventTimeError(
                f"cut {newest.checkpoint} of {self._job} does not say until when {table} is complete: declare "
                "event_time on the sources of its rows. A table whose rows may wait until a drain cannot say so"
            )
        for cut in self.all():
            entry = cut.entry()
            if entry is None or entry.abandoned or table not in cut.tables:
                continue
            if is_complete_before(complete_until_ms(entry, name), end_ms):
                return cut
        return None

    def pending(self) -> PendingCut | None:
        """Return the cut that waits for approval, or None; raise NeverRunError."""
        with self._lock:
            rows = self._opened().checkpoints.observe()[1]
        held = held_cut(rows)
        if held is None:
            return None
        parent = None if held.parent == NO_CHECKPOINT else self._found(Numbered(held.parent))
        return PendingCut(self._warehouse, held, parent)

    def find(self, words: str) -> Cut:
        """Return the cut of a checkpoint id, `latest` or a time; raises what `at`, `latest` and `as_of` raise."""
        return self._found(moment_of(words))

    @contextmanager
    def reserved(self, name: str | None = None, *, at: int | None = None, lease_ms: int = LEASE_MS) -> Iterator[Cut]:
        """Return a context in which a cut stays readable, whatever ticks and clean-ups do meanwhile.

        This is the cut of checkpoint `at` if that cut is still kept, and the newest cut otherwise.

        All readers that give the same `name` (letters, digits, - and _) get the same cut, in other processes too. The
        first reader chooses it. The reservation ends `lease_ms` after it was last renewed, even if readers were killed.
        Raises what `latest` raises, CutGoneError for a named cut that lapsed and was deleted, NotReservedError.
        """
        with self._lock:
            self._opened()  # a job that never ran gets no folder
        wanted = partial(self._kept_or_newest, None if at is None else CheckpointId(at))
        with reserved(self._warehouse, Found(wanted, self.still), name, lease_ms) as (recorded, row):
            yield self._cut(recorded, row)

    def _kept_or_newest(self, at: CheckpointId | None) -> tuple[RecordedCut, CheckpointRecord | None]:
        """Return the cut `at`, or else the newest, with its entry, even if that entry was subsumed a moment ago."""
        kept = at is not None and self.still(at) is None
        recorded, row = self._recorded(Numbered(at) if kept and at is not None else Newest())
        return recorded, row or self.past_row(recorded.checkpoint)

    def all(self) -> tuple[Cut, ...]:
        """Return every published and retained cut, oldest first; raise NeverRunError."""
        with self._lock:
            stores = self._opened()
            recorded = stores.cuts.entries()
            rows = stores.checkpoints.observe()[1]
        return tuple(self._cut(each, _row_of(rows, number)) for number, each in sorted(recorded.items()))

    def _found(self, moment: Moment) -> Cut:
        try:
            return self._cut(*self._recorded(moment))
        except NoSuchCutError:
            reserved = ReservationStore(self._warehouse).of(moment.checkpoint) if isinstance(moment, Numbered) else None
            if reserved is None:
                raise
            return self._cut(reserved.recorded, reserved.row)

    def _recorded(self, moment: Moment) -> tuple[RecordedCut, CheckpointRecord | None]:
        with self._lock:
            stores = self._opened()
            recorded = stores.cuts.entries()
            rows = stores.checkpoints.observe()[1]
        if not recorded:
            held = held_cut(rows)
            way_out = f"run 'tidemark run {self._job}' until it has" if held is None else waits_for_approval(held)
            raise NoSuchCutError(f"{self._job} has published no cut yet: {way_out}")
        number = self._number(moment, recorded, rows)
        return recorded[number], _row_of(rows, number)

    def _number(self, moment: Moment, recorded: Recorded, rows: tuple[Row, ...]) -> CheckpointId:
        match moment:
            case Newest():
                return max(recorded)
            case Numbered(checkpoint):
                if checkpoint in recorded:
                    return checkpoint
                raise NoSuchCutError(self._why_not(checkpoint, recorded, rows))
            case AsOf(at_ms):
                published = [number for number, each in recorded.items() if each.published_at_ms <= at_ms]
                if published:
                    return max(published)
                raise NoSuchCutError(
                    f"no cut of {self._job} that is kept was published by {shown(at_ms)}: {_range(recorded)}; "
                    "name a later time"
                )
            case _ as unreachable:
                assert_never(unreachable)

    def _why_not(self, checkpoint: CheckpointId, recorded: Recorded, rows: tuple[Row, ...]) -> str:
        job, there = self._job, _range(recorded)
        found = next((r for r in rows if isinstance(r, CheckpointRecord) and r.checkpoint == checkpoint), None)
        if found is None:
            return f"checkpoint {checkpoint} of {job} is not retained: {there}; 'retained' says how many are kept"
        if found.kind is RowKind.HELD:
            return f"cut {checkpoint} of {job} is not published: {waits_for_approval(found)}"
        if found.kind is RowKind.SAVEPOINT:
            return (
                f"savepoint {checkpoint} of {job} publishes nothing, so it has no cut to read: copy it with "
                f"'tidemark savepoint {job} --to DIR' when you take one, and read the copy's tables, or read "
                f"checkpoint {found.parent}, after which it was taken"
            )
        return (
            f"checkpoint {checkpoint} of {job} is committed, but its tables are not published yet: "
            f"'tidemark run {job}' rolls it forward; {there}"
        )

    def _cut(self, recorded: RecordedCut, row: CheckpointRecord | None) -> Cut:
        return Cut(self._warehouse, recorded, row, self)

    def still(self, checkpoint: CheckpointId) -> str | None:
        """Return None while that cut is recorded, else the end of a message, which names the recorded cuts."""
        with self._lock:
            recorded = self._opened().cuts.entries()
        return None if checkpoint in recorded else _range(recorded)

    def past_row(self, checkpoint: CheckpointId) -> CheckpointRecord | None:
        """Return the entry of a checkpoint, even if it was subsumed a moment ago, or None if it cannot be found.

        A commit can subsume the newest published checkpoint (`retained` 1) before its own cut is recorded.
        """
        with self._lock:
            store = self._opened().checkpoints
            version, rows = store.observe()
            for past in range(version - 1, max(version - _LOOK_BACK, 0), -1):
                if (found := _row_of(rows, checkpoint)) is not None:
                    return found
                try:
                    rows = store.observe_at(past)
                except Exception:  # noqa: BLE001 - the files of versions so far back may be gone
                    return None
        return _row_of(rows, checkpoint)

    def _opened(self) -> _Stores:
        if self._stores is None:
            must_have_run(self._warehouse)  # a store would create what is missing
            self._stores = _Stores(CutStore(self._warehouse), CheckpointStore(self._warehouse))
        return self._stores

    @property
    def _job(self) -> str:
        return self._warehouse.paths.job


def _row_of(rows: tuple[Row, ...], checkpoint: CheckpointId) -> CheckpointRecord | None:
    """Return the entry that committed a cut, or None for a plain savepoint, which commits no cut."""
    records = (row for row in rows if isinstance(row, CheckpointRecord) and row.commits)
    return next((record for record in records if record.checkpoint == checkpoint), None)


def _range(recorded: Recorded) -> str:
    """Return a text that names the oldest and the newest cut."""
    if not recorded:
        return "no cut is kept now"
    oldest, newest = recorded[min(recorded)], recorded[max(recorded)]
    if oldest is newest:
        return f"there is only cut {newest.checkpoint} ({shown(newest.published_at_ms)})"
    said = f"the oldest is cut {oldest.checkpoint} ({shown(oldest.published_at_ms)})"
    return f"{said}, the newest cut {newest.checkpoint} ({shown(newest.published_at_ms)})"
