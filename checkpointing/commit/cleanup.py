"""Which files of a job nobody needs any more, and since when: facts in, a decision out (K4).

Needed is what a row of `checkpoints` names, checkpoint and savepoint alike, what a standing reservation names, and
what a table's log shows at its newest version or at one of a cut that is recorded or reserved. Of the rest, only
files staged by generations before the last claim go (the present one may still name its own), and only
`grace_ms` after they stopped being needed: a reader who began to read a version before must come to its end.

When a file stopped being needed is not written anywhere: its Remove in the log is older than the end of a
retained cut that shows it. So every clean-up notes what it saw (`CleanUpLook`); a file has been unneeded at least
since the first look that found it so. A file that no log ever showed has no readers: its age is enough.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Row

LOOKS_PER_GRACE = 24
"""Looks closer to each other than this part of the grace are noted as one: of 24 h an hour, so much is a file late."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A file was active in its table from version `first` until the one before `until`, removed at `removed_ms`."""

    first: int
    until: int
    removed_ms: int


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that is there. `generation` staged it; None: somebody else wrote it, and our table's log has removed it.

    `shown` are its times in the log that are over; empty if the log never showed it. Times in ms since the epoch.
    """

    path: str
    table: TableName
    generation: Generation | None
    bytes: int
    modified_ms: int
    shown: tuple[Shown, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A table's newest version, its versions in the recorded cuts, and whether each of those cuts names it.

    Who goes back to a cut that does not name a table must see all that the table has had since its first version.
    """

    newest: int
    cuts: frozenset[int] = field(default=frozenset())
    in_every_cut: bool = False

    def needs(self, file: ListedFile) -> bool:
        """Return whether a recorded cut shows the file, or the newest version may."""
        return any(
            shown.until > self.newest or any(shown.first <= version < shown.until for version in self.cuts)
            for shown in file.shown
        )

    @property
    def oldest(self) -> int:
        """Return the oldest version that somebody may begin to read."""
        return min(self.newest, *self.cuts) if self.in_every_cut and self.cuts else 0


@dataclass(frozen=True, slots=True)
class CleanUpLook:
    """What a clean-up saw of all tables at `at_ms`. A later reader reads these versions or newer ones."""

    at_ms: int
    tables: Mapping[TableName, TableSeen]


RESERVATION_MS_MAX = 86_400_000
"""A reservation counts for at most a day after it was given: a reader that works longer renews it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reader's word that it reads a cut: these versions, from `given_ms` until `lapses_ms` (ms since the epoch).

    `files` are the paths that the cut's row names: the reader may ask for the operators' state at the cut.
    """

    versions: Mapping[TableName, int]
    given_ms: int
    lapses_ms: int
    files: frozenset[str] = frozenset()

    @property
    def ends_ms(self) -> int:
        """When it counts no more, though nobody takes it back: a reader that was killed keeps nothing for ever."""
        return min(self.lapses_ms, self.given_ms + RESERVATION_MS_MAX)


def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
    """Return the reservations that count now.

    One that is given far in the future would never end, so it does not count. Clocks may differ by less than a day.
    """
    return tuple(each for each in reservations if now_ms < each.ends_ms and each.given_ms < now_ms + RESERVATION_MS_MAX)


def reserved_files(reservations: Iterable[Reservation], now_ms: int) -> frozenset[str]:
    """Return the paths that reservations name which count now."""
    return frozenset[str]().union(*(each.files for each in standing(reservations, now_ms)))


def discardable(paths: Iterable[str], reservations: Iterable[Reservation], now_ms: int) -> tuple[str, ...]:
    """Return which of these files a tick may delete now that no checkpoint refers to them any more.

    The others are left to a clean-up after their reservation has ended.
    """
    reserved = reserved_files(reservations, now_ms)
    return tuple(path for path in paths if path not in reserved)


def is_forgotten(reservation: Reservation, now_ms: int) -> bool:
    """Return whether a reservation ended so long ago that its reader will not come back to it.

    Until then a reader that comes late learns that its cut is gone, instead of reading another one unawares.
    """
    return not standing((reservation,), now_ms) and now_ms >= reservation.ends_ms + RESERVATION_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFacts:
    """What was observed: the files first, then the rows, the cuts, the reservations and the tables' logs.

    `current` is the last claim, `others_hold` whether it is somebody else's who is at work. `active` are the paths
    that a log shows at its newest version or at a recorded or reserved cut; `looks` those of earlier clean-ups.
    """

    current: Generation
    others_hold: bool
    now_ms: int
    grace_ms: int
    rows: tuple[Row, ...]
    found: tuple[ListedFile, ...]
    active: frozenset[str]
    looks: tuple[CleanUpLook, ...] = ()
    reservations: tuple[Reservation, ...] = ()


