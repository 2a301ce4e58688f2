"""The rows of a person are erased from every table, state, cut and savepoint (K6), on real Spark and Delta."""

import gzip
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.operators.scan.matching import PredicateError
from jobs.tick.at_rest.forget import ErasureAsked, forget, preview_forget
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from tidemark import CutSource, Expectation, FileSource, Pipeline, Processed, broadcast, count, deduplicate, sum_of
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

PERSON = "c7xqzzj"
"""A text that occurs nowhere else."""
ORDERS = StructType().add("n", LongType()).add("customer", StringType()).add("city", StringType())
ORDERS = ORDERS.add("amount", LongType()).add("note", StringType())
CONFIG = CheckpointConfig(every_rows=10, slice_rows_max=10, retained=9)
WHERE = ErasureAsked("bronze/orders", f"customer = '{PERSON}'")
BRONZE, BAD, SILVER = "bronze/orders", "quarantine/orders", "silver/orders"
TOTALS, LATEST, CITIES = "gold/totals", "gold/latest", "gold/cities"
OF_A_PERSON = (BRONZE, BAD, SILVER, TOTALS, LATEST)
TABLES = (*OF_A_PERSON, CITIES)
STATES = ("_tidemark/shop/state/totals", "_tidemark/shop/state/latest")


def build(data):
    pipeline = Pipeline("shop", config=CONFIG, parallelism=2)
    orders = (
        pipeline.source("orders", FileSource(data / "orders", ORDERS))
        .table(BRONZE, id="bronze")
        .check_rows(
            Expectation("expect_column_values_to_be_between", {"column": "amount", "min_value": 0}), quarantine=BAD
        )
    )
    silver = orders.table(SILVER, id="silver", partition_by=["city"])
    silver.key_by("customer").aggregate("totals", rows=count(), total=sum_of("amount")).upsert(TOTALS)
    deduplicate(silver.key_by("customer"), "latest", order_by="n", keep="last").upsert(LATEST)
    silver.key_by("city").aggregate("cities", rows=count(), total=sum_of("amount")).upsert(CITIES)
    return pipeline


def rows(first: int) -> pl.DataFrame:
    """Return twenty orders. Two are the person's, and one of these two goes to quarantine."""
    found = []
    for n in range(first, first + 20):
        is_person = n % 10 == 7
        amount = -1 if n % 20 == 17 else n
        who = PERSON if is_person else f"c{n % 5}"
        found.append((n, who, ("Graz", "Linz")[n % 2], amount, f"a note of {who}"))
    return pl.DataFrame(found, schema=["n", "customer", "city", "amount", "note"], orient="row")


def laid_out(folder: Path, deliveries: int = 3) -> Trial:
    trial = Trial(build, folder)
    for place in range(deliveries):
        trial.deliver("orders/web", rows(place * 20))
        trial.run(spark_cores=1)
        if place == 0:
            savepoint_at_rest(at(trial))
    return trial


def at(trial: Trial) -> Warehouse:
    return Warehouse(trial.warehouse, ProtocolPaths(JobName("shop")))


def cuts(trial: Trial) -> dict[int, dict[str, int]]:
    return JobStores(at(trial), cross_freely).cuts.all()


def everything(trial: Trial) -> dict[tuple[int, str], list[dict[str, object]]]:
    """Return all tables and states at every recorded cut."""
    return {
        (checkpoint, table): ordered(pl.read_delta(str(trial.warehouse / table), version=version))
        for checkpoint, cut in cuts(trial).items()
        for table, version in cut.items()
    }


def ordered(frame: pl.DataFrame) -> list[dict[str, object]]:
    return sorted(frame.rows(named=True), key=str)


def without_person(shown: dict[tuple[int, str], list[dict[str, object]]]) -> dict[tuple[int, str], object]:
    return {key: [row for row in found if PERSON not in str(row)] for key, found in shown.items()}


def by_each_engine(trial: Trial, spark) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Yield each table and state at each cut and as it is now, as Polars, delta-rs, DuckDB and Spark read it.

    Spark takes longest, so it reads three tables at two cuts.
    """
    every = trial.cuts.all()
    for cut in every:
        for table in cut.tables:
            yield f"Polars, {table} at {cut.checkpoint}", ordered(cut.polars(table).collect())
            yield f"delta-rs, {table} at {cut.checkpoint}", ordered(pl.from_arrow(cut.arrow(table)))
        for operator in cut.operators:
            duck = duckdb.connect().sql(cut.state(operator).sql("duckdb")).to_arrow_table()
            yield f"DuckDB, state {operator} at {cut.checkpoint}", ordered(pl.from_arrow(duck))
    for table in (BRONZE, SILVER, TOTALS):
        place = str(trial.warehouse / table)
        for cut in every[:2]:
            yield f"Spark, {table} at {cut.checkpoint}", ordered(pl.from_arrow(cut.spark(spark, table).toArrow()))
        yield f"Spark, {table}", ordered(pl.from_arrow(spark.read.format("delta").load(place).toArrow()))
        dataset = DeltaTable(place).to_pyarrow_dataset()
        yield f"DuckDB, {table}", ordered(pl.from_arrow(duckdb.from_arrow(dataset).to_arrow_table()))


def holding(folder: Path, text: str) -> list[str]:
    """Return the files below a folder that contain a text: in their path, as it is, compressed, or in rows."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and text in said(path))


