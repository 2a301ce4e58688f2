"""Small jobs on real Spark and Delta, each for one feature."""

import time
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType
from rich.console import Console

from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import JobName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord
from jobs.cli.main import execute
from jobs.cli.options import layer
from jobs.cli.read_commands import list_checkpoints, show_checkpoint
from jobs.operators.process import Processed
from jobs.pipeline.planning import plan
from jobs.pipelines import offsets_100_105
from jobs.showing.checkpoints import NOT_MEASURED
from jobs.sources.committed_positions import committed_in
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.hybrid import SequenceSource
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tidemark import CheckpointConfig, FileSource, Pipeline, count
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]


# ------------------------------------------------------------------
# A pipeline of two sources that end: orders wait for the city of their customer, and some customers never come.


NAMED = StructType().add("id", LongType()).add("customer", StringType())
CITIES = StructType().add("customer", StringType()).add("city", StringType())


def ending(data: Path) -> Pipeline:
    pipeline = Pipeline("orders")
    orders = pipeline.source("orders", FileSource(data / "orders", NAMED, bounded=True)).table("bronze/orders", id="o")
    customers = pipeline.source("customers", FileSource(data / "customers", CITIES, bounded=True))
    known = customers.table("bronze/customers", id="c").drop("_split", "_position")
    joined = orders.key_by("customer").connect(known.key_by("customer")).enrich("with_city", "city")
    joined.table("silver/orders", id="silver")
    return pipeline


@pytest.mark.dear
def test_rows_that_wait_are_put_out_when_all_sources_have_ended(tmp_path: Path, typed, monkeypatch):
    """Order 2 waits for a customer who never comes.

    A later tick, `checkpoints list`, `cut` and `doctor` report that the job is finished.
    """
    trial = Trial("tests.scenarios.test_jobs_on_spark:ending", tmp_path)
    trial.deliver("orders/shop", pl.DataFrame({"id": [1, 2], "customer": ["ann", "bob"]}))
    trial.deliver("customers/all", pl.DataFrame({"customer": ["ann"], "city": ["Oslo"]}))
    cut = trial.run(spark_cores=1)
    assert cut.finished
    assert [(1, "Oslo"), (2, None)] == sorted(cut.polars("silver/orders").select("id", "city").collect().rows())
    trial.deliver("orders/shop", pl.DataFrame({"id": [3], "customer": ["ann"]}))
    monkeypatch.setenv("COLUMNS", "200")

    def said(*words):
        code, out, err = typed(*words)
        assert 0 == code, err
        return " ".join(out.split())

    name, folders = "tests.scenarios.test_jobs_on_spark:ending", ("--warehouse", str(trial.warehouse))
    again = said("run", name, "--data", str(trial.data), *folders)
    assert again == (
        f"orders is finished: its sources have ended, and checkpoint {cut.checkpoint} holds all their rows. "
        "To read one again, type 'tidemark reset tests.scenarios.test_jobs_on_spark:ending SOURCE --to start'"
    )
    assert "finished" in said("checkpoints", "list", "orders", *folders)
    assert "every source had ended" in said("cut", "orders", *folders)
    assert "the job is finished" in said("doctor", name, "--data", str(trial.data), *folders)


# ------------------------------------------------------------------
# On Spark, the source of a job has read only files, and then gets a second part. The files become its first part. Ticks
# are killed, and each row comes once.


EVERY_ROWS = 25
AMOUNTS = StructType().add("customer", StringType()).add("amount", LongType())


def files_first(data: Path) -> Pipeline:
    alone, live = data / "orders", data / "live"
    source = (
        FileSource(alone, AMOUNTS, bounded=True).then(FileSource(live, AMOUNTS))
        if live.exists()
        else FileSource(alone, AMOUNTS)
    )
    config = CheckpointConfig(unaligned=(data / "unaligned").exists(), every_rows=EVERY_ROWS, slice_rows_max=10)
    pipeline = Pipeline("alone", config=config)
    orders = pipeline.source("orders", source).table("bronze/orders", id="bronze")
    orders.key_by("customer").aggregate("per_customer", orders=count()).upsert("gold/customers")
    return pipeline


