"""A small pipeline in which every kind of effect occurs, and an engine that runs it without Spark.

Orders go to bronze, and those of one key in seven also to quarantine. The other orders wait for the rate of their key.
The rates come over several epochs. An order with its rate goes to silver, which a suite judges, and is counted in gold.
Wherever the epochs end, each cut has only one right content: `expected_cut` computes it from bronze alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import Generation, JobName, TableName
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch
from jobs.operators.exchange import SUBTASK, Splitter
from jobs.operators.execute import result_of
from jobs.operators.keyed_job import _task as keyed_task
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.spec import FAILED, KeyedSpec, StatelessSpec, VertexPlan, arrow_schema
from jobs.operators.stateless_job import _task as stateless_task
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.state.merge import KEY_GROUP

JOB = JobName("orders")
ORDERS, RATES = TableName("bronze/orders"), TableName("bronze/rates")
QUARANTINE, SILVER, GOLD = TableName("quarantine/orders"), TableName("silver/orders"), TableName("gold/by_key")
TABLES = (ORDERS, RATES, QUARANTINE, SILVER, GOLD)

KEYS = 7
GOOD_KEY_MAX = 5
RATED_KEYS = 5
ROWS = {"a": 60, "b": 60}
CONFIG = CheckpointConfig(every_rows=40, rows_of=("orders",), slice_rows_max=10, micro_batch_rows_max=20, retained=2)

Rows = list[tuple[object, ...]]


def build(config: CheckpointConfig = CONFIG, rows: Mapping[str, int] | None = None) -> JobPlan:
    """Return the planned pipeline. At its end, orders of key 5 still wait for a rate, which never comes."""
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    orders = (
        pipeline.source("orders", SequenceSource(rows or ROWS, keys=KEYS))
        .table(ORDERS, id="bronze_orders")
        .check_rows(
            Expectation("expect_column_values_to_be_between", {"column": "key", "max_value": GOOD_KEY_MAX}),
            quarantine=QUARANTINE,
        )
    )
    rates = pipeline.source("rates", SequenceSource({"r": RATED_KEYS}, keys=KEYS, step=10), rows_per_epoch=2).table(
        RATES, id="bronze_rates"
    )
    silver = (
        orders.drop(SPLIT_COLUMN, POSITION_COLUMN)
        .key_by("key")
        .connect(rates.with_column("rate", "value", LongType()).key_by("key"))
        .enrich("silver_orders", "rate")
        .table(SILVER)
        .expect(Expectation("expect_column_values_to_be_between", {"column": "rate", "min_value": 0}), suite="rated")
    )
    silver.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return plan(pipeline)


def expected_cut(orders: pl.DataFrame, rates: pl.DataFrame) -> dict[TableName, Rows]:
    good = orders.filter(pl.col("key") <= GOOD_KEY_MAX).select("split", "n", "key", "value")
    silver = good.join(rates.select("key", rate="value"), on="key")
    gold = silver.group_by("key").agg(pl.len().cast(pl.Int64), pl.sum("value"))
    quarantine = orders.filter(pl.col("key") > GOOD_KEY_MAX).select("split", "n")
    return {QUARANTINE: sorted(quarantine.rows()), SILVER: sorted(silver.rows()), GOLD: sorted(gold.rows())}


class LocalEngine:
    """Runs the real tasks in this process, and writes the same files as Spark. Polars reads and exchanges the rows.

    Only the hash that gives a key its key group differs from Spark's. So all ticks of a warehouse use one engine.
    """

    def run(self, planned: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        reports = _reports(planned, effect, writer)
        return result_of(planned, effect, reports, duration_ms=1)

    def close(self) -> None:
        """Do nothing, because nothing was opened."""


def _reports(planned: VertexPlan, effect: RunMicroBatch, writer: StagedFiles) -> Iterable[TaskReport]:
    inputs = {entry.input: _input(effect.vertex, entry, Path(writer.root)) for entry in effect.inputs if entry.segments}
    match planned.spec:
        case StatelessSpec() as spec:
            batches = stateless_task(spec, writer).run(iter(_checked(spec, inputs[0]).to_batches()))
        case KeyedSpec() as spec:
            batches = _keyed(spec, effect, writer, inputs)
    return [report_from(text) for batch in batches for text in batch.column(0).to_pylist()]


def _keyed(
    spec: KeyedSpec, effect: RunMicroBatch, writer: StagedFiles, inputs: Mapping[int, pl.DataFrame]
) -> Iterator[pa.RecordBatch]:
    task = keyed_task(spec, effect, writer)
    sent = [batch for tag, rows in inputs.items() for batch in _sent(spec, tag, rows)]
    for subtask in range(spec.parallelism):
        yield from task.carry_out(subtask, (batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in sent))


def _sent(spec: KeyedSpec, tag: int, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    keyed = spec.inputs[tag]
    schema = arrow_schema(keyed.schema)
    group = (pl.col(keyed.keys[0]) * 37 % spec.max_parallelism).cast(pl.Int32)
    grouped = rows.select(group.alias(KEY_GROUP), *schema.names).to_arrow()
    splitter = Splitter(tag=tag, schema=schema, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    return splitter.run(grouped.to_batches())


def _checked(spec: StatelessSpec, rows: pl.DataFrame) -> pa.Table:
    schema = arrow_schema(spec.schema)
    table = rows.select(schema.names).to_arrow().cast(schema)
    if spec.quarantine is None:
        return table
    failed = [spec.rules[0].name if key > GOOD_KEY_MAX else None for key in rows.get_column("key")]
    return table.append_column(FAILED, pa.array(failed, pa.string()))


_CHAINS: Mapping[tuple[str, int], Callable[[pl.DataFrame], pl.DataFrame]] = {
    ("silver_orders", 0): lambda rows: rows.filter(pl.col("key") <= GOOD_KEY_MAX),
    ("silver_orders", 1): lambda rows: rows.with_columns(rate=pl.col("value")),
    ("kept", 0): lambda rows: rows.with_columns(amount=pl.col("value"), sum=pl.col("value")),
}
"""The steps that change rows on their way to a vertex, written in Polars: (vertex, input) -> steps."""


def _input(vertex: str, entry: InputSegments, warehouse: Path) -> pl.DataFrame:
    rows = pl.concat([_rows(segment, warehouse) for segment in entry.segments])
    return _CHAINS.get((vertex, entry.input), lambda same: same)(rows)


def _rows(segment: Segment, warehouse: Path) -> pl.DataFrame:
    if not isinstance(segment, SourceSlice):
        return pl.concat([pl.read_parquet(warehouse / file.path) for file in segment.files])
    start, end = (int(position or 0) for position in (segment.start, segment.end))
    n = pl.Series("n", range(start, end), dtype=pl.Int64)
    step = 10 if segment.source == "rates" else 1
    return pl.DataFrame([n]).select(
        pl.lit(segment.split).alias("split"),
        "n",
        (pl.col("n") % KEYS).alias("key"),
        (pl.col("n") * step).alias("value"),
        pl.lit(segment.split).alias(SPLIT_COLUMN),
        pl.col("n").alias(POSITION_COLUMN),
    )
