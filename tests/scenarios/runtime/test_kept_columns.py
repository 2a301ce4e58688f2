"""Columns of an append table are renamed, dropped and reordered, if the pipeline says so (D6, G2)."""

import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql.functions import col
from pyspark.sql.types import DoubleType

from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.held_cut import approve
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.driver import Inbox
from jobs.tick.state_migration import all_changes, find_migrations
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.refusals import RollForwardError
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from tests.scenarios.faults.orders_job import LocalEngine
from tests.scenarios.processes import killed
from tests.scenarios.runtime.evolving_job import Notes
from tests.scenarios.runtime.kept_job import (
    AGAIN,
    BACK,
    BY_KEY,
    BY_KEY_RENAMED,
    CONFIG,
    DROPPED,
    JOB,
    NARROW,
    RENAMED,
    REORDERED,
    TABLE,
    Version,
    at,
    build,
    columns,
    foreign,
    laid_out,
    newest,
    numbers,
    run,
    shown,
    tick,
    version_at,
)
from tidemark.testing import TickFailedError, Trial

HALF = 20
"""Rows of the first tick."""


def files(root):
    actions = DeltaTable(str(root / TABLE)).get_add_actions()
    paths = [str(path) for path in pa.table(actions).column("path").to_pylist()]
    return {path: pq.ParquetFile(root / TABLE / path).schema_arrow.names for path in paths}


def entry(root, version):
    lines = (root / TABLE / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [next(iter(json.loads(line).items())) for line in lines]


# ------------------------------------------------------------------ renames


def test_a_renamed_column_keeps_its_values_in_one_commit(tmp_path):
    """All files have the column's new name, and no follower reads a row twice. Later ticks change nothing more."""
    laid_out(tmp_path, HALF)
    first, before = newest(tmp_path).checkpoint, DeltaTable(str(tmp_path / TABLE)).version()
    heard = Notes()
    tick(tmp_path, HALF + 1, RENAMED, heard)
    assert before + 1 == DeltaTable(str(tmp_path / TABLE)).version()
    assert ["n", "key", "amount"] == columns(tmp_path)
    assert numbers(range(HALF + 1)) == shown(tmp_path, "n", "amount")
    assert [["n", "key", "amount"]] * 2 == list(files(tmp_path).values())
    changes = [
        (kind, action["dataChange"]) for kind, action in entry(tmp_path, before + 1) if kind in ("add", "remove")
    ]
    assert [("add", False), ("add", True), ("remove", False)] == sorted(changes)
    assert [f"{TABLE}: column value is now called amount"] == heard.notes
    assert numbers(range(HALF)) == shown(tmp_path, "n", "value", version=version_at(tmp_path, first))
    tick(tmp_path, HALF + 2, RENAMED)
    tick(tmp_path, HALF + 3, Version(("n", "key", "amount")))
    assert numbers(range(HALF + 3)) == shown(tmp_path, "n", "amount")


def test_statistics_of_a_rewritten_file_have_the_new_name(tmp_path):
    """A reader that skips files by statistics finds the rows."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, RENAMED)
    found = pl.scan_delta(str(tmp_path / TABLE)).filter(pl.col("amount") == 3).collect()
    assert [3] == found["n"].to_list()
    statistics = [json.loads(action["stats"]) for kind, action in entry(tmp_path, 2) if kind == "add"]
    assert all("amount" in each["minValues"] and "value" not in each["minValues"] for each in statistics)


def test_a_tick_without_news_renames_nothing_and_the_previous_version_goes_on(tmp_path):
    """No reader sees a rename before its checkpoint. Files that the tick wrote for the rename are leftovers."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF, RENAMED)
    assert ["n", "key", "value"] == columns(tmp_path)
    tick(tmp_path, HALF + 1)
    assert numbers(range(HALF + 1)) == shown(tmp_path, "n", "value")
    staged = {path.name for path in (tmp_path / TABLE / "_data").rglob("*.parquet")}
    assert {path.rpartition("/")[2] for path in files(tmp_path)} == staged


def test_rows_of_others_get_the_new_name_whenever_they_came(tmp_path):
    """Others append before the tick, while it works, and between its commit and its publication."""
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)

    def interferes(name):
        if name == "after:RenameColumns:bronze/kept":
            foreign(tmp_path, 101)
        if name == f"before:PublishTable:{TABLE}":
            foreign(tmp_path, 102)

    tick(tmp_path, HALF + 1, RENAMED, boundary=interferes)
    assert numbers([*range(HALF + 1), 100, 101, 102]) == shown(tmp_path, "n", "amount")
    foreign(tmp_path, 103, name="amount")
    tick(tmp_path, HALF + 2, RENAMED)
    assert numbers([*range(HALF + 2), 100, 101, 102, 103]) == shown(tmp_path, "n", "amount")


