"""The machine of the clean-up: checkpoints come and go, readers reserve cuts, clean-ups delete unneeded files.

The job has an upsert table with one file, which each checkpoint replaces. Two kinds of files are named only by the
checkpoint's entry: those of the operator's state, and rows in flight. There is no grace, so a clean-up deletes all that
it may.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpointing.channel_items import ChannelState, StagedSegment, SubtaskSnapshot
from checkpointing.commit.cleanup import (
    CleanupFacts,
    ListedFile,
    Reservation,
    Shown,
    decide_cleanup,
    discardable,
    is_forgotten,
    readable_cuts,
    standing,
)
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableRecord, VertexRecord
from spec.machines.judging import expect
from spec.named_files import named_files

TABLE = TableName("gold/by_key")
IN_FLIGHT = ("flying", "flying-beside")
"""The kinds of the files of one segment in flight."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
"""No reader's reservation lasts longer. That of another job lasts at most 30 days."""
RESERVED_STAYS = "reserved-stays"
"""Everything that a reservation names stays until the reservation ends."""
LAPSED_GOES = "lapsed-goes"
"""A clean-up deletes what no entry, no table and no reservation in force names, and old reservations."""

_leases = st.sampled_from([1, HOUR_MS, 5 * HOUR_MS, 40 * HOUR_MS, 40 * DAY_MS])
_ahead = st.sampled_from([0, 0, DAY_MS - 1, DAY_MS, 9 * DAY_MS])
_waits = st.sampled_from([1, HOUR_MS - 1, HOUR_MS, 6 * HOUR_MS, DAY_MS, 30 * DAY_MS])


@dataclass
class Reader:
    """A reader's reservation, and the files that the reader may need."""

    reservation: Reservation
    named: frozenset[str]
    is_void: bool = False
    """Whether a clean-up came while the reservation was not in force, so that its files may be gone."""

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
        """Return the files that the reader may need: those of its cut, and for a job what the table got since."""
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
        """Begin with one checkpoint."""
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
