"""Ticks compact the small files of append tables, and no reader sees other rows, with real Spark and Delta."""

from datetime import date
from pathlib import Path
from random import Random

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, LongType, StringType, StructType, TimestampNTZType, TimestampType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import JobName
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.paths import ProtocolPaths
from jobs.sources.port import SourceError
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.cleaning import clean_up
from jobs.warehouse.log_entries import entry_place
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tidemark import CutSource, DeltaSource, Expectation, FileSource, Pipeline, SequenceSource, count
from tidemark.testing import TickFailedError, Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

ROWS, PLAIN, BY_CITY = 480, "bronze/rows", "bronze/cities"
CONFIG = CheckpointConfig(every_rows=12, slice_rows_max=12, retained=100, compact_files_min=4)
CHECKPOINTS = ROWS // 12


def build(data):
    del data
    pipeline = Pipeline("many", config=CONFIG)
    rows = pipeline.source("numbers", SequenceSource({"a": ROWS}, keys=5))
    rows = rows.with_column("city", "IF(n % 2 = 0, 'Graz', 'Linz')", StringType())
    plain = rows.table(PLAIN, id="rows")
    plain.table(BY_CITY, id="cities", partition_by=["city"])
    plain.key_by("key").aggregate("totals", rows=count()).upsert("gold/totals")
    return pipeline


def follow(data):
    pipeline = Pipeline("follows", config=CheckpointConfig(every_rows=24, slice_rows_max=24))
    rows = pipeline.source("delta", DeltaSource(data / "rows")).select("n")
    rows.table("copies/rows", id="copied")
    return pipeline


def numbers(cut, table=PLAIN):
    return sorted(cut.arrow(table).column("n").to_pylist())


def actions(trial, table=PLAIN):
    return pa.table(DeltaTable(str(trial.warehouse / table)).get_add_actions()).to_pylist()


