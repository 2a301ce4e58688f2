"""Tests keyed micro-batches on real Spark: aggregates into an upsert table, enriching, rescaling, damage."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.channel_items import RangeFiles
from checkpointing.graph import TableMode
from checkpointing.identifiers import JobName, table_name, vertex_id
from checkpointing.key_groups import key_group_ranges
from checkpointing.messages import SubtaskOutput, TickOutcome
from jobs.operators.aggregate import output_schema
from jobs.operators.enrich import enrich_schema
from jobs.operators.execute import MicroBatchError
from jobs.operators.keyed_vertices import aggregate_spec, enrich_spec
from jobs.operators.process import Processed
from jobs.operators.spec import InputPlan, StagedTable, TextSteps, VertexPlan, arrow_schema
from jobs.pipeline import Pipeline
from jobs.pipeline import sum_of as aggregate_sum_of
from jobs.pipeline.aggregates import count, max_of, named_aggregates, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.state.merge import KEY_GROUP
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

BATCHES_MAX = 20
"""The most micro-batches to try. With two workers and two subtasks, so many without a hit cannot be chance."""

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]

FLIGHTS = StructType(
    [StructField("carrier", StringType()), StructField("hour", TimestampType()), StructField("delay", IntegerType())]
)
AGGREGATES = named_aggregates(
    "vertex totals", ["carrier"], FLIGHTS, {"n": count(), "total": sum_of("delay"), "most": max_of("delay")}
)
TOTALS = StagedTable(
    table_name("gold/totals"), TableMode.UPSERT, output_schema(["carrier"], AGGREGATES, FLIGHTS), ("carrier",)
)
START = datetime(2013, 1, 1, 5, tzinfo=UTC)


def flights(count, seed, carriers=12):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, carriers, count)
    return pa.table(
        {
            "carrier": pa.array([None if code == 0 else f"C{code}" for code in codes], pa.string()),
            "hour": pa.array(
                [START + timedelta(hours=int(h)) for h in rng.integers(0, 6, count)], pa.timestamp("us", "UTC")
            ),
            "delay": pa.array(rng.integers(-50, 400, count), pa.int32(), mask=rng.random(count) < 0.1),
        }
    )


def totals(parallelism=2):
    spec = aggregate_spec(
        vertex=vertex_id("totals"),
        rows=FLIGHTS,
        keys=("carrier",),
        aggregates=AGGREGATES,
        parallelism=parallelism,
        max_parallelism=128,
        table=TOTALS,
        emits=False,
    )
    return VertexPlan(spec, (InputPlan(FLIGHTS),))


def by_carrier(*batches):
    rows = pl.concat([pl.from_arrow(batch) for batch in batches])
    total = pl.when(pl.col("delay").count() > 0).then(pl.col("delay").cast(pl.Int64).sum())
    return sorted(
        rows.group_by("carrier")
        .agg(pl.len().alias("n"), total.alias("total"), pl.col("delay").max().alias("most"))
        .rows(),
        key=str,
    )


def shown(vertex):
    return sorted(vertex.upserted().select("carrier", "n", "total", "most").rows(), key=str)


def test_totals_over_micro_batches_equal_those_of_all_rows_at_once(bench):
    """After each micro-batch, the ranges of an upsert table show every row so far exactly once."""
    vertex, batches = bench(totals()), []
    for seed in range(4):
        batches.append(flights(200, seed))
        vertex.run(batches[-1])
        assert by_carrier(*batches) == shown(vertex)


def test_an_untouched_subtask_writes_nothing(bench):
    """A micro-batch writes only the ranges that its rows reach. The output of the other subtask is empty."""
    vertex = bench(totals(parallelism=2))
    vertex.run(flights(300, 1))
    before = list(vertex.ranges)
    one = flights(300, 1).filter(pa.compute.equal(flights(300, 1)["carrier"], "C1"))
    outputs = vertex.run(one).outputs
    (touched,) = [index for index, output in enumerate(outputs) if output != SubtaskOutput()]
    assert before[1 - touched] == vertex.ranges[1 - touched]
    assert before[touched] != vertex.ranges[touched]


def restored(vertex, parallelism):
    ranges = key_group_ranges(parallelism=parallelism, max_parallelism=128)

    def overlap(files):
        every = list(dict.fromkeys(file for own in files for file in own))
        return [tuple(file for file in every if own.intersection(file.key_groups)) for own in ranges]

    upserts = overlap([[file for entry in own for file in entry.files] for own in vertex.ranges])
    return {
        "state": overlap(vertex.state),
        "ranges": [(RangeFiles(TOTALS.name, files),) for files in upserts],
        "micro_batch": vertex.micro_batch,
    }


def test_rescaling_from_two_to_three_to_one_keeps_every_row_once(bench):
    """A subtask skips state of other key ranges. The first micro-batch rewrites the table's files that fit no range."""
    vertex, batches = bench(totals(2)), [flights(200, 1), flights(200, 2)]
    for batch in batches:
        vertex.run(batch)
    for parallelism in (3, 1):
        vertex = bench(totals(parallelism), **restored(vertex, parallelism))
        batches.append(flights(20, parallelism, carriers=3))
        vertex.run(batches[-1])
        assert by_carrier(*batches) == shown(vertex)
        fitting = key_group_ranges(parallelism=parallelism, max_parallelism=128)
        for own, ranges in zip(fitting, vertex.ranges, strict=True):
            assert {own} >= {file.key_groups for entry in ranges for file in entry.files}


