"""The machine of the clean-up: checkpoints come and go, readers reserve cuts, clean-ups delete unneeded files.

The job has an upsert table with one file, which each checkpoint replaces. Two kinds of files are named only by the
checkpoint's entry: files of the operator's state, and rows in flight. There is no grace, so a clean-up deletes
everything that it may delete.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpointing.channel_items import ChannelState, StagedSegment, SubtaskSnapshot
from checkpointing.commit.cleanup import (
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Reservation,
    Shown,
    TableSeen,
    decide_cleanup,
    discardable,
    is_due,
    is_forgotten,
    log_floor,
    noted,
    readable_cuts,
    standing,
)
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.metadata.record import (
    CheckpointRecord,
    RowKind,
    Statistics,
    TableRecord,
    VertexRecord,
)
from spec.machines.judging import expect, is_unwinding
from spec.reference.contents import named_files

TABLE = TableName("gold/by_key")
IN_FLIGHT = ("flying", "flying-beside")
"""The kinds of the files of one segment in flight."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
"""The longest time of a reader's reservation. A job's reservation lasts at most 30 days."""
RESERVED_STAYS = "reserved-stays"
"""Everything that a reservation names stays until the reservation ends."""
LAPSED_GOES = "lapsed-goes"
"""A clean-up deletes files that no entry, table or valid reservation names, and old reservations."""

_leases = st.sampled_from([1, HOUR_MS, 5 * HOUR_MS, 40 * HOUR_MS, 40 * DAY_MS])
_ahead = st.sampled_from([0, 0, DAY_MS - 1, DAY_MS, 9 * DAY_MS])
_waits = st.sampled_from([1, HOUR_MS - 1, HOUR_MS, 6 * HOUR_MS, DAY_MS, 30 * DAY_MS])


@dataclass
class Reader:
    """A reader's reservation, and the files that the reader may need."""

    reservation: Reservation
    named: frozenset[str]
    is_void: bool = False
    """True if a clean-up ran while the reservation was not in force, so that its files may be deleted."""

    def counts(self, now_ms: int) -> bool:
        """Return whether the reservation is in force: until it ends, and for a day, or a job's 30 days, at most.

        A clock may be ahead by less than a day. A reservation from further in the future does not count.
        """
        given_ms = self.reservation.given_ms
        return given_ms - now_ms < DAY_MS and now_ms < min(self.reservation.lapses_ms, given_ms + self.longest_ms)

    @property
    def longest_ms(self) -> int:
        """How long the reservation lasts at most."""
        return 30 * DAY_MS if self.reservation.by_job else DAY_MS

    def needs(self, newest: int) -> frozenset[str]:
        """Return the files that the reader may need: those of its cut, and for a job all later files of the table."""
        since = range(self.reservation.versions[TABLE], newest + 1) if self.reservation.by_job else ()
        return self.named.union(_path("table", version) for version in since)


@dataclass
class Files:
    """The files in the warehouse: every path with its table, and the versions that showed it."""

    there: set[str] = field(default_factory=set)
    shown_from: dict[str, int] = field(default_factory=dict)

    def found(self, now_ms: int, newest: int) -> tuple[ListedFile, ...]:
        """Return the files as a clean-up lists them."""
        return tuple(
            ListedFile(path, TABLE, Generation(1), 1, 0, self._times(path, now_ms, newest))
            for path in sorted(self.there)
        )

    def _times(self, path: str, now_ms: int, newest: int) -> tuple[Shown, ...]:
        first = self.shown_from.get(path)
        return () if first is None or first == newest else (Shown(first, first + 1, now_ms),)


