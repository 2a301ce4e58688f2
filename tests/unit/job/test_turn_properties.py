"""A tick runs one compaction at a time, and each request for a savepoint gets its answer (A9, F3, F4)."""

from itertools import count
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName, VertexId
from checkpointing.job.drafts import Compacting
from checkpointing.job.tick_end import OWN_REQUEST, Savepoints
from checkpointing.messages import (
    Compacted,
    CompactFiles,
    FilesCompacted,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
)
from checkpointing.metadata.record import (
    CheckpointRecord,
    FileCompaction,
    RowKind,
    Statistics,
    TableRecord,
    VertexRecord,
)
from spec.machines import judging
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

# ------------------------------------------------------------------
# Tests when a tick compacts its append tables, and which checkpoint commits what was compacted (F3). The reference
# counts the files itself. It remembers the open request, and then the compacted files until a checkpoint commits them.


COMPACTS: Final = "compactions-have-turns"
"""A tick asks for one compaction at a time, once a table has enough new files. One checkpoint commits the result."""

_APPENDS: Final = (TableName("bronze/orders"), TableName("bronze/rejects"))
_TABLES: Final = (*_APPENDS, TableName("gold/sums"))
_FILES_MIN, _BYTES_MAX = 3, 1_000
_tables = st.lists(st.sampled_from(_APPENDS), max_size=2, unique=True)
_files = st.tuples(*(st.integers(0, 4) for _ in _TABLES))
_kinds_of_compacting_asks = st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD])
_Found = tuple[Compacted, ...]


class CompactsMachine(RuleBasedStateMachine):
    """The compactions of one tick. A checkpoint that includes a compaction is declined or committed."""

    def __init__(self) -> None:
        """Begin a tick in which every table may have small files."""
        super().__init__()
        self.begin(set(), compacts=True)

    @initialize(unpublished=st.sets(st.sampled_from(_APPENDS)), compacts=st.sampled_from([True, True, True, False]))
    def begin(self, unpublished: set[TableName], compacts: bool) -> None:
        """Begin a tick. Some tables have a new name, under which nothing is published yet."""
        modes = (TableMode.APPEND, TableMode.APPEND, TableMode.UPSERT)
        tables = tuple(Table(name, mode) for name, mode in zip(_TABLES, modes, strict=True))
        graph = JobGraph((Vertex(VertexId("sums"), VertexKind.STATELESS, 1, tables=tables),), ())
        files_min = _FILES_MIN if compacts else None
        config = CheckpointConfig(compact_files_min=files_min, compacted_bytes_max=_BYTES_MAX)
        self.compacting, self.compacts = Compacting(graph, config, unpublished), compacts
        self.new = {name: 0 if name in unpublished else _FILES_MIN for name in _APPENDS}
        """How many files each table is known to have got since its last compaction."""
        self.under_way = False
        self.brought: _Found = ()
        """The compactions that are done and not committed yet."""
        self.taken_by: CheckpointId | None = None
        self.pending: dict[CheckpointId, RowKind] = {}
        self.last = 0

    @rule()
    def read(self) -> None:
        """The tick reads rows."""
        due = tuple(name for name in _APPENDS if self.new[name] >= _FILES_MIN)
        idle = self.compacts and not (self.under_way or self.brought)
        asked = self.compacting.rows_read()
        said = (CompactFiles(due, _FILES_MIN, _BYTES_MAX),) if due and idle else ()
        expect(asked == said, COMPACTS, f"{asked}, due is {said}")
        if asked:
            self.under_way = True
            self.new |= dict.fromkeys(due, 0)

    @precondition(lambda self: self.under_way)
    @rule(found=_tables, more=_tables, fails=st.booleans())
    def compact(self, found: list[TableName], more: list[TableName], fails: bool) -> None:
        """The request is carried out, or fails. Some tables have more to compact."""
        self.under_way = False
        if fails:
            self.compacting.told(FilesCompacted(error="the disk is full"))
            return
        self.brought = tuple(Compacted(name, (FileCompaction(into=_file(0), of=("a", "b")),)) for name in found)
        self.compacting.told(FilesCompacted(self.brought, tuple(more)))
        self.new |= dict.fromkeys(more, _FILES_MIN)

    @rule(found=_tables, more=_tables, kinds=st.lists(_kinds_of_compacting_asks, min_size=1, max_size=3))
    def compact_before_checkpoints(self, found: list[TableName], more: list[TableName], kinds: list[RowKind]) -> None:
        """The tick reads, its request is carried out, it reads on, and checkpoints follow."""
        self.read()
        if self.under_way:
            self.compact(found, more, fails=False)
        self.read()
        for kind in kinds:
            self.offer(kind)

    @rule(kind=_kinds_of_compacting_asks)
    def offer(self, kind: RowKind) -> None:
        """Every vertex has acknowledged a checkpoint or savepoint."""
        self.last += 1
        checkpoint = CheckpointId(self.last)
        draft = Draft(checkpoint, (), Statistics(triggered_ms=1, committed_ms=1, rows=1), kind=kind)
        takes = bool(self.brought) and self.taken_by is None and kind is not RowKind.SAVEPOINT
        found = self.compacting.onto(draft).compacted
        expect(found == (self.brought if takes else ()), COMPACTS, f"{checkpoint}, a {kind}, has {found}")
        self.taken_by = checkpoint if takes else self.taken_by
        self.pending[checkpoint] = kind

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 5))
    def decline(self, pick: int) -> None:
        """A checkpoint is not committed. The next one may commit what it had."""
        checkpoint, _ = self._one(pick)
        self.compacting.declined(checkpoint)
        self.taken_by = None if checkpoint == self.taken_by else self.taken_by

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 5), files=_files)
    def commit(self, pick: int, files: tuple[int, ...]) -> None:
        """A checkpoint is committed, and brings files. A savepoint or a held cut publishes nothing."""
        checkpoint, kind = self._one(pick)
        if kind is not RowKind.CHECKPOINT:
            return
        tables = tuple(
            TableRecord(table=name, mode=TableMode.APPEND, adds=tuple(map(_file, range(many))), parent_version=1)
            for name, many in zip(_TABLES, files, strict=True)
        )
        self.compacting.committed(plain_entry(kind, checkpoint=checkpoint, tables=tables))
        self.new = {name: self.new[name] + many for name, many in zip(_APPENDS, files, strict=False)}
        if checkpoint == self.taken_by:
            self.brought, self.taken_by = (), None

    def _one(self, pick: int) -> tuple[CheckpointId, RowKind]:
        checkpoint = sorted(self.pending)[pick % len(self.pending)]
        return checkpoint, self.pending.pop(checkpoint)


