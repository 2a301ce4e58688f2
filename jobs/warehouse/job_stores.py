"""Opens a job's Delta tables once for a tick. They may be used from any thread, since each table has a lock."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final, assert_never

import pyarrow as pa

from checkpointing.columns import TableColumns
from checkpointing.commit.at_rest import held_cut
from checkpointing.commit.cleanup import needed_cuts, readable_cuts
from checkpointing.commit.columns import Pairs, listed
from checkpointing.commit.fencing import HolderObserved, newest_checkpoint, newest_claim, release_of, rival_of
from checkpointing.commit.lost_publications import Correction, Cuts, Standing
from checkpointing.commit.recovery import Observed
from checkpointing.commit.two_phase import entries_to_sync, files_to_sync
from checkpointing.completeness import complete_tables
from checkpointing.graph import Table
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.messages import Publication, PublishFailed, RowAppended, RowRefused, RowUnknown, TablePublished
from checkpointing.metadata.paths import parse_generation
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release, Row
from jobs.sinks.port import NOTHING_SAID, Description, TableSink
from jobs.storage.place import both, together
from jobs.warehouse.boundaries import Boundary, log_hook
from jobs.warehouse.checkpoints import (
    NO_MARKS,
    Appended,
    CheckpointStore,
    DamagedRow,
    Refused,
    Unknown,
)
from jobs.warehouse.cleanup import HeldLogs, LogKeeping, read_looks
from jobs.warehouse.cut_check import observe_standing
from jobs.warehouse.cuts_table import Cut, CutsNotRecordedError, CutStore, ReservationStore
from jobs.warehouse.delta_log import DeltaLog, Durability
from jobs.warehouse.lease import LeaseStore, is_alive
from jobs.warehouse.log_writing import EntryTakenError
from jobs.warehouse.output_tables import OutputTables, Shows
from jobs.warehouse.outside_publishing import NO_SINKS, OutsideSinks
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.refusals import NeverRunError, UnusableWarehouseError
from jobs.warehouse.table_snapshot import Action, KnownTable
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse, kind_at, obstacles

NO_PAIRS: Final[Mapping[TableName, Pairs]] = MappingProxyType({})
NOTHING_SAID_OF_ANY: Final[Mapping[TableName, Description]] = MappingProxyType({})


class JobEntries:
    """The job's entries in `checkpoints`. Methods may be called from any thread."""

    def __init__(self, store: CheckpointStore, durability: Durability, claimed: Callable[[], None]) -> None:
        """Use this store. `claimed` is called after each claim, before which other holders could change everything."""
        self._store, self._durability, self._claimed = store, durability, claimed
        self._lock = threading.Lock()

    def observe(self) -> tuple[int, tuple[Row, ...]]:
        """Return the result of `CheckpointStore.observe`. Call this before another thread uses the stores."""
        return self._store.observe()

    def rows(self) -> tuple[Row, ...]:
        """Return the entries as they are now, newest first. Raises the errors of reading entries."""
        with self._lock:
            return self._store.observe()[1]

    def known(self) -> tuple[Row, ...]:
        """Return the entries as of the last look or commit, without a request to the storage."""
        with self._lock:
            return self._store.known()

    def rival(self, generation: Generation) -> Claim | None:
        """Return the newest claim if its generation is later than this one. Raises the errors of reading entries."""
        with self._lock:
            return rival_of(self._store.latest(), generation)

    @property
    def damaged(self) -> tuple[DamagedRow, ...]:
        """The entries that the last look ignored because they are damaged."""
        return self._store.damaged

    def append(
        self,
        row: Row,
        at_version: int,
        *,
        subsumed: Iterable[CheckpointId] = (),
        disposed: Iterable[CheckpointId] = (),
        marks: Mapping[CheckpointId, bool] = NO_MARKS,
    ) -> RowAppended | RowRefused | RowUnknown:
        """Append an entry once all files that it names are durable, and return the outcome as a fact.

        See `CheckpointStore.append`. No error is raised: after an error, the outcome is unknown.
        """
        try:
            with self._lock:
                named: tuple[str, ...] = ()
                if isinstance(row, CheckpointRecord):
                    known = (each for each in self._store.known() if isinstance(each, CheckpointRecord))
                    named = files_to_sync(row, known)
                result = self._store.append(
                    row,
                    at_version,
                    frozenset(subsumed),
                    disposed=frozenset(disposed),
                    marks=marks,
                    make_durable=lambda: self._durability.sync_files(named),
                )
        except Exception as error:  # noqa: BLE001 - the entry may be in, whatever the error is
            return RowUnknown(row.nonce, f"{type(error).__name__}: {error}")
        if isinstance(row, Claim):
            self._claimed()
        match result:
            case Appended():
                return RowAppended(row.nonce, result.version)
            case Refused():
                return RowRefused(row.nonce, result.holder)
            case Unknown():
                return RowUnknown(row.nonce, result.error)
            case _ as unreachable:
                assert_never(unreachable)

    def maintain(self) -> None:
        """Keep the log short; see `CheckpointStore.maintain`."""
        with self._lock:
            self._store.maintain()

    def drop_erased(self, before_ms: int, grace_ms: int) -> bool:
        """Drop older versions of the table, which hold erased rows. Return False if rows were erased after `before_ms`.

        In that case nothing is dropped.
        """
        with self._lock:
            if self._store.erased_since(before_ms):
                return False
            self._store.drop_older_versions(grace_ms)
            return True


