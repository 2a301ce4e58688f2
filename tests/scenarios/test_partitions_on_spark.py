"""Partitioned tables hold the rows of unpartitioned ones at each cut, for all readers. Real Spark and Delta."""

import json
from datetime import date
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import DateType, StringType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import JobName
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.partitions import NO_VALUE
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.renaming import RenameFailedError
from jobs.warehouse.output_tables import TableMismatchError
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tidemark import CutSource, DeltaSource, Pipeline, SequenceSource, count, max_of, sum_of
from tidemark.testing import TickFailedError, Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ODD = ("a/b", "100 % {x}", "größe=1", "__HIVE_DEFAULT_PARTITION__", "it s %2F", "C:*?")
"""Values that a folder's name cannot hold as they are. Every seventh row has null, and every eleventh an empty text."""

CITY = f"CASE WHEN n % 7 = 0 THEN NULL WHEN n % 11 = 0 THEN '' ELSE array{ODD}[CAST(n % 6 AS int)] END"
TOWN = f"coalesce(nullif(nullif(city, ''), '{NO_VALUE}'), '?')"
DAY = "date_add(DATE'2024-02-28', CAST(n % 3 AS int))"
PAIRS = {
    "bronze/rows": "bronze/plain",
    "silver/towns": "silver/plain_towns",
    "gold/totals": "gold/plain_totals",
    "gold/newest": "gold/plain_newest",
}
"""The partitioned tables, each with the unpartitioned one of the same rows."""

LAYOUT = {
    "bronze/rows": ["day", "city"],
    "silver/towns": ["town"],
    "gold/totals": ["day", "town"],
    "gold/newest": ["latest"],
}
CONFIG = CheckpointConfig(every_rows=40, slice_rows_max=20, retained=20)


def build(data):
    """Return a pipeline that writes each table twice. A row of `gold/newest` moves to another partition."""
    del data
    pipeline = Pipeline("parts", config=CONFIG, parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 120, "b": 60}, keys=5))
    rows = rows.with_column("city", CITY, StringType()).with_column("day", DAY, DateType())
    rows = rows.select("key", "n", "city", "day")
    for name in ("", "plain_"):

        def by(table, plain=name):
            return [] if plain else LAYOUT[table]

        raw = rows.table(f"bronze/{name.strip('_') or 'rows'}", id=f"{name}rows", partition_by=by("bronze/rows"))
        towns = raw.with_column("town", TOWN, StringType())
        towns = towns.table(f"silver/{name}towns", id=f"{name}towns", partition_by=by("silver/towns"))
        totals = towns.key_by("town", "day").aggregate(f"{name}totals", rows=count(), total=sum_of("n"))
        totals.upsert(f"gold/{name}totals", partition_by=by("gold/totals"))
        newest = towns.key_by("key").aggregate(f"{name}newest", rows=count(), latest=max_of("day"))
        newest.upsert(f"gold/{name}newest", partition_by=by("gold/newest"))
    return pipeline


def follow(data):
    """Return a pipeline that reads the partitioned table of rows as a Delta table, and at its job's cuts."""
    pipeline = Pipeline("follows", config=CONFIG)
    delta = pipeline.source("delta", DeltaSource(data / "rows")).drop("_split", "_position")
    delta.table("copies/delta", id="copied")
    return pipeline


def follow_cuts(data):
    """Return a pipeline that reads the partitioned table of rows at the cuts of its job."""
    pipeline = Pipeline("follows_cuts", config=CONFIG)
    rows = pipeline.source("cuts", CutSource(data, "parts", "bronze/rows")).drop("_split", "_position")
    rows.table("copies/cuts", id="copied")
    return pipeline


def as_rows(table, columns):
    """Return a table's rows in an order of their own."""
    return sorted(map(repr, zip(*(table.column(name).to_pylist() for name in columns), strict=True)))


def compare(cut, spark):
    """Compare each pair of tables, for each reader. Return the number of rows of the first one."""
    for name, other in PAIRS.items():
        plain = cut.arrow(other)
        columns = plain.column_names
        for at, column in enumerate(columns):
            if pa.types.is_string(plain.schema.field(at).type):  # in a partition column of Spark's writer too
                values = [None if text in {"", NO_VALUE} else text for text in plain.column(at).to_pylist()]
                plain = plain.set_column(at, column, pa.array(values, pa.string()))
        expected = as_rows(plain, columns)
        opened = DeltaTable(cut.folder(name), version=cut.version(name))
        query = QueryBuilder().register("t", opened).execute("SELECT * FROM t")
        read = {
            "arrow": cut.arrow(name),
            "polars": cut.polars(name).collect().to_arrow(),
            "datafusion": pa.RecordBatchReader.from_stream(query).read_all(),
            "spark": cut.spark(spark, name).toArrow(),
        }
        assert dict.fromkeys(read, expected) == {how: as_rows(rows, columns) for how, rows in read.items()}, name
        is_laid_out(opened, LAYOUT[name])
    return cut.arrow("bronze/rows").num_rows


def is_laid_out(opened, by):
    """Check that each file has rows of one partition, and that the log says of which."""
    assert by == opened.metadata().partition_columns
    for action in pa.table(opened.get_add_actions()).to_pylist():
        assert ["_data"] == action["path"].split("/")[:1]
        rows = pq.ParquetFile(f"{opened.table_uri.removeprefix('file://')}/{unquote(action['path'])}").read()
        assert [action["partition"]] == rows.select(by).group_by(by).aggregate([]).to_pylist()
        stats = {*json.loads(json.dumps(action["min"], default=str) if action["min"] else "{}")}
        assert not set(by) & stats