def test_a_missing_state_file_fails_the_micro_batch_by_name(bench):
    """A fresh worker needs the file. The message says which operator's file it is, and what to do."""
    vertex = bench(totals(1))
    vertex.run(flights(50, 1))
    (file,) = vertex.state[0]
    renamed = replace(file, file=replace(file.file, path=file.file.path.replace("totals-1-", "totals-9-")))
    vertex.state[0] = (renamed,)
    with pytest.raises(MicroBatchError, match=r"StateFileError: operator totals: file .*totals-9-.* is missing"):
        vertex.run(flights(50, 2))


def test_two_vertices_may_run_at_once(bench):
    """The driver's pool runs micro-batches of several vertices on one session. Each gets its own rows."""
    vertices = [bench(totals(parallelism)) for parallelism in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda vertex: [vertex.run(flights(100, seed)) for seed in range(2)], vertices))
    assert [by_carrier(flights(100, 0), flights(100, 1))] * 2 == [shown(vertex) for vertex in vertices]


WEATHER = StructType(
    [StructField("airline", StringType()), StructField("time_hour", TimestampType()), StructField("temp", DoubleType())]
)
ENRICHED = StagedTable(table_name("silver/flights"), TableMode.APPEND, enrich_schema(FLIGHTS, WEATHER, ["temp"]))


def enriched():
    spec = enrich_spec(
        vertex=vertex_id("silver"),
        left=FLIGHTS,
        right=WEATHER,
        keys=("carrier", "hour"),
        right_keys=("airline", "time_hour"),
        columns=("temp",),
        parallelism=2,
        max_parallelism=128,
        table=ENRICHED,
    )
    return VertexPlan(spec, (InputPlan(FLIGHTS), InputPlan(WEATHER)))


def weather(hours):
    rows = [(f"C{code}", hour) for code in range(1, 12) for hour in hours]
    return pa.table(
        {
            "airline": pa.array([code for code, _ in rows], pa.string()),
            "time_hour": pa.array([START + timedelta(hours=hour) for _, hour in rows], pa.timestamp("us", "UTC")),
            "temp": pa.array([None if hour == 3 else float(hour) for _, hour in rows], pa.float64()),
        }
    )


def test_a_flight_goes_on_once_its_weather_is_known_in_any_order_of_arrival(bench):
    """A flight waits in the state until its weather comes. A flight without a carrier waits for ever.

    A flight that comes after its weather is emitted at once. The files that the vertex emits are the files that it
    staged.
    """
    vertex, sent, out = bench(enriched()), [], []
    for number, (rows, hours) in enumerate([(200, [0, 1]), (200, None), (None, [2, 3]), (100, [4])]):
        left = None if rows is None else flights(rows, number)
        sent += [] if left is None else [left]
        done = vertex.run(left, None if hours is None else weather(hours))
        for output in done.outputs:
            assert output.emitted == tuple(file for _, file in output.staged)
            out += output.emitted
    every = pl.concat([pl.from_arrow(batch) for batch in sent])
    known = every.filter(pl.col("carrier").is_not_null() & (pl.col("hour") < START + timedelta(hours=5)))
    elapsed = (pl.col("hour") - START).dt.total_hours()
    expected = known.with_columns(pl.when(elapsed != 3).then(elapsed.cast(pl.Float64)).alias("temp"))
    assert sorted(expected.rows(), key=str) == sorted(vertex.read(out).rows(), key=str)
    assert {table for output in done.outputs for table, _ in output.staged} == {ENRICHED.name}


