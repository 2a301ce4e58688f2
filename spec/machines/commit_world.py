"""A warehouse that is small enough to judge at a glance: an append table of numbers, an upsert table of their count.

The source's rows are 0, 1, 2 and so on. So the tables at a cut must show exactly the numbers below its position,
whatever was declined, lost, repeated or rolled forward. This sentence is the whole reference. A count that is a
multiple of four is not shown: then the upsert table is empty.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, Generation, SplitId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from spec.history import FileMissed, History
from spec.machines.judging import expect
from spec.table_log import Written
from spec.world import World

EXACTLY_ONCE: Final = CheckpointingMode.EXACTLY_ONCE
SOURCE: Final = VertexId("source")
SINK: Final = VertexId("sink")
NUMBERS: Final = TableName("out/numbers")
COUNT: Final = TableName("out/count")
_ON_THE_LINE: Final = (RowKind.CHECKPOINT, RowKind.ROLLBACK)
GRAPH: Final = JobGraph(
    (
        Vertex(SOURCE, VertexKind.SOURCE, 1, splits=(SplitId("a"),)),
        Vertex(
            SINK,
            VertexKind.KEYED,
            1,
            (
                Table(NUMBERS, TableMode.APPEND, outside=True),
                Table(COUNT, TableMode.UPSERT, ("key",), outside=True),
            ),
        ),
    ),
    (EdgeId(SOURCE, SINK),),
)


def position(record: CheckpointRecord | None) -> int:
    """Return how many rows of the source lie before the barrier."""
    return int(record.vertices[0].subtasks[0].position or "0") if record is not None else 0


def counted(rows: int) -> range:
    """Return what the upsert table shows of this many rows: their count, or nothing."""
    return range(rows, rows + (rows % 4 > 0))


class CommitWorld(World):
    """The simulator's stores, and which checkpoints were reported as failed."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__(lambda world: History(EXACTLY_ONCE, 1, 1, world.rows_of, world.state_of))
        self.declined: set[CheckpointId] = set()
        self.checked: dict[CheckpointId, frozenset[TableName]] = {}
        """The tables that were checked for a checkpoint, and that are as it expects."""
        self.positions: dict[CheckpointId, int] = {NO_CHECKPOINT: 0}
        """How many rows lie before each checkpoint that was ever committed, without savepoints."""
        self.went_back = NO_CHECKPOINT
        """The newest rollback, also if it is subsumed. The simulator judges what outside sinks show after one."""

    def stage(self, generation: Generation, micro_batch: int, numbers: range) -> FileHandle:
        """Write a new file of these numbers."""
        rows = tuple((number,) for number in numbers)
        return self.write(NUMBERS, Written(generation, SINK, micro_batch, rows), len(rows))

    def _commit(self, row: Row, subsumed: tuple[CheckpointId, ...], marks: Mapping[CheckpointId, bool]) -> None:
        if isinstance(row, CheckpointRecord):
            self._judge_row(row)
            if row.kind in _ON_THE_LINE:
                self.positions[row.checkpoint] = position(row)
        super()._commit(row, subsumed, marks)

    def decline(self, checkpoint: CheckpointId) -> None:
        """Note that a coordinator considers this checkpoint failed."""
        self.declined.add(checkpoint)
        committed = [row.checkpoint for row in self.checkpoints()]
        expect(checkpoint not in committed, "no-commit-after-abort", f"{checkpoint} is declined, but it is committed")

    # -------------------------------------------------------------- the reference

    def line(self) -> list[CheckpointRecord]:
        """Return the committed checkpoints and rollbacks, without savepoints."""
        return [row for row in self.checkpoints() if row.kind in _ON_THE_LINE]

    def _judge_row(self, row: CheckpointRecord) -> None:
        expect(row.checkpoint not in self.declined, "no-commit-after-abort", f"{row.checkpoint} was declined")
        holder = self.generation
        expect(row.generation == holder, "one-generation", f"{row.generation} commits, {holder} holds the job")
        used = [each.checkpoint for each in self.checkpoints()]
        expect(all(n < row.checkpoint for n in used), "ids-rise", f"{row.checkpoint} after {used}")
        if row.kind is RowKind.ROLLBACK:
            self.went_back = row.checkpoint
            return  # its target is chosen, and what the tables show then is judged like any cut
        line = self.line()
        newest = line[-1].checkpoint if line else NO_CHECKPOINT
        expect(row.parent == newest, "parent-line", f"{row.checkpoint} builds on {row.parent}, not on {newest}")
        waiting = [each.checkpoint for each in line if each.checkpoint > max(self.cuts, default=NO_CHECKPOINT)]
        expect(not waiting, "published-in-order", f"{row.checkpoint} while {waiting} has no cut")
        if row.kind is RowKind.CHECKPOINT:
            missing = {NUMBERS, COUNT} - self.checked.get(row.checkpoint, frozenset())
            expect(not missing, "tables-are-checked", f"{row.checkpoint} is in, {missing} were not checked")
        self._judge_tables(row, line[-1] if line else None)
        net = [file.path for table in row.tables if table.table == NUMBERS for file in table.adds]
        due = range(position(line[-1] if line else None), position(row))
        self._shows(self.shown_by(net), due, f"net of {row.checkpoint}")

    def _judge_tables(self, row: CheckpointRecord, parent: CheckpointRecord | None) -> None:
        """Judge one entry's tables: each names its version at the parent's cut, and a changed count is published."""
        cut = self.cuts.get(row.parent, {})
        for table in row.tables:
            due = cut.get(table.table, 0)
            expect(table.parent_version == due, "tables-follow", f"{table.table}: {table.parent_version}, not {due}")
        published = {table.table: {file.path for file in table.files} for table in row.tables}
        now, before = _count_of(row), _count_of(parent)
        said = published.get(COUNT, before)
        expect(said == now, "tables-follow", f"{row.checkpoint} publishes {said} as the count, not {now}")

    def judge_start(self, restored: CheckpointRecord | None) -> None:
        """Judge that a holder does not go on from an entry that is newer than the newest cut."""
        newest = max(self.cuts, default=NO_CHECKPOINT)
        late = restored is not None and restored.checkpoint > newest
        expect(not late, "published-in-order", f"work goes on from {restored}, and the newest cut is {newest}")

    def judge(self) -> None:
        """Judge what readers see, and what the cuts say."""
        missed = [event for event in self.history.events if isinstance(event, FileMissed)]
        expect(not missed, "no-file-is-missed", missed)
        at = self.positions
        for name, log in self.tables.items():
            shown = CheckpointId(log.shown[-1])
            expect(shown in at, "visible-after-commit", f"{name} shows {shown}, which is not committed")
            self._is_exact(name, log.version, at[shown], f"{name} shows {shown}")
        for checkpoint, versions_at in self.cuts.items():
            expect(checkpoint in at, "visible-after-commit", f"cut {checkpoint} is recorded, it is not committed")
            for name, version in versions_at.items():
                self._is_exact(name, version, at[checkpoint], f"cut {checkpoint} of {name}")
        if not self.went_back:
            self._judge_outside()

    def _judge_outside(self) -> None:
        """Judge the outside sinks: each shows its newest checkpoint, and the newest cut shows no later one."""
        at, newest = self.positions, max(self.cuts, default=NO_CHECKPOINT)
        for table, due in ((NUMBERS, range), (COUNT, counted)):
            shown = self.outside.shown.get(table, NO_CHECKPOINT)
            expect(shown in at, "outside-exact", f"{shown} is outside, and it is not committed")
            held, rows = self.shown_by(self.outside.paths.get(table, ())), due(at[shown])
            expect(held == Counter(rows), "outside-exact", f"{dict(held)} is outside, due are {rows}")
            expect(at[shown] >= at[newest], "outside-exact", f"{shown} is outside, the newest cut is {newest}")

    def _is_exact(self, name: TableName, version: int, rows: int, what: str) -> None:
        log = self.table(name)
        expect(version <= log.version, "exactly-once", f"{what} needs version {version}, the newest is {log.version}")
        held = self.shown_by(log.versions[version])
        self._shows(held, range(rows) if name == NUMBERS else counted(rows), what)

    def shown_by(self, paths: Iterable[str]) -> Counter[int]:
        """Return the numbers in these files."""
        return Counter(number for path in paths for (number,) in self.rows_of(path))

    @staticmethod
    def _shows(held: Counter[int], due: range, what: str) -> None:
        expect(held == Counter(due), "exactly-once", f"{what}: {dict(held)}, due are {due}")


def _count_of(record: CheckpointRecord | None) -> set[str]:
    subtasks = record.vertices[1].subtasks if record is not None else ()
    return {keyed.file.path for subtask in subtasks for own in subtask.ranges for keyed in own.files}