class JobCuts:
    """The job's cuts in `cuts`. Methods may be called from any thread."""

    def __init__(self, store: CutStore, durability: Durability, entries: JobEntries) -> None:
        """Use this store for the cuts that these entries need."""
        self._store, self._durability, self._entries = store, durability, entries
        self._lock = threading.Lock()

    def record(self, checkpoint: CheckpointId, versions: Iterable[tuple[TableName, int]]) -> None:
        """Record a cut once the tables' log entries are durable. Drop the cuts of checkpoints without an entry.

        Raises CutsNotRecordedError, also if a sync fails.
        """
        wanted = tuple(versions)
        with self._lock:
            recorded = {*self._store.known(), checkpoint}
        retained = needed_cuts(self._entries.known(), recorded)
        with self._lock:
            try:
                self._durability.sync_entries(entries_to_sync(dict(wanted), self._store.known()))
                self._store.record(checkpoint, wanted, retained, self._complete_at(checkpoint))
            except OSError as error:
                raise CutsNotRecordedError(
                    f"the cut of checkpoint {checkpoint} could not be made durable ({error}): the next start records it"
                ) from error

    def drop_unneeded(self) -> None:
        """Drop the cuts that no entry needs any more. Raises CutsNotRecordedError.

        The cuts are read before the entries. So a tick that was taken over drops no cut of the tick that replaced it.
        """
        with self._lock:
            recorded = self._store.recorded()
        readable = readable_cuts(self._entries.rows(), recorded)
        with self._lock:
            self._store.drop(recorded - readable)

    def correct(self, correction: Correction) -> None:
        """Correct recorded cuts; see `CutStore.correct`."""
        if correction.changed or correction.dropped:
            with self._lock:
                for cut in correction.changed.values():
                    self._durability.sync_entries(entries_to_sync(cut, {}))
                self._store.correct(correction.changed, correction.dropped)

    def all(self) -> dict[CheckpointId, Cut]:
        """Return every recorded cut."""
        with self._lock:
            return self._store.all()

    def read(self, checkpoint: CheckpointId) -> Cut | None:
        """Return each table's Delta version at that checkpoint, or None if its cut is not recorded."""
        with self._lock:
            return self._store.read(checkpoint)

    def seen_of(self, checkpoint: CheckpointId) -> Cut | None:
        """Return the result of `read` as of the last look after the claim, if there was such a look."""
        with self._lock:
            return self._store.seen().get(checkpoint)

    def seen(self) -> dict[CheckpointId, Cut]:
        """Return the recorded cuts as of the last look after the claim; see `CutStore.seen`."""
        with self._lock:
            return self._store.seen()

    def recorded(self) -> frozenset[CheckpointId]:
        """Return the checkpoints whose cuts are recorded now. Call this before another thread uses the stores."""
        return self._store.recorded()

    def look_anew(self) -> None:
        """Make the next look at the cuts read from the storage."""
        with self._lock:
            self._store.look_anew()

    def make_durable(self, versions: Mapping[TableName, int]) -> None:
        """Make all log entries of these tables durable, up to these versions. Raises OSError."""
        with self._lock:
            self._durability.sync_entries(entries_to_sync(versions, self._store.known()))

    def maintain(self) -> None:
        """Keep the log short; see `CutStore.maintain`."""
        with self._lock:
            self._store.maintain()

    def _complete_at(self, checkpoint: CheckpointId) -> Mapping[TableName, int]:
        """Return until when each table is complete at a checkpoint, in ms, from the checkpoint's entry."""
        records = (row for row in self._entries.known() if isinstance(row, CheckpointRecord) and row.commits)
        entry = next((record for record in records if record.checkpoint == checkpoint), None)
        return {} if entry is None else complete_tables(entry)


