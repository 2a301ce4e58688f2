"""Runs subtasks of a keyed micro-batch whose rows need no exchange between Spark's tasks.

Either one task runs all subtasks, one after another. Or each subtask has its task, which reads all files and keeps the
rows of its own key groups: that takes less time than to write the rows for each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from jobs.operators.arrived import SUBTASK, arrived, blocks_by_tag
from jobs.operators.keyed_task import KeyedTask
from jobs.operators.scanned import KeyedScan
from jobs.operators.worker_heap import freeze_imports


@dataclass(frozen=True, slots=True)
class WithoutExchange:
    """The subtasks of a micro-batch, and the inputs whose files their tasks read themselves."""

    task: KeyedTask
    scans: tuple[KeyedScan, ...]

    def run_scans(self, subtasks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Run these subtasks, and yield the reports. Raises what `KeyedTask.run` and scans raise."""
        yield from self._run(subtasks, {})

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all subtasks with the blocks that come from Spark, and yield the reports. Raises the same."""
        blocks: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for batch in batches:
            for row, subtask in enumerate(batch.column(SUBTASK).to_pylist()):
                blocks[subtask].append(batch.slice(row, 1))
        yield from self._run(range(self.task.parallelism), blocks)

    def _run(self, subtasks: Sequence[int], blocks: Mapping[int, Sequence[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        scanned = {scan.splitter.tag: scan.by_subtask(subtasks) for scan in self.scans}
        schemas = self.task.schemas
        for subtask in subtasks:
            parts = blocks_by_tag(blocks.get(subtask, ()), schemas)
            parts |= {tag: rows[subtask] for tag, rows in scanned.items()}
            timed = replace(self.task, writer=self.task.writer.timed())
            yield from timed.take(subtask, arrived(parts, schemas))
        freeze_imports()
