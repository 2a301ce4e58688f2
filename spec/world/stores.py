"""The content of a simulated warehouse: staged files, and the logs of tables."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from random import Random
from types import MappingProxyType
from typing import Final

from checkpointing.commit.cleanup import (
    CleanUpLook,
    Referenced,
    Reservation,
    discardable,
    is_unreferenced,
    needed_cuts,
    readable_cuts,
    standing,
)
from checkpointing.commit.compaction import still_possible
from checkpointing.commit.erasure import forgotten
from checkpointing.commit.fencing import Lease, newest_checkpoint, newest_claim
from checkpointing.commit.lost_publications import Correction, Cuts
from checkpointing.commit.net_files import changes_at
from checkpointing.commit.outside_sinks import SinkTransaction, to_commit, to_roll_back
from checkpointing.commit.two_phase import entries_to_sync, files_to_sync
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    Effect,
    LookForRival,
    Publication,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
)
from checkpointing.metadata.paths import ROOT, StagedName
from checkpointing.metadata.record import CheckpointRecord, Claim, FileCompaction, Release, Row, RowKind
from spec.history import (
    ActiveAtCuts,
    CameToRest,
    CutsCorrected,
    CutsDropped,
    CutsSeen,
    CutWritten,
    EntriesLost,
    ErasureOver,
    FileMissed,
    FilesDiscarded,
    History,
    JobClaimed,
    JobReleased,
    LeftoversGone,
    NamedTooEarly,
    OutsideEvent,
    OutsidePassedOver,
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
    PowerLost,
    ReservedGone,
    RowCommitted,
    Rows,
    RowsErased,
    SavepointDisposed,
    TableChanged,
    TableRestored,
)
from spec.reference.contents import named_files
from spec.reference.pipeline import ROW_BYTES

StateRows = dict[int, tuple[object, ...] | None]


@dataclass(frozen=True, slots=True)
class Written:
    """A staged file: the generation that wrote it, and its rows."""

    generation: Generation
    vertex: VertexId
    micro_batch: int
    rows: Rows = ()
    state: StateRows = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    """The names of the file's columns. They are kept only for the operator whose columns are renamed."""
    at_ms: int = 0


@dataclass(slots=True)
class TableLog:
    """A table's log: for each version, the active files and the checkpoint that the table shows."""

    versions: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    shown: list[int] = field(default_factory=lambda: [0])
    """For each version, the checkpoint that the table shows (the newest `txn`)."""
    columns: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    """For each version, the names of the table's columns."""
    at_ms: list[int] = field(default_factory=lambda: [0])
    """For each version, the time of its commit."""
    durable: set[int] = field(default_factory=lambda: {0})
    """The versions whose entries survive a power cut."""
    again: set[int] = field(default_factory=set)
    """The versions whose entries were published again."""
    oldest: int = 0
    """The oldest version whose entry the log still has. Older ones were dropped in order."""
    backup: "TableLog | None" = None
    """The log as it was before it lost entries."""
    merged: dict[str, frozenset[str]] = field(default_factory=dict)
    """Maps each file that a neighbour wrote to the files that the neighbour merged into it, in one step or several."""
    erased_ms: dict[str, int] = field(default_factory=dict)
    """When each erased file was taken out of the log. No version shows it any more."""

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions) - 1

    @property
    def active(self) -> frozenset[str]:
        """The active files."""
        return self.versions[-1]

    def commit(self, active: frozenset[str], shown: int, at_ms: int, columns: frozenset[str] | None = None) -> None:
        """Add a version. Without `columns`, the table's columns stay as they are."""
        self.versions.append(active)
        self.at_ms.append(at_ms)
        self.shown.append(shown)
        self.columns.append(self.columns[-1] if columns is None else columns)

    def after(self, publication: Publication, compactions: Iterable[FileCompaction]) -> frozenset[str]:
        """Return the active files of an append table after this publication, with these of its compactions applied."""
        carried_out = tuple(compactions)
        into, of = {each.into.path for each in carried_out}, {path for each in carried_out for path in each.of}
        adds, leaving = ({file.path for file in files} for files in (publication.adds, publication.removes))
        return (self.active | adds | into) - leaving - of

    def undo_merges(self, leaving: Iterable[str], at_ms: int) -> None:
        """Undo each neighbour's merge of one of these files: add a version with the files from before."""
        paths = set(leaving)
        for path, files in self.merged.items():
            if path in self.active and files & paths:
                self.commit(self.active - {path} | (files - self.merged.keys()), self.shown[-1], at_ms)

    def erase(self, into: Mapping[str, str | None], at_ms: int) -> None:
        """Replace erased files by their successors in all versions. A second call changes nothing."""

        def now(paths: frozenset[str]) -> frozenset[str]:
            found = (into.get(path, path) for path in paths)
            return frozenset(path for path in found if path is not None)

        self.versions = [now(paths) for paths in self.versions]
        merged = ((into.get(path, path), now(files)) for path, files in self.merged.items())
        self.merged = {path: files for path, files in merged if path is not None}
        self.erased_ms |= {path: at_ms for path in into if path not in self.erased_ms}
        if self.backup is not None:
            self.backup.erase(into, at_ms)

    def columns_after(self, publication: Publication) -> frozenset[str]:
        """Return the names of the columns that the table has after this publication."""
        said = frozenset(column.name for column in publication.columns)
        if publication.no_others and said:
            return said
        return (self.columns[-1] - frozenset(publication.leaving)) | said

    def shorten(self, to: int) -> None:
        """Lose every entry after this version."""
        del self.versions[to + 1 :], self.shown[to + 1 :], self.columns[to + 1 :], self.at_ms[to + 1 :]
        self.durable &= set(range(to + 1))
        self.again &= set(range(to + 1))

    def copy(self) -> "TableLog":
        """Return the log as it is now."""
        by_version = [*self.versions], [*self.shown], [*self.columns], [*self.at_ms]
        merged, erased_ms = {**self.merged}, {**self.erased_ms}
        known = {*self.durable}, {*self.again}
        return TableLog(*by_version, *known, self.oldest, merged=merged, erased_ms=erased_ms)

    def times_of(self, path: str) -> Iterator[tuple[int, int, int]]:
        """Yield each past period of a file in the table: its first version, the version that removed it, and when."""
        if path in self.erased_ms:
            yield 0, 0, self.erased_ms[path]
        first: int | None = None
        for version, active in enumerate(self.versions):
            if path in active:
                first = version if first is None else first
            elif first is not None:
                yield first, version, self.at_ms[version]
                first = None