class JobTables:
    """The job's output tables. Methods may be called from any thread, and each table has a lock."""

    def __init__(self, warehouse: Warehouse, logs: TableLogs, durability: Durability) -> None:
        """Open the tables with these logs."""
        self._warehouse, self._logs, self._durability = warehouse, logs, durability
        self._outputs, self._publisher = OutputTables(warehouse, logs), Publisher(warehouse, logs)
        self._locks: dict[TableName, threading.Lock] = {}
        """One lock for each output table. There are few, so no lock is ever dropped."""

    def ensure(
        self,
        tables: Iterable[Table],
        schemas: Mapping[TableName, pa.Schema],
        newest: CheckpointRecord | None = None,
        *,
        unsettled: Collection[TableName] = (),
        renamed: Collection[TableName] = (),
        columns_renamed: Mapping[TableName, Pairs] = NO_PAIRS,
        says: Mapping[TableName, Description] = NOTHING_SAID_OF_ANY,
    ) -> None:
        """Create missing output tables, and compare the others with the newest entry. Raise TableMismatchError.

        `says` are the comments and properties that the pipeline gives to its tables. The columns of two kinds of tables
        are not compared: `unsettled` tables are not published yet as the entry says, and `renamed` tables are not
        published yet under their new names. `columns_renamed` has the new and the old names of columns that the next
        checkpoint renames.
        """
        known = listed(newest)
        modes = {each.table: each.mode for each in newest.tables} if newest is not None else {}

        def ensure(table: Table) -> None:
            name = table.name
            settled, was_renamed = name not in unsettled, name in renamed
            each = known.get(name, TableColumns(name, ()))
            due = columns_renamed.get(name, ())
            shows = Shows(each.columns, settled, was_renamed, modes.get(name), each.dropped, due)
            with self._lock(name):
                said = says.get(name, NOTHING_SAID)
                self._outputs.ensure(name, schemas[name], table.mode, shows, said, table.partitioned_by)

        together(self._warehouse.storage, ensure, tables)

    def check(self, tables: Iterable[TableName], leaving: Collection[str] = ()) -> tuple[str, ...]:
        """Return the problems that forbid publishing into these tables now; see `OutputTables.check`."""

        def checked(table: TableName) -> tuple[str, ...]:
            with self._lock(table):
                return self._outputs.check([table], leaving)

        return tuple(problem for found in together(self._warehouse.storage, checked, tables) for problem in found)

    def publish(
        self, publication: Publication, checkpoint: CheckpointId, *, again: bool, by: Generation | None
    ) -> TablePublished | PublishFailed:
        """Publish a table; see `Publisher.publish`. With `again`, the publication is durable on return."""
        with self._lock(publication.table):
            answer = self._publisher.publish(publication, checkpoint, again=again, by=by)
            if isinstance(answer, TablePublished):
                self._outputs.published(publication.table, publication.columns)
                if again:
                    self._durability.sync_entries(entries_to_sync({publication.table: answer.version}, {}))
            return answer

    def rename_files(
        self, table: TableName, renamed: Pairs, generation: Generation, told: Callable[[int, int], None]
    ) -> None:
        """Write a table's files again under new names of columns; see `Publisher.rename_files`."""
        with self._lock(table):
            self._publisher.rename_files(table, renamed, generation, told)

    @contextmanager
    def newest(self, table: TableName) -> Iterator[KnownTable]:
        """Lend a table at its newest version, only for reading. Raises the error of delta-rs if it cannot be read.

        A log is opened by listing its folder, and a list can lag behind. A clean-up deletes what the newest version
        does not show. So the log entry after the newest listed one is also looked up by name.
        """
        with self._lock(table):
            log = self._logs.log(table)
            if not log.is_open:
                log.reopen()
            yield log.current()

    def rearrange(self, table: TableName, actions: Sequence[Action], *, version: int) -> None:
        """Commit actions that change no row as the version after `version`. If another commit came first, do nothing.

        The commit is not durable yet; see `JobCuts.make_durable`. Raises the error of delta-rs if the table cannot be
        read.
        """
        with self._lock(table):
            log = self._logs.log(table)
            known = log.current()
            if known.version() == version:
                with suppress(EntryTakenError):
                    log.commit(known, actions, says={"job": self._warehouse.paths.job, "rearranges": True})
                log.reopen()

    def shown(self, table: TableName) -> CheckpointId:
        """Return the newest of the job's checkpoints that a table shows, or 0 if it shows none or does not exist."""
        with self._lock(table):
            log, left = self._logs.log(table), self._logs.left(table)
            if left is not None:
                return left.shows
            there = log.is_open or log.exists()
            return CheckpointId(self._logs.shown(log.looked_at(), table) if there else NO_CHECKPOINT)

    def examine(self, table: TableName) -> None:
        """Read the facts about a table that the next checkpoint needs and this process does not know yet."""
        with self._lock(table):
            self._outputs.examine(table)
            self._logs.shown(self._logs.log(table).known(), table)

    def maintain(self, table: TableName, shorten: Callable[[DeltaLog], None] | None) -> None:
        """Keep a table's log short; see `Publisher.maintain`. Only `shorten` drops entries of the log."""
        with self._lock(table):
            self._publisher.maintain(table)
            if shorten is not None:
                shorten(self._logs.log(table))

    def _lock(self, table: TableName) -> threading.Lock:
        return self._locks.setdefault(table, threading.Lock())


