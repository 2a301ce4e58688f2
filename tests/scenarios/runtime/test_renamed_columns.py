"""A column under another name, declared with `renamed_from=`, keeps its values (G2)."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId
from checkpointing.job.restoring import CutDoesNotFitError
from jobs.pipeline import Pipeline, count, max_of
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.state_migration import all_changes, find_migrations
from jobs.warehouse.savepoint_copy import copy_savepoint
from tests.scenarios.processes import killed
from tests.scenarios.runtime.evolving_job import (
    CONFIG,
    COUNTED,
    GOLD,
    JOB,
    RENAMED,
    SECOND,
    STATE,
    Notes,
    Version,
    at,
    at_cut,
    build,
    columns,
    laid_out,
    newest,
    now,
    run,
    shown,
    tick,
    tick_named,
    versions,
)
from tests.scenarios.runtime.test_declared_renames import GOLD_2

HALF = 35
"""Rows of the first tick: five of each key."""
ROWS = Version({"rows": count(renamed_from="n")})
"""The first version, with the column `n` of gold renamed to `rows`."""


def sums(rows):
    return [(key, (rows - key + 6) // 7, (rows - 1 - key) // 7 * 7 + key) for key in range(7)]


def must_be_exact(root, names, rows):
    count_, top = names
    for table in (GOLD, STATE):
        assert {"key", *names} == {name for name in columns(root, table) if not name.startswith("_")}
    frame = DeltaTable(str(root / GOLD)).to_pyarrow_table().select(["key", count_, top]).to_pylist()
    assert sums(rows) == sorted(tuple(row.values()) for row in frame)
    state = Cuts(root, JOB).latest().state("sums").polars().select("key", count_, top).collect()
    assert sums(rows) == sorted(state.rows())


NOW, THEN = ("rows", "most"), ("n", "top")


def test_a_declared_rename_keeps_the_values(tmp_path):
    """The values are kept under the new names. Later ticks that still declare the rename change nothing more."""
    laid_out(tmp_path, HALF, SECOND)
    for rows in (HALF + 1, HALF + 9, HALF + 10, HALF + 11):
        tick(tmp_path, rows, COUNTED)
        must_be_exact(tmp_path, NOW, rows)
    before = versions(tmp_path)
    tick(tmp_path, HALF + 11, COUNTED)
    assert before == versions(tmp_path)
    tick(tmp_path, HALF + 12, Version({"rows": count(), "most": max_of("value")}, values=True))
    must_be_exact(tmp_path, NOW, HALF + 12)


def test_a_renamed_column_counts_since_the_old_one_did(tmp_path):
    """The column was added at a known checkpoint under its old name.

    The new name's comment in the log names the same checkpoint.
    """
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 7, SECOND)
    tick(tmp_path, HALF + 8, COUNTED)
    recorded = {each.table: each.columns for each in newest(tmp_path).columns}
    assert [("key", 0), ("rows", 0), ("most", first)] == [(column.name, column.after) for column in recorded[GOLD]]
    (most,) = [field for field in DeltaTable(str(tmp_path / GOLD)).schema().fields if field.name == "most"]
    assert f"holds only what came after checkpoint {first}" == most.metadata["comment"]


def test_a_rename_happens_in_one_commit_a_table(tmp_path):
    """No reader sees a rename before its checkpoint. After a tick without rows, the previous version can go on."""
    laid_out(tmp_path, HALF)
    before = versions(tmp_path)
    tick(tmp_path, HALF, ROWS)
    assert before == versions(tmp_path)
    tick(tmp_path, HALF + 1)
    heard = Notes()
    tick(tmp_path, HALF + 2, ROWS, listener=heard)
    assert [f"{table}: column n is now called rows" for table in (STATE, GOLD)] == sorted(heard.notes)
    assert {table: version + 2 for table, version in before.items()} == versions(tmp_path)
    assert ["key", "n"] == columns(tmp_path, GOLD, before[GOLD] + 1)
    assert ["key", "rows"] == columns(tmp_path, GOLD)


def test_columns_come_go_and_are_renamed_at_once(tmp_path):
    """A new column begins empty, a renamed one keeps its values, and one that is not declared is dropped."""
    laid_out(tmp_path, HALF, SECOND)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 7, replace(SECOND, sums={"rows": count(renamed_from="n"), "last": max_of("n")}))
    assert [(key, HALF + key, 6) for key in range(7)] == shown(tmp_path, GOLD)
    recorded = {each.table: each.columns for each in newest(tmp_path).columns}
    assert [("key", 0), ("rows", 0), ("last", first)] == [(column.name, column.after) for column in recorded[GOLD]]


def test_vertex_table_and_column_are_renamed_at_once(tmp_path):
    """All three are renamed together. Code with the new vertex and table but the old column is refused."""
    laid_out(tmp_path, HALF)
    everything = replace(RENAMED, sums=ROWS.sums)
    for rows in (HALF + 1, HALF + 2):
        tick(tmp_path, rows, everything)
        assert ["key", "rows"] == columns(tmp_path, GOLD_2)
        assert [(key, rows // 7 + (key < rows % 7)) for key in range(7)] == shown(tmp_path, GOLD_2)
    with pytest.raises(CutDoesNotFitError, match="renamed n to rows"):
        tick(tmp_path, HALF + 3, RENAMED)
    third = Version(
        operator="third",
        gold="gold/third",
        was={"operator": "per_key", "gold": GOLD_2, "bronze": RENAMED.bronze, "source": "counted", "bronze_id": "kept"},
    )
    with pytest.raises(CutDoesNotFitError, match="renamed n to rows"):
        tick(tmp_path, HALF + 3, third)


def test_the_version_of_before_is_refused_after_the_rename(tmp_path):
    """The old version would begin the column empty. No claim is made. The message has both names and the way out."""
    laid_out(tmp_path, HALF, SECOND)
    tick(tmp_path, HALF + 1, COUNTED)
    before, row = versions(tmp_path), newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="state of operator 'sums': column n was rows and is now n") as refused:
        tick(tmp_path, HALF + 2, SECOND)
    assert "n was renamed from 'rows'" in str(refused.value)
    assert (before, row) == (versions(tmp_path), newest(tmp_path))
    tick(tmp_path, HALF + 2, COUNTED)
    must_be_exact(tmp_path, NOW, HALF + 2)


def test_a_rollback_across_a_rename_and_either_version_goes_on(tmp_path):
    """The old cut has the old names. After the rollback, the new code renames again, and the old code works too."""
    laid_out(tmp_path, HALF, SECOND)
    first, then = newest(tmp_path).checkpoint, now(tmp_path)
    tick(tmp_path, HALF + 9, COUNTED)
    roll_back(at(tmp_path), first)
    assert then == now(tmp_path) == at_cut(tmp_path, newest(tmp_path).checkpoint)
    tick(tmp_path, HALF + 1, COUNTED)
    must_be_exact(tmp_path, NOW, HALF + 1)
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 3, SECOND)
    must_be_exact(tmp_path, THEN, HALF + 3)


def test_a_reader_finds_each_cut_under_its_own_names(tmp_path):
    """In a cut, tables and state have the old names before the rename, and the new names after it."""
    laid_out(tmp_path, HALF, SECOND)
    first, then = newest(tmp_path).checkpoint, now(tmp_path)
    tick(tmp_path, HALF + 1, COUNTED)
    assert then == at_cut(tmp_path, first)
    cuts = Cuts(tmp_path, JOB)
    for checkpoint, names in ((first, THEN), (newest(tmp_path).checkpoint, NOW)):
        cut = cuts.at(CheckpointId(checkpoint))
        assert ["key", *names] == cut.polars(GOLD).collect_schema().names()
        assert ["key", *names] == cut.state("sums").schema.names


def test_a_savepoint_of_before_restores_elsewhere_under_the_new_names(tmp_path):
    root, copy, fork = (tmp_path / name for name in ("root", "copy", "fork"))
    tick(root, HALF, SECOND)
    row = savepoint_at_rest(at(root))
    copy_savepoint(at(root), row.checkpoint, copy)
    for claim, origin in ((False, str(root)), (True, str(copy))):
        to = fork / str(claim)
        import_row(Import(origin=find_origin(origin, to, JOB), root=to, plan=build(HALF, COUNTED), claim=claim))
        for rows in (HALF + 1, HALF + 2):
            tick(to, rows, COUNTED)
            must_be_exact(to, NOW, rows)


def told(root, version):
    restored, planned = newest(root), build(HALF, version)
    changes = all_changes(planned, restored, find_migrations(planned, restored, root))
    return {(each.thing, each.column): (each.was, each.now, each.verdict) for each in changes}


def test_a_dry_run_shows_a_declared_rename_in_one_row_a_thing(tmp_path):
    """The dry run shows one renamed column, instead of a new and a dropped one."""
    laid_out(tmp_path, HALF)
    renamed = ("n", "rows", "renamed, with its values")
    assert {("state of operator 'sums'", "rows"): renamed, ("table gold/sums", "rows"): renamed} == told(tmp_path, ROWS)


def test_a_dry_run_of_an_undeclared_rename_says_how_to_declare_it(tmp_path):
    """The dry run names the argument to pass. It does not offer a rename to a column with another meaning."""
    laid_out(tmp_path, HALF)
    dropped = told(tmp_path, Version({"rows": count()}))["state of operator 'sums'", "n"]
    assert ("bigint", None, "dropped; if it has a new name, say renamed_from='n'") == dropped
    dropped = told(tmp_path, Version({"top": max_of("n")}))["state of operator 'sums'", "n"]
    assert ("bigint", None, "dropped") == dropped


def test_a_column_of_another_meaning_is_refused_under_its_new_name_too(tmp_path):
    """A rename changes names and nothing else: a count does not become a greatest value."""
    laid_out(tmp_path, HALF)
    with pytest.raises(CutDoesNotFitError, match=r"column top was count\(\) and is now max\(n bigint\)"):
        tick(tmp_path, HALF + 1, Version({"top": max_of("n", renamed_from="n")}))


def test_both_names_in_the_cut_are_refused(tmp_path):
    """It is not clear which of the two columns is meant. Without the declaration, the new one keeps its values."""
    tick(tmp_path, HALF, Version({"n": count(), "rows": count()}))
    before = newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="column rows was n and is now rows: it has both columns already"):
        tick(tmp_path, HALF + 1, ROWS)
    assert before == newest(tmp_path)
    tick(tmp_path, HALF + 1, Version({"rows": count()}))
    assert (0, 6) == shown(tmp_path, GOLD)[0]


def test_the_name_of_two_versions_ago_is_refused(tmp_path):
    """The column would be dropped under its second name. The message gives this name, and declaring it works."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, ROWS)
    before = newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match=r"neither of them, and rows would be dropped.* renamed from 'rows'"):
        tick(tmp_path, HALF + 2, Version({"counted": count(renamed_from="n")}))
    assert before == newest(tmp_path)
    tick(tmp_path, HALF + 2, Version({"counted": count(renamed_from="rows")}))
    assert [(6, 0), (6, 1)] == shown(tmp_path, GOLD)[-2:]