def test_a_file_that_somebody_rewrote_meanwhile_is_written_again(tmp_path):
    """A DELETE by others between commit and publication lasts. The rows that it deleted do not come back."""
    laid_out(tmp_path, HALF)

    def deletes(name):
        if name == f"before:PublishTable:{TABLE}":
            DeltaTable(str(tmp_path / TABLE)).delete("n = 3")

    tick(tmp_path, HALF + 1, RENAMED, boundary=deletes)
    assert numbers([n for n in range(HALF + 1) if n != 3]) == shown(tmp_path, "n", "amount")


@pytest.mark.parametrize("rows_of_others", [True, False])
def test_a_rollback_across_a_rename_and_either_version_goes_on(tmp_path, rows_of_others):
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    others = [100, 200] if rows_of_others else []
    if rows_of_others:
        foreign(tmp_path, 100)
    tick(tmp_path, HALF + 5, RENAMED)
    if rows_of_others:
        foreign(tmp_path, 200, name="amount")
    roll_back(at(tmp_path), first)
    assert ["n", "key", "value"] == columns(tmp_path)
    assert numbers([*range(HALF), *others]) == shown(tmp_path, "n", "value")
    assert all("value" in names for names in files(tmp_path).values())
    tick(tmp_path, HALF + 2)
    assert numbers([*range(HALF + 2), *others]) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 3, RENAMED)
    assert numbers([*range(HALF + 3), *others]) == shown(tmp_path, "n", "amount")


def test_renamed_twice_and_back(tmp_path):
    """Each rename declares only the name in the pipeline's version before. The old name is free again."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, RENAMED)
    tick(tmp_path, HALF + 2, AGAIN)
    assert numbers([*range(HALF + 2), 100]) == shown(tmp_path, "n", "sum")
    roll_back(at(tmp_path), first)
    assert numbers([*range(HALF), 100]) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 3, RENAMED)
    tick(tmp_path, HALF + 4, BACK)
    assert numbers([*range(HALF + 4), 100]) == shown(tmp_path, "n", "value")


def test_the_version_of_before_is_refused_after_the_rename(tmp_path):
    """The old version's column would begin empty beside the renamed one. The tick does not claim the job."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, RENAMED)
    before = newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="table bronze/kept: column value was amount and is now value"):
        tick(tmp_path, HALF + 2)
    assert before == newest(tmp_path)


def test_a_partitioned_table_keeps_its_layout(tmp_path):
    """Each file stays in its partition. This includes files that other programs wrote."""
    laid_out(tmp_path, HALF, BY_KEY)
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, BY_KEY_RENAMED)
    expected = [(n, n, n % 7) for n in range(HALF + 1)] + [(100, 100, 2)]
    assert expected == shown(tmp_path, "n", "amount", "key")
    assert ["key"] == DeltaTable(str(tmp_path / TABLE)).metadata().partition_columns
    assert [2] == pl.scan_delta(str(tmp_path / TABLE)).filter(pl.col("n") == 100).collect()["key"].to_list()