def test_waiting_flights_go_on_without_weather_when_the_input_ends(bench):
    """Every subtask emits all its waiting flights with nulls (F4). Weather that comes later is ignored."""
    vertex = bench(enriched())
    sent = flights(60, 1)
    vertex.run(sent, weather([0]))
    done = vertex.run(None, None, end=True)
    assert [True, True] == [bool(output.staged) for output in done.outputs]
    early = pl.from_arrow(sent).filter((pl.col("hour") != START) | pl.col("carrier").is_null())
    released = vertex.read(file for output in done.outputs for file in output.emitted)
    assert sorted(early.with_columns(temp=pl.lit(None, pl.Float64)).rows(), key=str) == sorted(released.rows(), key=str)
    assert [()] * 2 == [output.emitted for output in vertex.run(None, weather([1, 2])).outputs]


PRICES = StructType(
    [StructField("item", StringType()), StructField("at", LongType()), StructField("price", DoubleType())]
)
SALES = StructType([StructField("item", StringType()), StructField("n", LongType())])


def priced(parallelism):
    spec = enrich_spec(
        vertex=vertex_id("priced"),
        left=SALES,
        right=PRICES,
        keys=("item",),
        right_keys=("item",),
        columns=("price",),
        latest_by="at",
        parallelism=parallelism,
        max_parallelism=128,
    )
    return VertexPlan(spec, (InputPlan(SALES), InputPlan(PRICES)))


def rows_of(schema, *rows):
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], arrow_schema(schema))


def test_the_latest_price_outlives_rescaling_and_a_drain(bench):
    """After rescaling, after late rows and after the end of input, a sale gets the price with the greatest time."""
    names = [f"i{number}" for number in range(9)]
    vertex = bench(priced(2))
    vertex.run(None, rows_of(PRICES, *[(name, 5, 5.0) for name in names]))
    vertex.run(rows_of(SALES, ("unknown", 0)), rows_of(PRICES, *[(name, 3, 3.0) for name in names[:4]]))
    for turn, (parallelism, end) in enumerate([(3, False), (1, True), (2, False)]):
        vertex = bench(priced(parallelism), **restored(vertex, parallelism))
        later = [(name, 6 + turn, 6.0 + turn) for name in names[turn::3]]
        vertex.run(None, rows_of(PRICES, *later, (names[0], 1, 1.0)), end=end)
    done = vertex.run(rows_of(SALES, *[(name, n) for n, name in enumerate(names)]), None)
    out = vertex.read(file for output in done.outputs for file in output.emitted).sort("n")
    assert ["item", "n", "price"] == out.columns
    assert [6.0, 7.0, 8.0] * 3 == out["price"].to_list()


def test_an_end_of_input_reaches_a_subtask_without_rows(bench):
    """The last rows belong to one key. The other subtask gets no row, but holds state, so it runs too."""
    vertex = bench(enriched())
    vertex.run(flights(60, 1), None)
    last = flights(60, 2).filter(pa.compute.equal(flights(60, 2)["carrier"], "C1")).slice(0, 1)
    done = vertex.run(last, weather([0]), end=True)
    out = [file for output in done.outputs for file in output.emitted]
    assert 61 == vertex.read(out).height
    assert [True, True] == [bool(output.state) for output in done.outputs]


def test_a_run_counts_how_often_its_workers_held_their_state(bench, each_way):
    """Each load of a range that has state files counts as a hit, as behind, or as a miss (D5).

    A worker soon loads the same range again, which is a hit. With `one task` there may be no hit: Spark uses its idle
    workers in turn, so another worker has rewritten this small state in between.
    """
    vertex, batches = bench(totals(2)), []
    while not vertex.copies.hits and len(batches) < BATCHES_MAX:
        batches.append(flights(100, len(batches)))
        vertex.run(batches[-1])
    assert 0 < vertex.copies.hits or each_way == "one task"
    assert 2 * (len(batches) - 1) == vertex.copies.hits + vertex.copies.behind + vertex.copies.misses
    assert by_carrier(*batches) == shown(vertex)


# ------------------------------------------------------------------
# Tests a keyed function that emits a row under another subtask's key: no upsert table shows a key twice.