class CleanupMachine(RuleBasedStateMachine):
    """One job at rest between its checkpoints, with readers that come, stay, and are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 10 * DAY_MS
        self.files = Files()
        self.rows: list[CheckpointRecord] = []
        self.cuts: dict[CheckpointId, int] = {}
        self.readers: list[Reader] = []
        self.version = 0
        self.commit()

    @rule(times=st.sampled_from([1, 1, 3]))
    def commit(self, times: int = 1) -> None:
        """Complete checkpoints. Each subsumes the last one, drops its cut, and deletes its own files."""
        for _ in range(times):
            self._commit()

    def _commit(self) -> None:
        private = [_path(kind, self.version) for kind in ("state", *IN_FLIGHT)]
        self.version += 1
        record = _record(self.version)
        self.files.there |= named_files(record)
        self.files.shown_from[_path("table", self.version)] = self.version
        self.rows = [record]
        self.cuts[record.checkpoint] = self.version
        self.cuts = {each: self.cuts[each] for each in readable_cuts(self.rows, self.cuts)}
        given = tuple(reader.reservation for reader in self.readers)
        self.files.there -= set(discardable(private, given, self.now_ms))
        self._note_void()

    @rule(lease_ms=_leases, ahead_ms=_ahead, by_job=st.booleans())
    def reserve(self, lease_ms: int, ahead_ms: int, by_job: bool) -> None:  # noqa: FBT001
        """Let a reader reserve the newest cut, with all that its entry names. Its clock may be ahead.

        A job reads on from there. It needs each file that the table gets, although a later checkpoint replaces it.
        """
        named, given_ms = frozenset[str]() if by_job else named_files(self.rows[-1]), self.now_ms + ahead_ms
        given = Reservation({TABLE: self.version}, given_ms, given_ms + lease_ms, named, by_job=by_job)
        self.readers.append(Reader(given, named))

    @precondition(lambda self: self.readers)
    @rule(lease_ms=_leases, which=st.integers(0, 5))
    def renew(self, lease_ms: int, which: int) -> None:
        """Let a reader whose reservation is in force renew it."""
        reader = self.readers[which % len(self.readers)]
        if reader.counts(self.now_ms):
            before = reader.reservation
            reader.reservation = replace(before, given_ms=self.now_ms, lapses_ms=self.now_ms + lease_ms)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 5))
    def leave(self, which: int) -> None:
        """Let a reader take its reservation back."""
        self.readers.pop(which % len(self.readers))

    @rule(ms=_waits)
    def wait(self, ms: int) -> None:
        """Let time pass. Reservations of killed readers end meanwhile."""
        self.now_ms += ms

    @rule()
    def clean_up(self) -> None:
        """Delete what the core says. Afterwards exactly the named files exist."""
        given = tuple(reader.reservation for reader in self.readers)
        versions = {self.version, *self.cuts.values(), *(each.versions[TABLE] for each in standing(given, self.now_ms))}
        facts = CleanupFacts(
            current=Generation(2),
            others_hold=False,
            now_ms=self.now_ms,
            grace_ms=0,
            rows=tuple(self.rows),
            recorded=frozenset(self.cuts),
            found=self.files.found(self.now_ms, self.version),
            active=frozenset(_path("table", version) for version in versions),
            reservations=given,
        )
        self.files.there -= {each.file.path for each in decide_cleanup(facts).delete}
        self._note_void()
        counted = [reader.needs(self.version) for reader in self.readers if reader.counts(self.now_ms)]
        named = frozenset[str]().union(*counted, *(named_files(record) for record in self.rows))
        expect(self.files.there <= named, LAPSED_GOES, sorted(self.files.there - named))

    @invariant()
    def late_readers_are_told(self) -> None:
        """A reservation is kept for a day after its end. Then it is forgotten."""
        for reader in self.readers:
            ends_ms = min(reader.reservation.lapses_ms, reader.reservation.given_ms + reader.longest_ms)
            due = not reader.counts(self.now_ms) and self.now_ms - ends_ms >= DAY_MS
            found = is_forgotten(reader.reservation, self.now_ms)
            expect(found is due, LAPSED_GOES, f"{reader.reservation} is forgotten at {self.now_ms}: {found}")

    def _note_void(self) -> None:
        for reader in self.readers:
            reader.is_void |= not reader.counts(self.now_ms)

    @invariant()
    def what_is_reserved_is_there(self) -> None:
        """Everything that a reservation in force names can be read."""
        for reader in self.readers:
            if reader.counts(self.now_ms) and not reader.is_void:
                gone = reader.needs(self.version) - self.files.there
                expect(not gone, RESERVED_STAYS, sorted(gone))


def _path(kind: str, number: int) -> str:
    return f"{TABLE}/_data/1/{kind}-{number}"


def _record(number: int) -> CheckpointRecord:
    """Return a checkpoint with a table's file, a file of state, and files in flight that only its entry names."""
    table, state, *flying = (FileHandle(_path(kind, number), 1, 1, 1) for kind in ("table", "state", *IN_FLIGHT))
    keyed = KeyedFile(state, KeyedFileKind.BASE, 0, 7, Version(Generation(1), number))
    channel = ChannelId(EdgeId(VertexId("read"), VertexId("count")), 0)
    held = ChannelState(channel, (StagedSegment(tuple(flying)),))
    subtask = SubtaskSnapshot(state=(keyed,), in_flight=(held,))
    return CheckpointRecord(
        job="small",
        checkpoint=CheckpointId(number),
        parent=CheckpointId(number - 1),
        generation=Generation(1),
        nonce=str(number),
        max_parallelism=8,
        vertices=(VertexRecord(vertex=VertexId("count"), micro_batch=number, subtasks=(subtask,)),),
        tables=(TableRecord(table=TABLE, mode=TableMode.UPSERT, files=(table,), parent_version=number - 1),),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


# ------------------------------------------------------------------
# The history of one table in the machine of what a clean-up keeps.


@dataclass(slots=True)
class Log:
    """The table's log: the active files of each version, and when it was committed."""

    active: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    at_ms: list[int] = field(default_factory=lambda: [0])

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self.active) - 1

    def shown(self, path: str) -> tuple[Shown, ...]:
        """Return the past periods during which the table showed a file."""
        found: list[Shown] = []
        first: int | None = None
        for version, active in enumerate(self.active):
            if path in active and first is None:
                first = version
            elif path not in active and first is not None:
                found.append(Shown(first, version, self.at_ms[version]))
                first = None
        return tuple(found)