def test_table_and_column_are_renamed_at_once(tmp_path):
    """The files are written to the table's new folder, with the column's new name."""
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)
    run(tmp_path, build(HALF + 1, RENAMED, "bronze/other", was=TABLE))
    frame = pl.read_delta(str(tmp_path / "bronze/other")).select("n", "amount").sort("n")
    assert numbers([*range(HALF + 1), 100]) == frame.rows()
    assert numbers([*range(HALF), 100]) == shown(tmp_path, "n", "value")


def test_a_savepoint_that_a_renaming_tick_takes_at_once(tmp_path):
    """The savepoint's rows lie in files with the old and the new name.

    The job can be rolled back to the savepoint, and another warehouse can begin from it.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    tick(here, HALF)
    inbox = Inbox()
    inbox.put(SavepointRequested("now", SavepointKind.PLAIN))
    run_tick(build(HALF + 9, RENAMED), RuntimeSettings(warehouse=here), engine=LocalEngine(), inbox=inbox)
    (saved,) = [row for row in CheckpointStore(at(here)).observe()[1] if getattr(row, "pinned", False)]
    origin = find_origin(f"{here}@{saved.checkpoint}", there, JOB)
    import_row(Import(origin=origin, root=there, plan=build(HALF + 9, RENAMED)))
    tick(there, HALF + 9, RENAMED)
    assert numbers(range(HALF + 9)) == shown(there, "n", "amount")
    roll_back(at(here), saved.checkpoint)
    held = shown(here, "n", "amount")
    assert HALF <= len(held)
    assert numbers(range(len(held))) == held
    tick(here, HALF + 10, RENAMED)
    assert numbers(range(HALF + 10)) == shown(here, "n", "amount")


def test_a_held_cut_shows_the_new_name_and_its_approval_renames(tmp_path):
    """Until the approval, the table shows the old name. The files of the tick that held the cut are not needed."""
    laid_out(tmp_path, HALF)
    run_tick(
        build(HALF + 2, RENAMED),
        RuntimeSettings(warehouse=tmp_path, limits=TickLimits(hold=True)),
        engine=LocalEngine(),
    )
    pending = Cuts(tmp_path, JOB).pending()
    assert numbers(range(HALF + 2)) == pending.polars(TABLE).select("n", "amount").sort("n").collect().rows()
    assert ["n", "key", "value"] == columns(tmp_path)
    approve(at(tmp_path))
    tick(tmp_path, HALF + 3, RENAMED)
    assert numbers(range(HALF + 3)) == shown(tmp_path, "n", "amount")


# ------------------------------------------------------------------ drops


def test_a_dropped_column_is_gone_and_old_cuts_show_it(tmp_path):
    """No file is rewritten. Rows of others that still have the column are read without it."""
    laid_out(tmp_path, HALF)
    first, then = newest(tmp_path).checkpoint, files(tmp_path)
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, DROPPED)
    assert ["n", "key"] == columns(tmp_path)
    assert [*range(HALF + 1), 100] == [n for (n,) in shown(tmp_path, "n")]
    assert then.items() <= files(tmp_path).items()
    assert numbers(range(HALF)) == shown(tmp_path, "n", "value", version=version_at(tmp_path, first))
    tick(tmp_path, HALF + 2, DROPPED)
    tick(tmp_path, HALF + 3, Version(("n", "key")))
    assert ["n", "key"] == columns(tmp_path)


def test_a_rollback_brings_a_dropped_column_back(tmp_path):
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, DROPPED)
    roll_back(at(tmp_path), first)
    assert numbers(range(HALF)) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 2)
    assert numbers(range(HALF + 2)) == shown(tmp_path, "n", "value")


def test_the_name_of_a_dropped_column_cannot_come_back(tmp_path):
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, DROPPED)
    tick(tmp_path, HALF + 2, Version(("n", "key")))
    with pytest.raises(CutDoesNotFitError, match=r"was dropped\. Its files still hold the old values"):
        tick(tmp_path, HALF + 3)


def test_a_dropped_column_that_somebody_adds_again_is_found(tmp_path):
    """The table would show the column's old values. The tick fails, and the message says how to undo the change."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, DROPPED)
    table = DeltaTable(str(tmp_path / TABLE))
    table.alter.add_columns([Field("value", PrimitiveType("long"))])
    with pytest.raises(AssertionError, match="has a dropped column value again"):
        tick(tmp_path, HALF + 2, DROPPED)