ALL = -1


@dataclass(frozen=True, slots=True)
class WithTotal:
    """Counts the rows of each key. It also emits one row for all keys together, under a key of its own."""

    def process(self, inputs, state):
        known = state.select("key", before="n")
        counted = inputs[0].group_by("key").agg(pl.len().cast(pl.Int64).alias("more")).join(known, on="key", how="left")
        new = counted.select("key", n=pl.col("more") + pl.col("before").fill_null(0))
        total = new.select(pl.lit(ALL, dtype=pl.Int64).alias("key"), pl.col("n").sum())
        return Processed(new, pl.concat([new, total]))


def tick(spark, root, function, parallelism):
    pipeline = Pipeline(JobName("totals"), parallelism=parallelism)
    counts = StructType().add("n", LongType())
    output = StructType().add("key", LongType()).add("n", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": 40}, keys=8)).key_by("key")
    numbers.process("counts", function, state=counts, output=output).upsert("gold/counts")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)


def test_a_row_under_a_foreign_key_fails_the_tick_and_nothing_is_visible(spark, tmp_path):
    """With two subtasks there would be two rows for ALL. The message names vertex, key and the way out."""
    report = tick(spark, tmp_path, WithTotal(), 2)
    assert TickOutcome.FAILED is report.outcome
    assert "vertex counts: its function emitted a row with the key key=-1" in report.message
    assert "key the stream by the table's keys" in report.message
    assert () == report.completed
    assert 0 == pl.read_delta(str(tmp_path / "gold/counts")).height


# ------------------------------------------------------------------
# Tests on real Spark that keys of every type keep their key group, whichever way their rows come.


GROUPS = 128
MOMENTS = [dt.datetime(year, 2, 3, 4, 5, 6, 789_012, tzinfo=dt.UTC) for year in (1583, 1969, 2013, 9999)]
KEYS = {
    "boolean": (BooleanType(), [True, False]),
    "byte": (ByteType(), [-128, 0, 127]),
    "short": (ShortType(), [-(2**15), 0, 2**15 - 1]),
    "integer": (IntegerType(), [-(2**31), 0, 2**31 - 1]),
    "long": (LongType(), [-(2**63), -1, 0, 2**40, 2**63 - 1]),
    "float": (FloatType(), [-1.5, 0.0, 3.25, float("inf")]),
    "double": (DoubleType(), [-1.5, 0.0, 1e300, float("-inf")]),
    "string": (StringType(), ["", "a", "abcd", "abcde", "Zürich", "\U0001f600", "x" * 1_000]),
    "binary": (BinaryType(), [b"", b"\x00", b"\xff\xfe", b"abcdefgh", b"123456789"]),
    "short decimal": (DecimalType(9, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("9999999.99")]),
    "long decimal": (DecimalType(38, 4), [Decimal("-1.2500"), Decimal("0.0001"), Decimal(10) ** 33]),
    "date": (DateType(), [dt.date(1583, 1, 1), dt.date(1969, 12, 31), dt.date(2013, 7, 1)]),
    "timestamp": (TimestampType(), MOMENTS),
    "timestamp without zone": (TimestampNTZType(), [moment.replace(tzinfo=None) for moment in MOMENTS]),
    "array": (ArrayType(LongType()), [[], [1], [1, None, 3]]),
    "struct": (StructType().add("a", LongType()).add("b", StringType()), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
}


def counted(kind, chain=None):
    rows = StructType().add("k", kind).add("n", LongType())
    spec = aggregate_spec(
        vertex=vertex_id("counts"),
        rows=rows,
        keys=("k",),
        aggregates=named_aggregates("vertex counts", ["k"], rows, {"rows": count()}),
        parallelism=2,
        max_parallelism=GROUPS,
    )
    return VertexPlan(spec, (InputPlan(rows, chain=chain),))


def through_expressions(rows):
    return rows.withColumn("n", F.col("n") + 1).filter("n > 0")


@pytest.mark.parametrize("name", KEYS)
def test_equal_keys_keep_their_key_group_and_their_count(bench, spark, name):
    """A key's group is Spark's hash of the key. Rows from files, Python steps and SQL texts meet in one state (E2)."""
    kind, values = KEYS[name]
    schema = arrow_schema(StructType().add("k", kind).add("n", LongType()))
    keys = [*values, None]
    rows = pa.table([pa.array(keys, schema.field("k").type), list(range(len(keys)))], schema=schema)
    vertex = bench(counted(kind))
    vertex.run(rows)
    vertex.plan = counted(kind, through_expressions)
    vertex.run(rows)
    vertex.plan = counted(kind, TextSteps(through_expressions, ()))
    vertex.run(rows)
    outputs = vertex.run(rows).outputs
    shown = vertex.read([file for output in outputs for file in output.emitted])
    assert [4] * len(keys) == shown.get_column("rows").to_list()

    hashed = spark.createDataFrame(rows).selectExpr("n", f"pmod(hash(k), {GROUPS}) as g").collect()
    found = [vertex.read([file.file for file in own]) for own in vertex.state if own]
    assert sorted({row["g"] for row in hashed}) == sorted(pl.concat(found).get_column(KEY_GROUP).unique())
    ranges = key_group_ranges(parallelism=2, max_parallelism=GROUPS)
    for own, files in zip(ranges, vertex.state, strict=True):
        groups = [group for file in files for group in vertex.read([file.file]).get_column(KEY_GROUP)]
        assert all(own.first <= group <= own.last for group in groups)


# ------------------------------------------------------------------
# Tests the way out that an overflowing sum names: the job goes on with a wider type, and no row is lost.


STEP = 2**60
"""The multiples 0 to 4 of this value add up to more than a bigint holds. The multiples 0 to 3 do not."""


def summing_tick(spark, root, rows, kind=None):
    pipeline = Pipeline(JobName("sums"))
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, step=STEP))
    summed = numbers if kind is None else numbers.with_column("value", "value", kind)
    summed.key_by("key").aggregate("sums", total=aggregate_sum_of("value")).upsert("gold/sums")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)


