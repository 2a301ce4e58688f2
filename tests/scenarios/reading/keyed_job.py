"""A job of one keyed operator, driven by the test: real state files of any backend, and real publications.

Each epoch changes some keys, as a micro-batch would, and completes a checkpoint. The dictionary `model` has the
operator's expected state at every checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import polars as pl
import pyarrow as pa

from checkpointing.channel_items import ChannelState, StagedSegment, SubtaskSnapshot
from checkpointing.graph import TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, JobName, VertexId
from checkpointing.job.restoring import live_files
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.messages import Publication
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Statistics, VertexRecord
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import CompactionPolicy, IncrementalBackend, RangeState, StateBackend, state_file_schema
from jobs.state.merge import KEY_GROUP, change_of
from jobs.state.worker_copy import WorkerCopies
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.output_tables import OutputTables
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

JOB, OPERATOR = JobName("counts"), VertexId("by_key")
IN_FLIGHT = "bronze/numbers/_data/1/numbers-1-00000000-0000-4000-8000-000000000001.parquet"
KEY_GROUPS = 8
KEYS = ("place", "day")
SCHEMA = pa.schema([("place", pa.string()), ("day", pa.int64()), ("rows", pa.int64()), ("seen", pa.list_(pa.int64()))])
INCREMENTAL = IncrementalBackend(CompactionPolicy(ratio=2.0, deltas_max=3))

Key = tuple[str | None, int]
Value = tuple[int, list[int]]
Rows = list[tuple[object, ...]]


@dataclass
class KeyedJob:
    """The job in its warehouse. Its clock shows the number of the newest checkpoint, in seconds."""

    root: Path
    backend: StateBackend = INCREMENTAL
    parallelism: int = 1
    retained: int = 1_000
    checkpoint: int = 0
    row: CheckpointRecord | None = None
    state: dict[Key, Value] = field(default_factory=dict)
    model: dict[int, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warehouse = Warehouse(self.root, ProtocolPaths(JOB), now_ms=lambda: self.checkpoint * 1000)
        self.table = self.warehouse.paths.state_table(OPERATOR)
        self._rows, self._cuts = CheckpointStore(self.warehouse), CutStore(self.warehouse)
        logs = TableLogs(self.warehouse)
        OutputTables(self.warehouse, logs).ensure(self.table, state_file_schema(SCHEMA, KEYS), TableMode.STATE)
        self._publisher = Publisher(self.warehouse, logs)

    def epoch(self, changes: Mapping[Key, Value | None], on_their_way: int = 0) -> int:
        self.commit(changes, on_their_way)
        self.publish()
        return self.checkpoint

    def commit(self, changes: Mapping[Key, Value | None], on_their_way: int = 0) -> None:
        self.checkpoint += 1
        for key, value in changes.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        self.model[self.checkpoint] = ordered((*key, *value) for key, value in self.state.items())
        subtasks = self._subtasks(changes, on_their_way)
        self.row = CheckpointRecord(
            job=JOB,
            checkpoint=CheckpointId(self.checkpoint),
            parent=CheckpointId(self.checkpoint - 1),
            generation=Generation(1),
            nonce=f"row {self.checkpoint}",
            max_parallelism=KEY_GROUPS,
            vertices=(VertexRecord(vertex=OPERATOR, micro_batch=self.checkpoint, subtasks=subtasks),),
            tables=(),
            statistics=Statistics(triggered_ms=0, committed_ms=0, rows=len(changes)),
        )
        version, _ = self._rows.observe()
        subsumed = [CheckpointId(each) for each in range(1, self.checkpoint - self.retained + 1)]
        assert isinstance(self._rows.append(self.row, version, subsumed), Appended)

    def publish(self) -> None:
        assert self.row is not None
        files = {keyed.file.path: keyed.file for subtask in self.row.vertices[0].subtasks for keyed in subtask.state}
        publication = Publication(self.table, TableMode.STATE, files=tuple(files.values()))
        shown = self._publisher.publish(publication, self.row.checkpoint)
        kept = {CheckpointId(self.checkpoint - back) for back in range(self.retained)}
        self._cuts.record(self.row.checkpoint, [(self.table, shown.version)], kept)

    def _subtasks(self, changes: Mapping[Key, Value | None], on_their_way: int) -> tuple[SubtaskSnapshot, ...]:
        vertex = Vertex(id=OPERATOR, kind=VertexKind.KEYED, parallelism=self.parallelism)
        was = live_files(vertex, self.row, KEY_GROUPS)
        owned = key_group_ranges(parallelism=self.parallelism, max_parallelism=KEY_GROUPS)
        held = ChannelState(
            ChannelId(EdgeId(VertexId("numbers"), OPERATOR, 0), 0),
            (StagedSegment((FileHandle(IN_FLIGHT, on_their_way, 1, 1),)),) if on_their_way else (),
        )
        return tuple(
            SubtaskSnapshot(
                state=self._written(own, live.state, changes), in_flight=(held,) if on_their_way and place == 0 else ()
            )
            for place, (own, live) in enumerate(zip(owned, was, strict=True))
        )

    def _written(
        self, own: KeyGroupRange, files: tuple[KeyedFile, ...], changes: Mapping[Key, Value | None]
    ) -> tuple[KeyedFile, ...]:
        writer = StagedFiles(str(self.root), JOB, Generation(1), OPERATOR, self.checkpoint)
        state = RangeState(
            operator=OPERATOR,
            table=self.table,
            keys=KEYS,
            schema=SCHEMA,
            range=own,
            files=files,
            writer=writer,
            version=Version(Generation(1), self.checkpoint),
            backend=self.backend,
            copies=WorkerCopies(0),
        )
        mine = {key: value for key, value in changes.items() if own.first <= group_of(key) <= own.last}
        if not mine:
            return files
        touched = pl.DataFrame(
            [(*key, group_of(key)) for key in mine],
            schema={"place": pl.String, "day": pl.Int64, KEY_GROUP: pl.Int32},
            orient="row",
        )
        after = pl.DataFrame(
            [(*key, *value) for key, value in mine.items() if value is not None],
            schema={"place": pl.String, "day": pl.Int64, "rows": pl.Int64, "seen": pl.List(pl.Int64)},
            orient="row",
        )
        found = state.load().find(touched, KEYS)
        delta = change_of(found.rows, after, touched, KEYS)
        written = state.write(found, delta)
        return (*(file for file in files if file.file.path not in written.ended), *written.files)


def group_of(key: Key) -> int:
    place, day = key
    return (day * 3 + len(place or "")) % KEY_GROUPS


def ordered(rows) -> Rows:
    return sorted(rows, key=lambda row: (row[1], row[0] or "", row[0] is None))


def a_life(job: KeyedJob, seed: int, epochs: int = 9) -> KeyedJob:
    chance = Random(seed)  # noqa: S311 - the same changes each time
    for number in range(epochs):
        if number % 3 == 2:
            job.parallelism = chance.choice((1, 2, 3, 5))
        keys = [(chance.choice(("a", "bb", None)), chance.randrange(6)) for _ in range(chance.randrange(1, 7))]
        job.epoch({key: chance.choice((None, (number, [number, key[1]]), (number, []))) for key in keys})
    return job