COMMITTED = [
    "after:AppendRow",
    f"before:PublishTable:{GOLD}",
    f"after:PublishTable:{GOLD}",
    f"after:PublishTable:{STATE}",
    "before:RecordCut",
    "after:RecordCut",
    "before:Release",
]
BOUNDARIES = [
    "after:Claim",
    "after:EnsureTables",
    "before:RunMicroBatch",
    "after:RunMicroBatch",
    "before:AppendRow",
    *COMMITTED,
]


@pytest.mark.kill
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_tick_killed_as_it_renames_is_made_up_for(tmp_path, boundary):
    """After SIGKILL before the commit point, the previous version goes on. After a later one, it is refused."""
    laid_out(tmp_path, HALF, SECOND)
    first = newest(tmp_path).checkpoint
    killed(tick_named, tmp_path, HALF + 7, "counted", kill_at=boundary)
    if boundary in COMMITTED:
        pending = newest(tmp_path).checkpoint
        with pytest.raises(CutDoesNotFitError, match="renamed n to rows"):
            tick(tmp_path, HALF + 9, SECOND)
        tick(tmp_path, HALF + 9, COUNTED)
        assert ["key", "most", "rows"] == at_cut(tmp_path, pending)[GOLD][0]
    else:
        tick(tmp_path, HALF + 8, SECOND)
        must_be_exact(tmp_path, THEN, HALF + 8)
        tick(tmp_path, HALF + 9, COUNTED)
    must_be_exact(tmp_path, NOW, HALF + 9)
    assert ["key", "n", "top"] == at_cut(tmp_path, first)[GOLD][0]


