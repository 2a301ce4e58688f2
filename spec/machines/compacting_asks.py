"""Tests when a tick compacts its append tables, and which checkpoint commits what was compacted (F3).

The reference counts the files itself. It remembers the open request, or what the request made, until a checkpoint
commits that.
"""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.job.drafts import Compacting
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted
from checkpointing.metadata.record import FileCompaction, RowKind, Statistics, TableRecord
from spec.machines.judging import expect
from spec.machines.plain_entry import plain_entry

COMPACTS: Final = "compactions-have-turns"
"""A tick asks for one compaction at a time, once a table has enough new files. One checkpoint commits what it made."""

_APPENDS: Final = (TableName("bronze/orders"), TableName("bronze/rejects"))
_TABLES: Final = (*_APPENDS, TableName("gold/sums"))
_FILES_MIN, _BYTES_MAX = 3, 1_000
_tables = st.lists(st.sampled_from(_APPENDS), max_size=2, unique=True)
_files = st.tuples(*(st.integers(0, 4) for _ in _TABLES))
_kinds = st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD])
_Found = tuple[Compacted, ...]


class CompactsMachine(RuleBasedStateMachine):
    """The compactions of one tick. A checkpoint that has taken one is declined, or committed."""

    def __init__(self) -> None:
        """Begin a tick in which every table may have small files."""
        super().__init__()
        self.begin(set(), compacts=True)

    @initialize(unpublished=st.sets(st.sampled_from(_APPENDS)), compacts=st.sampled_from([True, True, True, False]))
    def begin(self, unpublished: set[TableName], compacts: bool) -> None:  # noqa: FBT001
        """Begin a tick. Some tables have a new name, under which nothing is published yet."""
        modes = (TableMode.APPEND, TableMode.APPEND, TableMode.UPSERT)
        tables = tuple(Table(name, mode) for name, mode in zip(_TABLES, modes, strict=True))
        graph = JobGraph((Vertex(VertexId("sums"), VertexKind.STATELESS, 1, tables=tables),), ())
        files_min = _FILES_MIN if compacts else None
        config = CheckpointConfig(compact_files_min=files_min, compacted_bytes_max=_BYTES_MAX)
        self.compacting, self.compacts = Compacting(graph, config, unpublished), compacts
        self.new = {name: 0 if name in unpublished else _FILES_MIN for name in _APPENDS}
        """How many files each table is known to have got since it was last compacted."""
        self.under_way = False
        self.brought: _Found = ()
        """What was compacted, and is not committed yet."""
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
    def compact(self, found: list[TableName], more: list[TableName], fails: bool) -> None:  # noqa: FBT001
        """The request is carried out, or fails. Some tables have more to compact."""
        self.under_way = False
        if fails:
            self.compacting.told(FilesCompacted(error="the disk is full"))
            return
        self.brought = tuple(Compacted(name, (FileCompaction(into=_file(0), of=("a", "b")),)) for name in found)
        self.compacting.told(FilesCompacted(self.brought, tuple(more)))
        self.new |= dict.fromkeys(more, _FILES_MIN)

    @rule(found=_tables, more=_tables, kinds=st.lists(_kinds, min_size=1, max_size=3))
    def compact_before_checkpoints(self, found: list[TableName], more: list[TableName], kinds: list[RowKind]) -> None:
        """The tick reads, its request is carried out, it reads on, and checkpoints follow."""
        self.read()
        if self.under_way:
            self.compact(found, more, fails=False)
        self.read()
        for kind in kinds:
            self.offer(kind)

    @rule(kind=_kinds)
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
