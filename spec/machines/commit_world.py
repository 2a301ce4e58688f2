"""A warehouse small enough to be judged at a glance: one append table of numbers, one upsert table of their count.

The source's rows are 0, 1, 2, ...: so the tables at a cut must show exactly the numbers below its position,
whatever was declined, lost, repeated or rolled forward on the way. That sentence is the whole reference.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, Generation, SplitId, TableName, VertexId
from checkpointing.messages import Publication, RowAppended, RowRefused, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Claim, Row, RowKind
from spec.machines.judging import expect

SOURCE: Final = VertexId("source")
SINK: Final = VertexId("sink")
NUMBERS: Final = TableName("out/numbers")
COUNT: Final = TableName("out/count")
GRAPH: Final = JobGraph(
    (
        Vertex(SOURCE, VertexKind.SOURCE, 1, splits=(SplitId("a"),)),
        Vertex(SINK, VertexKind.KEYED, 1, (Table(NUMBERS, TableMode.APPEND), Table(COUNT, TableMode.UPSERT, ("key",)))),
    ),
    (EdgeId(SOURCE, SINK),),
)

Version = tuple[CheckpointId, frozenset[str]]
"""Which checkpoint a table's version shows, and its files."""


def position(record: CheckpointRecord | None) -> int:
    """Return how many rows of the source lie before the barrier."""
    return int(record.vertices[0].subtasks[0].position or "0") if record is not None else 0


@dataclass(slots=True)
class CommitWorld:
    """The compare-and-swap log, the tables and the cuts."""

    rows: list[Row] = field(default_factory=list)
    tables: dict[TableName, list[Version]] = field(
        default_factory=lambda: {name: [(NO_CHECKPOINT, frozenset())] for name in (NUMBERS, COUNT)}
    )
    cuts: dict[CheckpointId, dict[TableName, int]] = field(default_factory=dict)
    files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    declined: set[CheckpointId] = field(default_factory=set)

    @property
    def version(self) -> int:
        """The log's version."""
        return len(self.rows)

    # -------------------------------------------------------------- what the stores promise

    def stage(self, rows: tuple[int, ...]) -> FileHandle:
        """Write a new file."""
        path = f"file-{len(self.files)}"
        self.files[path] = rows
        return FileHandle(path, len(rows), len(rows), 0)

    def append(self, row: Row, at_version: int) -> RowAppended | RowRefused:
        """Append at that version, or find the row of that nonce, or refuse."""
        for version, known in enumerate(self.rows, start=1):
            if known.nonce == row.nonce:
                return RowAppended(row.nonce, version)
        if self.version != at_version:
            return RowRefused(row.nonce, "somebody else")
        if isinstance(row, CheckpointRecord):
            self._judge_row(row)
        self.rows.append(row)
        return RowAppended(row.nonce, self.version)

    def publish(self, checkpoint: CheckpointId, publication: Publication) -> TablePublished:
        """Let the table show the checkpoint, once."""
        versions = self.tables[publication.table]
        if versions[-1][0] < checkpoint:
            appends = publication.mode is TableMode.APPEND
            new = frozenset(file.path for file in (publication.adds if appends else publication.files))
            versions.append((checkpoint, versions[-1][1] | new if appends else new))
        at = next(place for place, (shown, _) in enumerate(versions) if shown >= checkpoint)
        return TablePublished(checkpoint, publication.table, at)

    def record_cut(self, checkpoint: CheckpointId, versions: dict[TableName, int]) -> None:
        """Record a cut; the first one stays."""
        self.cuts.setdefault(checkpoint, versions)

    def decline(self, checkpoint: CheckpointId) -> None:
        """Note that a coordinator holds this checkpoint for failed."""
        self.declined.add(checkpoint)
        committed = [row.checkpoint for row in self.rows if isinstance(row, CheckpointRecord)]
        expect(checkpoint not in committed, "no-commit-after-abort", f"{checkpoint} is declined, but it is committed")

    # -------------------------------------------------------------- the reference

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the committed checkpoints, savepoints left out."""
        return [row for row in self.rows if isinstance(row, CheckpointRecord) and row.kind is RowKind.CHECKPOINT]

    def _judge_row(self, row: CheckpointRecord) -> None:
        expect(row.checkpoint not in self.declined, "no-commit-after-abort", f"{row.checkpoint} was declined")
        holder = max((each.generation for each in self.rows if isinstance(each, Claim)), default=Generation(0))
        expect(row.generation == holder, "one-generation", f"{row.generation} commits, {holder} holds the job")
        used = [each.checkpoint for each in self.rows if isinstance(each, CheckpointRecord)]
        expect(all(n < row.checkpoint for n in used), "ids-rise", f"{row.checkpoint} after {used}")
        line = self.checkpoints()
        newest = line[-1].checkpoint if line else NO_CHECKPOINT
        expect(row.parent == newest, "parent-line", f"{row.checkpoint} builds on {row.parent}, not on {newest}")
        waiting = [each.checkpoint for each in line if each.checkpoint not in self.cuts]
        expect(not waiting, "published-in-order", f"{row.checkpoint} while {waiting} has no cut")
        net = [file.path for table in row.tables if table.table == NUMBERS for file in table.adds]
        due = range(position(line[-1] if line else None), position(row))
        self._shows(Counter(number for path in net for number in self.files[path]), due, f"net of {row.checkpoint}")

    def judge(self) -> None:
        """Judge what a reader sees, and what the cuts say."""
        at = {NO_CHECKPOINT: 0} | {record.checkpoint: position(record) for record in self.checkpoints()}
        for name, versions in self.tables.items():
            shown = versions[-1][0]
            expect(shown in at, "visible-after-commit", f"{name} shows {shown}, which is not committed")
            self._is_exact(name, len(versions) - 1, at[shown], f"{name} shows {shown}")
        for checkpoint, versions_at in self.cuts.items():
            expect(checkpoint in at, "visible-after-commit", f"cut {checkpoint} is recorded, it is not committed")
            for name, version in versions_at.items():
                self._is_exact(name, version, at[checkpoint], f"cut {checkpoint} of {name}")

    def _is_exact(self, name: TableName, version: int, rows: int, what: str) -> None:
        paths = self.tables[name][version][1]
        held = Counter(number for path in paths for number in self.files[path])
        self._shows(held, range(rows) if name == NUMBERS else range(rows, rows + 1) if rows else range(0), what)

    @staticmethod
    def _shows(held: Counter[int], due: range, what: str) -> None:
        expect(held == Counter(due), "exactly-once", f"{what}: {dict(held)}, due are {due}")
