"""Measures checkpoints with few and with many live state files, while the same number of files changes.

`python -m bench.ours.live_files --live 100000` commits checkpoints of a job with 10 operators of 1,000 subtasks each.
The commit protocol and the stores are the real ones, without Spark. Each checkpoint composes its entry, appends it,
publishes the ten state tables and records the cut. Before each checkpoint, files of a thousand subtasks are replaced.
The program prints the seconds of each checkpoint's phases, and the bytes that the checkpoint adds to the job's own
tables and manifests.
"""

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from bench.large_jobs import PHASES
from bench.measures import print_result
from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitFact,
    CommitIdentity,
    Draft,
    TwoPhaseCommit,
)
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, SplitId, VertexId, job_name
from checkpointing.job.operator_run import LiveFiles
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    PublishTable,
    RecordCut,
    TablesChecked,
)
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import Claim, Holder, Statistics, VertexRecord
from jobs.tick.driver import collecting_less_often
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse

OPERATORS: Final = 10
SUBTASKS: Final = 1_000
CHANGED: Final = 1_000
"""The number of files that are replaced before each checkpoint."""
_PATHS: Final = ProtocolPaths(job_name("large"))
_SOURCE: Final = VertexId("numbers")
_NAMES: Final = tuple(VertexId(f"sums_{number}") for number in range(OPERATORS))
_STATS: Final = '{"numRecords":8,"minValues":{"key":17,"total":3},"maxValues":{"key":99017,"total":400},"nullCount":{}}'


class NotCommittedError(RuntimeError):
    """A checkpoint was refused. The message says why."""