def said(path: Path) -> str:
    content = path.read_bytes()
    found = [content.decode("latin-1"), str(path)]
    if path.suffix == ".parquet":
        file = pq.ParquetFile(pa.BufferReader(content))
        found += [str(file.metadata.to_dict()), str(file.read().to_pylist())]
    elif path.suffix == ".zst":
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as plain:
            found.append(plain.read().decode())
    elif content[:2] == b"\x1f\x8b":
        found.append(gzip.decompress(content).decode())
    return " ".join(found)


def neighbours_write(trial: Trial, spark) -> None:
    """Play another program: append two rows, one of them the person's, and write Delta log checkpoints."""
    place = str(trial.warehouse / BRONZE)
    schema = spark.read.format("delta").load(place).schema
    lines = [(1000, PERSON, "Wien", 1, f"from {PERSON}", "x", 0), (1001, "c1", "Wien", 1, "a note", "x", 1)]
    spark.createDataFrame(lines, schema).coalesce(1).write.format("delta").mode("append").save(place)
    for table in (BRONZE, TOTALS):
        DeltaTable(str(trial.warehouse / table)).create_checkpoint()


def test_no_reader_finds_the_person_and_all_else_is_as_it_was(tmp_path, spark, neighbour):
    """A tick goes on afterwards as if nothing had happened, and after a clean-up no file has the person's text."""
    trial, undisturbed = laid_out(tmp_path / "a"), Trial(build, tmp_path / "b")
    neighbours_write(trial, neighbour)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before, read_before = everything(trial), dict(by_each_engine(trial, spark))
    assert len(cuts(trial)) >= 4
    assert all(any(PERSON in str(found) for key, found in before.items() if key[1] == each) for each in OF_A_PERSON)
    plan = preview_forget(at(trial), WHERE, lambda: spark)
    assert everything(trial) == before
    done = forget(at(trial), WHERE, lambda: spark)
    assert (plan.rows, {each.table for each in plan.matched}) == (done.plan.rows, {*OF_A_PERSON, *STATES})
    assert {each.table for each in plan.left} >= {CITIES, "_tidemark/shop/state/cities"}
    for table in plan.matched:
        due = {cut: sum(PERSON in str(row) for row in before[cut, table.table]) for cut in table.at_cuts}
        assert table.at_cuts == due, table.table
    after, shown = everything(trial), dict(by_each_engine(trial, spark))
    assert without_person(before) == {key: rows for key, rows in after.items() if key in before}
    assert without_person(read_before) == {name: shown[name] for name in read_before}
    assert holding(trial.warehouse, PERSON)
    clean_up(at(trial), grace_ms=0)
    assert holding(trial.warehouse, PERSON) == []
    assert everything(trial) == after
    for each in (trial, undisturbed):
        each.deliver("orders/web", rows(60))
    last, wanted = (each.run(spark_cores=1) for each in (trial, undisturbed))
    for table in TABLES:
        found, due = ordered(last.polars(table).collect()), ordered(wanted.polars(table).collect())
        assert without_person({(0, table): due}) == without_person({(0, table): found}), table
    person = last.polars(TOTALS).filter(pl.col("customer") == PERSON).collect()
    assert person["rows"].to_list() == [1]  # the good one of the last delivery's two rows


def by_customer(data):
    pipeline = Pipeline("shop", config=CONFIG)
    pipeline.source("orders", FileSource(data / "orders", ORDERS)).table(BRONZE, id="bronze", partition_by=["customer"])
    return pipeline


def test_folders_that_have_the_person_s_name_are_named_and_go(tmp_path, spark):
    """A file of which no row is left has no successor. After a clean-up, only logs and entries name the folder."""
    trial = Trial(by_customer, tmp_path)
    for place in range(2):
        trial.deliver("orders/web", rows(place * 20))
        trial.run(spark_cores=1)
    before = everything(trial)
    done = forget(at(trial), WHERE, lambda: spark)
    assert done.plan.folders == (BRONZE,)
    assert done.record is not None
    assert {each.into for each in done.record.erased} == {None}
    after = everything(trial)
    assert without_person(before) == {key: rows for key, rows in after.items() if key in before}
    clean_up(at(trial), grace_ms=0)
    left = holding(trial.warehouse, PERSON)
    assert left
    assert all("_delta_log" in each or "checkpoints/_rows" in each for each in left), left
    trial.deliver("orders/web", rows(40))
    found = ordered(trial.run(spark_cores=1).polars(BRONZE).collect())
    due = [*after[done.record.checkpoint, BRONZE], *rows(40).rows(named=True)]
    assert sorted(row["n"] for row in found) == sorted(row["n"] for row in due)


