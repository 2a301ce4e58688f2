"""Micro-batches without Spark: the product's own tasks on small frames, from the same specifications.

What Spark does here is only the exchange: rows fall to the subtask that owns their key group. All files are
written by the product's writers, and merged, compacted and verified by its state.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.identifiers import Generation, JobName
from checkpointing.key_groups import range_of
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from jobs.operators import execute, keyed_job, stateless_job
from jobs.operators.arrived import TAG, struct_column
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.schemas import arrow_schema
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan
from jobs.sinks.staged_files import StagedFiles
from jobs.state.merge import KEY_GROUP
from spec.pipeline import key_group
from tests.conformance.pipeline import key_of_label, rows_of


class FrameEngine:
    """Runs micro-batches in this thread."""

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
        """Nothing was opened."""


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
    others = keyed_job.misfits(spec, effect)
    if others:
        tables = [pq.read_table(Path(writer.root, file.path)).select(spec.output.names) for file in others]
        tagged[len(spec.inputs)] = pa.concat_tables(tables)
    task = keyed_job._task(spec, effect, writer, only=None)
    for subtask in range(spec.parallelism):
        yield from task.carry_out(subtask, iter(_exchanged(spec, tagged, subtask)))


def _exchanged(spec: KeyedSpec, tagged: dict[int, pa.Table], subtask: int) -> list[pa.RecordBatch]:
    """Return a subtask's rows in the layout of the exchange."""
    kinds = {struct_column(tag): pa.struct(list(table.schema)) for tag, table in tagged.items()}
    schema = pa.schema([(KEY_GROUP, pa.int32()), (TAG, pa.int32()), *kinds.items()])
    own = range_of(subtask=subtask, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    rows = [
        {KEY_GROUP: group, TAG: tag, struct_column(tag): row}
        for tag, table in tagged.items()
        for row in table.to_pylist()
        if own.first <= (group := key_group(key_of_label(row["key"]))) <= own.last
    ]
    return [pa.RecordBatch.from_pylist(rows, schema=schema)]


def _reports(batches: Sequence[pa.RecordBatch]) -> list[TaskReport]:
    return [report_from(text) for batch in batches for text in batch.column("report").to_pylist()]
