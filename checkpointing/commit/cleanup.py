"""Decides which files of a job are unneeded, and since when (K4).

These files are needed: all that an entry of `checkpoints` names, all that a reservation in force names, and all that a
table's log shows at its newest version or at a version of a recorded or reserved cut. Of the other files, clean-up
deletes only those of generations before the last claim, because the current generation may still name its own files. It
deletes them `grace_ms` after they became unneeded. By then, every reader that began with an older version of the table
has finished.

No log says when a file became unneeded. The file's Remove action in the table's log is older: the file was needed until
the last retained cut with it was dropped. So every clean-up records what it observed (`CleanUpLook`). A file has been
unneeded at least since the look that first showed it as unneeded. A file that no log ever showed has no readers, so its
age is enough.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import unpublished
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord, Row

LOOKS_PER_GRACE = 24
"""Looks are treated as one look if the time between them is less than this fraction of the grace.

With 24 h, a file stays up to an hour longer."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A file was in its table from version `first` up to the version before `until`. It was removed at `removed_ms`.

    If rows were erased from it, no version shows it any more (K6). Then both are 0.
    """

    first: int
    until: int
    removed_ms: int


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that exists. `generation` staged it. None: somebody else wrote it, and the table's log has removed it.

    `shown` has the past periods in which the log showed the file. It is empty if no log ever showed the file. Times are
    in ms since 1970.
    """

    path: str
    table: TableName
    generation: Generation | None
    bytes: int
    modified_ms: int
    shown: tuple[Shown, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A table's newest version, its versions in the recorded cuts, and whether each of those cuts names the table.

    A rollback to a cut that does not name a table needs everything that the table has had since its first version.
    """

    newest: int
    cuts: frozenset[int] = field(default=frozenset())
    in_every_cut: bool = False

    def needs(self, file: ListedFile) -> bool:
        """Return whether a recorded cut shows the file, or the table's newest version can show it."""
        return any(
            shown.until > self.newest or any(shown.first <= version < shown.until for version in self.cuts)
            for shown in file.shown
        )

    @property
    def oldest(self) -> int:
        """Return the oldest version that a reader may begin to read."""
        return min(self.newest, *self.cuts) if self.in_every_cut and self.cuts else 0


@dataclass(frozen=True, slots=True)
class CleanUpLook:
    """What a clean-up saw of all tables at `at_ms`. A reader that begins later reads these versions or newer ones."""

    at_ms: int
    tables: Mapping[TableName, TableSeen]


RESERVATION_MS_MAX = 86_400_000
"""A reservation lasts at most a day. A reader that works longer renews it."""
JOB_RESERVATION_MS_MAX = 30 * RESERVATION_MS_MAX
"""A reservation by another job lasts at most 30 days. The other job can pause for this long (A10)."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reader's record that it reads a cut: these versions, from `given_ms` until `lapses_ms` (ms since 1970).

    `files` are the paths that the cut's entry names, because the reader may also read the operators' state at the cut.
    `by_job`: the reader is another job, which reads on from this cut. So that job also needs files that came into a
    table after these versions and that a compaction or a rollback has taken out since.
    """

    versions: Mapping[TableName, int]
    given_ms: int
    lapses_ms: int
    files: frozenset[str] = frozenset()
    by_job: bool = False

    @property
    def ends_ms(self) -> int:
        """When the reservation ends by itself. So a killed reader does not prevent the deletion of files for ever."""
        longest_ms = JOB_RESERVATION_MS_MAX if self.by_job else RESERVATION_MS_MAX
        return min(self.lapses_ms, self.given_ms + longest_ms)


def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
    """Return the reservations that are in force now.

    A reservation dated far into the future would never end, so it is ignored. Clocks may differ by less than a day.
    """
    return tuple(each for each in reservations if now_ms < each.ends_ms and each.given_ms < now_ms + RESERVATION_MS_MAX)


def reserved_files(reservations: Iterable[Reservation], now_ms: int) -> frozenset[str]:
    """Return the paths that reservations in force name."""
    return frozenset[str]().union(*(each.files for each in standing(reservations, now_ms)))


def reads_on(file: ListedFile, reservations: Iterable[Reservation], now_ms: int) -> bool:
    """Return whether a job that reads on from a reserved cut has yet to read a version that showed the file.

    Such a job reads what each version has added, and not what the newest version shows.
    """
    since = (each.versions.get(file.table) for each in standing(reservations, now_ms) if each.by_job)
    return any(version is not None and version < shown.until for version in since for shown in file.shown)


def read_before_erasure(file: ListedFile, reservations: Iterable[Reservation], now_ms: int) -> bool:
    """Return whether rows were erased from the file, and a reader may have opened its reserved cut before that.

    The cut's versions no longer show the file. It is deleted a day after the erasure at the latest, even if readers
    renew their reservations. A job that reads on from the cut reads successors.
    """
    erased = any(not shown.until and now_ms < shown.removed_ms + RESERVATION_MS_MAX for shown in file.shown)
    return erased and any(file.table in each.versions and not each.by_job for each in standing(reservations, now_ms))


def discardable(paths: Iterable[str], reservations: Iterable[Reservation], now_ms: int) -> tuple[str, ...]:
    """Return which of these files a tick may delete, now that no checkpoint refers to them.

    A clean-up deletes the other files after their reservation has ended.
    """
    reserved = reserved_files(reservations, now_ms)
    return tuple(path for path in paths if path not in reserved)


def is_forgotten(reservation: Reservation, now_ms: int) -> bool:
    """Return whether a reservation ended so long ago that its reader will not come back to it.

    Until then the reservation stays, so that a late reader learns that its cut is gone, and does not read another cut
    instead.
    """
    return not standing((reservation,), now_ms) and now_ms >= reservation.ends_ms + RESERVATION_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFacts:
    """What was observed: the files first, then the entries, the cuts, the reservations and the tables' logs.

    `current` is the generation of the last claim. `others_hold` is true if a process other than the one that cleans up
    holds the job. `recorded` has the checkpoints whose cuts are recorded. `active` has each path that a table's log
    shows at its newest version, at a recorded cut or at a reserved cut. `looks` has what earlier clean-ups saw.
    """

    current: Generation
    others_hold: bool
    now_ms: int
    grace_ms: int
    rows: tuple[Row, ...]
    recorded: frozenset[CheckpointId]
    found: tuple[ListedFile, ...]
    active: frozenset[str]
    looks: tuple[CleanUpLook, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    @property
    def pending(self) -> CheckpointRecord | None:
        """The newest committed entry if its cut is not recorded, else None.

        Either the entry is not published completely, or the list of cuts is stale. In both cases, nobody knows which
        table versions belong to its cut.
        """
        return unpublished(self.rows, self.recorded)


class Reason(Enum):
    """Why a file is unneeded."""

    REMOVED = "removed from the table, and in no retained cut"
    UNNAMED = "staged, and named by no checkpoint"


@dataclass(frozen=True, slots=True)
class Unneeded:
    """An unneeded file, the reason, and since when the file is unneeded (ms since 1970)."""

    file: ListedFile
    reason: Reason
    since_ms: int


@dataclass(frozen=True, slots=True)
class CleanupDecision:
    """The files to delete now, and the unneeded files that may still have readers.

    Both are in order of age, the oldest first.
    """

    delete: tuple[Unneeded, ...] = ()
    waiting: tuple[Unneeded, ...] = ()


def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
    """Return the unneeded files.

    While another process holds a job without any checkpoint, nothing is deleted. That process may be restoring from
    another warehouse: it copies files that older generations staged there, and appends the entry that names them
    afterwards.

    While an entry is `pending`, every file that a table has ever shown stays.
    """
    records = [row for row in facts.rows if isinstance(row, CheckpointRecord)]
    if facts.others_hold and not records:
        return CleanupDecision()
    reserved = reserved_files(facts.reservations, facts.now_ms)
    needed = facts.active.union(reserved, *(files_of(record) for record in records))
    renaming = _being_renamed(records, facts.recorded)
    is_unsure = facts.pending is not None
    unneeded = sorted(
        (
            _judged(file, facts)
            for file in facts.found
            if _is_past(file, facts.current)
            and (file.table, file.generation) not in renaming
            and not (is_unsure and file.shown)
            and not _is_needed(file, needed, facts)
        ),
        key=lambda each: (each.since_ms, each.file.path),
    )
    return CleanupDecision(
        delete=tuple(each for each in unneeded if facts.now_ms - each.since_ms >= facts.grace_ms),
        waiting=tuple(each for each in unneeded if facts.now_ms - each.since_ms < facts.grace_ms),
    )


def _being_renamed(
    records: Iterable[CheckpointRecord], recorded: Collection[CheckpointId]
) -> frozenset[tuple[TableName, Generation | None]]:
    """Return the tables in which a committed entry renames columns, each with the entry's generation.

    The process that publishes the entry writes new files of that generation. The entry does not name these files. Until
    the cut of the entry is recorded, the table may be about to show them.
    """
    return frozenset(
        (table.table, record.generation)
        for record in records
        if record.checkpoint not in recorded
        for table in record.tables
        if table.renamed
    )


def _is_needed(file: ListedFile, needed: Collection[str], facts: CleanupFacts) -> bool:
    given = facts.reservations, facts.now_ms
    return file.path in needed or reads_on(file, *given) or read_before_erasure(file, *given)


def needed_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
    """Return the checkpoints whose cuts stay: those with existing entries, and those from which such entries continue.

    A plain savepoint's tables are its parent's. A committed entry that is not published yet is rolled forward from its
    parent's cut. Until then readers read the parent's cut, even if the parent's own entry is subsumed already. The same
    holds for an entry that was abandoned before its cut was recorded.
    """
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
    parents = {row.parent for row in records if not row.commits or row.checkpoint not in recorded}
    return frozenset({row.checkpoint for row in records} | parents)


def readable_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
    """Return the recorded cuts that stay (`needed_cuts`)."""
    return needed_cuts(rows, recorded).intersection(recorded)


def noted(looks: Iterable[CleanUpLook], now: CleanUpLook, grace_ms: int) -> tuple[CleanUpLook, ...]:
    """Return the looks to keep, oldest first: those within the grace, and the newest look from before the grace.

    An older look shows no unneeded file that a newer look does not show. So one look from before the grace is enough.
    """
    earlier = sorted((look for look in looks if look.at_ms <= now.at_ms), key=lambda look: look.at_ms)
    past = [look for look in earlier if now.at_ms - look.at_ms >= grace_ms]
    young = [look for look in earlier if now.at_ms - look.at_ms < grace_ms]
    kept = (*past[-1:], *young)
    if len(kept) > 1 and now.at_ms - kept[-2].at_ms < grace_ms // LOOKS_PER_GRACE:
        kept = kept[:-1]
    return (*kept, now)


def log_floor(looks: Collection[CleanUpLook], table: TableName, now_ms: int, grace_ms: int) -> int:
    """Return the oldest version of a table that somebody may still be reading, or 0 if that is not known yet.

    The answer comes from the newest look that is at least one grace old. A reader that began before this look has
    finished. A reader that began later reads the versions that this look saw, or newer ones. So older log entries can
    be deleted.
    """
    past = max((look.at_ms for look in looks if now_ms - look.at_ms >= grace_ms), default=None)
    if past is None:
        return 0
    seen = [look.tables.get(table) for look in looks if look.at_ms >= past]
    return min((each.oldest if each is not None else 0 for each in seen), default=0)


def is_due(looks: Iterable[CleanUpLook], now_ms: int, grace_ms: int) -> bool:
    """Return whether the last look is old enough for a clean-up although no checkpoint has completed."""
    return now_ms - max((look.at_ms for look in looks), default=now_ms - grace_ms) >= grace_ms // LOOKS_PER_GRACE


def _is_past(file: ListedFile, current: Generation) -> bool:
    """Return True if the current generation can no longer reference this file."""
    return bool(file.shown) if file.generation is None else file.generation < current


def _judged(file: ListedFile, facts: CleanupFacts) -> Unneeded:
    if not file.shown:
        return Unneeded(file, Reason.UNNAMED, file.modified_ms)
    seen = (look.at_ms for look in facts.looks if file.table in look.tables and not look.tables[file.table].needs(file))
    removed_ms = max(shown.removed_ms for shown in file.shown)
    return Unneeded(file, Reason.REMOVED, max(removed_ms, min(seen, default=facts.now_ms)))


# ------------------------------------------------------------------
# Decides which staged files are certainly unreferenced.
#
# A staged file belongs to a vertex v, a micro-batch m and a generation g. It is a leftover if g is older than the
# current claim, no savepoint refers to the file, and one of two conditions holds:
#
# - g is newer than the generation of the newest checkpoint.
# - g is that generation, and m came after v's last micro-batch in that checkpoint.
#
# No file that this checkpoint or an older one names meets these conditions. A plain savepoint may be newer than the
# newest checkpoint. So the files that a savepoint names are excluded.


@dataclass(frozen=True, slots=True)
class Referenced:
    """What the entries of `checkpoints` refer to, as far as leftovers depend on it: newest cut, pinned files."""

    newest: CheckpointRecord | None = None
    pinned: frozenset[str] = field(default=frozenset())


def referenced(rows: Iterable[Row]) -> Referenced:
    """Return what these entries refer to. `rows` must have all existing entries."""
    known = tuple(rows)
    savepoints = (row for row in known if isinstance(row, CheckpointRecord) and row.is_savepoint)
    pinned: frozenset[str] = frozenset().union(*(files_of(row) for row in savepoints))
    return Referenced(newest_checkpoint(known), pinned)


def oldest_with_leftovers(by: Referenced) -> Generation:
    """Return the oldest generation of which `is_leftover` may be true."""
    return by.newest.generation if by.newest is not None else Generation(1)


def is_unreferenced(
    path: str, name: StagedName, generation: Generation, *, current: Generation, by: Referenced
) -> bool:
    """Return whether the staged file at `path` is certainly unreferenced."""
    return path not in by.pinned and is_leftover(name, generation, current=current, newest=by.newest)


def is_leftover(
    name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
) -> bool:
    """Return True if certainly no checkpoint names this staged file, now or later. A savepoint can name it.

    `generation` is the generation that wrote the file. `current` is the generation of the current claim.
    """
    if generation >= current:
        return False
    if newest is None or generation > newest.generation:
        return True
    if generation < newest.generation:
        return False
    counter = next((vertex.micro_batch for vertex in newest.vertices if vertex.vertex == name.vertex), None)
    return counter is not None and name.micro_batch > counter
