"""Tasks that read files themselves. Spark gives each task a number and nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from checkpointing.key_groups import KeyGroupRange, range_of
from jobs.operators.derived_scans import marked
from jobs.operators.exchange import EXCHANGED, Splitter, owned_by, times_block, with_key_group
from jobs.operators.expressions import Expression
from jobs.operators.key_hash import key_groups, said_groups
from jobs.operators.python_workers import freeze_imports, reported
from jobs.operators.stateless_task import StatelessTask
from jobs.sources.slice_reading import KnowsStored, RowScan
from jobs.state.merge import KEY_GROUP


class RunsScans(Protocol):
    """The part of a micro-batch that tasks carry out themselves, beginning with the files."""

    def run_scans(self, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Carry out the subtasks or shares with these numbers, and yield the reports in REPORT_SCHEMA."""
        ...


@dataclass(frozen=True, slots=True)
class ScanTasks:
    """The object that each task runs, and the numbers that it runs."""

    tasks: tuple[tuple[RunsScans, tuple[int, ...]], ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the lazy reports of all tasks."""
        return reported(numbered(spark, len(self.tasks)), self.run)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the reports of the tasks whose numbers are the rows of `batches`. Raises the tasks' errors."""
        for number in numbers(batches):
            runner, own = self.tasks[number]
            yield from runner.run_scans(own)


def numbered(spark: SparkSession, tasks: int) -> DataFrame:
    """Return a frame for so many tasks. The only row of each task is its number."""
    return spark.range(0, tasks, 1, tasks)


def numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers that a task has received. Its rows consist of nothing else."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


# ------------------------------------------------------------------
# Rows that tasks read from Parquet files themselves. Spark neither plans the scan nor converts its rows.
#
# A scan is possible if Spark carries out no step between the files and the operator, and if `key_hash` knows the types
# of the keys. All other rows come as a DataFrame.


_TASK_ROWS: Final = 100_000
"""A task scans about so many rows. A part of a file is never divided between tasks."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The rows of an input, as the parts of files that tasks read. There is at least one part."""

    scans: tuple[RowScan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedScan:
    """Reads the rows of one keyed input, and splits them into blocks. `shares` are the parts of files by task."""

    shares: tuple[tuple[RowScan, ...], ...]
    keys: tuple[str, ...]
    max_parallelism: int
    splitter: Splitter

    @property
    def may_repeat(self) -> bool:
        """Return whether several tasks may read all parts."""
        return all(scan.may_repeat for scan in chain.from_iterable(self.shares))

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of the tasks whose numbers are the rows of `batches`. Raises ScanError."""
        for share in numbers(batches):
            yield from self.splitter.run(self._rows(self.shares[share]))
            yield from times_block()

    def by_subtask(self, subtasks: Sequence[int]) -> dict[int, list[pa.RecordBatch]]:
        """Return the rows of all parts that belong to these subtasks, with their key groups. Raises ScanError.

        A file is not read if its footer says that it has no rows of these subtasks.
        """
        of: dict[int, list[pa.RecordBatch]] = {subtask: [] for subtask in subtasks}
        for scan in chain.from_iterable(self.shares):
            said = None if len(of) == self.splitter.parallelism else self._said(scan)
            takers = [each for each in of if said is None or said.intersection(self._range(each)) is not None]
            for batch in self._rows((scan,) if takers else ()):
                for subtask in takers:
                    whole = said is not None and said.intersection(self._range(subtask)) == said
                    of[subtask].append(batch if whole else self._owned(batch, subtask))
        return of

    def _said(self, scan: RowScan) -> KeyGroupRange | None:
        """Return the key groups of all rows of a part.

        None: its file does not record them, or rows go to all subtasks.
        """
        if self.splitter.broadcast or self.splitter.to_all is not None or not isinstance(scan, KnowsStored):
            return None
        stored = scan.stored(self.keys)
        return None if stored is None else said_groups(stored, self.keys, self.splitter.schema, self.max_parallelism)

    def _range(self, subtask: int) -> KeyGroupRange:
        to = self.splitter
        return range_of(subtask=subtask, parallelism=to.parallelism, max_parallelism=to.max_parallelism)

    def _owned(self, rows: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
        to, own = self.splitter, self._range(subtask)
        group = rows.column(KEY_GROUP)
        mine = pc.and_(pc.greater_equal(group, own.first), pc.less_equal(group, own.last))
        if to.to_all is None:
            return rows.filter(mine)
        is_for_all = pc.fill_null(rows.column(to.to_all), fill_value=False)
        of_keys = rows.filter(pc.and_(mine, pc.invert(is_for_all)))
        of_all = owned_by(rows.filter(is_for_all), subtask, to.parallelism, to.max_parallelism)
        return pa.Table.from_batches([of_keys, of_all]).combine_chunks().to_batches()[0] if of_all.num_rows else of_keys

    def _rows(self, scans: Iterable[RowScan]) -> Iterator[pa.RecordBatch]:
        schema = self.splitter.schema
        for scan in scans:
            for batch in scan.batches(schema):
                groups = key_groups([batch.column(key) for key in self.keys], self.max_parallelism)
                yield pa.record_batch([groups, *batch.columns], schema=with_key_group(schema))


@dataclass(frozen=True, slots=True)
class StatelessScan:
    """Reads the rows of a stateless vertex, and writes them. `shares` are the parts of files by task.

    `rules` are the vertex's row rules with their names.
    """

    shares: tuple[tuple[RowScan, ...], ...]
    task: StatelessTask
    rules: tuple[tuple[str, Expression], ...]

    def run_scans(self, shares: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Write the rows of these shares, and yield the reports. Raises ScanError."""
        for share in shares:
            timed = replace(self.task, writer=self.task.writer.timed())
            rows = chain.from_iterable(scan.batches(timed.schema) for scan in self.shares[share])
            yield from timed.carry_out(rows if timed.failed is None else self._marked(rows, timed.failed))
        freeze_imports()

    def _marked(self, rows: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
        return (marked(batch, self.rules, column) for batch in rows)


def shares_of(scans: Sequence[RowScan]) -> tuple[tuple[RowScan, ...], ...]:
    """Return the parts by task, in their order. Each task gets about `_TASK_ROWS` rows."""
    shares: list[list[RowScan]] = []
    rows = _TASK_ROWS
    for scan in scans:
        if rows >= _TASK_ROWS:
            shares.append([])
            rows = 0
        shares[-1].append(scan)
        rows += scan.rows
    return tuple(map(tuple, shares))


def keyed_scan(spark: SparkSession, scan: KeyedScan) -> DataFrame:
    """Return the blocks of an input, one Spark task for each share."""
    return numbered(spark, len(scan.shares)).mapInArrow(scan.run, EXCHANGED)
