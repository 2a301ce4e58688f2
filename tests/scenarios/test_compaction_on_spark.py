"""Ticks compact the small files of append tables, and no reader sees other rows. Real Spark and Delta, and kills."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.cleaning import clean_up
from jobs.warehouse.log_entries import entry_place
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tidemark import DeltaSource, Pipeline, SequenceSource, count
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

ROWS, PLAIN, BY_CITY = 480, "bronze/rows", "bronze/cities"
CONFIG = CheckpointConfig(every_rows=12, slice_rows_max=12, retained=100, compact_files_min=4)
CHECKPOINTS = ROWS // 12


def build(data):
    """Return a pipeline with a plain and a partitioned append table, and an upsert table."""
    del data
    pipeline = Pipeline("many", config=CONFIG)
    rows = pipeline.source("numbers", SequenceSource({"a": ROWS}, keys=5))
    rows = rows.with_column("city", "IF(n % 2 = 0, 'Graz', 'Linz')", StringType())
    plain = rows.table(PLAIN, id="rows")
    plain.table(BY_CITY, id="cities", partition_by=["city"])
    plain.key_by("key").aggregate("totals", rows=count()).upsert("gold/totals")
    return pipeline


def follow(data):
    """Return a pipeline that follows the plain table, also while it is compacted."""
    pipeline = Pipeline("follows", config=CheckpointConfig(every_rows=24, slice_rows_max=24))
    rows = pipeline.source("delta", DeltaSource(data / "rows")).select("n")
    rows.table("copies/rows", id="copied")
    return pipeline


def numbers(cut, table=PLAIN):
    """Return the numbers that a table shows, in order."""
    return sorted(cut.arrow(table).column("n").to_pylist())


def actions(trial, table=PLAIN):
    """Return a table's add actions."""
    return pa.table(DeltaTable(str(trial.warehouse / table)).get_add_actions()).to_pylist()


def test_no_reader_sees_that_files_were_compacted(tmp_path, spark):
    """Forty checkpoints leave few files. Each cut still shows its rows, also to Spark, and after a rollback.

    Who follows the table gets each row once. In a copy of a cut, and after a clean-up, nothing is missing.
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
    """In the log, the new file and the removes of those in whose place it comes are marked as no change of data."""
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
    """Then each checkpoint's file stays."""
    trial = Trial(build, tmp_path)
    trial.run(compact_files_min=None)
    assert len(actions(trial)) == CHECKPOINTS


def test_a_file_that_somebody_changed_is_not_compacted(tmp_path, neighbour):
    """A DELETE rewrites a small file. Ticks leave the new file alone, so its row stays deleted, and no other is."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=8, compact_files_min=None)
    folder = trial.warehouse / PLAIN
    neighbour.sql(f"DELETE FROM delta.`{folder}` WHERE n = 3")
    last = trial.run()
    assert [n for n in range(ROWS) if n != 3] == numbers(last)
    assert [*range(ROWS)] == numbers(last, BY_CITY)
    assert len(actions(trial)) <= 20


@pytest.mark.kill
@pytest.mark.parametrize(
    "moment",
    [
        "before:CompactFiles#2",
        "after:CompactFiles#2",
        "before:AppendRow#9",
        "after:AppendRow#9",
        "after:PublishTable#25",
    ],
)
def test_a_killed_tick_loses_no_row_of_a_compacted_table(tmp_path, moment):
    """SIGKILL strikes while files are compacted, and around the commit of what was compacted."""
    trial = Trial(build, tmp_path)
    trial.kill(moment, spark_cores=1)
    last = trial.run()
    assert [*range(ROWS)] == numbers(last) == numbers(last, BY_CITY)
    assert len(actions(trial)) <= 20
