"""Tests keyed state from tick to tick on real Spark: its columns change (D6), and its backend changes (D2)."""

import datetime as dt
import math
import random
import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DataType, IntegerType, LongType, ShortType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.graph import TableMode
from checkpointing.identifiers import JobName, VertexId, table_name, vertex_id
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths, table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.key_hash import can_hash, key_groups
from jobs.operators.process import Processed
from jobs.operators.spec import RowRule, StagedTable, StatelessSpec, quarantine_schema
from jobs.operators.ways_to_read import may_scan
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.plain_expressions import plain_condition
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.operators.test_keyed_vertex import counted

pytestmark = pytest.mark.spark

JOB = JobName("remembering")
STATE = table_of_state(JOB, VertexId("counts"))
KEYS = 8


@dataclass(frozen=True, slots=True)
class Remember:
    """Counts the rows of each key, and writes the text `says` beside the count."""

    says: str

    def process(self, inputs, state):
        (text,) = [name for name in state.columns if name not in ("key", "n")]
        counted = inputs[0].group_by("key").agg(pl.len().cast(pl.Int64).alias("more"))
        both = counted.join(state, on="key", how="left").with_columns(pl.col("n").cast(pl.Int64).fill_null(0))
        new = both.select("key", n=pl.col("n") + pl.col("more"), **{text: pl.lit(self.says)})
        return Processed(state=new.cast({"n": state.schema["n"]}), output=new.select("key", "n"))


def job(rows: int, count: DataType, text: str, **config: object) -> JobPlan:
    pipeline = Pipeline(JOB, parallelism=2)
    state = StructType().add("n", count).add(text, StringType())
    output = StructType().add("key", LongType()).add("n", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).key_by("key")
    numbers.process("counts", Remember(text), state=state, output=output).upsert("gold/counts")
    return plan(pipeline, config=CheckpointConfig(retained=3, **config))


def tick(spark, root: Path, planned: JobPlan) -> None:
    report = run_tick(planned, RuntimeSettings(warehouse=root), spark=spark)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)


def counts(rows: int) -> list[tuple[int, int]]:
    return [(key, len(range(key, rows, KEYS))) for key in range(KEYS)]


def shown(root: Path) -> list[tuple[int, int]]:
    return sorted(pl.read_delta(str(root / "gold/counts")).select("key", "n").rows())


