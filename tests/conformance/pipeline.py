"""The spec's reference pipeline as a planned job of the product: real columns, real specifications, a real source.

Each key is replaced by a label whose Spark hash lies in the key group that the reference gives the key. So the
reference's judges can read real files. The label of key k is 100 k plus a small number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, TableMode, Vertex
from checkpointing.identifiers import JobName, SplitId, TableName, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.paths import ProtocolPaths
from jobs.operators.process import Processed
from jobs.operators.spec import (
    InputPlan,
    KeyedInput,
    KeyedSpec,
    StagedTable,
    StatelessSpec,
    VertexPlan,
    arrow_schema,
    delta_columns,
)
from jobs.pipeline.job_plan import JobPlan
from jobs.sources.port import SourceError
from jobs.state.backend import state_file_schema
from spec.reference import pipeline
from spec.reference.pipeline import (
    BRONZE_ORDERS,
    BRONZE_PAYMENTS,
    JOINED,
    MAX_PARALLELISM,
    ORDERS,
    PAYMENTS,
    ROW_BYTES,
    TOTALS,
)
from spec.world import micro_batches

JOB: Final = JobName("small")
PATHS: Final = ProtocolPaths(JOB)
LABELS: Final = (2, 101, 203, 306, 401, 500)
"""The label of each key. `pmod(hash(label), 4)` is the key's key group."""

BRONZE: Final = {BRONZE_ORDERS: pipeline.ORDERS_TABLE, BRONZE_PAYMENTS: pipeline.PAYMENTS_TABLE}
STATES: Final = {PATHS.state_table(JOINED): pipeline.JOINED_STATE, PATHS.state_table(TOTALS): pipeline.TOTALS_STATE}
"""Maps the product's name of a state table to the reference's name."""