def test_a_drop_of_an_unknown_column_is_refused(tmp_path):
    """The name may be misspelt: the table has another column that the pipeline no longer writes."""
    laid_out(tmp_path, HALF)
    with pytest.raises(CutDoesNotFitError, match=r"vaule was unknown and is now dropped: .*\. If you mean value"):
        tick(tmp_path, HALF + 1, Version(("n", "key"), drop=("vaule",)))


def test_an_undeclared_column_stays(tmp_path):
    """Nothing is dropped without a declaration."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, Version(("n", "key")))
    assert ["n", "key", "value"] == columns(tmp_path)


# ------------------------------------------------------------------ order


def test_columns_are_reordered_if_the_pipeline_says_so(tmp_path):
    """Without `reorder`, columns keep their order, because others may insert by position. A rollback restores it."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, Version(("value", "n", "key")))
    assert ["n", "key", "value"] == columns(tmp_path)
    tick(tmp_path, HALF + 2, REORDERED)
    assert ["value", "n", "key"] == columns(tmp_path)
    assert numbers(range(HALF + 2)) == shown(tmp_path, "n", "value")
    version = DeltaTable(str(tmp_path / TABLE)).version()
    tick(tmp_path, HALF + 2, REORDERED)
    assert version == DeltaTable(str(tmp_path / TABLE)).version()
    roll_back(at(tmp_path), first)
    assert ["n", "key", "value"] == columns(tmp_path)