def in_other_letters(data):
    pipeline = Pipeline("shop", config=CONFIG)
    orders = pipeline.source("orders", FileSource(data / "orders", ORDERS)).table(BRONZE, id="bronze")
    buyers = orders.rename({"customer": "Customer"})
    buyers.table(SILVER, id="silver", partition_by=["Customer"])
    buyers.key_by("Customer").aggregate("totals", rows=count()).upsert(TOTALS)
    return pipeline


def test_a_column_in_other_letters_is_the_same_column(tmp_path, spark):
    """As in Spark, case does not count: in a table, in the names of its folders, and in the key of a state."""
    trial = Trial(in_other_letters, tmp_path)
    trial.deliver("orders/web", rows(0))
    trial.run(spark_cores=1)
    before = everything(trial)
    plan = forget(at(trial), ErasureAsked(BRONZE, f"CUSTOMER = '{PERSON}'"), lambda: spark).plan
    assert {each.table for each in plan.matched} == {BRONZE, SILVER, TOTALS, "_tidemark/shop/state/totals"}
    assert ((), (SILVER,)) == (plan.left, plan.folders)
    assert without_person(before) == {key: found for key, found in everything(trial).items() if key in before}


def test_the_entry_beside_a_reservation_names_the_successors(tmp_path, spark):
    """The entry has no erased value as a bound. A reader that has opened the cut reads on.

    A reader that joins the reservation later finds all other rows unchanged.
    """
    trial = laid_out(tmp_path, 1)
    entry = trial.warehouse / "_tidemark/shop/reservations/run-1.entry"
    with trial.cuts.reserved("run-1") as cut:
        before = ordered(pl.from_arrow(cut.state("totals").arrow()))
        assert PERSON in entry.read_text()
        assert PERSON in str(before)
        forget(at(trial), WHERE, lambda: spark)
        assert PERSON not in entry.read_text()
        clean_up(at(trial), grace_ms=0)
        assert ordered(pl.from_arrow(cut.state("totals").arrow())) == before
        with trial.cuts.reserved("run-1") as joined:
            assert joined.checkpoint == cut.checkpoint
            found = ordered(pl.from_arrow(joined.state("totals").arrow()))
        assert found == [row for row in before if PERSON not in str(row)]


def test_what_a_condition_may_say(tmp_path, spark):
    """With a refused condition, the command does not claim the job.

    A condition that does not fit a state leaves the state whole.
    """
    trial = laid_out(tmp_path, 2)
    entries = JobStores(at(trial), cross_freely).observe().version
    for condition, why in {
        "rand() > amount": "it reads the time, chance",
        "amount > unix_timestamp()": "it reads the time, chance",
        "amount in (select 1)": "it reads the time, chance",
        "true": "names no column",
        "colour = 'red'": "colour",
        "amount >": "PARSE_SYNTAX_ERROR",
        "amount": "boolean",
    }.items():
        with pytest.raises(PredicateError, match=f"(?is).*{why}.*Write a condition"):
            forget(at(trial), ErasureAsked(BRONZE, condition), lambda: spark)
    assert JobStores(at(trial), cross_freely).observe().version == entries
    before = everything(trial)
    newest, by_count = max(cuts(trial)), ErasureAsked(TOTALS, "rows = 2")
    plan = forget(at(trial), ErasureAsked(BRONZE, "City = 'Graz' AND `N` < 20"), lambda: spark).plan
    left = {each.table: each.why for each in plan.left}
    inside = "has _top_rows.n only inside another column, which the predicate does not reach"
    assert left["_tidemark/shop/state/latest"] == inside
    left = {each.table: each.why for each in preview_forget(at(trial), by_count, lambda: spark).left}
    assert left["_tidemark/shop/state/totals"].endswith("only a predicate on its key (customer) fits it")
    after = everything(trial)
    assert after[newest, "_tidemark/shop/state/latest"] == before[newest, "_tidemark/shop/state/latest"]
    due = [row for row in before[newest, SILVER] if not (row["city"] == "Graz" and row["n"] < 20)]
    assert after[newest, SILVER] == due
    code, said = answered("forget", f"{__name__}:build", BRONZE, "--where", "customer = 'c1'", trial=trial)
    assert (code, " are erased, and from every kept cut and savepoint, as forget" in said) == (0, True)
    assert "NOT searched: gold/cities: has no column customer." in said
    assert "NOT reached: what sources read from (orders)" in said