@pytest.mark.jars("delta")
def test_no_reader_sees_that_files_were_compacted(tmp_path, spark):
    """Forty checkpoints leave few files. Each cut still shows its rows, also to Spark, and after a rollback.

    A job that follows the table gets each row once. In a copy of a cut, and after a clean-up, no row is missing.
    """
    trial = Trial(build, tmp_path)
    follower = Trial(follow, tmp_path / "follower")
    follower.data.mkdir(parents=True)
    (follower.data / "rows").symlink_to(trial.warehouse / PLAIN)
    trial.run(checkpoints=10)
    follower.run()
    last = trial.run()
    assert CHECKPOINTS <= len(trial.cuts.all())
    assert len(actions(trial)) <= 15
    assert len(actions(trial, BY_CITY)) <= 24
    assert [*range(ROWS)] == numbers(follower.run(), "copies/rows")
    for cut in trial.cuts.all():
        shown = numbers(cut)
        assert [*range(len(shown))] == shown == numbers(cut, BY_CITY)
        assert len(shown) == sum(cut.arrow("gold/totals").column("rows").to_pylist())
    assert last.spark(spark, BY_CITY).filter("city = 'Graz'").count() == ROWS // 2

    warehouse = Warehouse(trial.warehouse, ProtocolPaths(JobName("many")))
    middle = trial.cuts.all()[CHECKPOINTS // 2]
    had = numbers(middle)
    copy_savepoint(warehouse, middle.checkpoint, tmp_path / "copy")
    assert had == sorted(DeltaTable(str(tmp_path / "copy" / PLAIN)).to_pyarrow_table().column("n").to_pylist())
    roll_back(warehouse, middle.checkpoint)
    assert had == numbers(trial.cuts.latest()) == numbers(trial.cuts.latest(), BY_CITY)
    assert [*range(ROWS)] == numbers(trial.run())
    clean_up(warehouse, grace_ms=0)
    assert {12 * each for each in range(1, CHECKPOINTS)} >= {len(numbers(cut)) for cut in trial.cuts.all()[:-1]}
    assert [*range(ROWS)] == numbers(trial.cuts.latest(), BY_CITY)


def test_a_compaction_changes_no_row_for_a_reader_of_changes(tmp_path):
    """In the log, the add of the new file and the removes of the old ones are marked as no change of data."""
    trial = Trial(build, tmp_path)
    trial.run()
    log = [
        line
        for version in range(1, DeltaTable(str(trial.warehouse / PLAIN)).version() + 1)
        for line in entry_place(Warehouse(trial.warehouse, ProtocolPaths(JobName("many"))).place(PLAIN), version)
        .read()
        .decode()
        .splitlines()
    ]
    removes = [line for line in log if line.startswith('{"remove"')]
    assert len(removes) >= 16
    assert all('"dataChange": false' in line for line in removes)
    assert any(line.startswith('{"add"') and '"dataChange": false' in line for line in log)


def test_nothing_is_compacted_if_a_job_says_so(tmp_path):
    trial = Trial(build, tmp_path)
    trial.run(compact_files_min=None)
    assert len(actions(trial)) == CHECKPOINTS


def test_a_file_that_somebody_changed_is_not_compacted(tmp_path, neighbour):
    """A DELETE rewrites a small file. Ticks do not compact the new file, so only the deleted row is missing."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=8, compact_files_min=None)
    folder = trial.warehouse / PLAIN
    neighbour.sql(f"DELETE FROM delta.`{folder}` WHERE n = 3")
    last = trial.run()
    assert [n for n in range(ROWS) if n != 3] == numbers(last)
    assert [*range(ROWS)] == numbers(last, BY_CITY)
    assert len(actions(trial)) <= 20


# ------------------------------------------------------------------
# Overwrite tables show the rows of the batch query at each cut, for all readers, with real Spark and Delta.


DELIVERED = {"a": 160, "b": 80}
CITY = "CASE WHEN n % 7 = 0 THEN NULL WHEN n % 5 = 0 THEN 'a/b %' ELSE 'Graz' END"
TABLES = {
    "silver/numbers": ("number", []),
    "silver/days": ("day", ["city"]),
    "silver/moments": ("moment", ["city", "key"]),
    "silver/local": ("local", ["key"]),
    "silver/texts": ("text", ["city"]),
}
"""The overwrite tables, each with its version column and its partition columns."""


def deliveries(data):
    """Return a pipeline with overwrite tables whose version columns have all types.

    Versions rise with the numbers, and some come late.

    The file `seed` in the data folder decides how rows are divided into slices, micro-batches and epochs.
    """
    seed = int((data / "seed").read_text()) if (data / "seed").exists() else 0
    random = Random(seed)  # noqa: S311 - a test must be repeatable
    config = CheckpointConfig(
        every_rows=random.choice([25, 40, 90]),
        slice_rows_max=random.choice([7, 20]),
        micro_batch_rows_max=random.choice([20, 60]),
        retained=100,
    )
    pipeline = Pipeline("deliveries", config=config)
    rows = pipeline.source("sequence", SequenceSource(DELIVERED, keys=3)).with_column("city", CITY, StringType())
    late = f"CAST(n DIV 12 AS bigint) + pmod(hash(n, {seed}), 3)"
    rows = rows.with_column("number", f"{late} - 3", LongType())
    rows = rows.with_column("day", f"date_add(DATE'2024-02-25', CAST({late} AS int))", DateType())
    rows = rows.with_column("moment", f"timestamp_micros({late} * 1000001)", TimestampType())
    rows = rows.with_column(
        "local", f"CAST(date_add(DATE'0999-12-30', CAST({late} AS int)) AS timestamp_ntz)", TimestampNTZType()
    )
    rows = rows.with_column("text", f"concat(char(97 + CAST({late} AS int) DIV 2), 'é/= %')", StringType())
    rows = rows.drop("_split", "_position").table("bronze/rows", id="rows")
    for name, (version, by) in TABLES.items():
        after = rows.overwrite(name, version=version, partition_by=by, id=name.rpartition("/")[2])
        if name == "silver/days":
            after.table("bronze/after", id="after")
            after.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    return pipeline


def warehouse(trial, job="deliveries"):
    return Warehouse(trial.warehouse, ProtocolPaths(JobName(job)))


def newest(rows, version, by):
    greatest = pl.col(version).max().over(by) if by else pl.col(version).max()
    return rows.filter(pl.col(version) == greatest)


def ordered(rows):
    return sorted(map(repr, rows.select(sorted(rows.columns)).iter_rows()))


def compare(cut):
    rows = cut.polars("bronze/rows").collect()
    for name, (version, by) in TABLES.items():
        due = ordered(newest(rows, version, by))
        assert due == ordered(cut.polars(name).collect()), (name, cut.checkpoint)
        assert due == ordered(pl.from_arrow(cut.arrow(name)))
    assert ordered(rows) == ordered(cut.polars("bronze/after").collect())
    assert rows.height == cut.polars("gold/counts").collect()["rows"].sum()
    return rows.height


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.jars("delta")
def test_each_cut_shows_the_rows_of_the_batch_query(tmp_path, spark, seed):
    """The seed decides how rows are divided into micro-batches and epochs. Spark and DuckDB read the same rows too."""
    trial = Trial(deliveries, tmp_path)
    trial.data.mkdir()
    (trial.data / "seed").write_text(str(seed))
    trial.run(checkpoints=2)
    last = trial.run()
    assert sum(DELIVERED.values()) == [compare(cut) for cut in trial.cuts.all()][-1]
    assert len(trial.cuts.all()) >= 3
    for name in TABLES:
        due = ordered(last.polars(name).collect().select("n", "city"))
        assert due == ordered(pl.from_arrow(last.spark(spark, name).select("n", "city").toArrow()))
        dataset = DeltaTable(last.folder(name)).to_pyarrow_dataset()
        read = duckdb.from_arrow(dataset).project("n, city").to_arrow_table()
        assert due == ordered(pl.from_arrow(read))


def test_a_rollback_and_a_copy_show_the_deliveries_of_before(tmp_path):
    """A clean-up deletes no file that a cut needs. After the rollback the job reads the same rows again."""
    trial = Trial(deliveries, tmp_path)
    first = trial.run(checkpoints=2)
    before = {name: ordered(first.polars(name).collect()) for name in TABLES}
    last = trial.run()
    assert before != {name: ordered(last.polars(name).collect()) for name in TABLES}
    clean_up(warehouse(trial), grace_ms=0)
    assert compare(first) < compare(last)
    copy_savepoint(warehouse(trial), first.checkpoint, tmp_path / "copy")
    copied = DeltaTable(str(tmp_path / "copy" / "silver" / "days")).to_pyarrow_table()
    assert before["silver/days"] == ordered(pl.from_arrow(copied))
    roll_back(warehouse(trial), first.checkpoint)
    assert before == {name: ordered(trial.cuts.latest().polars(name).collect()) for name in TABLES}
    assert compare(trial.run()) == sum(DELIVERED.values())


PRICES = StructType().add("item", StringType()).add("price", LongType()).add("region", StringType())
PRICES = PRICES.add("delivered", DateType())


def prices(data):
    said = dict(each.split("=") for each in (data / "said").read_text().split()) if (data / "said").exists() else {}
    pipeline = Pipeline("prices", config=CheckpointConfig(every_rows=1_000, retained=50))
    rows = pipeline.source("deliveries", FileSource(data / "prices", PRICES)).drop("_split", "_position")
    if "column" in said:
        rows = rows.with_column("cents", "price * 100", LongType())
    if said.get("mode") == "append":
        rows.table("silver/prices", id="prices", partition_by=["region"])
        return pipeline
    table = rows.overwrite(
        said.get("table", "silver/prices"),
        version=said.get("version", "delivered"),
        partition_by=["region"],
        id="prices",
        renamed_from=said.get("renamed"),
    )
    cheap = Expectation("expect_column_values_to_be_between", {"column": "price", "min_value": 0})
    table.expect(cheap).describe_table("the newest prices")
    return pipeline


def delivery(day, region, *found):
    columns = {"item": [item for item, _ in found], "price": [price for _, price in found]}
    rows = pl.DataFrame(columns, schema={"item": pl.String, "price": pl.Int64})
    return rows.with_columns(region=pl.lit(region), delivered=pl.lit(day, pl.Date))


def shown(cut, table="silver/prices"):
    rows = cut.polars(table).collect().select("region", "item", "price").rows()
    return sorted(rows, key=repr)


def write(trial, text):
    trial.data.mkdir(exist_ok=True)
    (trial.data / "said").write_text(text)


def test_a_delivery_replaces_the_one_before_and_an_older_one_changes_nothing(tmp_path):
    """A delivery of one region leaves the others alone. An older delivery makes a checkpoint that changes no table."""
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3), ("ink", 4)))
    trial.deliver("prices/a", delivery(date(2024, 5, 9), "south", ("tea", 5)))
    assert [("north", "ink", 4), ("north", "tea", 3), ("south", "tea", 5)] == shown(trial.run())
    trial.deliver("prices/a", delivery(date(2024, 5, 2), "north", ("tea", 6)))
    second = trial.run()
    assert [("north", "tea", 6), ("south", "tea", 5)] == shown(second)
    version = second.version("silver/prices")
    trial.deliver("prices/a", delivery(date(2024, 4, 30), "north", ("ink", 1)))
    third = trial.run()
    assert third.checkpoint > second.checkpoint
    assert (version, shown(second)) == (third.version("silver/prices"), shown(third))
    assert third.checkpoint == trial.run().checkpoint
    trial.deliver("prices/a", delivery(date(2024, 5, 2), "north", ("ink", 7)))
    assert [("north", "ink", 7), ("north", "tea", 6), ("south", "tea", 5)] == shown(trial.run())
    files = [path.parent.name for path in (trial.warehouse / "silver" / "prices").rglob("*.parquet")]
    assert "version.date.2024-04-30" not in files
    assert DeltaTable(third.folder("silver/prices")).metadata().description == "the newest prices"


def test_a_row_without_a_version_fails_its_micro_batch_by_name(tmp_path):
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    first = trial.run()
    trial.deliver("prices/a", delivery(None, "north", ("tea", 4), ("ink", 4)))
    with pytest.raises(TickFailedError, match=r"vertex prices failed.*version column delivered is null in 2 of 2 rows"):
        trial.run()
    assert first.checkpoint == trial.cuts.latest().checkpoint


def test_a_suite_judges_what_a_checkpoint_brings_into_the_table(tmp_path):
    """No reader sees a bad delivery. If a newer one comes in the same epoch, the suite does not judge the bad rows."""
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    first = trial.run()
    trial.deliver("prices/a", delivery(date(2024, 5, 2), "north", ("tea", -4)))
    with pytest.raises(TickFailedError, match="price"):
        trial.run()
    assert first.checkpoint == trial.cuts.latest().checkpoint
    trial.deliver("prices/a", delivery(date(2024, 5, 3), "north", ("tea", 4)))
    assert [("north", "tea", 4)] == shown(trial.run())


def test_a_changed_pipeline_keeps_the_rows_or_is_refused(tmp_path):
    """A table can be renamed and get a column.

    Another version column or another kind of table is refused, and the error names both declarations.
    """
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "south", ("tea", 3)))
    trial.run()
    for text, told in (
        ("version=item", "an overwrite table by version delivered.* an overwrite table by version item"),
        ("mode=append", "an overwrite table by version delivered.* an append table"),
    ):
        write(trial, text)
        with pytest.raises(CutDoesNotFitError, match=told):
            trial.run()
    write(trial, "table=gold/prices renamed=silver/prices column=yes")
    trial.deliver("prices/a", delivery(date(2024, 5, 2), "north", ("tea", 4)))
    last = trial.run()
    assert [("north", "tea", 4), ("south", "tea", 3)] == shown(last, "gold/prices")
    assert {("north", 400), ("south", None)} == {*last.polars("gold/prices").collect().select("region", "cents").rows()}
    trial.deliver("prices/a", delivery(date(2024, 4, 1), "south", ("tea", 9)))
    assert shown(last, "gold/prices") == shown(trial.run(), "gold/prices")
    write(trial, "table=gold/prices")
    trial.deliver("prices/a", delivery(date(2024, 5, 3), "south", ("tea", 8)))
    dropped = trial.run().polars("gold/prices").collect()
    assert {("north", 400), ("south", None)} == {*dropped.select("region", "cents").rows()}


def test_an_append_table_does_not_become_an_overwrite_table(tmp_path):
    """The table would lose its rows, so the tick is refused. The error names both kinds of table."""
    trial = Trial(prices, tmp_path)
    write(trial, "mode=append")
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    trial.run()
    write(trial, "")
    with pytest.raises(CutDoesNotFitError, match=r"an append table, and .* an overwrite table by version delivered"):
        trial.run()


def test_what_others_change_is_set_back(tmp_path, neighbour):
    """Another program's UPDATE lasts until the next checkpoint that changes the table."""
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    folder = trial.run().folder("silver/prices")
    neighbour.sql(f"UPDATE delta.`{folder}` SET price = 99")
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "south", ("ink", 4)))
    assert [("north", "tea", 3), ("south", "ink", 4)] == shown(trial.run())