# ------------------------------------------------------------------
# The machine of what a clean-up keeps: entries, rollbacks, savepoints, readers without a reservation, dead ticks.
#
# Its reference: a file stays while an entry names it, the table shows it, a cut of an entry shows it, or a reader
# within the grace may need it. Otherwise it is deleted. The same holds for entries of the table's log. The job may
# begin with an import: a process holds the job, copies files of older generations, and last appends the entry that
# names them.


RETAINED = 2
NEEDED_STAYS = "needed-stays"
"""A clean-up deletes nothing that an entry, the table, a cut or a reader within the grace needs."""
UNNEEDED_GOES = "unneeded-goes"
"""Once the grace is over, clean-ups of a job at rest leave no unneeded file."""
LOG_STAYS = "log-stays"
"""A clean-up drops no log entry from which the table, a cut or a reader within the grace may begin."""
LOG_GOES = "log-goes"
"""Log entries that a clean-up finds unneeded are dropped one grace after that clean-up. If clean-ups come more often
than every 24th of a grace, these entries may be dropped a 24th of a grace later."""

LOOKS_ARE_FEW = "looks-are-few"
"""A clean-up adds its own look at the tables as the last one. It keeps no look of a later time, since clocks are set
back, and no third look within a 24th of a grace. The next clean-up is due a 24th of a grace after the last one, and at
once if there was none."""