def answered(*words: str, trial: Trial) -> tuple[int, str]:
    """Run a command, and return its exit code, and its output as one line."""
    told = [sys.executable, "-m", "tidemark", *words, "--warehouse", str(trial.warehouse)]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=280)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


# ------------------------------------------------------------------
# Other shapes: an overwrite table, broadcast state, a table and a column that are renamed, and a job that reads cuts.


NEWEST, SALES = "silver/newest", "bronze/sales"
SHAPES = (BRONZE, NEWEST, "_tidemark/shop/state/large", "_tidemark/shop/state/large_broadcast")


class KeepsNewest:
    """Keeps the number of each customer's newest order, beside the limits of all customers."""

    def process(self, inputs, state):
        orders, _ = inputs
        newest = pl.concat([state, orders.select("customer", "n")]).group_by("customer").agg(pl.col("n").max())
        return Processed(state=newest, output=newest.select("n"))


def shapes(data, *, renamed=False):
    """Return the pipeline. Its second release renames the table of orders and a column of that table."""
    pipeline = Pipeline("shop", config=CONFIG, parallelism=2)
    orders = pipeline.source("orders", FileSource(data / "orders", ORDERS))
    (
        broadcast(orders.select("customer", "amount", "n"), "customer", latest_by="n")
        .connect(orders.key_by("customer"))
        .process(
            "large", KeepsNewest(), state=StructType().add("n", LongType()), output=StructType().add("n", LongType())
        )
        .table("silver/large")
    )
    days = orders.with_column("day", "n div 20", LongType())
    days.overwrite(NEWEST, version="day", partition_by=["city"], id="newest")
    if not renamed:
        orders.table(BRONZE, id="bronze")
    else:
        sales = orders.with_column("client", "customer", StringType()).drop("customer")
        sales.table(SALES, id="bronze", renamed_from=BRONZE).change_columns(renamed_from={"client": "customer"})
    return pipeline


def numbers(cut, table: str) -> list[int]:
    return sorted(cut.polars(table).collect()["n"])


def test_other_shapes_lose_the_rows_or_the_report_says_why_not(tmp_path, spark):
    """A follower keeps only those rows of the person that it read before. A renamed column needs its own condition."""

    def follower(_data):
        pipeline = Pipeline("follower", config=CONFIG)
        orders = pipeline.source("orders", CutSource(tmp_path / "shop" / "warehouse", "shop", BRONZE, schema=ORDERS))
        orders.table("silver/orders", id="copied")
        return pipeline

    trial, following = Trial(shapes, tmp_path / "shop"), Trial(follower, tmp_path / "follower")
    trial.deliver("orders/web", rows(0))
    trial.run(spark_cores=1)
    following.run(spark_cores=1)
    trial.deliver("orders/web", rows(20))
    trial.run(spark_cores=1)
    before = everything(trial)
    assert all(any(PERSON in str(found) for key, found in before.items() if key[1] == each) for each in SHAPES)
    done = forget(at(trial), WHERE, lambda: spark)
    assert {each.table for each in done.plan.matched} == {*SHAPES}
    assert without_person(before) == {key: found for key, found in everything(trial).items() if key in before}
    assert [each.table for each in done.plan.left] == ["silver/large"]
    assert ["follower" in each for each in done.plan.followers] == [True]
    assert numbers(following.run(spark_cores=1), "silver/orders") == [n for n in range(40) if n not in {27, 37}]
    there = Warehouse(following.warehouse, ProtocolPaths(JobName("follower")))
    assert forget(there, ErasureAsked("silver/orders", WHERE.predicate), lambda: spark).plan.rows == 2
    assert holding(trial.warehouse / "bronze", PERSON)
    later = Trial(partial(shapes, renamed=True), tmp_path / "shop")
    later.deliver("orders/web", rows(40))
    later.run(spark_cores=1)
    plan = forget(at(trial), ErasureAsked(NEWEST, WHERE.predicate), lambda: spark).plan
    assert {each.table: each.why for each in plan.left}[SALES] == "has no column customer"
    assert PERSON in str(everything(later))
    forget(at(trial), ErasureAsked(SALES, f"client = '{PERSON}'"), lambda: spark)
    assert PERSON not in str(everything(later))
    assert numbers(later.cuts.latest(), SALES) == [n for n in range(60) if n % 10 != 7]
    assert numbers(later.cuts.latest(), NEWEST) == [n for n in range(40, 60) if n % 10 != 7]
    clean_up(at(trial), grace_ms=0)
    assert holding(trial.warehouse, PERSON) == []
