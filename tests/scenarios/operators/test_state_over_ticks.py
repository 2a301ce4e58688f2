"""Tests keyed state from tick to tick on real Spark: its columns change (D6), and its backend changes (D2)."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DataType, IntegerType, LongType, ShortType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import JobName, VertexId
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths, table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.process import Processed
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

JOB = JobName("remembering")
STATE = table_of_state(JOB, VertexId("counts"))
KEYS = 8


@dataclass(frozen=True, slots=True)
class Remember:
    """Counts rows by key and writes its own name beside the count."""

    says: str

    def process(self, inputs, state):
        """Return the counts of the touched keys. The text column is the other column of the state."""
        (text,) = [name for name in state.columns if name not in ("key", "n")]
        counted = inputs[0].group_by("key").agg(pl.len().cast(pl.Int64).alias("more"))
        both = counted.join(state, on="key", how="left").with_columns(pl.col("n").cast(pl.Int64).fill_null(0))
        new = both.select("key", n=pl.col("n") + pl.col("more"), **{text: pl.lit(self.says)})
        return Processed(state=new.cast({"n": state.schema["n"]}), output=new.select("key", "n"))


def job(rows: int, count: DataType, text: str, **config: object) -> JobPlan:
    """Return the job that counts `rows` numbers by key. Its state has the columns `count` and `text`."""
    pipeline = Pipeline(JOB, parallelism=2)
    state = StructType().add("n", count).add(text, StringType())
    output = StructType().add("key", LongType()).add("n", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).key_by("key")
    numbers.process("counts", Remember(text), state=state, output=output).upsert("gold/counts")
    return plan(pipeline, config=CheckpointConfig(retained=3, **config))


def tick(spark, root: Path, planned: JobPlan) -> None:
    """Run one tick until it is caught up."""
    report = run_tick(planned, RuntimeSettings(warehouse=root), spark=spark)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)


def counts(rows: int) -> list[tuple[int, int]]:
    """Return the counts that the table must show after so many rows."""
    return [(key, len(range(key, rows, KEYS))) for key in range(KEYS)]


def shown(root: Path) -> list[tuple[int, int]]:
    """Return the rows that the table shows."""
    return sorted(pl.read_delta(str(root / "gold/counts")).select("key", "n").rows())


def newest_row(root: Path) -> CheckpointRecord:
    """Return the newest checkpoint's entry."""
    seen = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).observe()
    return max((row for row in seen.rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def state_files(root: Path) -> list:
    """Return the handles of the newest checkpoint's state."""
    (vertex,) = [was for was in newest_row(root).vertices if was.vertex == "counts"]
    return [keyed.file for snapshot in vertex.subtasks for keyed in snapshot.state]


def test_state_takes_a_widened_an_added_and_a_dropped_column(spark, tmp_path):
    """At the next checkpoint all files and the table have the new columns, even where no row reached the subtask.

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


def test_spark_reads_a_state_table_across_its_change_of_columns(spark, tmp_path):
    """The change needs no table feature.

    The newest version has the new columns, and the one before has the old ones.
    """
    tick(spark, tmp_path, job(16, IntegerType(), "first"))
    tick(spark, tmp_path, job(17, LongType(), "second"))
    reader, path = spark.read.format("delta"), str(tmp_path / STATE)
    new = reader.load(path).select("key", "n", "second").collect()
    assert [(0, 3, "second"), *[(key, 2, None) for key in range(1, KEYS)]] == sorted(tuple(row) for row in new)
    version = DeltaTable(path).version() - 1
    old = reader.option("versionAsOf", version).load(path).select("key", "n", "first").collect()
    assert [(key, 2, "first") for key in range(KEYS)] == sorted(tuple(row) for row in old)


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
    """One tick after the other uses another backend.

    The table and the state table show the same as with one backend.
    """
    for turn, used in enumerate(["incremental", "memory", "full", "incremental"]):
        rows = 20 + 11 * turn
        tick(spark, tmp_path, job(rows, LongType(), "says", state_backend=used))
        assert counts(rows) == shown(tmp_path)
        newest = pl.read_delta(str(tmp_path / STATE)).group_by("key").agg(pl.col("n").max())
        assert counts(rows) == sorted(newest.rows())
        carried = [bool(file.inline) for file in state_files(tmp_path)]
        assert carried == [used == "memory"] * len(carried)


def test_a_state_too_large_for_the_entry_ends_the_tick_by_name(spark, tmp_path):
    """The memory backend declines and names operator, limit and the way out. Nothing is published."""
    small = job(20, LongType(), "says", state_backend="memory", memory_state_bytes_max=100)
    report = run_tick(small, RuntimeSettings(warehouse=tmp_path), spark=spark)
    assert TickOutcome.FAILED is report.outcome
    assert "operator counts: the state of one subtask takes" in report.message
    assert "memory_state_bytes_max allows 100" in report.message
    assert "set state_backend to incremental" in report.message
    tick(spark, tmp_path, job(20, LongType(), "says"))
    assert counts(20) == shown(tmp_path)