def test_all_at_once(tmp_path):
    """One checkpoint renames a column, drops another, adds a third, and puts them in order."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, Version(("sum", "amount", "n"), {"amount": "value"}, drop=("key",), reorder=True))
    assert ["sum", "amount", "n"] == columns(tmp_path)
    assert [(n, n, n if n == HALF else None) for n in range(HALF + 1)] == shown(tmp_path, "n", "amount", "sum")


def test_a_dry_run_shows_each_change(tmp_path):
    laid_out(tmp_path, HALF)

    def told(version):
        planned, entry_ = build(HALF, version), newest(tmp_path)
        return [str(each.becomes) for each in all_changes(planned, entry_, find_migrations(planned, entry_, tmp_path))]

    assert ["renamed, with its values. The table's files are written again once"] == told(RENAMED)
    assert ["dropped. Readers no longer see it, and its name cannot be used again in this table"] == told(DROPPED)
    assert ["reordered"] == told(REORDERED)
    (stays,) = told(Version(("n", "key")))
    assert "change_columns(drop=['value'])" in stays
    _, stays = told(Version(("n", "key", "amount")))
    assert "change_columns(renamed_from={'amount': 'value'})" in stays


# ------------------------------------------------------------------
# A tick dies while it changes the columns of an append table, and the next ticks finish or undo the change (D6, G2).


COMMITTED = ["after:AppendRow", f"before:PublishTable:{TABLE}", f"after:PublishTable:{TABLE}", "after:RecordCut"]
BEFORE = [f"before:RenameColumns:{TABLE}", f"after:RenameColumns:{TABLE}", "after:RunMicroBatch", "before:AppendRow"]


@pytest.mark.kill
@pytest.mark.parametrize("version", ["renamed", "dropped"])
@pytest.mark.parametrize("boundary", [*BEFORE, *COMMITTED])
def test_a_tick_killed_as_it_changes_columns_is_made_up_for(tmp_path, boundary, version):
    """After SIGKILL before the commit point, the previous version can go on. In any case, the new version can."""
    if "RenameColumns" in boundary and version == "dropped":
        boundary = "after:EnsureTables"
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)
    new, names = (RENAMED, ("n", "amount")) if version == "renamed" else (DROPPED, ("n", "key"))
    killed(tick, tmp_path, HALF + 7, new, kill_at=boundary)
    foreign(tmp_path, 101, name=next((name for name in ("value", "amount") if name in columns(tmp_path)), None))
    if boundary not in COMMITTED:
        tick(tmp_path, HALF + 8)
        assert numbers([*range(HALF + 8), 100, 101]) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 9, new)
    expected = numbers([*range(HALF + 9), 100, 101])
    assert (expected if version == "renamed" else [(n, n % 7) for n, _ in expected]) == shown(tmp_path, *names)
    assert [*new.columns] == columns(tmp_path)


# ------------------------------------------------------------------
# A column of an append table may be widened to types to which readers convert the values of old files (D6).


def test_a_widened_column_is_read_from_old_files_as_they_are(tmp_path):
    """No file is rewritten. A rollback restores the old type, and either version goes on."""
    laid_out(tmp_path, HALF, NARROW)
    first, then = newest(tmp_path).checkpoint, files(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="value was int and is now double: change it back"):
        tick_of_type(tmp_path, DoubleType())
    tick(tmp_path, HALF + 1)
    assert "long" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    assert then.items() <= files(tmp_path).items()
    assert numbers(range(HALF + 1)) == shown(tmp_path, "n", "value")
    frame = pl.scan_delta(str(tmp_path / TABLE)).filter(pl.col("value") < 3_000_000_000).collect()
    assert HALF + 1 == frame.height
    roll_back(at(tmp_path), first)
    assert "integer" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    tick(tmp_path, HALF + 2, NARROW)
    tick(tmp_path, HALF + 3)
    with pytest.raises(CutDoesNotFitError, match="value was bigint and is now int: change it back"):
        tick(tmp_path, HALF + 4, NARROW)
    assert numbers(range(HALF + 3)) == shown(tmp_path, "n", "value")


def test_a_rollback_behind_a_widening_refuses_wider_values_of_others(tmp_path):
    laid_out(tmp_path, HALF, NARROW)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1)
    foreign(tmp_path, 100)
    with pytest.raises(TableNotRolledBackError, match="column value was widened since, and others have written wider"):
        roll_back(at(tmp_path), first)


def test_wider_values_that_come_between_a_rollback_and_its_publication_stop_it(tmp_path):
    """After the wider values are deleted, the next tick publishes the rollback."""
    laid_out(tmp_path, HALF, NARROW)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1)
    came = []

    def append(name):
        if name == f"before:RollForward:{TABLE}" and not came:
            came.append(name)
            foreign(tmp_path, 100)

    with pytest.raises(RollForwardError, match="column value was widened since, and others have written wider values"):
        roll_back(at(tmp_path), first, boundary=append)
    assert "long" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    DeltaTable(str(tmp_path / TABLE)).delete("n = 100")
    tick(tmp_path, HALF + 2, NARROW)
    assert "integer" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    assert numbers(range(HALF + 2)) == shown(tmp_path, "n", "value")


def tick_of_type(root, kind):
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=1)
    source = pipeline.source("numbers", SequenceSource({"a": HALF + 1}, keys=7)).with_column("value", "value", kind)
    source.select("n", "key", "value").table(TABLE, id="kept")
    run(root, plan(pipeline))


# ------------------------------------------------------------------
# Rollbacks and renames of an append table whose files have another column of the same name (D6, G2).


def test_no_column_gets_a_name_under_which_others_have_values_that_nobody_sees(tmp_path):
    """A rollback removed the column `sum` from the table, but a file of others still has it.

    A renamed column would show these values as its own.
    """
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "sum")))
    row = {"n": [100], "key": [1], "value": [100], "sum": [7]}
    write_deltalake(str(tmp_path / TABLE), pa.table(row), mode="append")
    roll_back(at(tmp_path), first)
    assert numbers([*range(HALF), 100]) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "amount")))
    with pytest.raises(AssertionError, match="with a column sum, which the table does not show"):
        tick(tmp_path, HALF + 2, Version(("n", "key", "value", "sum"), {"sum": "amount"}))
    assert ["n", "key", "value", "amount"] == columns(tmp_path)


def test_a_rollback_is_refused_if_rows_of_others_have_another_column_of_that_name(tmp_path):
    """In the cut, `amount` is the renamed `value`. Since then it has become a column of its own."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, RENAMED)
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 2, Version(("n", "key", "amount"), drop=("value",)))
    before = newest(tmp_path)
    with pytest.raises(TableNotRolledBackError, match="amount was another column then, which began as value"):
        roll_back(at(tmp_path), savepoint)
    assert before == newest(tmp_path)