class Reason(Enum):
    """Why a file is needed no more."""

    REMOVED = "removed from the table, and in no retained cut"
    UNNAMED = "staged, and named by no checkpoint"


@dataclass(frozen=True, slots=True)
class Unneeded:
    """A file that nobody needs, why, and since when (ms since the epoch)."""

    file: ListedFile
    reason: Reason
    since_ms: int


@dataclass(frozen=True, slots=True)
class CleanupDecision:
    """What may be deleted now, and what is needed no more but waits for the readers' grace; the oldest first."""

    delete: tuple[Unneeded, ...] = ()
    waiting: tuple[Unneeded, ...] = ()


def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
    """Return what nobody needs any more.

    Nothing is judged while somebody else holds a job without any checkpoint: a restore from elsewhere copies its
    files, which older generations of that other place have staged, before it appends the row that names them.
    """
    records = [row for row in facts.rows if isinstance(row, CheckpointRecord)]
    if facts.others_hold and not records:
        return CleanupDecision()
    reserved = reserved_files(facts.reservations, facts.now_ms)
    needed = facts.active.union(reserved, *(files_of(record) for record in records))
    unneeded = sorted(
        (_judged(file, facts) for file in facts.found if _is_past(file, facts.current) and file.path not in needed),
        key=lambda each: (each.since_ms, each.file.path),
    )
    return CleanupDecision(
        delete=tuple(each for each in unneeded if facts.now_ms - each.since_ms >= facts.grace_ms),
        waiting=tuple(each for each in unneeded if facts.now_ms - each.since_ms < facts.grace_ms),
    )


def readable_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
    """Return which of the recorded cuts stay: those of rows that are there, and those that such rows build on.

    A plain savepoint's tables are its parent's. A committed row that is not published yet is rolled forward from its
    parent's cut, which is what readers read until then, though that row may be subsumed already.
    """
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
    parents = {row.parent for row in records if not row.commits or row.checkpoint not in recorded}
    return frozenset(recorded).intersection({row.checkpoint for row in records} | parents)


def noted(looks: Iterable[CleanUpLook], now: CleanUpLook, grace_ms: int) -> tuple[CleanUpLook, ...]:
    """Return the looks to keep after this one, oldest first: those within the grace, and the newest before it.

    An older look finds nothing unneeded that a newer one does not, so one before the grace is enough.
    """
    earlier = sorted((look for look in looks if look.at_ms <= now.at_ms), key=lambda look: look.at_ms)
    past = [look for look in earlier if now.at_ms - look.at_ms >= grace_ms]
    young = [look for look in earlier if now.at_ms - look.at_ms < grace_ms]
    kept = (*past[-1:], *young)
    if len(kept) > 1 and now.at_ms - kept[-2].at_ms < grace_ms // LOOKS_PER_GRACE:
        kept = kept[:-1]
    return (*kept, now)


def log_floor(looks: Collection[CleanUpLook], table: TableName, now_ms: int, grace_ms: int) -> int:
    """Return the oldest version of a table that somebody may still be reading; 0 as long as that cannot be told.

    A reader that began before the newest look that is a grace old has come to its end. A reader that began after it
    reads what that look or a younger one saw, or something newer. So the log's entries before that version can go.
    """
    past = max((look.at_ms for look in looks if now_ms - look.at_ms >= grace_ms), default=None)
    if past is None:
        return 0
    seen = [look.tables.get(table) for look in looks if look.at_ms >= past]
    return min((each.oldest if each is not None else 0 for each in seen), default=0)


def is_due(looks: Iterable[CleanUpLook], now_ms: int, grace_ms: int) -> bool:
    """Return whether the last look is so old that another one is worth its while, though nothing has happened."""
    return now_ms - max((look.at_ms for look in looks), default=now_ms - grace_ms) >= grace_ms // LOOKS_PER_GRACE


def _is_past(file: ListedFile, current: Generation) -> bool:
    """Whether the file is none that the present generation may still name."""
    return bool(file.shown) if file.generation is None else file.generation < current


def _judged(file: ListedFile, facts: CleanupFacts) -> Unneeded:
    if not file.shown:
        return Unneeded(file, Reason.UNNAMED, file.modified_ms)
    seen = (look.at_ms for look in facts.looks if file.table in look.tables and not look.tables[file.table].needs(file))
    removed_ms = max(shown.removed_ms for shown in file.shown)
    return Unneeded(file, Reason.REMOVED, max(removed_ms, min(seen, default=facts.now_ms)))