def _file(number: int) -> FileHandle:
    return FileHandle(f"bronze/orders/_data/1/orders-1-{number:032x}.parquet", 1, 1, 1)


# ------------------------------------------------------------------
# Tests what a tick knows of savepoints: which requests wait for an answer, and which files are still needed (A9, F4).


ANSWERED: Final = "savepoints-answered"
"""Each request for a savepoint gets one answer. The answer has the request's own name, and the kind that was asked for.

No request gets an answer about the tick's own checkpoints."""
PINNED: Final = "pins-hold"
"""A tick deletes no file of a savepoint (a stop's included) or of a held cut. It may delete other files.

A tick also keeps all files of a cut from which one of these continues."""

_NAMES: Final = ("before the release", OWN_REQUEST, "savepoint:", "")
_kinds_of_savepoints = st.sampled_from(list(SavepointKind))
_reasons_of_savepoints = st.sampled_from(
    [Reason.CHECKPOINT_EXPIRED, Reason.CHECKPOINT_COORDINATOR_SHUTDOWN, Reason.CHECKPOINT_COORDINATOR_SUSPEND]
)
_rows = st.lists(
    st.tuples(st.sampled_from([RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.ROLLBACK, RowKind.HELD]), st.booleans()),
    max_size=4,
)


class SavepointsMachine(RuleBasedStateMachine):
    """One tick: users ask for savepoints, entries come in, and files are no longer referenced."""

    def __init__(self) -> None:
        """Begin without entries."""
        super().__init__()
        self.numbers = count(1)
        self.asked: dict[str, tuple[str, SavepointKind]] = {}
        """For each open request: its name at the coordinator, and the kind of savepoint."""
        self.pinned: set[str] = set()
        self.free: set[str] = set()
        self.newest: tuple[CheckpointId, str] = NO_CHECKPOINT, ""
        """The newest committed entry and its file."""
        self.begin([], unaligned=False)

    @initialize(rows=_rows, unaligned=st.booleans())
    def begin(self, rows: list[tuple[RowKind, bool]], *, unaligned: bool) -> None:
        """Begin a tick with these entries."""
        self.unaligned = unaligned
        self.savepoints = Savepoints([self._row(*each) for each in rows], unaligned=unaligned)

    # -------------------------------------------------------------- requests

    @rule(name=st.sampled_from(_NAMES), kind=_kinds_of_savepoints)
    def ask(self, name: str, kind: SavepointKind) -> None:
        """A user asks for a savepoint, under a name that is not in use."""
        expect(self.savepoints.is_asked(name) == (name in self.asked), ANSWERED, f"{name!r} is asked for")
        if name in self.asked:
            return
        told = self.savepoints.ask(SavepointRequested(name, kind))
        calls = told.request
        expect(calls not in (OWN_REQUEST, *(known for known, _ in self.asked.values())), ANSWERED, f"{calls} is taken")
        stops, drains = kind is not SavepointKind.PLAIN, kind is SavepointKind.DRAIN
        asked = told.properties
        said = asked.is_savepoint, asked.is_synchronous, asked.terminate, asked.forced, told.periodic
        due = True, stops, drains, not self.unaligned, False
        expect(said == due, ANSWERED, f"{told} of {kind}")
        self.asked[name] = calls, kind

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 5))
    def take(self, pick: int) -> None:
        """The savepoint of a request is taken."""
        name, (calls, kind) = self._one(pick)
        taken = CheckpointId(next(self.numbers))
        answers = self.savepoints.answered(RequestSucceeded(calls, taken))
        expect(answers == ((SavepointTaken(name, taken),), kind), ANSWERED, f"{answers} of {name!r}, a {kind}")

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 5), reason=_reasons_of_savepoints)
    def fail(self, pick: int, reason: Reason) -> None:
        """The savepoint fails. If only the tick's end is the reason, the message tells the user to ask again."""
        name, (calls, kind) = self._one(pick)
        answers, found = self.savepoints.answered(RequestFailed(calls, reason, "it broke"))
        expect(found is kind and len(answers) == 1, ANSWERED, f"{answers} of {name!r}, a {kind}")
        failed = answers[0]
        right = isinstance(failed, SavepointFailed) and (failed.request, failed.reason) == (name, reason)
        expect(right, ANSWERED, f"{failed} of {name!r}, which failed as {reason}")
        said = "ask again" if reason is not Reason.CHECKPOINT_EXPIRED else "it broke"
        expect(isinstance(failed, SavepointFailed) and said in failed.message, ANSWERED, f"{failed}, due is {said!r}")

    @rule(fails=st.booleans())
    def end_an_own_checkpoint(self, fails: bool) -> None:
        """A checkpoint that the tick has asked for itself ends."""
        ended = RequestFailed(OWN_REQUEST, Reason.CHECKPOINT_EXPIRED) if fails else RequestSucceeded(OWN_REQUEST, _ID)
        answers = self.savepoints.answered(ended)
        expect(answers == ((), None), ANSWERED, f"{answers} of the tick's own checkpoint")

    @rule()
    def end_the_tick(self) -> None:
        """The tick ends, and everybody who waits hears it."""
        due = {SavepointFailed(name, Reason.CHECKPOINT_EXPIRED, "over") for name in self.asked}
        waits, answers = self.savepoints.under_way, [*self.savepoints.give_up(Reason.CHECKPOINT_EXPIRED, "over")]
        expect(waits == bool(due), ANSWERED, f"somebody waits: {waits}, open are {self.asked}")
        expect({*answers} == due and len(answers) == len(due), ANSWERED, f"{answers}, open are {self.asked}")
        self.asked.clear()
        expect(not self.savepoints.under_way, ANSWERED, "somebody waits, and all have an answer")

    def _one(self, pick: int) -> tuple[str, tuple[str, SavepointKind]]:
        name = sorted(self.asked)[pick % len(self.asked)]
        return name, self.asked.pop(name)

    # -------------------------------------------------------------- files

    @rule(kind=st.sampled_from([RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD]), pinned=st.booleans())
    def commit(self, kind: RowKind, pinned: bool) -> None:
        """An entry is in."""
        self.savepoints.stored(self._row(kind, pinned))

    @rule()
    def discard(self) -> None:
        """No checkpoint needs any file any more."""
        paths = [*sorted(self.pinned | self.free), "of nobody"]
        left = self.savepoints.unpinned(paths)
        due = tuple(path for path in paths if path not in self.pinned)
        expect(left == due, PINNED, f"{left} may go, due are {due}")

    def _row(self, kind: RowKind, pinned: bool) -> CheckpointRecord:
        number, (parent, below) = CheckpointId(next(self.numbers)), self.newest
        path = f"file-{number}"
        (self.pinned if pinned or kind in (RowKind.SAVEPOINT, RowKind.HELD) else self.free).add(path)
        if kind in (RowKind.SAVEPOINT, RowKind.HELD):
            self.pinned |= {below} - {""}
            self.free.discard(below)
        else:
            self.newest = number, path
        file = KeyedFile(FileHandle(path, 1, 1, 1), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1))
        sums = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(SubtaskSnapshot(state=(file,)),))
        return plain_entry(kind, pinned=pinned, vertices=(sums,), checkpoint=number, parent=parent)


_ID: Final = CheckpointId(7)


def test_compactions_have_turns():
    """Tables get files, compactions succeed or fail, and checkpoints with compacted files are declined or committed."""
    run_state_machine_as_test(CompactsMachine, settings=judging.fitting(CompactsMachine, settings()))


def test_everybody_hears_of_his_savepoint_and_its_files_stay():
    """Savepoints of all kinds are taken, fail, or outlive the tick."""
    run_state_machine_as_test(SavepointsMachine, settings=judging.fitting(SavepointsMachine, settings()))
