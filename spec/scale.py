"""Drives a large job, or a small one for long: `python -m spec.scale --vertices 100 --subtasks 100 --checkpoints 3`.

The job is a chain of vertices. Each micro-batch of a subtask writes one file, each checkpoint takes one row of each
split, and the answers come in an order drawn from the seed. All invariants that need no contents of files are judged.
"""

import resource
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from random import Random

from checkpointing.channel_items import SourceSlice, TaskWork
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, JobName, SplitId, TableName, VertexId
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    Effect,
    Fact,
    MicroBatchFinished,
    PollSource,
    PublishTable,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    SliceOffered,
    SubtaskOutput,
    TablePublished,
    TablesChecked,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import Claim, Holder
from checkpointing.trace import TickStarted, TraceEntry
from spec.traces import Replay, Verdict

SOURCE, LAST, OUT = VertexId("source"), "vertex {}", TableName("out/rows")
ROW_BYTES = 10


def chain(vertices: int, subtasks: int) -> JobGraph:
    """Return a chain: a source with a split for each subtask, operators, and a table that the last of them writes."""
    names = [VertexId(LAST.format(number)) for number in range(1, vertices)]
    splits = tuple(SplitId(str(index)) for index in range(subtasks))
    operators = [
        Vertex(name, VertexKind.KEYED, subtasks, (Table(OUT, TableMode.APPEND),) if name == names[-1] else ())
        for name in names
    ]
    edges = (EdgeId(one, other) for one, other in zip([SOURCE, *names], names, strict=False))
    return JobGraph((Vertex(SOURCE, VertexKind.SOURCE, subtasks, splits=splits), *operators), tuple(edges))


class LargeJob:
    """One tick of a chain, driven to its end. `verdict` lists what is wrong with it."""

    def __init__(self, vertices: int, subtasks: int, checkpoints: int, seed: int) -> None:
        config = CheckpointConfig(every_rows=subtasks, max_parallelism=max(subtasks, 128), slice_rows_max=1)
        claim = Claim(
            generation=Generation(1),
            holder=Holder(host="here", pid=1, started=""),
            first_id=CheckpointId(1),
            last_id=CheckpointId(checkpoints + 1),
            at_ms=0,
            nonce="claim",
        )
        self._graph = chain(vertices, subtasks)
        self._random = Random(seed)  # noqa: S311 - a run must be repeatable
        limits = TickLimits(checkpoints=checkpoints)
        setup = JobSetup(
            graph=self._graph,
            config=config,
            job=JobName("large"),
            claim=claim,
            at_version=1,
            limits=limits,
            linger_ms=0,
        )
        self.verdict = Verdict()
        self._replay = Replay(TickStarted(setup, 0), self.verdict)
        self._lines, self._version, self._tables = 1, 1, 0
        self._waiting: list[Effect] = []
        self._wake_ms: int | None = None

    def run(self) -> None:
        """Answer what the door asks for until the tick is over, and judge it."""
        while not self.verdict.ended and not self.verdict.problems:
            for effect in self._replay.due():
                self._follow(effect)
                self._waiting.append(effect)
            fact = self._next_answer() or self._next_timer()
            if fact is not None:
                self._follow(fact)
            elif not self.verdict.ended:
                self.verdict.problems.append("the tick waits for nothing")
        self._replay.finish()

    def _next_answer(self) -> Fact | None:
        while self._waiting:
            answer = self._answer(self._waiting.pop(self._random.randrange(len(self._waiting))))
            if answer is not None:
                return answer
        return None

    def _next_timer(self) -> Fact | None:
        wake_ms, self._wake_ms = self._wake_ms, None
        return None if wake_ms is None else TimeAdvanced(wake_ms)

    def _follow(self, body: Effect | Fact) -> None:
        self._lines += 1
        self._wake_ms = body.at_ms if isinstance(body, WakeAt) else self._wake_ms
        self._replay.follow(TraceEntry(self._lines, 0, body))

    def _answer(self, effect: Effect) -> Fact | None:
        match effect:
            case PollSource():
                start = int(effect.position or 0)
                rows = SourceSlice(effect.source, effect.split, str(start), str(start + 1), "{}", 1, ROW_BYTES)
                return SliceOffered(rows)
            case RunMicroBatch():
                subtasks = self._graph.vertex(effect.vertex).parallelism
                outputs = tuple(self._output(effect, index) for index in range(subtasks))
                return MicroBatchFinished(effect.vertex, effect.micro_batch, outputs, 1, (TaskWork(),) * subtasks)
            case CheckTables():
                return TablesChecked(effect.checkpoint, ())
            case AppendRow():
                self._version += 1
                return RowAppended(effect.row.nonce, self._version)
            case PublishTable():
                self._tables += 1
                return TablePublished(effect.checkpoint, effect.publication.table, self._tables)
            case RecordCut():
                return CutRecorded(effect.checkpoint)
            case _:
                return None

    def _output(self, effect: RunMicroBatch, index: int) -> SubtaskOutput:
        name = f"{OUT}/_data/1/{effect.vertex}-{effect.micro_batch}-{index:032x}.parquet"
        file = FileHandle(name, 1, ROW_BYTES, 0)
        if self._graph.vertex(effect.vertex).tables:
            return SubtaskOutput(staged=((OUT, file),))
        return SubtaskOutput(emitted=(file,))


def measured(vertices: int, subtasks: int, checkpoints: int, seed: int) -> tuple[Verdict, Mapping[str, float]]:
    """Run one job. Return what is wrong with it, and the time and memory that it took."""
    began = time.process_time()
    job = LargeJob(vertices, subtasks, checkpoints, seed)
    job.run()
    seconds = time.process_time() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return job.verdict, {"seconds": seconds, "megabytes": megabytes}


def told(arguments: list[str] | None) -> Iterator[str]:
    parser = ArgumentParser(prog="python -m spec.scale", description=__doc__)
    parser.add_argument("--vertices", type=int, default=100)
    parser.add_argument("--subtasks", type=int, default=100, help="of each vertex")
    parser.add_argument("--checkpoints", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    verdict, took = measured(**vars(parser.parse_args(arguments)))
    yield f"{verdict.checkpoints} checkpoints, {took['seconds']:.1f} s of a core, {took['megabytes']:.0f} MB"
    yield from verdict.problems


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if no invariant is broken, else 1."""
    lines = list(told(arguments))
    sys.stdout.write("\n".join(lines) + "\n")
    return int(len(lines) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