def orders(numbers: range) -> pl.DataFrame:
    return pl.DataFrame({"customer": [f"c{number % 3}" for number in numbers], "amount": list(numbers)})


@pytest.mark.dear
@pytest.mark.parametrize("unaligned", [False, True])
def test_files_read_alone_become_the_first_part(tmp_path, unaligned):
    """A tick of each of the two pipelines is killed. In unaligned mode, a cut may hold slices in flight."""
    trial = Trial("tests.scenarios.test_jobs_on_spark:files_first", tmp_path)
    trial.deliver("orders/berlin", orders(range(40)))
    if unaligned:
        (trial.data / "unaligned").touch()
    trial.kill("after:AppendRow#1", spark_cores=1)
    trial.deliver("orders/berlin", orders(range(40, 60)))
    trial.deliver("live/all", orders(range(60, 100)))
    trial.kill("before:AppendRow#2", spark_cores=1)
    cut = trial.run(spark_cores=1)
    bronze = cut.polars("bronze/orders").collect()
    assert list(range(100)) == sorted(bronze["amount"])
    by_split = dict(bronze["_split"].value_counts().iter_rows())
    alone = by_split["berlin"]
    assert {"berlin": alone, "1.berlin": 60 - alone, "2.all": 40} == by_split
    assert 0 < alone <= EVERY_ROWS if unaligned else alone == EVERY_ROWS
    assert 100 == cut.polars("gold/customers").collect()["orders"].sum()


# ------------------------------------------------------------------
# Two jobs: one writes orders and payments, and the other reads both tables, always at one cut of the first job.


IDS = StructType().add("id", LongType())
TABLES = ("orders", "payments")


def upstream(data: Path) -> Pipeline:
    config = CheckpointConfig(every_rows=6, rows_of=("orders",), slice_rows_max=3, retained=20)
    pipeline = Pipeline("shop", config=config)
    for name in TABLES:
        source = FileSource(data / name, IDS)
        pipeline.source(name, source, rows_per_epoch=6).drop("_split", "_position").table(
            f"silver/{name}", id=f"silver_{name}"
        )
    return pipeline


def downstream(data: Path) -> Pipeline:
    pipeline = Pipeline("report", config=CheckpointConfig(every_rows=2, slice_rows_max=2, retained=20))
    for name in TABLES:
        source = CutSource(data / "upstream" / "warehouse", "shop", f"silver/{name}")
        pipeline.source(name, source).table(f"gold/{name}", id=f"gold_{name}")
    return pipeline


@pytest.fixture
def two_jobs(tmp_path):
    down = Trial("tests.scenarios.test_jobs_on_spark:downstream", tmp_path)
    return Trial("tests.scenarios.test_jobs_on_spark:upstream", down.data / "upstream"), down


def deliver(up, start, rows):
    for name in TABLES:
        up.deliver(f"{name}/all", pl.DataFrame({"id": list(range(start, start + rows))}))


def rests_of(up, down):
    seen = []
    for cut in down.cuts.all():
        (below,) = cut.rests_on
        source = up.cuts.at(below.checkpoint)
        for name in TABLES:
            theirs = sorted(source.polars(f"silver/{name}").collect()["id"])
            assert theirs == sorted(cut.polars(f"gold/{name}").collect()["id"]), (cut, below)
        seen.append(below.checkpoint)
    return seen