class JobStores:
    """The stores of one job. They may be called from any thread."""

    def __init__(
        self,
        warehouse: Warehouse,
        boundary: Boundary,
        *,
        beyond_damage: bool = False,
        sinks: Mapping[TableName, TableSink] = NO_SINKS,
        all_sinks: bool = False,
    ) -> None:
        """Open `checkpoints` and `cuts`. On the job's first tick, create them.

        With `beyond_damage`, entries that cannot be read are ignored; see `CheckpointStore`. Without `sinks`, a
        checkpoint's rows for outside sinks cannot be published. With `all_sinks`, the pipeline has no other sinks than
        these.
        """
        self.warehouse = warehouse
        checkpoints, cuts = both(
            warehouse.storage,
            lambda: CheckpointStore(warehouse, hook=log_hook(boundary, "checkpoints"), beyond_damage=beyond_damage),
            lambda: CutStore(warehouse, hook=log_hook(boundary, "cuts")),
        )
        durability = Durability(warehouse)
        self._logs = TableLogs(warehouse, hook=log_hook(boundary, "tables"))
        self.entries = JobEntries(checkpoints, durability, self._look_anew)
        self.cuts = JobCuts(cuts, durability, self.entries)
        self.tables = JobTables(warehouse, self._logs, durability)
        self.outside = OutsideSinks(warehouse, sinks, checkpoints.identity, are_all=all_sinks)
        self.held = HeldLogs(warehouse, self.entries.rows, self.cuts.all, self.tables.newest)

    def observe(self, run_ended: Callable[[str], bool | None] | None = None) -> Observed:
        """Return the facts that a starting tick needs. Call this before another thread uses the stores.

        Raises the codec's errors for entries that cannot be read.
        """
        storage, leases = self.warehouse.storage, LeaseStore(self.warehouse)
        self._logs.look_anew()  # tables are looked at after the entries that name their versions
        (version, rows), (recorded, lease) = both(
            storage, self.entries.observe, lambda: both(storage, self.cuts.recorded, leases.read)
        )
        claim = newest_claim(rows)
        alive = is_alive(claim.holder, run_ended) if claim is not None else None
        holder = HolderObserved(alive=alive, lease=lease.lease() if lease is not None else None)
        return Observed(version, rows, recorded, holder, self.warehouse.now_ms())

    def publish(
        self,
        publication: Publication,
        checkpoint: CheckpointId,
        *,
        again: bool = False,
        by: Generation | None = None,
    ) -> TablePublished | PublishFailed:
        """Publish a table, see `Publisher.publish`, or into its outside sink, see `OutsideSinks.publish`.

        With `again`, the publication is durable on return: recorded cuts name it already, so no later step makes it
        durable. Erased files are first removed from the entries beside reservations. So when a table shows the erasure,
        no such entry has the bounds of erased files.
        """
        if publication.outside:
            return self.outside.publish(publication, checkpoint)
        try:
            ReservationStore(self.warehouse).erase(publication.erased)
        except OSError as error:
            said = f"the entries beside reservations cannot be written again ({error.strerror or error})"
            return PublishFailed(checkpoint, publication.table, said)
        return self.tables.publish(publication, checkpoint, again=again, by=by)

    def standing(
        self,
        rows: Iterable[Row],
        tables: Collection[TableName] | None,
        *,
        whole: bool = False,
        told: Cuts | None = None,
    ) -> Standing:
        """Return the facts on whether the logs of `tables` (None: of all) agree with entries and recorded cuts.

        `told` are further cuts that are treated as recorded. Raises TableLogDamagedError. Call this before another
        thread uses the stores.
        """
        cuts: Cuts = {**self.cuts.seen(), **(told or {})}
        return observe_standing(self.warehouse, self._logs, rows, cuts, tables, whole=whole)

    def look_again(self, tables: Iterable[TableName]) -> None:
        """Read the facts that the next checkpoint needs and this process lacks. Call this while no checkpoint waits.

        Then the next checkpoint need not read these facts between its barrier and its cut. A table's newest version is
        usually a commit of this process. In this case no request is made, because the checkpoint itself looks for
        commits of others.
        """
        looks: list[Callable[[], object]] = [self.entries.rows, self.cuts.all]
        looks += [partial(self.tables.examine, table) for table in tables]
        together(self.warehouse.storage, lambda look: look(), looks)

    def maintain(self, tables: Iterable[TableName], keeping: LogKeeping | None) -> None:
        """Keep all logs short. Without `keeping`, the tables keep all their log entries, and few requests are made.

        Only the holder of the job may call this, and not while a checkpoint waits.
        """
        cuts = list(self.cuts.all().values()) if keeping is not None else []
        cuts += ReservationStore(self.warehouse).reserved() if keeping is not None else []
        looks = read_looks(self.warehouse) if keeping is not None else ()

        def of_table(table: TableName) -> None:
            now_ms = self.warehouse.now_ms()
            kept = partial(keeping.shorten, name=table, looks=looks, cuts=cuts, now_ms=now_ms) if keeping else None
            self.tables.maintain(table, kept)

        each: list[Callable[[], None]] = [
            self.entries.maintain,
            self.cuts.maintain,
            *(partial(of_table, table) for table in tables),
        ]
        together(self.warehouse.storage, lambda call: call(), each)

    def finish_erasure(self, grace_ms: int) -> None:
        """Delete what has erased rows besides the tables: older versions of `checkpoints`, and traces.

        Nothing is deleted unless rows were erased, and every reader of an older version has ended. The caller must hold
        the job. Raises OSError.
        """
        mark, before_ms = self.warehouse.place(self.warehouse.paths.erasure), self.warehouse.now_ms() - grace_ms
        try:
            found = mark.read()
        except FileNotFoundError:
            return
        if mark.described().changed_ms > before_ms or not self.entries.drop_erased(before_ms, grace_ms):
            return
        generation = parse_generation(found.decode())
        traces = self.warehouse.place(self.warehouse.paths.traces)
        for name in [each.name for each in traces.entries()]:
            by = parse_generation(name.partition(".")[0])
            if by is not None and generation is not None and by < generation:
                (traces / name).delete()
        mark.delete()

    def _look_anew(self) -> None:
        """Make the next reads look at cuts and tables anew, as another holder could change them before this claim."""
        self._logs.look_anew()
        self.cuts.look_anew()