LOOKS_PER_GRACE = 24
_pick = st.integers(0, 20)
_graces = st.sampled_from([HOUR_MS, 0, HOUR_MS])
_waits_of_keeping = st.sampled_from([HOUR_MS, HOUR_MS // 3])


class KeepingMachine(RuleBasedStateMachine):
    """One table of one job, and the entries, cuts and readers that need its files."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000 * HOUR_MS
        self.grace_ms = HOUR_MS
        self.there: dict[str, tuple[Generation | None, int]] = {}
        """Every file, with the generation that staged it (None: a neighbour wrote it) and the time."""
        self.log = Log()
        self.entries: dict[CheckpointId, CheckpointRecord] = {}
        self.newest = NO_CHECKPOINT
        self.shown_at: dict[CheckpointId, int] = {}
        """The version at which the table showed each entry."""
        self.cuts: dict[CheckpointId, int] = {}
        """The version of the table at each recorded cut."""
        self.bare: set[CheckpointId] = set()
        """The entries from before the table was there. Their cuts do not name it."""
        self.readers: list[tuple[int, frozenset[str]]] = []
        self.looks: tuple[CleanUpLook, ...] = ()
        self.readable_until: dict[int, int] = {}
        """When a reader could last begin with each version of the table."""
        self.later_ms = 0
        """How much later log entries may go, because clean-ups have come often."""
        self.looked: dict[int, int] = {}
        """Maps the time of each clean-up to the oldest version with which a reader could begin at that time."""
        self.current = Generation(1)
        self.made = 0
        self.commit(pinned=False, shares=False)

    @initialize(grace_ms=_graces, copied=st.lists(st.integers(1, 3), max_size=2), has_table=st.booleans())
    def configure(self, grace_ms: int, copied: list[int], has_table: bool) -> None:  # noqa: FBT001
        """Draw the readers' grace, and how the job begins: with an import, with a savepoint from before the table."""
        self.grace_ms = grace_ms
        if copied:
            self._import(tuple(Generation(each) for each in copied))
        elif not has_table:
            self._begin_without_a_table()

    def _begin_without_a_table(self) -> None:
        self.there, self.log, self.bare = {}, Log(), {self.newest}
        first = self.entries[self.newest]
        bare = VertexRecord(vertex=VertexId("count"), micro_batch=1, subtasks=(SubtaskSnapshot(),))
        self.entries[self.newest] = first.model_copy(update={"tables": (), "vertices": (bare,), "pinned": True})
        self.shown_at[self.newest] = self.cuts[self.newest] = 0

    def _import(self, copied: tuple[Generation, ...]) -> None:
        """Begin anew with an import. A clean-up beside it deletes nothing, however long it takes."""
        self.entries, self.shown_at, self.cuts, self.there, self.log = {}, {}, {}, {}, Log()
        self.current = Generation(max(copied) + 1)
        state = tuple(self._stage("copied", each) for each in copied)
        self.now_ms += self.grace_ms + 1
        deleted = decide_cleanup(replace(self._facts(self.cuts), others_hold=True)).delete
        expect(not deleted, NEEDED_STAYS, f"an import loses {deleted}")
        self._append(RowKind.CHECKPOINT, NO_CHECKPOINT, state, frozenset(), pinned=False)

    # -------------------------------------------------------------- what is written

    def _stage(self, kind: str, generation: Generation | None) -> FileHandle:
        self.made += 1
        folder = "part" if generation is None else f"_data/{generation}"
        path = f"{TABLE}/{folder}/{kind}-{self.made}"
        self.there[path] = (generation, self.now_ms)
        return FileHandle(path, 1, 1, 1)

    def _show(self, active: frozenset[str]) -> None:
        self.log.active.append(active)
        self.log.at_ms.append(self.now_ms)

    @rule(pinned=st.booleans(), shares=st.booleans(), appends=st.booleans())
    def commit(self, pinned: bool, shares: bool, appends: bool = False) -> None:  # noqa: FBT001, FBT002
        """Complete a checkpoint. Its table file replaces those before, or is added. Its state may keep their files."""
        before = self._state_of(self.newest) if shares and self.newest in self.entries else ()
        shown, state = self._stage("table", self.current), self._stage("state", self.current)
        own = frozenset({shown.path})
        self._enter(RowKind.CHECKPOINT, self.newest, (*before, state), own, pinned=pinned)
        self._publish(own | self.log.active[-1] if appends else own)

    @rule(ms=_waits_of_keeping, dies=st.booleans())
    def rename_columns(self, ms: int, dies: bool) -> None:  # noqa: FBT001
        """Commit an entry that renames columns, and die. The next process writes the table's file again, and shows it.

        The new file has the entry's generation, and the entry does not name it. A clean-up runs before the table shows
        it. The second process may die too. Then a third one writes another file, and nobody needs the second one's.
        """
        self._enter(RowKind.CHECKPOINT, self.newest, self._state_of(self.newest), frozenset(), renames=True)
        again = self._rewritten_beside_a_clean_up(ms)
        if dies:
            again = self._rewritten_beside_a_clean_up(ms)
        self._publish(frozenset({again.path}))

    def _rewritten_beside_a_clean_up(self, ms: int) -> FileHandle:
        self.current = Generation(self.current + 1)
        again = self._stage("again", self.entries[self.newest].generation)
        self._pass(ms)
        deleted = {each.file.path for each in decide_cleanup(replace(self._facts(self.cuts), others_hold=True)).delete}
        expect(again.path not in deleted, NEEDED_STAYS, f"{again.path} is about to be shown")
        return again

    @precondition(lambda self: len(self.entries) > 1)
    @rule(pick=_pick)
    def roll_back(self, pick: int) -> None:
        """Take the job back to an entry. Later entries go, except savepoints."""
        to = sorted(self.entries)[pick % len(self.entries)]
        if to == self.newest:
            return
        line, at = {to}, self.entries[to].parent
        while at in self.entries:
            line.add(at)
            at = self.entries[at].parent
        self.entries = {
            each: row.model_copy(update={"abandoned": each not in line})
            for each, row in self.entries.items()
            if each in line or row.pinned
        }
        self._append(RowKind.ROLLBACK, to, self._state_of(to), self.log.active[self.shown_at[to]], pinned=False)

    def _append(
        self,
        kind: RowKind,
        parent: CheckpointId,
        state: tuple[FileHandle, ...],
        active: frozenset[str],
        *,
        pinned: bool,
    ) -> None:
        self._enter(kind, parent, state, active, pinned=pinned)
        self._publish(active)

    def _enter(
        self,
        kind: RowKind,
        parent: CheckpointId,
        state: tuple[FileHandle, ...],
        active: frozenset[str],
        *,
        pinned: bool = False,
        renames: bool = False,
    ) -> None:
        """Commit an entry, whose files the table does not show yet."""
        self.made += 1
        self.newest = CheckpointId(self.made)
        keyed = tuple(KeyedFile(file, KeyedFileKind.BASE, 0, 7, Version(Generation(1), self.newest)) for file in state)
        table = TableRecord(
            table=TABLE,
            mode=TableMode.APPEND if renames else TableMode.UPSERT,
            files=tuple(FileHandle(path, 1, 1, 1) for path in sorted(active)),
            renamed=(("amount", "value"),) if renames else (),
            parent_version=0,
        )
        self.entries[self.newest] = CheckpointRecord(
            job="small",
            kind=kind,
            pinned=pinned,
            checkpoint=self.newest,
            parent=parent,
            generation=self.current,
            nonce=str(self.newest),
            max_parallelism=8,
            vertices=(VertexRecord(vertex=VertexId("count"), micro_batch=1, subtasks=(SubtaskSnapshot(state=keyed),)),),
            tables=(table,),
            statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
        )

    def _publish(self, active: frozenset[str]) -> None:
        """Show the newest entry, record its cut, and let older entries go."""
        self._show(active)
        self.shown_at[self.newest] = self.cuts[self.newest] = self.log.newest
        own = [each for each, row in sorted(self.entries.items()) if not row.pinned]
        for subsumed in own[:-RETAINED]:
            del self.entries[subsumed]

    def _state_of(self, checkpoint: CheckpointId) -> tuple[FileHandle, ...]:
        return tuple(keyed.file for keyed in self.entries[checkpoint].vertices[0].subtasks[0].state)

    @precondition(lambda self: any(row.pinned for row in self.entries.values()))
    @rule(pick=_pick)
    def dispose(self, pick: int) -> None:
        """Dispose of a savepoint, unless the job stands at it."""
        pinned = [each for each, row in sorted(self.entries.items()) if row.pinned]
        gone = pinned[pick % len(pinned)]
        if gone != self.newest:
            del self.entries[gone]

    @rule()
    def merge(self) -> None:
        """Let a neighbour replace the active files by others."""
        self._show(frozenset({self._stage("merged", None).path}))

    @rule()
    def die(self) -> None:
        """Let a tick die and leave a file that nothing names. The next one claims the job."""
        self._stage("left", self.current)
        self.current = Generation(self.current + 1)

    # -------------------------------------------------------------- time and readers

    @rule(ms=_waits_of_keeping)
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self._pass(ms)

    def _pass(self, ms: int) -> None:
        self._note_readable()
        self.now_ms += ms
        self._judge_log()

    @rule(oldest=st.booleans())
    def read(self, oldest: bool) -> None:  # noqa: FBT001
        """Let a reader begin with the newest version or the oldest cut. It takes as long as the grace."""
        version = self.shown_at[min(self.entries)] if oldest else self.log.newest
        self.readers.append((self.now_ms, self.log.active[version]))

    # -------------------------------------------------------------- clean-ups

    @rule()
    def clean_up(self) -> None:
        """Delete what the core says. None of it may be needed."""
        self.current = Generation(self.current + 1)
        rows = tuple(self.entries[each] for each in sorted(self.entries))
        self.cuts = {each: self.cuts[each] for each in readable_cuts(rows, self.cuts)}
        expect(self.entries.keys() <= self.cuts.keys(), NEEDED_STAYS, f"cuts {self.entries.keys() - self.cuts.keys()}")
        seen = TableSeen(
            self.log.newest,
            frozenset(version for each, version in self.cuts.items() if each not in self.bare),
            in_every_cut=self.bare.isdisjoint(self.cuts),
        )
        deleted = {each.file.path for each in decide_cleanup(self._facts(self.cuts)).delete}
        self._note(seen)
        self.looked.setdefault(self.now_ms, min(self._readable()))
        self._judge_log()
        reading = (files for since, files in self.readers if self.now_ms - since < self.grace_ms)
        needed = self._needed().union(*reading)
        expect(deleted.isdisjoint(needed), NEEDED_STAYS, sorted(deleted & needed))
        for path in deleted:
            del self.there[path]

    @rule(merges=st.booleans(), others_hold=st.booleans())
    def clean_up_without_the_newest_cut(self, merges: bool, others_hold: bool) -> None:  # noqa: FBT001
        """Clean up before the newest cut is recorded, or while the list of cuts is stale.

        A neighbour may merge the table's files just before. Afterwards, the newest cut can still be read.
        """
        if merges:
            self.merge()
        self.current = Generation(self.current + 1)
        recorded = {each: version for each, version in self.cuts.items() if each != self.newest}
        facts = replace(self._facts(recorded), others_hold=others_hold)
        deleted = {each.file.path for each in decide_cleanup(facts).delete}
        needed = self._needed()
        expect(deleted.isdisjoint(needed), NEEDED_STAYS, sorted(deleted & needed))
        for path in deleted:
            del self.there[path]

    def _note(self, seen: TableSeen) -> None:
        apart = self.grace_ms // LOOKS_PER_GRACE
        last = max((each.at_ms for each in self.looks), default=None)
        due = last is None or self.now_ms - last >= apart
        said = is_due(self.looks, self.now_ms, self.grace_ms)
        expect(said == due, LOOKS_ARE_FEW, f"at {self.now_ms}, after a look at {last}, a clean-up is due: {said}")
        set_back = CleanUpLook(self.now_ms - 1, {TABLE: seen})
        self.looks = noted(self.looks, CleanUpLook(self.now_ms, {TABLE: seen}), self.grace_ms)
        for looks, now_ms in ((self.looks, self.now_ms), (noted(self.looks, set_back, self.grace_ms), set_back.at_ms)):
            at = [each.at_ms for each in looks]
            few = all(third - first >= apart for first, third in zip(at, at[2:], strict=False))
            expect(at == sorted(at) and at[-1] == now_ms and few, LOOKS_ARE_FEW, f"looks at {at}, and it is {now_ms}")

    @rule()
    def clean_up_often(self) -> None:
        """Clean up more often than the core remembers clean-ups, until the first one is older than the grace."""
        apart = self.grace_ms // (2 * LOOKS_PER_GRACE)
        self.later_ms = self.grace_ms // LOOKS_PER_GRACE
        for _ in range(3 * LOOKS_PER_GRACE if apart else 0):
            self.clean_up()
            self._pass(apart)

    def _facts(self, cuts: Mapping[CheckpointId, int]) -> CleanupFacts:
        return CleanupFacts(
            current=self.current,
            others_hold=False,
            now_ms=self.now_ms,
            grace_ms=self.grace_ms,
            rows=tuple(self.entries[each] for each in sorted(self.entries)),
            recorded=frozenset(cuts),
            found=tuple(
                ListedFile(path, TABLE, generation, 1, at_ms, self.log.shown(path))
                for path, (generation, at_ms) in sorted(self.there.items())
            ),
            active=frozenset().union(*(self.log.active[each] for each in {self.log.newest, *cuts.values()})),
            looks=self.looks,
        )

    def _judge_log(self) -> None:
        """Judge from which version on clean-ups keep the table's log."""
        self._note_readable()
        floor = log_floor(self.looks, TABLE, self.now_ms, self.grace_ms)
        reading = [each for each, until_ms in self.readable_until.items() if self.now_ms - until_ms < self.grace_ms]
        needed = min((*reading, *self._readable()))
        expect(floor <= needed, LOG_STAYS, f"the log begins with {floor}, and {needed} is needed")
        old_ms = self.now_ms - self.grace_ms - self.later_ms
        due = max((oldest for at_ms, oldest in self.looked.items() if at_ms <= old_ms), default=0)
        expect(floor >= due, LOG_GOES, f"the log begins with {floor}, due is {due}")

    def _readable(self) -> set[int]:
        """Return the versions with which a reader may begin now."""
        return {self.log.newest, *(self.shown_at[each] for each in self.entries if each in self.shown_at)}

    def _note_readable(self) -> None:
        self.readable_until |= dict.fromkeys(self._readable(), self.now_ms)

    def _needed(self) -> frozenset[str]:
        named = [named_files(row) for row in self.entries.values()]
        shown = [self.log.active[self.shown_at[each]] for each in self.entries]
        return self.log.active[-1].union(*named, *shown)

    def teardown(self) -> None:
        """Let the job rest, and clean it up repeatedly until the grace is over."""
        if is_unwinding():
            return
        for _ in range(3):
            self.clean_up()
            self._pass(self.grace_ms // 2)
        self._pass(1)
        self.clean_up()
        left = self.there.keys() - self._needed()
        expect(not left, UNNEEDED_GOES, sorted(left))
        self._pass(self.grace_ms)