# ------------------------------------------------------------------
# Simulates readers that reserve a cut and read it while ticks and clean-ups go on (K4).


NOTHING_FOUND = "a reader finds that its cut has gone"
RAN_OUT = "a reservation runs out"


@dataclass(frozen=True, slots=True)
class Held:
    """The files that a reader may read, from the time when it finds its cut until its reservation ends."""

    paths: frozenset[str]
    until_ms: int


@dataclass(slots=True)
class Readers:
    """The reservation of each reader, and the files that each reader relies on."""

    reservations: dict[str, Reservation] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def all(self) -> tuple[Reservation, ...]:
        """Return all reservations, expired ones included."""
        return tuple(self.reservations.values())

    def cuts(self, now_ms: int) -> list[Mapping[TableName, int]]:
        """Return the table versions of every cut that is reserved now."""
        return [each.versions for each in standing(self.all(), now_ms)]

    def discardable(self, paths: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """Return those of the files that a tick or a disposal may delete. The core decides this."""
        return discardable(paths, self.all(), now_ms)

    def counted_on(self, now_ms: int) -> frozenset[str]:
        """Return the files that readers rely on now."""
        return frozenset[str]().union(*(each.paths for each in self.held.values() if now_ms < each.until_ms))

    def ends_ms(self) -> int:
        """Return the time at which the last reservation expires."""
        return max((each.ends_ms for each in self.all()), default=0)

    def leave(self, name: str) -> None:
        """Delete a reader's reservation."""
        self.reservations.pop(name, None)
        self.held.pop(name, None)


def reading(
    world: "World", name: str, checkpoint: CheckpointId, lease_ms: int, renewals: Collection[bool]
) -> Iterator[None]:
    """Read the cut of a checkpoint. Each element of `renewals` is a step: True if it renews the reservation.

    A reader that comes back too late finds its reservation expired, and stops. If its cut has lost log entries, or if
    the log that it opens lacks the cut's version, it gets an error instead of rows.
    """
    readers, versions = world.readers, dict(world.cuts[checkpoint])
    entry = next((row for row in world.checkpoints() if row.checkpoint == checkpoint), None)
    named = named_files(entry) if entry is not None else frozenset[str]()
    yield
    reservation = Reservation(versions, world.now_ms, world.now_ms + lease_ms, named)
    readers.reservations[name] = reservation
    yield
    is_lost = any(version > _end_of_log(world, table) for table, version in versions.items())
    if is_lost or world.cuts.get(checkpoint) != versions:
        world.met[NOTHING_FOUND] += 1
        readers.leave(name)
        return
    shown = (world.table(table).versions[at] for table, at in versions.items() if entry or not table.startswith(ROOT))
    paths = named.union(*shown)
    readers.held[name] = Held(paths, reservation.lapses_ms)
    for renews in renewals:
        yield
        if world.now_ms >= reservation.lapses_ms:
            world.met[RAN_OUT] += 1
            break
        if renews:
            reservation = Reservation(versions, world.now_ms, world.now_ms + lease_ms, named)
            readers.reservations[name] = reservation
            if name in readers.held:
                readers.held[name] = Held(paths, reservation.lapses_ms)
    readers.leave(name)


def _end_of_log(world: "World", table: TableName) -> int:
    """Return the newest version that the reader sees. If stores fail, the reader can miss the newest version."""
    lags = world.faults is not None and world.faults.is_stale_for_readers()
    return max(0, world.table(table).version - lags)


# ------------------------------------------------------------------
# Simulated targets of outside sinks. Their content survives every crash.


JOB: Final = JobName("job")


@dataclass(slots=True)
class OutsideTargets:
    """What the targets of all outside sinks hold: rows, and the newest checkpoint, in one transaction."""

    shown: dict[TableName, CheckpointId] = field(default_factory=dict)
    paths: dict[TableName, list[str]] = field(default_factory=dict)

    pre_committed: dict[SinkTransaction, tuple[str, ...]] = field(default_factory=dict)
    """The pre-committed transactions, with their files."""

    def publish(self, checkpoint: CheckpointId, publication: Publication) -> Iterator[OutsideEvent]:
        """Take a checkpoint's files once. A target that already has this or a newer checkpoint takes nothing.

        If the target has pre-committed a transaction for the checkpoint, it commits that transaction.
        """
        table, left = publication.table, self.left(publication.table)
        yield from self.roll_back(to_roll_back(left, checkpoint))
        for transaction in to_commit(left, checkpoint):
            self.shown[table] = max(checkpoint, self.shown.get(table, NO_CHECKPOINT))
            new = self.pre_committed.pop(transaction)
            self._take(publication, new)
            yield OutsidePublished(checkpoint, table, new)
        if self.shown.get(table, NO_CHECKPOINT) >= checkpoint:
            yield OutsidePassedOver(checkpoint, table)
            return
        new = self._due(publication)
        self.shown[table] = checkpoint
        self._take(publication, new)
        yield OutsidePublished(checkpoint, table, new)

    def _take(self, publication: Publication, new: tuple[str, ...]) -> None:
        before = self.paths.get(publication.table, []) if publication.mode is TableMode.APPEND else []
        self.paths[publication.table] = [*before, *new]

    def _due(self, publication: Publication) -> tuple[str, ...]:
        """Return the new files, or all files of an upsert table.

        The target of an upsert table takes the changes since its own checkpoint if the publication lists them, and
        otherwise the whole table.
        """
        if publication.mode is TableMode.APPEND:
            return tuple(file.path for file in publication.adds)
        now, before = {file.path for file in publication.files}, self.paths.get(publication.table, [])
        if publication.since == self.shown.get(publication.table, NO_CHECKPOINT):
            were = {file.path for file in publication.before}
            now = (set(before) - (were - now)) | (now - were)
        return tuple(sorted(now))

    # -------------------------------------------------------------- phase one

    def left(self, table: TableName | None = None) -> tuple[SinkTransaction, ...]:
        """Return the pre-committed transactions of one target, or of all targets."""
        return tuple(each for each in self.pre_committed if table in (None, each.table))

    def vote(self, effect: CheckTables, generation: Generation, *, refuses: int) -> Iterator[OutsideEvent]:
        """Let the targets pre-commit in turn.

        If a target has the number `refuses`, it refuses, and then no target keeps its transaction.
        """
        mine: list[SinkTransaction] = []
        for number, publication in enumerate(effect.pre_commits):
            table, checkpoint = publication.table, effect.checkpoint
            if number == refuses:
                yield OutsideRefused(checkpoint, table)
                break
            yield from self.roll_back(to_roll_back(self.left(table), checkpoint))
            if self.shown.get(table, NO_CHECKPOINT) < checkpoint and not self.left(table):
                mine.append(SinkTransaction(JOB, table, generation, checkpoint))
                self.pre_committed[mine[-1]] = self._due(publication)
                yield OutsidePreCommitted(generation, checkpoint, table, self._due(publication))
        if refuses < len(effect.pre_commits) or not effect.keeps:
            yield from self.roll_back(mine)

    def settle(self, current: Generation, first_id: CheckpointId) -> Iterator[OutsideEvent]:
        """Roll back what was pre-committed for older checkpoints, as a starting tick does."""
        left = self.left()
        yield from self.roll_back(to_roll_back(left, first_id))
        if left:
            yield OutsideRecovered(current)

    def roll_back(self, transactions: Iterable[SinkTransaction]) -> Iterator[OutsideRolledBack]:
        """Drop these transactions."""
        for each in transactions:
            del self.pre_committed[each]
            yield OutsideRolledBack(each.checkpoint, each.table)


# ------------------------------------------------------------------
# Faults of a simulated store: a write is lost, the reply to a write is lost, or an answer comes late.
#
# They strike effects that change the store: appends, publications and cuts, also of processes at rest. These faults
# have random numbers of their own, so that all other runs stay as they were. None strikes in the last tick.


LATE_MS: Final = (60, 250, 600)
"""How late an answer may come."""
OF_STORES: Final = (AppendRow, CheckTables, LookForRival, PublishTable, RecordCut)
"""Effects of a job whose answers may come late."""
NO_ANSWER: Final = "the store does not answer"
LATE: Final = "the answer of a store comes late"
STALE: Final = "a list of entries or cuts is stale"
STALE_FOR_CLEAN_UPS: Final = "a clean-up reads a stale list"
STALE_OFTEN: Final = 0.6
"""Clean-ups and readers seldom run beside a tick. So if one does, its lists are often stale."""
STALE_FOR_READERS: Final = "a reader opens a stale log"


class Harm(Enum):
    """What happened to a write to which the sender gets no reply."""

    WRITE_LOST = "a write to a store is lost"
    REPLY_LOST = "the reply of a store is lost"


class StoreBrokeError(Exception):
    """A write got no answer, and no fact can report its failure."""


class StoreFaults:
    """Decides which writes and replies are lost, which answers come late, and which lists are stale."""

    def __init__(self, seed: int, met: Counter[str]) -> None:
        self._random = Random(f"store of {seed}")  # noqa: S311 - a run must be repeatable
        self._lost = self._random.choice([0.0, 0.03, 0.15])
        self._late = self._random.choice([0.0, 0.1, 0.4])
        self._stale = self._random.choice([0.0, 0.3])
        self._lists = Random(f"clean-ups and the store of {seed}")  # noqa: S311 - as above
        self._logs = Random(f"readers and the store of {seed}")  # noqa: S311 - as above
        self._met = met
        self.is_sound = False
        """True from the last tick on. Then no fault strikes."""

    def harm(self) -> Harm | None:
        """Return the fault that strikes the next write, or None."""
        if not self._strikes(self._lost):
            return None
        harm = self._random.choice(list(Harm))
        self._met[harm.value] += 1
        return harm

    def late_ms(self) -> int:
        """Return how late the next answer comes."""
        if not self._strikes(self._late):
            return 0
        self._met[LATE] += 1
        return self._random.choice(LATE_MS)

    def is_stale(self) -> bool:
        """Return whether the next list lacks the newest change."""
        stale = self._strikes(self._stale)
        self._met[STALE] += stale
        return stale

    def is_stale_for_clean_ups(self) -> bool:
        """Return whether the next list of a clean-up lacks the newest change."""
        stale = not self.is_sound and self._lists.random() < STALE_OFTEN
        self._met[STALE_FOR_CLEAN_UPS] += stale
        return stale

    def is_stale_for_readers(self) -> bool:
        """Return whether the log of a table that a reader opens lacks the newest version."""
        stale = not self.is_sound and self._logs.random() < STALE_OFTEN
        self._met[STALE_FOR_READERS] += stale
        return stale

    def _strikes(self, probability: float) -> bool:
        return not self.is_sound and self._random.random() < probability


def late_ms(faults: StoreFaults | None, effect: Effect) -> int:
    """Return how late the answer to this effect comes."""
    return faults.late_ms() if faults is not None and isinstance(effect, OF_STORES) else 0


# ------------------------------------------------------------------
# The stores of a simulated warehouse, in memory: files, table logs, `checkpoints`, `cuts`.
#
# Each store keeps the promises of its counterpart on Delta, and no others: an append is a compare-and-swap, publishing
# may be repeated, and a cut is recorded once. Files are kept after their deletion, so that the invariants can still
# compare contents. The history records each read of a deleted file.


NO_MARKS: Final[Mapping[CheckpointId, bool]] = MappingProxyType({})


class FileGoneError(Exception):
    """A process that no longer holds the job needed a file that had been deleted."""


class World:
    """One job's warehouse."""

    def __init__(self, new_history: Callable[["World"], History]) -> None:
        self.now_ms = 1_000
        self.files: dict[str, Written] = {}
        self.gone: set[str] = set()
        self.durable: set[str] = set()
        """Files that survive a power cut."""
        self.struck = False
        """True after a mishap. Then every start records what the cuts show."""
        self.tables: dict[TableName, TableLog] = {}
        self.version = 0
        self.log: list[tuple[int, Row]] = []
        self.cuts: dict[CheckpointId, dict[TableName, int]] = {}
        self.as_stored: Callable[[Row], Row] = lambda row: row
        self.as_read: Callable[[Row], Row] = lambda row: row
        """`as_stored` writes an entry and reads it back. `as_read` reads an entry that was written before."""
        self.as_rewritten: Callable[[CheckpointRecord, CheckpointRecord], CheckpointRecord] = lambda row, _: row
        """Write an older entry again, without the files that the other entry erases."""
        self.before: tuple[int, tuple[Row, ...]] = (0, ())
        """The version before the newest one, and its entries. A list that lags behind shows these."""
        self.lag_ms = 0
        """How long a new file is missing from lists."""
        self.faults: StoreFaults | None = None
        """Decides what fails between a process and these stores."""
        self.cuts_before: frozenset[CheckpointId] = frozenset()
        """The recorded cuts before the newest change. A list that lags behind shows these."""
        self.searches: Generation | None = None
        """The newest generation that has searched for rows to erase."""
        self.lease: Lease | None = None
        self.looks: tuple[CleanUpLook, ...] = ()
        """The tables' versions that earlier clean-ups saw."""
        self.readers = Readers()
        self.outside = OutsideTargets()
        self.met: Counter[str] = Counter()
        """How often rare moves happened that have no event."""
        self.history = new_history(self)
        self._needed: dict[CheckpointId, frozenset[str]] = {}

    def harm(self) -> Harm | None:
        """Return the fault that strikes the next write of any process, or None."""
        return self.faults.harm() if self.faults is not None else None

    def is_stale(self) -> bool:
        """Return whether the next list of any process lags behind."""
        return self.faults is not None and self.faults.is_stale()

    # -------------------------------------------------------------- files

    def write(self, folder: str, written: Written, rows: int, inside: str = "") -> FileHandle:
        """Stage a new, immutable file in its generation's folder. `inside` names further folders within it."""
        name = f"{inside}{written.vertex}-{written.micro_batch}-{len(self.files):032x}"
        path = f"{folder}/_data/{written.generation}/{name}.parquet"
        self.files[path] = replace(written, at_ms=self.now_ms)
        return FileHandle(path, rows, rows * ROW_BYTES, 0)

    def read(self, path: str, reader: str, generation: Generation) -> Written:
        """Return a file's content. Raise FileGoneError if the file is deleted and the reader is fenced."""
        if path in self.gone:
            if generation < self.generation:
                raise FileGoneError(path)
            self.history.add(FileMissed(path, reader))
        return self.files[path]

    def link(self, links: Mapping[str, str], generation: Generation) -> None:
        """Give files further paths. `links` maps each new path to the old path. The links belong to this generation."""
        for path, old in links.items():
            self.read(old, f"linking {path}", generation)
            self.files[path] = replace(self.files[old], generation=generation, micro_batch=0)

    def rows_of(self, path: str) -> Rows:
        """Return the rows of a file, also of a deleted one."""
        return self.files[path].rows

    def state_of(self, keyed: KeyedFile) -> StateRows:
        """Return the state in a state file, also in a deleted one."""
        return self.files[keyed.file.path].state

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files. Deleting them twice changes nothing."""
        fresh = tuple(path for path in paths if path not in self.gone)
        if fresh:
            needed, reserved = self._in_use(), self.readers.counted_on(self.now_ms)
            self.gone.update(fresh)
            self.history.events.extend(ReservedGone(path) for path in fresh if path in reserved)
            self.history.add(FilesDiscarded(fresh, tuple(path for path in fresh if path in needed)))

    def _in_use(self) -> set[str]:
        """Return the files that entries name, and those that tables show now or at an entry's cut.

        If the newest entry no longer has an operator, only older cuts need that operator's state table.
        """
        newest = newest_checkpoint(self.rows())
        said = {each.table for each in newest.columns} if newest is not None else set()
        used = {path for name, log in self.tables.items() if not _is_left(name, said) for path in log.active}
        for record in self.checkpoints():
            used |= self.paths_of(record)
        if newest is not None and newest.checkpoint not in self.cuts:  # its erasure may have to be published yet
            used.update(each.into.path for each in newest.erased if each.into is not None)
        cuts = (self.cuts[each] for each in self._cuts_in_use() if each in self.cuts)
        shown = ((name, at) for cut in cuts for name, at in cut.items() if not name.startswith(f"{ROOT}/"))
        return used.union(*(self.table(name).versions[at] for name, at in shown if at <= self.table(name).version))

    def _cuts_in_use(self) -> set[CheckpointId]:
        """Return the checkpoints whose cuts are in use: all entries, and the parents of entries without a cut."""
        waiting = (row.parent for row in self.checkpoints() if row.checkpoint not in self.cuts)
        return {row.checkpoint for row in self.checkpoints()}.union(waiting)

    def paths_of(self, record: CheckpointRecord) -> frozenset[str]:
        """Return every file that an entry names."""
        if record.checkpoint not in self._needed:
            self._needed[record.checkpoint] = named_files(record)
        return self._needed[record.checkpoint]

    def listed(self) -> list[str]:
        """Return the files that a list shows now."""
        shown_ms = self.now_ms - self.lag_ms
        return [path for path, file in self.files.items() if path not in self.gone and file.at_ms <= shown_ms]

    def discard_leftovers(self, current: Generation, by: Referenced) -> int:
        """Delete unreferenced staged files of older generations (K4). Return their number."""
        leftovers = [path for path in self.listed() if _is_leftover(path, self.files[path], current, by)]
        self.history.add(LeftoversGone(current))
        self.discard(leftovers)
        return len(leftovers)

    # -------------------------------------------------------------- checkpoints

    @property
    def generation(self) -> Generation:
        """The generation that holds the job."""
        newest = self.holder()
        return newest.generation if newest is not None else Generation(0)

    def holder(self) -> Claim | None:
        """Return the newest claim."""
        return newest_claim(self.rows())

    def rows(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.log)

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints that the table holds, oldest first."""
        return [row for _, row in self.log if isinstance(row, CheckpointRecord)]

    def append(
        self,
        row: Row,
        at_version: int,
        subsumed: tuple[CheckpointId, ...] = (),
        marks: Mapping[CheckpointId, bool] = NO_MARKS,
    ) -> RowAppended | RowRefused | RowUnknown:
        """Append the entry if the table is at this version.

        If its nonce is in the table already, return that entry's version.

        `marks` has the entries that this commit marks as abandoned (True) or no longer abandoned (False).
        """
        if self.version == at_version:
            row = self.as_stored(row)
            if isinstance(row, CheckpointRecord):
                self.durable.update(files_to_sync(row, self.checkpoints()))
                early = sorted(self.paths_of(row) & self.files.keys() - self.durable - self.gone)
                if early:
                    self.history.add(NamedTooEarly(row.checkpoint, tuple(early)))
            self._commit(row, subsumed, marks)
            return RowAppended(row.nonce, self.version)
        there = next((version for version, known in self.log if known.nonce == row.nonce), None)
        if there is not None:
            return RowAppended(row.nonce, there)
        return RowRefused(row.nonce, f"generation {self.generation}")

    def release(
        self, row: Release, at_version: int, dropped: tuple[CheckpointId, ...]
    ) -> RowAppended | RowRefused | RowUnknown:
        """Append a release that drops savepoints."""
        answer = self.append(row, at_version, dropped)
        if isinstance(answer, RowAppended):
            self.history.events.extend(SavepointDisposed(each) for each in dropped)
        return answer

    def _commit(self, row: Row, subsumed: tuple[CheckpointId, ...], marks: Mapping[CheckpointId, bool]) -> None:
        self.before = self.version, self.rows()
        self.version += 1
        self.log = [
            (version, _marked(known, marks))
            for version, known in self.log
            if not (isinstance(known, CheckpointRecord) and known.checkpoint in subsumed)
        ]
        if isinstance(row, CheckpointRecord) and row.kind is RowKind.FORGET:
            self._forget(row)
        self.log.append((self.version, row))
        if isinstance(row, CheckpointRecord):
            for each in row.tables:  # publishing would name the neighbour, and wait until the merge is undone
                self.table(each.table).undo_merges((file.path for file in each.removes), self.now_ms)
            there = self.checkpoints()
            missing = sorted(self.paths_of(row) & self.gone)
            self.history.events.extend(FileMissed(path, f"entry {row.checkpoint}") for path in missing)
            abandoned = tuple(record.checkpoint for record in there if record.abandoned)
            self.history.add(RowCommitted(row, tuple(record.checkpoint for record in there), abandoned))
        elif isinstance(row, Claim):
            self.history.add(JobClaimed(row))
        else:
            self.history.add(JobReleased(row))

    def erases(self) -> bool:
        """Return whether a process searches for rows to erase, or an erasure's entry is not published yet."""
        waiting = (row for row in self.checkpoints() if row.kind is RowKind.FORGET and row.checkpoint not in self.cuts)
        return self.searches == self.generation or any(waiting)

    def _forget(self, by: CheckpointRecord) -> None:
        """Write all entries again without the files that this entry erases, in the commit that appends this entry."""
        before, shown = self.checkpoints(), self._active_at_cuts()
        self.log = [(version, self._forgotten(known, by)) for version, known in self.log]
        self._needed.clear()
        into = {each.path: each.into.path if each.into is not None else None for each in by.erased}
        self.history.add(RowsErased(by, into, tuple(before), tuple(self.checkpoints()), shown))

    def _forgotten(self, known: Row, by: CheckpointRecord) -> Row:
        row = forgotten(known, by.erased)
        return self.as_rewritten(row, by) if isinstance(row, CheckpointRecord) and row != known else row

    # -------------------------------------------------------------- tables

    def table(self, name: TableName) -> TableLog:
        """Return a table's log."""
        return self.tables[name] if name in self.tables else self.tables.setdefault(name, TableLog())

    def publish(self, checkpoint: CheckpointId, publication: Publication, *, again: bool = False) -> TablePublished:
        """Publish the checkpoint once. Return the version at which the table shows the checkpoint."""
        if publication.outside:
            self.history.events.extend(self.outside.publish(checkpoint, publication))
            return TablePublished(checkpoint, publication.table, 0, outside=True)
        log = self.table(publication.table)
        if log.shown[-1] >= checkpoint:
            version = next(at for at, shown in enumerate(log.shown) if shown >= checkpoint)
            return TablePublished(checkpoint, publication.table, version)
        if publication.erases:
            into = {each.path: each.into.path if each.into is not None else None for each in publication.erased}
            log.erase(into, self.now_ms)
        wanted = publication.adds if publication.mode is TableMode.APPEND else publication.files
        compactions = still_possible(publication.compactions, log.active)
        for file in (*wanted, *(each.into for each in compactions)):
            if file.path in self.gone:
                self.history.add(FileMissed(file.path, f"publishing checkpoint {checkpoint} of {publication.table}"))
        active = log.after(publication, compactions)
        if publication.mode is not TableMode.APPEND:
            new, gone = changes_at(publication, log.version, log.active)
            active = (log.active - gone).union(file.path for file in new)
        log.commit(active, checkpoint, self.now_ms, log.columns_after(publication))
        if again:
            log.again.add(log.version)
            log.durable.update(range(log.version + 1))
        else:
            log.backup = None  # all lost entries have been published again
        self.history.add(TableChanged(checkpoint, publication, log.version, active, log.columns[-1]))
        return TablePublished(checkpoint, publication.table, log.version)

    # -------------------------------------------------------------- cuts

    def retained(self, recorded: CheckpointId) -> frozenset[CheckpointId]:
        """Return the checkpoints whose cuts stay when this one is recorded."""
        return needed_cuts(self.rows(), {*self.cuts, recorded})

    def make_durable(self, versions: Mapping[TableName, int]) -> None:
        """Make all log entries of these tables durable, up to these versions."""
        for each in entries_to_sync(versions, self.cuts):
            self.table(each.table).durable.update(range(each.first, each.last + 1))

    def record_cut(
        self, checkpoint: CheckpointId, versions: tuple[tuple[TableName, int], ...], retained: Collection[CheckpointId]
    ) -> None:
        """Record a cut durably and drop cuts that are not retained.

        Change nothing if this or a newer cut is recorded.
        """
        self.make_durable(dict(versions))
        if any(known > checkpoint for known in self.cuts):
            return  # another tick has recorded this cut and then its own, so this cut may be dropped already
        if checkpoint not in self.cuts:
            older = self.cuts.keys() - retained
            self.cuts_before = frozenset(self.cuts)
            self.cuts[checkpoint] = dict(versions)
            self.drop_cuts(older)
        there = ((name, self.table(name).columns, version) for name, version in versions if version)
        columns = tuple((name, known[at]) for name, known, at in there if at < len(known))
        self.history.add(CutWritten(checkpoint, versions, self._active_at(versions), columns))
        if any(row.kind is RowKind.FORGET and row.checkpoint == checkpoint for row in self.checkpoints()):
            self.history.add(ErasureOver(checkpoint, self._active_at_cuts()))

    def _active_at_cuts(self) -> ActiveAtCuts:
        return tuple((each, self._active_at(cut.items())) for each, cut in sorted(self.cuts.items()))

    def _active_at(self, versions: Iterable[tuple[TableName, int]]) -> tuple[tuple[TableName, frozenset[str]], ...]:
        """Return what tables show at these versions, or nothing where a version is gone."""
        logs = ((name, self.table(name).versions, version) for name, version in versions)
        return tuple((name, there[at] if at < len(there) else frozenset()) for name, there, at in logs)

    def drop_cuts(self, dropped: Collection[CheckpointId]) -> None:
        needed = tuple(sorted(self._cuts_in_use().intersection(dropped, self.cuts)))
        if dropped:
            self.history.add(CutsDropped(tuple(sorted(dropped)), needed))
        self.cuts = {checkpoint: cut for checkpoint, cut in self.cuts.items() if checkpoint not in dropped}

    def correct_cuts(self, seen: Cuts, correction: Correction) -> None:
        """Correct the cuts `seen`: record the changed ones, drop those that are to be dropped, and keep the rest."""
        kept = {checkpoint: dict(cut) for checkpoint, cut in seen.items() if checkpoint not in correction.dropped}
        self.cuts = kept | {checkpoint: dict(cut) for checkpoint, cut in correction.changed.items()}
        self.history.add(CutsCorrected(tuple((each, tuple(cut.items())) for each, cut in self.cuts.items())))
        for log in self.tables.values():
            log.durable.update(range(log.version + 1))

    def come_to_rest(self) -> None:
        """Record which of the job's own files exist, even if a log has lost all its entries about them."""
        ours = (path for path, written in self.files.items() if written.generation)
        shown = frozenset[str]().union(*(log.active for log in self.tables.values()))
        cuts = self._active_at_cuts()
        active = tuple((each, frozenset[str]().union(*(files for _, files in tables))) for each, tables in cuts)
        self.history.add(CameToRest(frozenset(ours) - self.gone, shown, active))

    # -------------------------------------------------------------- mishaps

    def lose_power(self, survives: Callable[[], bool]) -> None:
        """Remove some or all files and log entries that are not durable. A log ends before the first removed entry."""
        self.struck = True
        self.readers.held.clear()
        were = {name: log.version for name, log in self.tables.items()}
        for log in self.tables.values():
            lost = (at for at in range(1, log.version + 1) if at not in log.durable and not survives())
            log.shorten(next(lost, log.version + 1) - 1)
        there = [path for path in self.files if path not in self.gone and path not in self.durable]
        taken = {path for path in there if not survives()}
        named = frozenset[str]().union(*(self.paths_of(record) for record in self.checkpoints()))
        self.gone |= taken
        readable = readable_cuts(self.rows(), frozenset(self.cuts))
        versions = ((each, name, version) for each in sorted(readable) for name, version in self.cuts[each].items())
        gone = tuple(each for each in versions if self.table(each[1]).version < each[2] <= were[each[1]])
        self.history.add(PowerLost(gone, tuple(sorted(taken & named))))

    def lose(self, name: TableName, entries: int) -> bool:
        """Remove the newest entries from a table's log, durable or not. Return whether the log had that many."""
        log = self.table(name)
        if log.version < entries:
            return False
        self.struck = True
        self.readers.held.clear()
        log.backup = log.backup or log.copy()
        log.shorten(log.version - entries)
        self.history.add(EntriesLost(name))
        return True

    def restore(self, name: TableName) -> None:
        """Restore the log that the table had before it lost entries."""
        log = self.table(name)
        self.tables[name] = log.backup or log
        self.history.add(TableRestored(name))

    def see_cuts(self, generation: Generation, readable: Iterable[CheckpointId]) -> None:
        """Record what each of these cuts shows, if there was a mishap."""
        if self.struck:
            shown = tuple((each, self._active_at(self.cuts[each].items())) for each in sorted(readable))
            self.history.add(CutsSeen(generation, shown))


def _marked(row: Row, marks: Mapping[CheckpointId, bool]) -> Row:
    if not isinstance(row, CheckpointRecord) or row.checkpoint not in marks:
        return row
    return row.model_copy(update={"abandoned": marks[row.checkpoint]})


def _is_left(table: TableName, said: Collection[TableName]) -> bool:
    return bool(said) and table.startswith(f"{ROOT}/") and table not in said


def _is_leftover(path: str, file: Written, current: Generation, by: Referenced) -> bool:
    """Return whether the core's rule makes this file a leftover. Files that no vertex staged have generation 0."""
    name = StagedName(file.vertex, file.micro_batch, "0" * 32)
    staged = file.generation != 0 and "/manifests/" not in path
    return staged and is_unreferenced(path, name, Generation(file.generation), current=current, by=by)


# ------------------------------------------------------------------
# Simulates other programs that write to the job's tables: they merge files, as OPTIMIZE does.


def optimize(world: World, name: TableName) -> None:
    """Merge all active files of a table into one, unless a committed entry must still remove one of them.

    In the product, the publication of that entry would wait until somebody undoes the merge, and its message would name
    the other program. Here the merge simply does not happen. No merge happens during an erasure either, because it
    could copy rows after the search for them. In the product, the user is asked to search again.
    """
    log = world.table(name)
    if log.active & _leaving(world, name) or world.erases():
        return
    if len(log.active) < 2 or name.startswith(f"{ROOT}/"):  # noqa: PLR2004 - nothing to compact
        return
    rows = tuple(row for path in sorted(log.active) for row in world.files[path].rows)
    names = (f"{name}/part-{log.version}-{number}" for number in count(len(world.files)))
    path = next(each for each in names if each not in world.files)  # an imported file may have the first name
    world.files[path] = Written(Generation(0), VertexId("foreign"), 0, rows)
    world.durable.add(path)  # its own writer handles that
    log.merged[path] = log.active.union(*(log.merged.get(each, ()) for each in log.active))
    log.commit(frozenset({path}), log.shown[-1], world.now_ms)


def merged(world: World, leaving: Collection[str]) -> list[str]:
    """Return which of these files have been merged into others."""
    there = (files for log in world.tables.values() for path, files in log.merged.items() if path in log.active)
    return sorted(frozenset[str]().union(*there).intersection(leaving))


def undo_merges(world: World, leaving: Collection[str]) -> None:
    """Undo the merges of these files, as a user does after a tick has named their writer."""
    for log in world.tables.values():
        log.undo_merges(leaving, world.now_ms)


def _leaving(world: World, name: TableName) -> frozenset[str]:
    """Return the files that an entry removes from a table, if the publication of this is due or was lost."""
    shown = world.table(name).shown[-1]
    waiting = [
        row
        for row in world.checkpoints()
        if row.commits and (row.checkpoint not in world.cuts or row.checkpoint > shown)
    ]
    leaving = (file for row in waiting for table in row.tables if table.table == name for file in table.removes)
    return frozenset(file.path for file in leaving)