def _columns(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


_NUMBERS: Final = ArrayType(LongType())
ROW: Final = _columns("key", "row")
PAIR: Final = _columns("key", "order", "payment", "number")
TOTAL: Final = _columns("key", "count", "total")
JOIN_STATE: Final = StructType(
    [
        StructField("key", LongType()),
        StructField("orders", _NUMBERS),
        StructField("payments", _NUMBERS),
        StructField("number", LongType()),
    ]
)
SCHEMAS: Final = {
    **{table: arrow_schema(ROW) for table in BRONZE.values()},
    pipeline.JOINED_TABLE: arrow_schema(PAIR),
    pipeline.TOTALS_TABLE: arrow_schema(TOTAL),
    PATHS.state_table(JOINED): state_file_schema(arrow_schema(JOIN_STATE), ["key"]),
    PATHS.state_table(TOTALS): state_file_schema(arrow_schema(TOTAL), ["key"]),
}

TABLES: Final = {
    **dict.fromkeys(BRONZE.values(), TableMode.APPEND),
    pipeline.JOINED_TABLE: TableMode.APPEND,
    pipeline.TOTALS_TABLE: TableMode.UPSERT,
}
"""The output tables."""


def key_of_label(label: int) -> int:
    return label // 100


# ------------------------------------------------------------------ sources


@dataclass(slots=True, eq=False)
class RowSource:
    """The rows of the reference's splits, as far as they are `readable`. A `broken` source cannot be polled.

    `seen` has how many rows each split had when it was last polled.
    """

    name: VertexId
    readable: Mapping[SplitId, int]
    broken: bool = False
    seen: dict[SplitId, int] = field(default_factory=dict)

    def schema(self) -> StructType:
        return ROW

    def splits(self) -> tuple[SplitId, ...]:
        return pipeline.SPLITS[self.name]

    def poll(self, request: PollSource) -> SourceSlice | None:
        if self.broken:
            raise SourceError("a file is damaged")
        start = pipeline.rows_before(request.position)
        self.seen[request.split] = self.readable.get(request.split, 0)
        rows = min(request.max_rows, self.seen[request.split] - start)
        if rows <= 0:
            return None
        ends = (pipeline.position_before(start), pipeline.position_before(start + rows))
        return SourceSlice(self.name, request.split, *ends, "", rows, rows * ROW_BYTES)

    def seek(self, split: SplitId, position: str | None, words: str) -> str:
        del split, position
        return words

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        return spark.createDataFrame(list(rows_of(slices)), ROW)


def rows_of(slices: Sequence[SourceSlice]) -> list[tuple[int, int]]:
    return [(LABELS[pipeline.key_of(row)], row) for each in slices for row in pipeline.rows_of(each)]


# ------------------------------------------------------------------ functions


@dataclass(frozen=True, slots=True)
class Join:
    """The reference's join on frames. At the end of the input it emits the orders without payments."""

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        left, right = (sorted(frame["row"].to_list()) for frame in inputs)
        before = _held(state)
        after, pairs = micro_batches._join(before, left, right)
        return Processed(_state(before | after), _pairs(pairs))

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        before = _held(state)
        after, unmet = micro_batches._end_keys(before)
        return Processed(_state(before | after), _pairs(unmet))


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts and adds up the pairs of each key."""

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        rows = inputs[0].select(
            "key", pl.lit(1, pl.Int64).alias("count"), (pl.col("order") + pl.col("payment")).alias("total")
        )
        sums = (
            pl.concat([state, rows])
            .group_by("key", maintain_order=True)
            .agg(pl.col("count").sum(), pl.col("total").sum())
        )
        return Processed(sums, sums)


def _held(state: pl.DataFrame) -> dict[int, tuple[object, ...] | None]:
    return {
        key_of_label(label): (tuple(orders), tuple(payments), number)
        for label, orders, payments, number in state.select(JOIN_STATE.names).iter_rows()
    }


def _state(held: Mapping[int, tuple[object, ...] | None]) -> pl.DataFrame:
    rows = [(LABELS[key], list(value[0]), list(value[1]), value[2]) for key, value in held.items()]
    kinds = {"key": pl.Int64, "orders": pl.List(pl.Int64), "payments": pl.List(pl.Int64), "number": pl.Int64}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def _pairs(pairs: Sequence[tuple[int, ...]]) -> pl.DataFrame:
    rows = [(LABELS[key], *rest) for key, *rest in pairs]
    return pl.DataFrame(rows, schema=dict.fromkeys(PAIR.names, pl.Int64), orient="row")


# ------------------------------------------------------------------ the plan


def plan_of(parallelism: int, config: CheckpointConfig, sources: Mapping[VertexId, RowSource]) -> JobPlan:
    reference = pipeline.graph(parallelism)
    return JobPlan(
        job=JOB,
        graph=JobGraph(tuple(_renamed(vertex) for vertex in reference.vertices), reference.edges),
        config=config,
        vertices={
            BRONZE_ORDERS: _bronze(BRONZE_ORDERS, sources[ORDERS]),
            BRONZE_PAYMENTS: _bronze(BRONZE_PAYMENTS, sources[PAYMENTS]),
            JOINED: VertexPlan(_joined(parallelism), (InputPlan(ROW), InputPlan(ROW))),
            TOTALS: VertexPlan(_totals(parallelism), (InputPlan(PAIR),)),
        },
        sources=sources,
        table_schemas=SCHEMAS,
        suites={},
        rows_per_epoch={},
    )


def _renamed(vertex: Vertex) -> Vertex:
    state = PATHS.state_table(vertex.id)
    named = (replace(each, name=state) if each.mode is TableMode.STATE else each for each in vertex.tables)
    tables = (replace(each, columns=delta_columns(SCHEMAS[each.name])) for each in named)
    return replace(vertex, tables=tuple(tables))


def _bronze(vertex: VertexId, source: RowSource) -> VertexPlan:
    table = StagedTable(BRONZE[vertex], TableMode.APPEND, ROW)
    return VertexPlan(StatelessSpec(vertex=vertex, schema=ROW, table=table), (InputPlan(ROW, reader=source),))


def _joined(parallelism: int) -> KeyedSpec:
    return KeyedSpec(
        vertex=JOINED,
        inputs=(KeyedInput(keys=("key",), schema=ROW), KeyedInput(keys=("key",), schema=ROW)),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        function=Join(),
        state=JOIN_STATE,
        output=PAIR,
        table=StagedTable(pipeline.JOINED_TABLE, TableMode.APPEND, PAIR),
    )


def _totals(parallelism: int) -> KeyedSpec:
    return KeyedSpec(
        vertex=TOTALS,
        inputs=(KeyedInput(keys=("key",), schema=PAIR),),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        function=Sums(),
        state=TOTAL,
        output=TOTAL,
        table=StagedTable(pipeline.TOTALS_TABLE, TableMode.UPSERT, TOTAL, ("key",)),
        emits=False,
    )


def spec_name(table: TableName) -> TableName:
    return STATES.get(table, table)