def test_files_that_come_back_keep_the_names_of_their_cut(tmp_path):
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, RENAMED)
    tick(tmp_path, HALF + 2, Version(("n", "key", "amount")))
    tick(tmp_path, HALF + 3, Version())
    due = [*((n, n, None) for n in range(HALF + 2)), (HALF + 2, None, HALF + 2)]
    assert due == shown(tmp_path, "n", "amount", "value")
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), first)
    assert ["n", "key", "value"] == columns(tmp_path)
    roll_back(at(tmp_path), savepoint)
    assert due == shown(tmp_path, "n", "amount", "value")


def test_a_rollback_is_refused_if_rows_of_others_may_have_a_column_under_another_name(tmp_path):
    """On an abandoned line, `sum` was renamed to `amount`, and others wrote `amount`.

    The present line knows neither of the two names.
    """
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "sum")))
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    tick(tmp_path, HALF + 2, Version(("n", "key", "value", "amount"), {"amount": "sum"}))
    row = {"n": [100], "key": [1], "value": [100], "amount": [7]}
    write_deltalake(str(tmp_path / TABLE), pa.table(row), mode="append")
    roll_back(at(tmp_path), first)
    with pytest.raises(TableNotRolledBackError, match=r"sum may have another name there \(amount\)"):
        roll_back(at(tmp_path), savepoint)
    assert ["n", "key", "value"] == columns(tmp_path)


# ------------------------------------------------------------------ Spark reads and follows the table


def by_spark(spark, root, *names, version=None):
    reader = spark.read.format("delta")
    frame = (reader if version is None else reader.option("versionAsOf", version)).load(str(root / TABLE))
    return sorted(tuple(row) for row in frame.select(*names).collect())


@pytest.mark.spark
def test_spark_reads_each_version_under_its_own_columns(tmp_path, neighbour):
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, RENAMED)
    expected = numbers([*range(HALF + 1), 100])
    assert expected == by_spark(neighbour, tmp_path, "n", "amount")
    found = neighbour.read.format("delta").load(str(tmp_path / TABLE)).where(col("amount") == 3).collect()
    assert [3] == [row["n"] for row in found]
    renamed = len(neighbour.sql(f"DESCRIBE HISTORY delta.`{tmp_path / TABLE}`").collect()) - 1
    tick(tmp_path, HALF + 2, Version(("n", "key"), drop=("amount",)))
    assert ["n", "key"] == neighbour.read.format("delta").load(str(tmp_path / TABLE)).columns
    assert expected == by_spark(neighbour, tmp_path, "n", "amount", version=renamed)
    assert numbers(range(HALF)) == by_spark(neighbour, tmp_path, "n", "value", version=1)


@pytest.mark.spark
def test_spark_reads_a_widened_column_of_old_files(tmp_path, neighbour):
    """Filters beyond the old type's range find the rows too."""
    laid_out(tmp_path, HALF, NARROW)
    tick(tmp_path, HALF + 1)
    assert numbers(range(HALF + 1)) == by_spark(neighbour, tmp_path, "n", "value")
    table = neighbour.read.format("delta").load(str(tmp_path / TABLE))
    assert HALF + 1 == table.where("value < 3000000000 and value > -3000000000").count()


