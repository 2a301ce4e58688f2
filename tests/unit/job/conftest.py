"""Drives a small job fact by fact. It has two sources, and a vertex with two inputs and an append table."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from checkpointing.channel_items import ChannelState, SourceSlice, StagedSegment, SubtaskSnapshot, TaskWork
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, EdgeId
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    EndTick,
    JudgeSuites,
    MicroBatchFinished,
    PollSource,
    PublishTable,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    SliceOffered,
    SourceIdle,
    SubtaskOutput,
    SuitesJudged,
    TablePublished,
    TablesChecked,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Statistics, TableKeys, VertexRecord

CLAIM = Claim(
    generation=1, holder=Holder(host="h", pid=1, started=""), first_id=1, last_id=1000, at_ms=0, nonce="nonce"
)


def file(name: str, rows: int = 1) -> FileHandle:
    return FileHandle(name, rows, rows * 10, 0)


def keyed(name: str, first: int, last: int, version: Version, kind: KeyedFileKind = KeyedFileKind.DELTA) -> KeyedFile:
    return KeyedFile(file(name), kind, first, last, version)


def two_sources(*, judged: bool = False, parallelism: int = 1) -> JobGraph:
    """Return the graph left and right -> joined. The vertex `joined` appends to one table."""
    return JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("right", VertexKind.SOURCE, 1, splits=("r",)),
            Vertex(
                "joined",
                VertexKind.KEYED,
                parallelism,
                (Table("out/joined", TableMode.APPEND, judged=judged), Table("state/joined", TableMode.STATE)),
            ),
        ),
        (EdgeId("left", "joined", 0), EdgeId("right", "joined", 1)),
    )


def in_a_row() -> JobGraph:
    """Return left -> bronze -> joined and right -> joined. At `joined`, the barriers of `right` come first."""
    return JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("right", VertexKind.SOURCE, 1, splits=("r",)),
            Vertex("bronze", VertexKind.STATELESS, 1, (Table("out/bronze", TableMode.APPEND),)),
            Vertex("joined", VertexKind.KEYED, 1, (Table("out/joined", TableMode.APPEND),)),
        ),
        (EdgeId("left", "bronze"), EdgeId("bronze", "joined", 0), EdgeId("right", "joined", 1)),
    )


def record(graph: JobGraph, checkpoint: int, snapshots: dict[str, tuple[SubtaskSnapshot, ...]], **changes: Any):
    """Return the entry of a cut of this graph."""
    vertices = tuple(
        VertexRecord(
            vertex=vertex.id,
            micro_batch=0,
            subtasks=snapshots.get(vertex.id, tuple(SubtaskSnapshot() for _ in vertex.subtasks())),
            splits=vertex.splits,
            table_keys=tuple(
                TableKeys(table=table.name, columns=table.keys, mode=table.mode)
                for table in vertex.tables
                if table.keys
            ),
        )
        for vertex in graph.vertices
    )
    parts = {
        "job": "j",
        "checkpoint": checkpoint,
        "parent": 0,
        "generation": 1,
        "nonce": f"old/{checkpoint}",
        "max_parallelism": 128,
        "vertices": vertices,
        "tables": (),
        "statistics": Statistics(triggered_ms=0, committed_ms=0, rows=0),
    }
    return CheckpointRecord(**{**parts, **changes})


class Story:
    """A job door, with all its effects that have no answer yet."""

    def __init__(self, graph: JobGraph, config: dict[str, Any] | None = None, **setup: Any) -> None:
        self.graph = graph
        self.now_ms = 1_000
        self.waiting: list[Any] = []
        self.told: list[Any] = []
        self.end: EndTick | None = None
        self.wake_ms: int | None = None
        self._names = count(1)
        self.version = 1
        parts = {
            "graph": graph,
            "config": CheckpointConfig(**(config or {})),
            "job": "j",
            "claim": CLAIM,
            "at_version": 1,
        }
        self.door = JobDoor(JobSetup(**{**parts, **setup}))
        self._take(self.door.start(self.now_ms))

    def _take(self, effects: tuple[Any, ...]) -> None:
        self.told.extend(effects)
        for effect in effects:
            match effect:
                case WakeAt():
                    self.wake_ms = effect.at_ms
                case EndTick():
                    self.end = effect
                case PollSource() | RunMicroBatch() | JudgeSuites() | CheckTables() | AppendRow():
                    self.waiting.append(effect)
                case PublishTable() | RecordCut():
                    self.waiting.append(effect)
                case _:
                    pass

    def tell(self, fact: Any) -> None:
        """Step the door with the time and then with the fact, as a tick's driver does."""
        self._take(self.door.step(TimeAdvanced(self.now_ms)))
        self._take(self.door.step(fact))

    def passes(self, milliseconds: int) -> None:
        """Let time pass. The door gets the time only when it has asked to be woken."""
        until_ms = self.now_ms + milliseconds
        while self.wake_ms is not None and self.wake_ms <= until_ms:
            self.now_ms, self.wake_ms = max(self.now_ms, self.wake_ms), None
            self._take(self.door.step(TimeAdvanced(self.now_ms)))
        self.now_ms = until_ms

    # ---------------------------------------------------------- what waits

    def all(self, kind: type) -> list[Any]:
        return [effect for effect in self.waiting if isinstance(effect, kind)]

    def take(self, kind: type, holds: Callable[[Any], bool] = lambda effect: True) -> Any:
        effect = next(effect for effect in self.all(kind) if holds(effect))
        self.waiting.remove(effect)
        return effect

    def all_told(self, kind: type) -> list[Any]:
        return [effect for effect in self.told if isinstance(effect, kind)]

    # ---------------------------------------------------------- answers

    def offers(self, source: str, rows: int, *, estimated: bool = False) -> SourceSlice:
        """Answer the source's poll with this many rows."""
        poll = self.take(PollSource, lambda poll: poll.source == source)
        start = int(poll.position or 0)
        place = (source, poll.split, str(start), str(start + rows), "")
        offered = SourceSlice(*place, rows, rows * 10, rows_estimated=estimated)
        self.tell(SliceOffered(offered))
        return offered

    def is_idle(self, *sources: str) -> None:
        for source in sources:
            poll = self.take(PollSource, lambda poll, source=source: poll.source == source)
            self.tell(SourceIdle(poll.source, poll.split))

    def finishes(self, vertex: str = "joined", work: tuple[TaskWork, ...] = ()) -> str:
        """Finish the vertex's micro-batch with one file for its append table. Return the file's name."""
        effect = self.take(RunMicroBatch, lambda run: run.vertex == vertex)
        name = f"out-{next(self._names)}"
        own = self.graph.vertex(vertex)
        table = next(table.name for table in own.tables if table.mode is TableMode.APPEND)
        full = SubtaskOutput(emitted=(file(name),), staged=((table, file(name)),))
        empty = tuple(SubtaskOutput() for _ in range(own.parallelism - 1))
        self.tell(MicroBatchFinished(vertex, effect.micro_batch, (full, *empty), work=work))
        return name

    def judges(self, *, passed: bool = True, message: str = "") -> Any:
        asked = self.take(JudgeSuites)
        self.tell(SuitesJudged(asked.vertex, asked.checkpoint, passed, "{}", message))
        return asked

    def checks(self, *problems: str) -> None:
        self.tell(TablesChecked(self.take(CheckTables).checkpoint, problems))

    def appends(self) -> Any:
        """Append the waiting entry, and return it."""
        row = self.take(AppendRow).row
        self.version += 1
        self.tell(RowAppended(row.nonce, self.version))
        return row

    def publishes(self) -> None:
        for effect in self.all(PublishTable):
            self.waiting.remove(effect)
            self.tell(TablePublished(effect.checkpoint, effect.publication.table, 1))

    def records(self) -> None:
        self.tell(CutRecorded(self.take(RecordCut).checkpoint))

    def commits(self) -> Any:
        """Take all steps from the check of the tables to the recorded cut. Return the entry."""
        self.checks()
        row = self.appends()
        self.publishes()
        self.records()
        return row


def in_flight_of(edge: EdgeId, subtask: int, *names: str) -> Iterator[ChannelState]:
    yield ChannelState(ChannelId(edge, subtask), tuple(StagedSegment((file(name),)) for name in names))


@pytest.fixture
def job() -> SimpleNamespace:
    """Return the class of stories, with functions that make graphs, entries and files for them."""
    return SimpleNamespace(
        story=Story,
        two_sources=two_sources,
        in_a_row=in_a_row,
        record=record,
        file=file,
        keyed=keyed,
        in_flight_of=in_flight_of,
        claim=CLAIM,
    )