def two_branches(root, numbers, others, **column):
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    counted = pipeline.source("numbers", SequenceSource({"a": numbers}, keys=7)).key_by("key")
    counted.aggregate("sums", **column).upsert(GOLD)
    pipeline.source("others", SequenceSource({"b": others}, keys=7)).table("bronze/others", id="others_kept")
    run(root, plan(pipeline))


@pytest.mark.parametrize("column", [{"n": count()}, {"rows": count(renamed_from="n")}], ids=["before", "after"])
def test_a_checkpoint_without_rows_for_the_vertex_renames_nothing_yet(tmp_path, column):
    """The vertex's files and tables keep the old name. Either version goes on from there."""
    two_branches(tmp_path, HALF, 5, n=count())
    first, then = newest(tmp_path).checkpoint, shown(tmp_path, GOLD)
    two_branches(tmp_path, HALF, 10, rows=count(renamed_from="n"))
    assert newest(tmp_path).checkpoint > first
    assert (["key", "n"], then) == (columns(tmp_path, GOLD), shown(tmp_path, GOLD))
    with pytest.raises(CutDoesNotFitError, match=r"column n was count\(\) and is now max"):
        two_branches(tmp_path, HALF, 10, n=max_of("n"))
    two_branches(tmp_path, HALF + 1, 10, **column)
    assert ["key", *column] == columns(tmp_path, GOLD)
    assert [(0, 6), *[(key, 5) for key in range(1, 7)]] == shown(tmp_path, GOLD)


def test_a_column_of_an_aggregate_is_renamed_in_its_append_table_too(tmp_path):
    """The state and the table keep the values, each under the new name."""

    def tick_of(many, **column):
        pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
        numbers = pipeline.source("numbers", SequenceSource({"a": many}, keys=7)).key_by("key")
        numbers.aggregate("sums", **column).table("bronze/updates")
        run(tmp_path, plan(pipeline))

    tick_of(HALF, n=count())
    tick_of(HALF + 1, rows=count(renamed_from="n"))
    tick_of(HALF + 2, rows=count(renamed_from="n"))
    assert ["key", "rows"] == columns(tmp_path, "bronze/updates")
    assert [(0, 5), (0, 6), (1, 5), (1, 6)] == shown(tmp_path, "bronze/updates")[:4]