@pytest.mark.dear
def test_no_downstream_cut_mixes_two_upstream_cuts(spark, two_jobs, capsys):
    """The downstream job is killed before and after its commit point. Meanwhile the upstream job goes on.

    The downstream job then reads several cuts as one.
    """
    up, down = two_jobs
    deliver(up, 0, 12)
    up.run(checkpoints=1, spark_cores=1)
    down.run(spark_cores=1)
    up.run(spark_cores=1)
    deliver(up, 12, 9)
    for boundary in ("before:AppendRow#1", "after:AppendRow#1"):
        down.kill(boundary, spark_cores=1)
        up.run(checkpoints=1, spark_cores=1)
    up.run(spark_cores=1)
    cut = down.run(spark_cores=1)
    rests = rests_of(up, down)
    assert sorted(set(rests)) == rests
    assert up.cuts.latest().checkpoint == rests[-1]
    assert 21 == cut.polars("gold/orders").collect().height
    assert 0 == execute(["cut", "report", "--warehouse", str(down.warehouse)])
    assert f"rests on cut {rests[-1]} of shop in {up.warehouse}" in capsys.readouterr().out


# ------------------------------------------------------------------
# Tasks measure themselves on real Spark, and the user sees which subtask is slow (E6).


SLOW_KEY = 3
SLOW_S = 1.5
SUBTASKS = 4
N = StructType().add("n", LongType())
COUNTED = StructType().add("key", LongType()).add("n", LongType())


class CountsSlowly:
    """Counts the rows of each key, and sleeps before it counts the rows of one of the keys."""

    def process(self, inputs, state):
        (rows,) = inputs
        if SLOW_KEY in rows["key"]:
            time.sleep(SLOW_S)
        counted = pl.concat([state, rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("n"))])
        after = counted.group_by("key").agg(pl.col("n").sum())
        return Processed(state=after, output=after)


def slowly(_data: Path) -> Pipeline:
    config = CheckpointConfig(every_rows=48, slice_rows_max=48, micro_batch_rows_max=48)
    pipeline = Pipeline("slowly", config=config, parallelism=SUBTASKS)
    numbers = pipeline.source("numbers", SequenceSource({"a": 96}, keys=16))
    counted = numbers.key_by("key").process("counts", CountsSlowly(), state=N, output=COUNTED)
    counted.upsert("gold/counts")
    return pipeline


def printed(show, *arguments, **options):
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        show(*arguments, console, **options)
    return console.export_text()


@pytest.mark.spark
def test_the_slow_subtask_is_the_one_that_checkpoints_show_names(spark, tmp_path):
    """One key makes its subtask sleep. This subtask's task time is longer than the sleep. All others' are shorter."""
    report = run_tick(plan(slowly(tmp_path)), RuntimeSettings(warehouse=tmp_path), spark=spark)
    assert TickOutcome.CAUGHT_UP is report.outcome
    newest = report.completed[-1]
    (vertex,) = (each for each in newest.statistics.vertices if each.vertex == "counts")
    (own,) = (each for each in newest.vertices if each.vertex == "counts")
    times = vertex.subtasks.task_ms
    slow = times.index(max(times))
    held = [pl.read_parquet(tmp_path / keyed.file.path) for keyed in own.subtasks[slow].state]
    assert SLOW_KEY in pl.concat(held)["key"]
    assert sorted(times)[-2] < SLOW_S * 1000 <= times[slow]
    assert all(sync_ms < SLOW_S * 1000 for sync_ms in vertex.subtasks.sync_ms)
    assert 48 == sum(vertex.subtasks.rows_in)
    files = [keyed.file for keyed in own.subtasks[slow].state]
    assert 0 < vertex.subtasks.checkpointed_bytes[slow] <= sum(file.bytes for file in files)
    given = layer({"warehouse": tmp_path})
    shown = printed(show_checkpoint, f"{__name__}:slowly", None, given)
    table = shown[shown.index("subtasks, since") :].splitlines()
    cells = {row[1].strip(): row for row in (line.strip("│ ").split("│") for line in table) if len(row) == 9}
    assert f"{times[slow] / 1000:.2f} s" == cells[str(slow)][2].strip() == cells["most"][2].strip()
    assert NOT_MEASURED not in shown
    listed = printed(list_checkpoints, f"{__name__}:slowly", given)
    assert "2 triggered, 2 completed, 0 failed, started without a checkpoint" in listed
    assert CheckpointCounts(total=2, completed=1, in_progress=1) == newest.statistics.counts