# ------------------------------------------------------------------
# Finds out whether a job has run in a warehouse, and whether a tick of the job runs now.


class Activity(Enum):
    """Whether a job's newest tick runs."""

    AT_REST = "at rest"
    """No process has claimed the job, or the last holder has released it or is certainly dead."""
    RUNNING = "running"
    """The job's holder is alive, or the holder's lease has not run out."""
    SILENT = "silent"
    """The lease has run out, and this host cannot find out whether the holder is alive."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Whether a job runs, from its entries, its lease and the process table. A job at rest may have no holder."""

    activity: Activity
    holder: Holder | None
    generation: Generation
    why: str


def has_run(warehouse: Warehouse) -> bool:
    """Return whether the job's own tables exist, without creating them. Raises UnusableWarehouseError."""
    kind = kind_at(warehouse, "")
    if kind not in {None, "a folder"}:
        raise UnusableWarehouseError(
            f"{warehouse.root} is {kind}, and a warehouse is a folder: name it with --warehouse"
        )
    paths = warehouse.paths
    return all(DeltaLog(warehouse.place(name)).exists() for name in (paths.checkpoints, paths.cuts))


def must_be_usable(warehouse: Warehouse) -> None:
    """Raise UnusableWarehouseError, which names the first obstacle, unless a tick can write into the warehouse."""
    found = next(obstacles(warehouse), None)
    if found is not None:
        raise UnusableWarehouseError(str(found))