@dataclass(slots=True)
class State:
    """The live files of all subtasks, and which of them the next checkpoint replaces."""

    warehouse: Warehouse
    live: int
    random: Random = field(default_factory=lambda: Random(18))  # noqa: S311 - a run must be repeatable
    subtasks: dict[VertexId, list[LiveFiles]] = field(default_factory=dict)
    _written: int = 0

    def __post_init__(self) -> None:
        """Give each subtask the same number of files.

        If there are too few files, only the first subtasks of an operator get one.
        """
        each, subtasks = max(1, self.live // (OPERATORS * SUBTASKS)), min(SUBTASKS, self.live // OPERATORS)
        for name in _NAMES:
            full = [LiveFiles(tuple(self._file(name, index) for _ in range(each))) for index in range(subtasks)]
            self.subtasks[name] = [*full, *(LiveFiles() for _ in range(SUBTASKS - subtasks))]

    def change(self) -> None:
        """Replace the oldest file of a hundred subtasks of each operator."""
        for name, subtasks in self.subtasks.items():
            full = [index for index, own in enumerate(subtasks) if own.state]
            for index in self.random.sample(full, CHANGED // OPERATORS):
                subtasks[index] = LiveFiles((*subtasks[index].state[1:], self._file(name, index)))

    def snapshots(self) -> tuple[VertexRecord, ...]:
        """Return the snapshots of the subtasks."""
        source = VertexRecord(
            vertex=_SOURCE, micro_batch=0, splits=("all",), subtasks=(SubtaskSnapshot(position=str(self._written)),)
        )
        return (
            source,
            *(
                VertexRecord(
                    vertex=name,
                    micro_batch=self._written,
                    subtasks=tuple(own.snapshot() for own in subtasks),
                )
                for name, subtasks in self.subtasks.items()
            ),
        )

    def _file(self, name: VertexId, index: int) -> KeyedFile:
        self._written += 1
        unique = f"{self.random.getrandbits(128):032x}"
        table = _PATHS.state_table(name)
        path = _PATHS.staged_file(table, Generation(1), StagedName(name, self._written, unique))
        self.warehouse.place(path).write(b"of no interest", durable=False)
        handle = FileHandle(path, 8, 14, self.random.getrandbits(32), _STATS)
        return KeyedFile(handle, KeyedFileKind.DELTA, index, index, Version(Generation(1), self._written))


class Job:
    """Commits checkpoints of one generation to real stores."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Claim the job, and create the state tables."""
        self._warehouse = warehouse
        tables = {name: Table(_PATHS.state_table(name), TableMode.STATE) for name in _NAMES}
        source = Vertex(_SOURCE, VertexKind.SOURCE, 1, splits=(SplitId("all"),))
        operators = [Vertex(name, VertexKind.KEYED, SUBTASKS, (table,)) for name, table in tables.items()]
        graph = JobGraph((source, *operators), tuple(EdgeId(_SOURCE, name) for name in _NAMES))
        self._stores = JobStores(warehouse, cross_freely)
        claim = Claim(
            generation=Generation(1),
            holder=Holder(host="here", pid=1, started=""),
            first_id=CheckpointId(1),
            last_id=CheckpointId(1_000),
            at_ms=0,
            nonce="claim",
        )
        self._stores.entries.append(claim, 0)
        schema = pa.schema([pa.field("key", pa.int64()), pa.field("total", pa.int64())])
        self._stores.tables.ensure(tuple(tables.values()), {table.name: schema for table in tables.values()})
        identity = CommitIdentity(
            job=str(_PATHS.job), generation=Generation(1), nonce="claim", max_parallelism=SUBTASKS
        )
        self._door = TwoPhaseCommit(graph, identity, parent=None, versions={}, at_version=1)
        self._last: tuple[CheckpointId, ...] = ()

    def commit(self, checkpoint: CheckpointId, vertices: tuple[VertexRecord, ...]) -> dict[str, float]:
        """Commit a checkpoint that subsumes the checkpoint before. Return the seconds of each phase."""
        draft = Draft(checkpoint, vertices, Statistics(triggered_ms=0, committed_ms=0, rows=0), subsumed=self._last)
        taken = dict.fromkeys(PHASES, 0.0)
        waiting: list[CommitEffect] = []
        began = time.perf_counter()
        effects = self._door.offer(draft, 0)
        taken["compose_s"] += time.perf_counter() - began
        waiting += effects
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, CheckpointCommitted):
                self._last = (checkpoint,)
                return taken
            began = time.perf_counter()
            phase, fact = self._carried_out(effect)
            taken[phase] += time.perf_counter() - began
            began = time.perf_counter()
            waiting += self._door.step(fact, 0)
            taken["compose_s"] += time.perf_counter() - began
        raise NotCommittedError(f"checkpoint {checkpoint}")

    def _carried_out(self, effect: CommitEffect) -> tuple[str, CommitFact]:
        match effect:
            case CheckTables():
                return "publish_s", TablesChecked(effect.checkpoint, self._stores.tables.check(effect.tables))
            case AppendRow():
                return "append_s", self._stores.entries.append(effect.row, effect.at_version, subsumed=effect.subsumed)
            case PublishTable():
                return "publish_s", self._stores.publish(effect.publication, effect.checkpoint)
            case RecordCut():
                self._stores.cuts.record(effect.checkpoint, effect.versions)
                return "cut_s", CutRecorded(effect.checkpoint)
            case _:
                raise NotCommittedError(str(effect))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, default=12)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with collecting_less_often(), tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        warehouse = Warehouse(Path(scratch), _PATHS)
        state, job = State(warehouse, asked.live), Job(warehouse)
        phases: list[dict[str, float]] = []
        sizes: list[int] = []
        for number in range(1, asked.checkpoints + 1):
            before = _files(warehouse)
            phases.append(job.commit(CheckpointId(number), state.snapshots()))
            sizes.append(sum(size for path, size in _files(warehouse).items() if path not in before))
            state.change()
        print_result(
            {
                "program": "live-files",
                "live": asked.live,
                "bytes": sizes,
                **{name: [each[name] for each in phases] for name in phases[0]},
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )


def _files(warehouse: Warehouse) -> dict[str, int]:
    """Return the sizes of the files of `checkpoints` and of its manifests."""
    folders = (warehouse.paths.checkpoints, warehouse.paths.manifests)
    return {
        f"{folder}/{each.name}": each.size for folder in folders for each in warehouse.place(folder).entries(deep=True)
    }


if __name__ == "__main__":
    main()
