"""Runs all subtasks of a small keyed micro-batch in one Spark task, one after another. No exchange is needed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from jobs.operators.arrived import SUBTASK
from jobs.operators.keyed_task import KeyedTask
from jobs.operators.scanned import KeyedScan
from jobs.operators.worker_heap import freeze_imports


@dataclass(frozen=True, slots=True)
class SubtasksTogether:
    """The subtasks of a micro-batch, and the inputs whose files their task reads itself."""

    task: KeyedTask
    scans: tuple[KeyedScan, ...]

    def run_scans(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do what `run` promises, if no rows come from Spark. `batches` has one row, which makes the task run."""
        for _ in batches:
            pass
        yield from self.run(())

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run each subtask with its blocks, and yield the reports. Raise what `KeyedTask.run` and scans raise."""
        blocks: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for batch in chain(batches, *(scan.all_blocks() for scan in self.scans)):
            for row, subtask in enumerate(batch.column(SUBTASK).to_pylist()):
                blocks[subtask].append(batch.slice(row, 1))
        for subtask in range(self.task.parallelism):
            timed = replace(self.task, writer=self.task.writer.timed())
            yield from timed.carry_out(subtask, iter(blocks[subtask]))
        freeze_imports()
