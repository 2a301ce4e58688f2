"""A tiny job and an engine that runs it without Spark: for what the checkpoints themselves cost.

Ten rows an epoch go to an append table, and a count by key to an upsert table, as files that are written in this
process. The protocol, the stores and the Delta commits are the real ones.
"""

from pathlib import Path
from typing import Final

import pyarrow as pa

from checkpointing.config import CheckpointConfig
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName
from checkpointing.key_groups import range_of
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.snapshots import RangeFiles
from jobs.operators.schemas import arrow_schema
from jobs.operators.spec import KeyedSpec, StagedTable, StatelessSpec, VertexPlan
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.sequence import SequenceSource
from jobs.state.backend import state_file_schema
from tidemark import Pipeline, count

ROWS: Final = 10
"""Rows of an epoch."""


def pipeline(epochs: int) -> Pipeline:
    """Return the job of so many epochs: numbers to a table, and their count by key, one subtask, to another."""
    config = CheckpointConfig(every_rows=ROWS, slice_rows_max=ROWS, retained=3)
    tiny = Pipeline("tiny", config=config, parallelism=1)
    numbers = tiny.source("numbers", SequenceSource({"all": ROWS * epochs}, keys=ROWS)).table(
        "bronze/numbers", id="bronze"
    )
    numbers.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    return tiny


class TinyEngine:
    """Answers each micro-batch with files of as many rows as it would have; what is in them is all the same."""

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        """Write the files of one micro-batch."""
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        match plan.spec:
            case StatelessSpec(table=StagedTable(name=name, schema=schema)):
                file = writer.write(name, _rows(arrow_schema(schema)))
                output = SubtaskOutput(emitted=(file,), staged=((name, file),))
            case KeyedSpec(table=StagedTable()) as spec:
                output = _keyed(spec, effect, writer)
            case spec:
                raise TypeError(f"vertex {effect.vertex} is none of the tiny job's: {spec}")
        return MicroBatchFinished(effect.vertex, effect.micro_batch, (output,), duration_ms=1)

    def close(self) -> None:
        """Nothing was opened."""


def _keyed(spec: KeyedSpec, effect: RunMicroBatch, writer: StagedFiles) -> SubtaskOutput:
    table = spec.table
    if table is None:
        raise TypeError(f"vertex {spec.vertex} has no table")
    own = range_of(subtask=0, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    version = Version(Generation(effect.generation), effect.micro_batch)
    state_schema = state_file_schema(arrow_schema(spec.state), spec.keys)
    state = writer.write(ProtocolPaths(writer.job).state_table(spec.vertex), _rows(state_schema))
    gold = writer.write(table.name, _rows(arrow_schema(table.schema)))
    return SubtaskOutput(
        state=(KeyedFile(state, KeyedFileKind.BASE, own.first, own.last, version),),
        ranges=(RangeFiles(table.name, (KeyedFile(gold, KeyedFileKind.BASE, own.first, own.last, version),)),),
    )


def _rows(schema: pa.Schema) -> pa.Table:
    """Return rows of nulls, which every schema has."""
    return pa.table([pa.nulls(ROWS, field.type) for field in schema], schema=schema)