def newest_row(root: Path) -> CheckpointRecord:
    seen = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).observe()
    return max((row for row in seen.rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def state_files(root: Path) -> list:
    (vertex,) = [was for was in newest_row(root).vertices if was.vertex == "counts"]
    return [keyed.file for snapshot in vertex.subtasks for keyed in snapshot.state]


def test_state_takes_a_widened_an_added_and_a_dropped_column(spark, tmp_path):
    """At the next checkpoint, the table and all files have the new columns, even files of a subtask that got no row.

    The old cut keeps its columns.
    """
    tick(spark, tmp_path, job(64, IntegerType(), "first"))
    old = DeltaTable(str(tmp_path / STATE))
    tick(spark, tmp_path, job(65, LongType(), "second"))
    new = DeltaTable(str(tmp_path / STATE))
    expected = {"_key_group": "integer", "key": "long", "n": "long", "second": "string", "_deleted": "boolean"}
    assert expected == {field.name: field.type.type for field in new.schema().fields}
    footers = [pq.read_schema(tmp_path / file.path).names for file in state_files(tmp_path)]
    assert [["_key_group", "key", "n", "second", "_deleted"]] * 2 == footers
    texts = [(0, 9, "second"), *[(key, 8, None) for key in range(1, KEYS)]]
    wanted = ["key", "n", "second"]
    assert texts == sorted(pl.read_delta(str(tmp_path / STATE)).select(wanted).rows())
    assert counts(65) == shown(tmp_path)
    then = pl.read_delta(str(tmp_path / STATE), version=old.version())
    assert [(key, 8, "first") for key in range(KEYS)] == sorted(then.select("key", "n", "first").rows())
    assert pl.Int32 == then.schema["n"]


def test_a_narrowed_column_is_refused_before_the_claim(spark, tmp_path):
    """The error names checkpoint, operator, column and the way out. The job stays as it was."""
    tick(spark, tmp_path, job(16, IntegerType(), "first"))
    before = newest_row(tmp_path), DeltaTable(str(tmp_path / "_tidemark/remembering/checkpoints")).version()
    says = r"checkpoint \d+: state of operator 'counts': column n was int and is now smallint.*keep int"
    with pytest.raises(CutDoesNotFitError, match=says):
        run_tick(job(17, ShortType(), "first"), RuntimeSettings(warehouse=tmp_path), spark=spark)
    assert before == (newest_row(tmp_path), DeltaTable(str(tmp_path / "_tidemark/remembering/checkpoints")).version())
    tick(spark, tmp_path, job(17, IntegerType(), "first"))
    assert counts(17) == shown(tmp_path)


def test_every_backend_gives_the_same_results_and_reads_the_others_files(spark, tmp_path):
    """Each tick uses another backend than the one before.

    The table and the state table show the same rows as with a single backend. The backend decides whether the state
    lies in the entry, is written whole, or shares files with the checkpoint before. If a subtask's state did not
    change, even `full` shares its file (D2).
    """
    for turn, used in enumerate(["incremental", "memory", "full", "incremental"]):
        rows = 20 + 11 * turn
        tick(spark, tmp_path, job(rows, LongType(), "says", state_backend=used))
        assert counts(rows) == shown(tmp_path)
        newest = pl.read_delta(str(tmp_path / STATE)).group_by("key").agg(pl.col("n").max())
        assert counts(rows) == sorted(newest.rows())
        carried = [bool(file.inline) for file in state_files(tmp_path)]
        assert carried == [used == "memory"] * len(carried)
        before = {file.path for file in state_files(tmp_path)}
        if used != "memory":  # one more row changes the state of one subtask, and the other one's file is shared
            tick(spark, tmp_path, job(rows + 1, LongType(), "says", state_backend=used))
            after = [file.path for file in state_files(tmp_path)]
            assert before & {*after}
            assert used == "incremental" or 2 == len(after)


def test_a_state_too_large_for_the_entry_ends_the_tick_by_name(spark, tmp_path):
    """The memory backend declines the checkpoint, and names operator, limit and way out. Nothing is published."""
    small = job(20, LongType(), "says", state_backend="memory", memory_state_bytes_max=100)
    report = run_tick(small, RuntimeSettings(warehouse=tmp_path), spark=spark)
    assert TickOutcome.FAILED is report.outcome
    assert "operator counts: the state of one subtask takes" in report.message
    assert "memory_state_bytes_max allows 100" in report.message
    assert "set state_backend to incremental" in report.message
    tick(spark, tmp_path, job(20, LongType(), "says"))
    assert counts(20) == shown(tmp_path)


# ------------------------------------------------------------------
# Tests renamed columns of a process function on real Spark, also at another parallelism (G2).


@dataclass(frozen=True, slots=True)
class Count:
    """Counts the rows of each key, in the column `name`."""

    name: str

    def process(self, inputs, state):
        more = inputs[0].group_by("key").agg(pl.len().cast(state.schema[self.name]).alias("more"))
        both = more.join(state, on="key", how="left").with_columns(pl.col(self.name).fill_null(0))
        new = both.select("key", (pl.col(self.name) + pl.col("more")).alias(self.name))
        return Processed(state=new, output=new.cast({self.name: pl.Int64}))


def tick_of_renamed_columns_on_spark(spark, root, rows, name, *, parallelism, kind, renamed):
    pipeline = Pipeline(JOB, parallelism=parallelism)
    state, output = StructType().add(name, kind), StructType().add("key", LongType()).add(name, LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).key_by("key")
    counted = numbers.process("counts", Count(name), state=state, output=output, columns_renamed_from=renamed)
    counted.upsert("gold/counts")
    report = run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)


def test_columns_are_renamed_while_their_files_move_to_other_subtasks(spark, tmp_path):
    """Every file of the table goes through the exchange with the new column name. The state's type also becomes wider.

    A single row is read in the tick of the rename, so most keys keep their values. The next tick still declares the
    rename.
    """
    tick_of_renamed_columns_on_spark(spark, tmp_path, 40, "n", parallelism=2, kind=IntegerType(), renamed={})
    for rows in (41, 42):
        tick_of_renamed_columns_on_spark(
            spark, tmp_path, rows, "total", parallelism=3, kind=LongType(), renamed={"total": "n"}
        )
        cut = Cuts(tmp_path, JOB).latest()
        counts = [(key, len(range(key, rows, KEYS))) for key in range(KEYS)]
        assert counts == sorted(cut.polars("gold/counts").select("key", "total").collect().rows())
        assert counts == sorted(cut.state("counts").polars().select("key", "total").collect().rows())


# ------------------------------------------------------------------
# Tests that our hash of keys is Spark's, for values of all types that it takes.


CONTEXT = Context(prec=38)
ROWS = 2_000
GROUPS = 32_768
"""With the largest number of key groups, the test compares the most bits of a hash."""


def numbers(draw, bits):
    most = 2 ** (bits - 1)
    return [-most, -1, 0, 1, most - 1] + [draw.randrange(-most, most) for _ in range(ROWS - 5)]


def floats(draw, form, bits):
    """Return numbers with random bits, and also infinities, NaN and both zeros."""
    whole = {2: "H", 4: "I", 8: "Q"}[bits // 8]
    made = [struct.unpack(form, struct.pack(whole, draw.getrandbits(bits)))[0] for _ in range(ROWS - 5)]
    return [0.0, -0.0, math.nan, math.inf, -math.inf, *made]


def texts(draw):
    """Return texts of any length modulo 4, with characters of one to four bytes."""
    letters = "ab0é€\U0001f600\x00\xff"
    return ["", "abcd"] + ["".join(draw.choices(letters, k=draw.randrange(40))) for _ in range(ROWS - 2)]


def decimals(draw, digits, scale):
    most = 10**digits - 1
    edges = [sign * (2**bits + more) for bits in range(0, 127, 8) for sign in (1, -1) for more in (-1, 0, 1)]
    edges += [sign * (2 ** (bits - 1) + more) for bits in range(8, 127, 8) for sign in (1, -1) for more in (-1, 0, 1)]
    some = [each for each in (0, most, -most, *edges) if abs(each) <= most]
    made = [draw.choice([1, -1]) * draw.randrange(10 ** draw.randrange(1, digits + 1)) for _ in range(ROWS)]
    return pa.array(
        [Decimal(each).scaleb(-scale, CONTEXT) for each in (*some, *made)][:ROWS], pa.decimal128(digits, scale)
    )


def columns():
    draw = random.Random(7)  # noqa: S311 - reproducible rows, no secret
    moments = [draw.randrange(-(10**17), 10**17) for _ in range(ROWS)]
    made = {
        "boolean": pa.array([draw.random() < 0.5 for _ in range(ROWS)]),
        "byte": pa.array(numbers(draw, 8), pa.int8()),
        "short": pa.array(numbers(draw, 16), pa.int16()),
        "int": pa.array(numbers(draw, 32), pa.int32()),
        "long": pa.array(numbers(draw, 64), pa.int64()),
        "float": pa.array(floats(draw, "f", 32), pa.float32()),
        "double": pa.array(floats(draw, "d", 64), pa.float64()),
        "text": pa.array(texts(draw)),
        "bytes": pa.array([draw.randbytes(draw.randrange(20)) for _ in range(ROWS)]),
        "date": pa.array([dt.date(1583, 1, 1) + dt.timedelta(draw.randrange(10**6)) for _ in range(ROWS)]),
        "moment": pa.array(moments, pa.timestamp("us", "UTC")),
        "moment_without_zone": pa.array(moments, pa.timestamp("us")),
        "price": decimals(draw, 9, 2),
        "long_price": decimals(draw, 18, 0),
        "longer_price": decimals(draw, 19, 4),
        "longest_price": decimals(draw, 38, 18),
    }
    some = pa.array([draw.random() < 0.1 for _ in range(ROWS)])
    return {name: pc.if_else(some, pa.nulls(ROWS, column.type), column) for name, column in made.items()}


def test_each_type_and_all_together_hash_as_in_spark(spark):
    """A null leaves the hash as it is, and the hash of one column is the seed of the next."""
    made = columns()
    rows = pa.table({"number": range(ROWS), **made})
    every = ", ".join(made)
    sums = [f"pmod(hash({name}), {GROUPS}) as {name}" for name in made] + [f"pmod(hash({every}), {GROUPS}) as every"]
    theirs = spark.createDataFrame(rows).selectExpr("number", *sums).toArrow().sort_by("number")
    for name, column in made.items():
        assert key_groups([column], GROUPS).to_pylist() == theirs.column(name).to_pylist(), name
        assert can_hash(column.type)
    assert key_groups(list(made.values()), GROUPS).to_pylist() == theirs.column("every").to_pylist()


@pytest.mark.parametrize("rows", [9, 300])
def test_long_keys_hash_as_in_spark(spark, rows):
    """A few long keys are hashed one by one, many together word by word. A key of a megabyte takes no second."""
    draw = random.Random(rows)  # noqa: S311 - reproducible rows, no secret
    lengths = [1_000_003, *(draw.randrange(3_000) for _ in range(rows - 1))]
    keys = pa.table({"number": range(rows), "key": [draw.randbytes(length) for length in lengths]})
    theirs = spark.createDataFrame(keys).selectExpr("number", f"pmod(hash(key), {GROUPS}) as key").toArrow()
    column = keys.column("key").combine_chunks()
    assert key_groups([column], GROUPS).to_pylist() == theirs.sort_by("number").column("key").to_pylist()


def test_a_part_of_a_column_hashes_as_the_whole():
    """Arrow keeps a slice of a column as an offset into the whole column's buffers."""
    for name, column in columns().items():
        assert key_groups([column.slice(7, 100)], 128) == key_groups([column], 128).slice(7, 100), name


def test_keys_of_other_types_and_rules_of_sparks_are_left_to_spark():
    """With a collation, texts of different bytes may be equal. A task judges only rules with a plain condition."""
    assert may_scan(counted(StringType()).spec, 0)
    assert not may_scan(counted(StringType("UTF8_LCASE")).spec, 0)
    assert not may_scan(counted(StructType().add("a", StringType())).spec, 0)
    known = RowRule("known", "a is not null", plain_condition("a is not null", StructType().add("a", StringType())))
    long = RowRule("long", "a > 'm'")
    assert may_scan(stateless(), 0)
    assert may_scan(stateless(known), 0)
    assert not may_scan(stateless(long), 0)
    assert not may_scan(stateless(known, long), 0)


def stateless(*rules):
    schema = StructType().add("a", StringType())
    table = StagedTable(table_name("quarantine/q"), TableMode.APPEND, quarantine_schema(schema))
    return StatelessSpec(vertex=vertex_id("v"), schema=schema, rules=rules, quarantine=table if rules else None)
