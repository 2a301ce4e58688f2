"""The stores of a simulated warehouse, in memory: files, table logs, `checkpoints`, `cuts`.

Each keeps the promises of its counterpart on Delta, and no others. An append is a compare-and-swap, publishing may be
repeated, a cut is recorded once. Files are kept after their deletion, so that the invariants can still compare
contents. Reading a deleted file is noted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from checkpointing.commit.cleanup import CleanUpLook, Referenced, is_unreferenced, needed_cuts, readable_cuts
from checkpointing.commit.compaction import still_possible
from checkpointing.commit.fencing import Lease, newest_checkpoint, newest_claim
from checkpointing.commit.lost_publications import Correction, Cuts
from checkpointing.commit.net_files import changes_at
from checkpointing.commit.two_phase import entries_to_sync, files_to_sync
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import Publication, RowAppended, RowRefused, RowUnknown, TablePublished
from checkpointing.metadata.paths import ROOT, StagedName
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row
from spec.history import (
    CutsCorrected,
    CutsDropped,
    CutWritten,
    FileMissed,
    FilesDiscarded,
    History,
    JobClaimed,
    JobReleased,
    LeftoversGone,
    RowCommitted,
    Rows,
    SavepointDisposed,
    TableChanged,
)
from spec.mishap_events import CutsSeen, EntriesLost, NamedTooEarly, PowerLost, TableRestored
from spec.named_files import named_files
from spec.outside_targets import OutsideTargets
from spec.pipeline import ROW_BYTES
from spec.readers import Readers
from spec.rest_events import CameToRest, ReservedGone
from spec.store_faults import Harm, StoreFaults
from spec.table_log import StateRows, TableLog, Written

NO_MARKS: Final[Mapping[CheckpointId, bool]] = MappingProxyType({})


class FileGoneError(Exception):
    """A process that no longer holds the job needed a file that had been deleted."""


class World:
    """One job's warehouse."""

    def __init__(self, new_history: Callable[["World"], History]) -> None:
        """Begin empty."""
        self.now_ms = 1_000
        self.files: dict[str, Written] = {}
        self.gone: set[str] = set()
        self.durable: set[str] = set()
        """Files that survive a power cut."""
        self.struck = False
        """True after a mishap. Then every start notes what the cuts show."""
        self.tables: dict[TableName, TableLog] = {}
        self.version = 0
        self.log: list[tuple[int, Row]] = []
        self.cuts: dict[CheckpointId, dict[TableName, int]] = {}
        self.as_stored: Callable[[Row], Row] = lambda row: row
        self.as_read: Callable[[Row], Row] = lambda row: row
        """Write an entry and read it back; read an entry that was written before."""
        self.before: tuple[int, tuple[Row, ...]] = (0, ())
        """The version before the newest, and its entries. A list that lags behind shows them."""
        self.lag_ms = 0
        """How late a list shows new files."""
        self.faults: StoreFaults | None = None
        """Decides what fails between a process and these stores."""
        self.cuts_before: frozenset[CheckpointId] = frozenset()
        """The recorded cuts before the newest change of them. A list that lags behind shows them."""
        self.lease: Lease | None = None
        self.looks: tuple[CleanUpLook, ...] = ()
        """What earlier clean-ups saw."""
        self.readers = Readers()
        self.outside = OutsideTargets()
        self.met: Counter[str] = Counter()
        """Rare moves that no event tells."""
        self.history = new_history(self)
        self._needed: dict[CheckpointId, frozenset[str]] = {}

    def harm(self) -> Harm | None:
        """Return what happens to the next write of some process, or None."""
        return self.faults.harm() if self.faults is not None else None

    def is_stale(self) -> bool:
        """Return whether the next list of some process lags behind."""
        return self.faults is not None and self.faults.is_stale()

    # -------------------------------------------------------------- files

    def write(self, folder: str, written: Written, rows: int, inside: str = "") -> FileHandle:
        """Stage a new, immutable file, `inside` a folder of its generation's."""
        name = f"{inside}{written.vertex}-{written.micro_batch}-{len(self.files):032x}"
        path = f"{folder}/_data/{written.generation}/{name}.parquet"
        self.files[path] = replace(written, at_ms=self.now_ms)
        return FileHandle(path, rows, rows * ROW_BYTES, 0)

    def read(self, path: str, reader: str, generation: Generation) -> Written:
        """Return a file's content. Raise FileGoneError if it is gone and the reader was fenced before."""
        if path in self.gone:
            if generation < self.generation:
                raise FileGoneError(path)
            self.history.add(FileMissed(path, reader))
        return self.files[path]

    def link(self, links: Mapping[str, str], generation: Generation) -> None:
        """Give files further paths: the old ones by the new ones. The links belong to this generation."""
        for path, old in links.items():
            self.read(old, f"linking {path}", generation)
            self.files[path] = replace(self.files[old], generation=generation, micro_batch=0)

    def rows_of(self, path: str) -> Rows:
        """Return the rows of a file, also of a deleted one."""
        return self.files[path].rows

    def state_of(self, keyed: KeyedFile) -> StateRows:
        """Return what a state file says, also a deleted one."""
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
        """Return the files that entries name, and that tables show now or at a cut of such an entry.

        If the newest entry no longer has an operator, only older cuts read its state table.
        """
        newest = newest_checkpoint(self.rows())
        said = {each.table for each in newest.columns} if newest is not None else set()
        used = {path for name, log in self.tables.items() if not _is_left(name, said) for path in log.active}
        for record in self.checkpoints():
            used |= self.paths_of(record)
        cuts = (self.cuts[each] for each in self._cuts_in_use() if each in self.cuts)
        shown = ((name, at) for cut in cuts for name, at in cut.items() if not name.startswith(f"{ROOT}/"))
        return used.union(*(self.table(name).versions[at] for name, at in shown if at <= self.table(name).version))

    def _cuts_in_use(self) -> set[CheckpointId]:
        """Return the checkpoints whose cuts somebody reads: those of entries, and those that such an entry needs."""
        waiting = (row.parent for row in self.checkpoints() if row.checkpoint not in self.cuts)
        return {row.checkpoint for row in self.checkpoints()}.union(waiting)

    def paths_of(self, record: CheckpointRecord) -> frozenset[str]:
        """Return every file that an entry names."""
        if record.checkpoint not in self._needed:
            self._needed[record.checkpoint] = named_files(record)
        return self._needed[record.checkpoint]

    def listed(self) -> list[str]:
        """Return the files that a list shows."""
        shown_ms = self.now_ms - self.lag_ms
        return [path for path, file in self.files.items() if path not in self.gone and file.at_ms <= shown_ms]

    def discard_leftovers(self, current: Generation, by: Referenced) -> int:
        """Delete unreferenced staged files of older generations (K4). Return how many they were."""
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
        """Return all rows."""
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
        """Append the entry if the table is at this version. If its nonce is in already, find that entry.

        `marks` says which other entries are abandoned from this commit on, and which are not.
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
        self.log.append((self.version, row))
        if isinstance(row, CheckpointRecord):
            for each in row.tables:  # its publication names the neighbour, and waits until the merge is undone
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

    # -------------------------------------------------------------- tables

    def table(self, name: TableName) -> TableLog:
        """Return a table's log."""
        return self.tables[name] if name in self.tables else self.tables.setdefault(name, TableLog())

    def publish(self, checkpoint: CheckpointId, publication: Publication, *, again: bool = False) -> TablePublished:
        """Publish the checkpoint once. Return the version at which the table shows it."""
        if publication.outside:
            self.history.events.extend(self.outside.publish(checkpoint, publication))
            return TablePublished(checkpoint, publication.table, 0, outside=True)
        log = self.table(publication.table)
        if log.shown[-1] >= checkpoint:
            version = next(at for at, shown in enumerate(log.shown) if shown >= checkpoint)
            return TablePublished(checkpoint, publication.table, version)
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
            log.backup = None  # everything that was lost is there again
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
        """Record a cut durably and drop cuts that are not retained. Change none if this or a newer one is recorded."""
        self.make_durable(dict(versions))
        if any(known > checkpoint for known in self.cuts):
            return  # another tick has recorded this cut before its own, so it may be gone again
        if checkpoint not in self.cuts:
            older = self.cuts.keys() - retained
            self.cuts_before = frozenset(self.cuts)
            self.cuts[checkpoint] = dict(versions)
            self.drop_cuts(older)
        there = ((name, self.table(name).columns, version) for name, version in versions if version)
        columns = tuple((name, known[at]) for name, known, at in there if at < len(known))
        self.history.add(CutWritten(checkpoint, versions, self._active_at(versions), columns))

    def _active_at(self, versions: Iterable[tuple[TableName, int]]) -> tuple[tuple[TableName, frozenset[str]], ...]:
        """Return what tables show at these versions, or nothing where a version is gone."""
        logs = ((name, self.table(name).versions, version) for name, version in versions)
        return tuple((name, there[at] if at < len(there) else frozenset()) for name, there, at in logs)

    def drop_cuts(self, dropped: Collection[CheckpointId]) -> None:
        """Drop the cuts of these checkpoints."""
        needed = tuple(sorted(self._cuts_in_use().intersection(dropped, self.cuts)))
        if dropped:
            self.history.add(CutsDropped(tuple(sorted(dropped)), needed))
        self.cuts = {checkpoint: cut for checkpoint, cut in self.cuts.items() if checkpoint not in dropped}

    def correct_cuts(self, seen: Cuts, correction: Correction) -> None:
        """Correct cuts that were seen: record the changed ones, and drop the others."""
        kept = {checkpoint: dict(cut) for checkpoint, cut in seen.items() if checkpoint not in correction.dropped}
        self.cuts = kept | {checkpoint: dict(cut) for checkpoint, cut in correction.changed.items()}
        self.history.add(CutsCorrected(tuple((each, tuple(cut.items())) for each, cut in self.cuts.items())))
        for log in self.tables.values():
            log.durable.update(range(log.version + 1))

    def come_to_rest(self) -> None:
        """Note which of our files exist, without those of neighbours, even if a log lost every entry about them."""
        ours = (path for path, written in self.files.items() if written.generation)
        shown = frozenset[str]().union(*(log.active for log in self.tables.values()))
        cuts = ((each, self._active_at(cut.items())) for each, cut in sorted(self.cuts.items()))
        active = tuple((each, frozenset[str]().union(*(files for _, files in tables))) for each, tables in cuts)
        self.history.add(CameToRest(frozenset(ours) - self.gone, shown, active))

    # -------------------------------------------------------------- mishaps

    def lose_power(self, survives: Callable[[], bool]) -> None:
        """Remove what nobody made durable, or some of it. A log ends before the first entry that is gone."""
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
        """Remove the newest entries from a table's log, durable or not. Return whether it had that many."""
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
        """Note what each of these cuts shows, if there was a mishap."""
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
    """Apply the core's rule to a file. Files that no vertex staged have generation 0."""
    name = StagedName(file.vertex, file.micro_batch, "0" * 32)
    staged = file.generation != 0 and "/manifests/" not in path
    return staged and is_unreferenced(path, name, Generation(file.generation), current=current, by=by)