def must_have_run(warehouse: Warehouse) -> None:
    """Raise NeverRunError, which says how to start the job, unless the job has run in that warehouse."""
    if not has_run(warehouse):
        raise NeverRunError(warehouse.paths.job, warehouse.root)


def newest_restorable(warehouse: Warehouse) -> CheckpointRecord | None:
    """Return the checkpoint from which the next tick begins, or None if the job never ran there."""
    if not has_run(warehouse):
        return None
    return newest_checkpoint(CheckpointStore(warehouse).observe()[1])


def waiting_cut(warehouse: Warehouse) -> CheckpointRecord | None:
    """Return the cut that waits for approval, or None if there is none or the job never ran there."""
    return held_cut(CheckpointStore(warehouse).observe()[1]) if has_run(warehouse) else None


def observe_state(warehouse: Warehouse, checkpoints: CheckpointStore) -> JobState:
    """Return whether a tick of the job runs, from its entries as they are now. Changes nothing."""
    return state_of(warehouse, checkpoints.observe()[1])


def last_failure(rows: tuple[Row, ...]) -> Release | None:
    """Return the release of the newest tick if the tick failed and no later generation has committed a checkpoint."""
    ticks = [row for row in rows if isinstance(row, Release) and row.ended is not None]
    newest = max(ticks, key=lambda row: row.generation, default=None)
    if newest is None or newest.ended is None or not newest.ended.has_failed:
        return None
    moved = (row for row in rows if isinstance(row, CheckpointRecord) and row.commits)
    return None if any(row.generation > newest.generation for row in moved) else newest


def state_of(warehouse: Warehouse, rows: tuple[Row, ...]) -> JobState:
    """Return whether a tick of the job runs, given its entries."""
    claim = newest_claim(rows)
    if claim is None:
        return JobState(Activity.AT_REST, None, Generation(0), "nobody has held the job before")
    release = release_of(rows, claim.generation)
    if release is not None:
        return JobState(Activity.AT_REST, None, claim.generation, release.why_free)
    alive = is_alive(claim.holder)
    if alive is False:
        return JobState(Activity.AT_REST, claim.holder, claim.generation, f"{claim.holder} has died")
    lease = LeaseStore(warehouse).read()
    leased = lease is not None and lease.generation == claim.generation and lease.expires_ms > warehouse.now_ms()
    if alive or leased:
        return JobState(Activity.RUNNING, claim.holder, claim.generation, f"{claim.holder} holds the job")
    why = f"the lease of {claim.holder} has run out, and this host cannot see whether it lives"
    return JobState(Activity.SILENT, claim.holder, claim.generation, why)