def follow_prices(data):
    said = (data / "said").read_text()
    pipeline = Pipeline("follows")
    source = {
        "appends": lambda: DeltaSource(data / "prices"),
        "changes": lambda: DeltaSource(data / "prices", changes=True),
        "cuts": lambda: CutSource(Path((data / "prices").resolve()).parents[1], "prices", "silver/prices"),
    }[said]()
    rows = pipeline.source("followed", source)
    rows.drop("_split", "_position").table("copies/prices", id="copied")
    return pipeline


def test_a_follower_reads_the_changes_or_is_refused(tmp_path, neighbour):
    """Rows leave the table. A source of appended rows or of cuts fails. A source of changes reads the deletes."""
    trial = Trial(prices, tmp_path)
    trial.deliver("prices/a", delivery(date(2024, 5, 1), "north", ("tea", 3)))
    folder = trial.run().folder("silver/prices")
    neighbour.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    for said in ("appends", "changes"):
        follower = Trial(follow_prices, tmp_path / said)
        write_parents(follower, trial, said)
        follower.run()
    trial.deliver("prices/a", delivery(date(2024, 5, 2), "north", ("tea", 4)))
    trial.run()
    changes = Trial(follow_prices, tmp_path / "changes").run().polars("copies/prices").collect()
    assert [(3, "delete"), (3, "insert"), (4, "insert")] == sorted(changes.select("price", "_change_type").rows())
    with pytest.raises(TickFailedError, match="deletes or changes rows that were read as appended"):
        Trial(follow_prices, tmp_path / "appends").run()
    cuts = Trial(follow_prices, tmp_path / "cuts")
    write_parents(cuts, trial, "cuts")
    with pytest.raises((SourceError, TickFailedError), match=r"rows of silver/prices of prices are replaced"):
        cuts.run()


def write_parents(follower, trial, said):
    follower.data.mkdir(parents=True)
    (follower.data / "said").write_text(said)
    (follower.data / "prices").symlink_to(trial.warehouse / "silver" / "prices")