def total(root):
    return pl.read_delta(str(root / "gold/sums"))["total"].to_list()


def test_a_sum_that_is_too_large_for_bigint_goes_on_as_a_decimal(spark, tmp_path):
    """The failed tick publishes nothing. With the cast that its message names, the next tick counts each row once."""
    assert TickOutcome.CAUGHT_UP is summing_tick(spark, tmp_path, 4).outcome
    failed = summing_tick(spark, tmp_path, 5)
    assert TickOutcome.FAILED is failed.outcome
    assert "vertex sums failed: SumOverflowError: column total" in failed.message
    assert "cast value to decimal(38,0) before the aggregate" in failed.message
    assert [6 * STEP] == total(tmp_path)
    wider = summing_tick(spark, tmp_path, 5, DecimalType(38, 0))
    assert (TickOutcome.CAUGHT_UP, "") == (wider.outcome, wider.message)
    assert [10 * STEP] == [int(value) for value in total(tmp_path)]


@pytest.mark.parametrize(
    ("kind", "value"), [(LongType(), 2**63 - 1), (DecimalType(38, 0), Decimal("9" * 38))], ids=["bigint", "decimal"]
)
def test_a_sum_that_spark_refuses_is_refused_with_the_vertex_named(bench, spark, kind, value):
    """Spark refuses the sum over both rows. Here the second micro-batch fails, and changes neither state nor table."""
    schema = StructType([StructField("k", StringType()), StructField("v", kind)])
    one = pa.table({"k": ["a"], "v": [value]}, schema=arrow_schema(schema))
    with pytest.raises(PySparkException, match=r"overflow|OVERFLOW|OUT_OF_RANGE"):
        spark.createDataFrame(pa.concat_tables([one, one]).to_pylist(), schema).groupBy("k").sum("v").collect()
    sums = named_aggregates("vertex totals", ["k"], schema, {"sum_v": sum_of("v")})
    spec = aggregate_spec(
        vertex=vertex_id("totals"), rows=schema, keys=("k",), aggregates=sums, parallelism=2, max_parallelism=128
    )
    table = StagedTable(table_name("gold/totals"), TableMode.UPSERT, spec.output, ("k",))
    vertex = bench(VertexPlan(replace(spec, table=table, emits=False), (InputPlan(schema),)))
    vertex.run(one)
    before = list(vertex.state), list(vertex.ranges)
    with pytest.raises(MicroBatchError, match="vertex totals failed: SumOverflowError: column sum_v: the sum of v for"):
        vertex.run(one)
    assert before == (vertex.state, vertex.ranges)
    assert [("a", value)] == vertex.upserted().select("k", "sum_v").rows()