# ------------------------------------------------------------------
# The worked example on real Spark and Delta (I1): a failure after barrier 1, in both modes.


class FailureError(Exception):
    """The failure that strikes right after the completion of checkpoint 1."""


def fail_when_complete(name: str) -> None:
    """Fail the tick as soon as a checkpoint is complete, so that its work on epoch 2 is lost."""
    if name == "before:NotifyComplete":
        raise FailureError(name)


class Restored(TickListener):
    """Records the completed checkpoints, and the checkpoint from which the tick began."""

    def __init__(self) -> None:
        self.completed_records: list[CheckpointRecord] = []
        self.began_at: int | None = None

    def recovered(self, recovery) -> None:
        self.began_at = recovery.restored

    def completed(self, record, notes, versions) -> None:
        self.completed_records.append(record)


def offsets_run(spark, warehouse, mode: CheckpointingMode, boundary=None):
    config = offsets_100_105.CONFIG.model_copy(update={"mode": mode})
    noted = Restored()
    planned = plan(offsets_100_105.build(warehouse), config=config)
    report = run_tick(planned, RuntimeSettings(warehouse=warehouse), noted, spark=spark, boundary=boundary)
    return report, noted


def counts(warehouse) -> dict[str, tuple[int, int]]:
    rows = DeltaTable(str(warehouse / "example" / "counts")).to_pyarrow_table().to_pylist()
    return {row["split"]: (row["records"], row["last"]) for row in rows}


def positions(record: CheckpointRecord) -> list[str | None]:
    return [subtask.position for subtask in record.vertices[0].subtasks]


def barriers_in_order(warehouse) -> list[str]:
    paths = ProtocolPaths(JobName("offsets_100_105"))
    _, rows = CheckpointStore(Warehouse(warehouse, paths)).observe()
    record = next(row for row in rows if isinstance(row, CheckpointRecord))
    counted = next(each for each in record.statistics.vertices if each.vertex == "counts")
    splits = record.vertices[0].splits
    arrived = sorted((barrier.at_ms, barrier.channel) for barrier in counted.barriers)
    return [splits[int(channel[-2])] for _, channel in arrived]


def test_exactly_once_counts_no_record_twice(spark, tmp_path) -> None:
    """The snapshot counts only the 205 records before barrier 1, and none of those that are read again."""
    broken, _ = offsets_run(spark, tmp_path, CheckpointingMode.EXACTLY_ONCE, fail_when_complete)
    assert TickOutcome.FAILED is broken.outcome
    assert {"fast": (105, 104), "slow": (100, 99)} == counts(tmp_path)
    assert committed_in(offsets_100_105.committed_file(tmp_path)) is None
    report, noted = offsets_run(spark, tmp_path, CheckpointingMode.EXACTLY_ONCE)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, noted.began_at)
    assert [["205", "200"]] == [positions(record) for record in noted.completed_records]
    assert {"fast": (205, 204), "slow": (200, 199)} == counts(tmp_path)
    assert {"fast": "205", "slow": "200"} == committed_in(offsets_100_105.committed_file(tmp_path)).positions


def test_at_least_once_counts_records_after_the_barrier_twice(spark, tmp_path) -> None:
    """The fast split's position is 105, but the snapshot counts later records too. They are read and counted again."""
    broken, _ = offsets_run(spark, tmp_path, CheckpointingMode.AT_LEAST_ONCE, fail_when_complete)
    assert TickOutcome.FAILED is broken.outcome
    at_barrier = counts(tmp_path)
    early, last = at_barrier["fast"]
    assert 105 < early
    assert early == last + 1
    assert ["fast", "slow"] == barriers_in_order(tmp_path)
    report, noted = offsets_run(spark, tmp_path, CheckpointingMode.AT_LEAST_ONCE)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, noted.began_at)
    assert {"fast": (205 + early - 105, 204), "slow": (200, 199)} == counts(tmp_path)