def test_partitioned_tables_equal_plain_ones(tmp_path, spark):
    """They do over several checkpoints, a rescale, a rollback, in a copy of a cut, and for jobs that read them."""
    trial = Trial(build, tmp_path)
    first = trial.run(checkpoints=2)
    assert 0 < compare(first, spark) < 180
    last = trial.run(parallelism=3)
    assert 180 == compare(last, spark)
    assert 0 < compare(first, spark) < 180
    _is_followed(tmp_path, last)

    warehouse = Warehouse(trial.warehouse, ProtocolPaths(JobName("parts")))
    copy_savepoint(warehouse, first.checkpoint, tmp_path / "copy")
    copied = DeltaTable(str(tmp_path / "copy" / "gold" / "newest"))
    assert as_rows(first.arrow("gold/newest"), ["key", "rows"]) == as_rows(copied.to_pyarrow_table(), ["key", "rows"])
    is_laid_out(copied, LAYOUT["gold/newest"])

    roll_back(warehouse, first.checkpoint)
    assert first.arrow("bronze/rows").num_rows == compare(trial.cuts.latest(), spark)
    again = trial.run(parallelism=1)
    assert 180 == compare(again, spark)
    _is_pruned(again, spark)


def _is_pruned(cut, spark):
    """Spark and delta-rs read only the files of the partitions that a filter asks for."""
    rows = cut.spark(spark, "bronze/rows").filter("day = DATE'2024-02-28' AND city = 'a/b'")
    scanned = rows.inputFiles()
    assert scanned
    assert {"day=2024-02-28/city=a/b"} == {
        unquote(unquote(path)).split("/_data/")[1][2:].rpartition("/")[0] for path in scanned
    }
    assert (
        cut.arrow("bronze/rows")
        .filter((pa.compute.field("day") == date(2024, 2, 28)) & (pa.compute.field("city") == "a/b"))
        .num_rows
        == rows.count()
    )
    opened = DeltaTable(cut.folder("bronze/rows"))
    named = opened.file_uris(partition_filters=[("day", "=", "2024-02-28"), ("city", "=", "a/b")])
    assert len(named) == len(scanned)


def _is_followed(folder, cut):
    """Read the table by DeltaSource and by CutSource."""
    of_delta = Trial(follow, folder / "follows")
    of_delta.data.mkdir(parents=True)
    (of_delta.data / "rows").symlink_to(cut.folder("bronze/rows"))
    columns = ["key", "n", "city", "day"]
    expected = as_rows(cut.arrow("bronze/rows"), columns)
    assert expected == as_rows(of_delta.run().arrow("copies/delta"), columns)
    of_cuts = Trial(follow_cuts, folder / "follows_cuts")
    of_cuts.data.parent.mkdir(parents=True)
    of_cuts.data.symlink_to(folder / "warehouse")
    assert expected == as_rows(of_cuts.run().arrow("copies/cuts"), columns)


@pytest.mark.dear
@pytest.mark.parametrize("moment", ["before:AppendRow#2", "after:AppendRow#2"])
def test_partitioned_tables_equal_plain_ones_after_a_kill(tmp_path, spark, moment):
    """SIGKILL strikes beside the commit of the second checkpoint. The next tick has another parallelism."""
    trial = Trial(build, tmp_path)
    trial.kill(moment, spark_cores=1)
    assert 180 == compare(trial.run(parallelism=3), spark)
    table = trial.warehouse / "bronze" / "rows"
    active = pa.table(DeltaTable(str(table)).get_add_actions()).column("path").to_pylist()
    assert {unquote(path) for path in active} == {str(path.relative_to(table)) for path in table.rglob("*.parquet")}


def renamed(data):
    """Return a pipeline whose tables are called otherwise if the file `names` in the data folder says so."""
    said = (data / "names").read_text().split() if (data / "names").exists() else ()
    now = {"append": "bronze/rows", "upsert": "gold/newest", "by": "city", **dict(each.split("=") for each in said)}
    was = {"append": "bronze/rows", "upsert": "gold/newest"} if "renamed=" in said else {}
    pipeline = Pipeline("renamed", config=CONFIG, parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 120}, keys=5)).with_column("city", CITY, StringType())
    rows = rows.with_column("town", TOWN, StringType()).drop("_split", "_position")
    rows = rows.table(now["append"], id="rows", partition_by=[now["by"]], renamed_from=was.get("append"))
    newest = rows.key_by("key").aggregate("newest", rows=count(), city=max_of("town"), town=max_of("town"))
    newest.upsert(now["upsert"], partition_by=[now["by"]], renamed_from=was.get("upsert"))
    return pipeline


def test_a_renamed_table_keeps_its_partitions_and_its_layout(tmp_path):
    """Its files are linked into folders of the same partitions. Another `partition_by` is refused before anything."""
    trial = Trial(renamed, tmp_path)
    first = trial.run(checkpoints=2)
    rows = first.arrow("bronze/rows").num_rows
    assert 0 < rows < 120
    names = trial.data / "names"
    trial.data.mkdir(exist_ok=True)
    for text in ("by=town", "renamed= append=silver/rows upsert=gold/latest by=town"):
        names.write_text(text)
        with pytest.raises((CutDoesNotFitError, RenameFailedError, TableMismatchError, TickFailedError)) as refused:
            trial.run()
        assert "partition_by" in str(refused.value)
    names.write_text("renamed= append=silver/rows upsert=gold/latest")
    last = trial.run()
    assert 120 == last.arrow("silver/rows").num_rows
    assert 120 == sum(last.arrow("gold/latest").column("rows").to_pylist())
    is_laid_out(DeltaTable(last.folder("silver/rows")), ["city"])
    is_laid_out(DeltaTable(last.folder("gold/latest")), ["city"])