@pytest.mark.spark
def test_a_stream_that_begins_with_the_rename_gets_no_row_twice(tmp_path, neighbour):
    """The stream gets only new rows, and none that the rename rewrote.

    A stream that began before the rename fails with Delta's error for a changed schema.
    """
    laid_out(tmp_path, HALF)
    got: list[int] = []

    def follow(name, **options):
        reader = neighbour.readStream.format("delta").options(**options).load(str(tmp_path / TABLE))
        writer = reader.writeStream.foreachBatch(lambda rows, _: got.extend(row["n"] for row in rows.collect()))
        started = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        started.awaitTermination()

    follow("before")
    assert [*range(HALF)] == sorted(got)
    got.clear()
    tick(tmp_path, HALF + 3, RENAMED)
    with pytest.raises(Exception, match="DELTA_SCHEMA_CHANGED_WITH_VERSION"):
        follow("before")
    follow("after", startingVersion="2")
    tick(tmp_path, HALF + 5, RENAMED)
    follow("after", startingVersion="2")
    assert [*range(HALF, HALF + 5)] == sorted(got)


@pytest.mark.spark
@pytest.mark.parametrize("by_cuts", [False, True])
def test_a_source_follows_without_a_row_twice(tmp_path, spark, by_cuts):
    """The source has caught up before the rename. Its pipeline then declares the rename for its own table.

    A source that has not caught up before another rename is refused, instead of reading nulls.
    """
    upstream, trial = tmp_path / "up", tmp_path / "down"
    laid_out(upstream, HALF)

    def following(**renamed_from):
        def build(data):
            pipeline = Pipeline("following")
            source = CutSource(upstream, JOB, TABLE) if by_cuts else DeltaSource(upstream / TABLE)
            rows = pipeline.source("kept", source)
            rows.table("bronze/copy", id="copy").change_columns(renamed_from=renamed_from)
            return pipeline

        return Trial(build, trial)

    assert HALF == following().run().polars("bronze/copy").collect().height
    tick(upstream, HALF + 3, RENAMED)
    cut = following(amount="value").run()
    assert numbers(range(HALF + 3)) == sorted(cut.polars("bronze/copy").select("n", "amount").collect().rows())
    tick(upstream, HALF + 5, RENAMED)
    tick(upstream, HALF + 6, AGAIN)
    with pytest.raises(TickFailedError, match="has columns that the table no longer has: 'amount'"):
        following(sum="amount").run()
    assert cut.checkpoint == following(sum="amount").cuts.latest().checkpoint


@pytest.mark.spark
def test_a_deletion_vector_is_refused_before_anything_runs(tmp_path, neighbour):
    """Only Spark knows the hidden rows, so the file cannot be rewritten. After a purge, the rename succeeds."""
    laid_out(tmp_path, HALF)
    place = f"delta.`{tmp_path / TABLE}`"
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    neighbour.sql(f"DELETE FROM {place} WHERE n = 3")
    tick(tmp_path, HALF + 1)
    cut = Cuts(tmp_path, JOB).latest()
    left = {n for n in range(HALF + 1) if n != 3}
    assert left == set(cut.polars(str(TABLE)).collect()["n"]) == set(cut.arrow(str(TABLE)).column("n").to_pylist())
    with pytest.raises(AssertionError, match=r"has deletion vectors on 1 files.*REORG TABLE"):
        tick(tmp_path, HALF + 2, RENAMED)
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')")
    neighbour.sql(f"REORG TABLE {place} APPLY (PURGE)")
    tick(tmp_path, HALF + 2, RENAMED)
    assert ["n", "key", "amount"] == columns(tmp_path)
    assert numbers(n for n in range(HALF + 2) if n != 3) == shown(tmp_path, "n", "amount")


@pytest.mark.spark
def test_a_drop_goes_on_beside_deletion_vectors(tmp_path, neighbour):
    """A drop rewrites no file, so deletion vectors do not prevent it."""
    laid_out(tmp_path, HALF)
    place = f"delta.`{tmp_path / TABLE}`"
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    neighbour.sql(f"DELETE FROM {place} WHERE n = 3")
    tick(tmp_path, HALF + 1, DROPPED)
    assert [n for n in range(HALF + 1) if n != 3] == [n for (n,) in by_spark(neighbour, tmp_path, "n")]
