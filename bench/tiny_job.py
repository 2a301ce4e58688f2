"""A tiny job, and an engine that runs it without Spark, to measure what checkpoints alone cost.

Each epoch has ten rows. They go to an append table, and a count by key goes to an upsert table. This process writes the
files. The protocol, the stores and the Delta commits are the real ones.
"""

import time
from typing import Final

import pyarrow as pa

from checkpointing.channel_items import RangeFiles
from checkpointing.config import CheckpointConfig
from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName
from checkpointing.key_groups import range_of
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.paths import ProtocolPaths
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan, arrow_schema
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.state.backend import state_file_schema
from jobs.storage.address import Root
from tidemark import Pipeline, count

ROWS: Final = 10
"""Rows in an epoch."""


def pipeline(epochs: int) -> Pipeline:
    """Return a job with this many epochs. It writes numbers to one table, and their count by key to another table."""
    config = CheckpointConfig(every_rows=ROWS, slice_rows_max=ROWS, retained=3)
    tiny = Pipeline("tiny", config=config, parallelism=1)
    numbers = tiny.source("numbers", SequenceSource({"all": ROWS * epochs}, keys=ROWS)).table(
        "bronze/numbers", id="bronze"
    )
    numbers.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    return tiny


class TinyEngine:
    """Answers each micro-batch with files that have the right number of rows. Their values do not matter."""

    def __init__(self, *, lasts_s: float = 0.0) -> None:
        """Take this long for each micro-batch."""
        self._lasts_s = lasts_s

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        """Write the files of one micro-batch."""
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        match plan.spec:
            case StatelessSpec() as spec:
                outputs = (_stateless(spec, writer),)
            case KeyedSpec() as spec:
                outputs = tuple(_keyed(spec, effect, writer, subtask) for subtask in range(spec.parallelism))
        time.sleep(self._lasts_s)
        return MicroBatchFinished(effect.vertex, effect.micro_batch, outputs, duration_ms=1)

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def _stateless(spec: StatelessSpec, writer: StagedFiles) -> SubtaskOutput:
    tables = [table for table in (spec.table, spec.quarantine) if table is not None]
    staged = tuple((table.name, writer.write(table.name, _rows(arrow_schema(table.schema)))) for table in tables)
    return SubtaskOutput(emitted=tuple(file for _, file in staged[:1]), staged=staged)


def _keyed(spec: KeyedSpec, effect: RunMicroBatch, writer: StagedFiles, subtask: int) -> SubtaskOutput:
    table = spec.table
    if table is None:
        raise TypeError(f"vertex {spec.vertex} has no table")
    own = range_of(subtask=subtask, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    version = Version(Generation(effect.generation), effect.micro_batch)
    state_schema = state_file_schema(arrow_schema(spec.state), spec.keys)
    state = writer.write(ProtocolPaths(writer.job).state_table(spec.vertex), _rows(state_schema))
    kept = (KeyedFile(state, KeyedFileKind.BASE, own.first, own.last, version),)
    file = writer.write(table.name, _rows(arrow_schema(table.schema)))
    if table.mode is TableMode.APPEND:
        return SubtaskOutput(emitted=(file,), staged=((table.name, file),), state=kept)
    shown = KeyedFile(file, KeyedFileKind.BASE, own.first, own.last, version)
    return SubtaskOutput(state=kept, ranges=(RangeFiles(table.name, (shown,)),))


def _rows(schema: pa.Schema) -> pa.Table:
    """Return rows of nulls, which fit every schema."""
    return pa.table([pa.nulls(ROWS, field.type) for field in schema], schema=schema)
