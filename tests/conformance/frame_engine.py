"""Runs micro-batches without Spark: the product's own tasks on small frames, from the same specifications.

This module replaces only Spark's exchange: it gives rows to the subtask that owns their key group. The product's
writers write all files, and its state code merges, compacts and verifies them.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import assert_never
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from jobs.operators import execute, keyed_job, stateless_job
from jobs.operators.exchange import SUBTASK, Splitter
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan, arrow_schema, misfits
from jobs.sinks.staged_files import StagedFiles
from jobs.state.merge import KEY_GROUP
from spec.reference.pipeline import key_group
from tests.conformance.pipeline import key_of_label, rows_of


class FrameEngine:
    """Runs micro-batches in the calling thread."""

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        inputs = {
            each.input: _read(warehouse, arrow_schema(plan.inputs[each.input].schema), each.segments)
            for each in effect.inputs
        }
        match plan.spec:
            case StatelessSpec() as spec:
                batches = (batch for rows in inputs.values() for batch in rows.to_batches())
                reported = list(stateless_job._task(spec, writer).run(batches))
            case KeyedSpec() as spec:
                reported = list(_keyed(spec, effect, inputs, writer))
            case _ as unreachable:
                assert_never(unreachable)
        return execute.result_of(plan, effect, _reports(reported), duration_ms=1)

    def close(self) -> None:
        """Do nothing, because nothing was opened."""


def _read(warehouse: Path, schema: pa.Schema, segments: Sequence[Segment]) -> pa.Table:
    slices = [each for each in segments if isinstance(each, SourceSlice)]
    names = schema.names
    rows = [pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows_of(slices)], schema=schema)]
    paths = [file.path for each in segments if not isinstance(each, SourceSlice) for file in each.files]
    rows += [pq.read_table(warehouse / path).select(names) for path in paths]
    return pa.concat_tables(rows).combine_chunks()


def _keyed(
    spec: KeyedSpec, effect: RunMicroBatch, inputs: dict[int, pa.Table], writer: StagedFiles
) -> Iterator[pa.RecordBatch]:
    tagged = dict(inputs)
    others = misfits(spec, effect)
    if others:
        tables = [pq.read_table(Path(writer.root, file.path)).select(spec.output.names) for file in others]
        tagged[len(spec.inputs)] = pa.concat_tables(tables)
    task = keyed_job._task(spec, effect, writer)
    sent = [batch for tag, table in tagged.items() for batch in _sent(spec, tag, table)]
    for subtask in range(spec.parallelism):
        yield from task.carry_out(subtask, (batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in sent))


def _sent(spec: KeyedSpec, tag: int, table: pa.Table) -> Iterator[pa.RecordBatch]:
    groups = pa.array([key_group(key_of_label(key)) for key in table.column("key").to_pylist()], pa.int32())
    splitter = Splitter(
        tag=tag, schema=table.schema, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism
    )
    return splitter.run(table.add_column(0, KEY_GROUP, groups).to_batches())


def _reports(batches: Sequence[pa.RecordBatch]) -> list[TaskReport]:
    return [report_from(text) for batch in batches for text in batch.column("report").to_pylist()]


# ------------------------------------------------------------------
# Names without chance: numbers replace the product's random names, so that the same choices have the same effects.


class Numbers:
    """Returns UUIDs in ascending order."""

    def __init__(self) -> None:
        self._next = count(1)

    def __call__(self) -> UUID:
        return UUID(int=next(self._next))

    def again(self) -> None:
        """Begin at the first UUID again, since a new warehouse has seen none."""
        self._next = count(1)


NUMBERS = Numbers()


@contextmanager
def numbered_names() -> Iterator[None]:
    drawing = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("jobs.") and vars(module).get("uuid4") is uuid4
    ]
    for module in drawing:
        vars(module)["uuid4"] = NUMBERS
    try:
        yield
    finally:
        for module in drawing:
            vars(module)["uuid4"] = uuid4
