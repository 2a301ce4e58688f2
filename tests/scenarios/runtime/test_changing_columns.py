"""Columns are part of the commit: they become visible with their checkpoint, and are taken back with it (D6)."""

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import PublishFailed
from jobs.cli.errors import ExitCode
from jobs.pipeline import Pipeline, count, max_of, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.publisher import Publisher
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime import evolving_job, sequence_job
from tests.scenarios.runtime.evolving_job import (
    BRONZE,
    FIRST,
    GOLD,
    SECOND,
    Notes,
    Version,
    at,
    at_cut,
    columns,
    laid_out,
    newest,
    now,
    shown,
    tick,
    tick_named,
    versions,
)
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, KEYS, ROWS, records, run

HALF = 35
"""Rows of the first tick: five of each key."""
NEW = {BRONZE: ["key", "n", "split", "value"], GOLD: ["key", "n", "top"]}
OLD = {BRONZE: ["key", "n", "split"], GOLD: ["key", "n"]}


def names(root):
    return {table: sorted(columns(root, table)) for table in OLD}


def test_a_tick_without_news_changes_no_columns_and_the_previous_version_goes_on(tmp_path):
    """A tick that reads no row must not add the column, because then the previous version would be refused."""
    laid_out(tmp_path, HALF)
    before = versions(tmp_path)
    tick(tmp_path, HALF, SECOND)
    assert before == versions(tmp_path)
    tick(tmp_path, HALF + 7)
    assert [(key, 6) for key in range(7)] == shown(tmp_path, GOLD)


def test_columns_come_with_their_checkpoint_in_one_commit_a_table(tmp_path):
    """Rows and columns come together.

    A key without new rows has null in the new column. The column's comment says since which checkpoint it counts.
    """
    laid_out(tmp_path, HALF)
    first, before = newest(tmp_path).checkpoint, versions(tmp_path)
    heard = Notes()
    tick(tmp_path, HALF + 1, SECOND, listener=heard)
    assert {table: version + 1 for table, version in before.items()} == versions(tmp_path)
    assert NEW == names(tmp_path)
    assert [(0, 6, HALF), *[(key, 5, None) for key in range(1, 7)]] == shown(tmp_path, GOLD)
    said = f"holds only what came after checkpoint {first}"
    assert [f"bronze/numbers: column value is new and {said}"] == [note for note in heard.notes if "bronze" in note]
    assert f"gold/sums: column top is new and {said}" in heard.notes
    (top,) = [field for field in DeltaTable(str(tmp_path / GOLD)).schema().fields if field.name == "top"]
    assert said == top.metadata["comment"]
    recorded = {each.table: each.columns for each in newest(tmp_path).columns}
    assert [("key", 0), ("n", 0), ("top", first)] == [(column.name, column.after) for column in recorded[GOLD]]


def test_going_back_to_the_previous_version_works_and_no_old_value_comes_back(tmp_path):
    """An upsert table loses the column, and an append table keeps it. A column that comes back counts from then on."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 7, SECOND)
    tick(tmp_path, HALF + 8)
    assert {BRONZE: NEW[BRONZE], GOLD: OLD[GOLD]} == names(tmp_path)
    assert [(0, 7), *[(key, 6) for key in range(1, 7)]] == shown(tmp_path, GOLD)
    assert 1 == sum(row[2:] == ("a", None) for row in shown(tmp_path, BRONZE) if row[1] == HALF + 7)
    third = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 9, SECOND)
    assert [(0, 7, None), (1, 7, HALF + 8), *[(key, 6, None) for key in range(2, 7)]] == shown(tmp_path, GOLD)
    recorded = {each.table: each.columns for each in newest(tmp_path).columns}
    assert third == next(column.after for column in recorded[GOLD] if column.name == "top")


def test_a_rollback_takes_columns_back_and_either_version_goes_on(tmp_path):
    """Every table shows the cut of the rollback, columns too. Nothing of the abandoned epoch is left."""
    laid_out(tmp_path, HALF)
    first, then = newest(tmp_path).checkpoint, now(tmp_path)
    tick(tmp_path, HALF + 7, SECOND)
    roll_back(at(tmp_path), first)
    assert then == now(tmp_path) == at_cut(tmp_path, newest(tmp_path).checkpoint)
    tick(tmp_path, HALF + 1, SECOND)
    assert [(0, 6, HALF), *[(key, 5, None) for key in range(1, 7)]] == shown(tmp_path, GOLD)
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 1)
    assert [(0, 6), *[(key, 5) for key in range(1, 7)]] == shown(tmp_path, GOLD)


def test_a_rollback_takes_columns_away_that_an_entry_left_behind_kept(tmp_path, monkeypatch):
    """A rollback died before it removed gold's column, and cannot be published. The next one removes the column.

    The newest entry does not list that column any more, since it is the entry of the first rollback.
    """
    laid_out(tmp_path, HALF)
    first, then = newest(tmp_path).checkpoint, now(tmp_path)
    tick(tmp_path, HALF + 7, SECOND)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    with pytest.raises(Dead):
        roll_back(at(tmp_path), first, boundary=Mortal(f"before:RollForward:{GOLD}"))
    left, real = newest(tmp_path).checkpoint, Publisher.publish

    def publish(self, publication, checkpoint, **options):
        if (publication.table, checkpoint) == (GOLD, left):
            return PublishFailed(checkpoint, publication.table, "the store is away")
        return real(self, publication, checkpoint, **options)

    monkeypatch.setattr(Publisher, "publish", publish)
    assert NEW[GOLD] == names(tmp_path)[GOLD]
    assert left == roll_back(at(tmp_path), first).plan.pending.checkpoint
    assert then == now(tmp_path) == at_cut(tmp_path, newest(tmp_path).checkpoint)


@pytest.mark.kill
@pytest.mark.parametrize(
    "boundary", ["after:AppendRow", f"after:PublishTable:{BRONZE}", f"before:PublishTable:{GOLD}", "before:RecordCut"]
)
@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_killed_process_is_made_up_for_by_either_version(tmp_path, boundary, version):
    """After SIGKILL behind the commit point, either version of the pipeline publishes the columns."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    killed(tick_named, tmp_path, HALF + 7, "second", kill_at=boundary)
    pending = newest(tmp_path).checkpoint
    assert pending > first
    tick(tmp_path, HALF + 7, version)
    assert at_cut(tmp_path, pending)[GOLD] == (NEW[GOLD], [(key, 6, HALF + key) for key in range(7)])
    assert NEW[BRONZE] == at_cut(tmp_path, pending)[BRONZE][0]


@pytest.mark.parametrize("boundary", ["before:RecordCut", f"before:PublishTable:{GOLD}"])
@pytest.mark.parametrize("died_again", [None, "after:CorrectCuts"])
def test_a_column_that_went_stays_away_from_a_table_that_lost_that_entry(tmp_path, boundary, died_again, monkeypatch):
    """Gold's log loses the commit that removed the column.

    The checkpoint whose entry removed the column is subsumed by a newer one, which is not published yet.
    """
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    monkeypatch.setattr(evolving_job, "CONFIG", evolving_job.CONFIG.model_copy(update={"retained": 1}))
    tick(tmp_path, HALF, SECOND)
    tick(tmp_path, HALF + 7)
    took_out = versions(tmp_path)[GOLD]
    with pytest.raises(Dead):
        tick(tmp_path, HALF + 14, boundary=Mortal(boundary))
    for lost in range(took_out, versions(tmp_path)[GOLD] + 1):
        (tmp_path / GOLD / "_delta_log" / f"{lost:020}.json").unlink()
    assert NEW[GOLD] == sorted(columns(tmp_path, GOLD))
    if died_again is not None:
        with pytest.raises(Dead):
            tick(tmp_path, HALF + 14, boundary=Mortal(died_again))
    tick(tmp_path, HALF + 14)
    assert OLD[GOLD] == sorted(columns(tmp_path, GOLD))
    assert [(key, 7) for key in range(7)] == shown(tmp_path, GOLD)


def test_a_change_that_the_table_cannot_follow_is_refused_before_the_claim(tmp_path):
    laid_out(tmp_path, HALF, SECOND)
    before = newest(tmp_path)
    other = Version({"n": count(), "top": max_of("split")}, values=True)
    with pytest.raises(CutDoesNotFitError, match=f"checkpoint {before.checkpoint}: .*column top was") as refused:
        tick(tmp_path, HALF + 1, other)
    assert "another name" in str(refused.value)
    assert before == newest(tmp_path)


def test_a_foreign_column_is_found_still(tmp_path):
    """A column that no entry ever listed was added by another writer, whichever version of the pipeline runs."""
    laid_out(tmp_path, HALF, SECOND)
    DeltaTable(str(tmp_path / GOLD)).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    for version in (SECOND, FIRST):
        with pytest.raises(AssertionError, match="has a column note that the pipeline does not write"):
            tick(tmp_path, HALF + 7, version)


# ------------------------------------------------------------------
# A pipeline whose aggregate computes something else does not fit the existing state, and is refused before the claim
# (D6).


HERE = "tests.scenarios.runtime.test_changing_columns"


def declared(**columns):
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(sequence_job.BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", **columns).upsert(sequence_job.GOLD)
    return pipeline


def counting(_data):
    return declared(rows=max_of("value"), total=count())


@pytest.fixture
def root(tmp_path):
    """Return a warehouse with two checkpoints of a count and a sum by key, and rows still to read."""
    run(tmp_path / "warehouse", 2)
    return tmp_path / "warehouse"


@pytest.mark.parametrize(
    ("columns", "column", "was", "now"),
    [
        ({"rows": sum_of("value"), "total": sum_of("value")}, "rows", r"count\(\)", r"sum\(value bigint\)"),
        ({"rows": count(), "total": count()}, "total", r"sum\(value bigint\)", r"count\(\)"),
        ({"rows": count(), "total": sum_of("n")}, "total", r"sum\(value bigint\)", r"sum\(n bigint\)"),
        ({"rows": count("split"), "total": sum_of("value")}, "rows", r"count\(\)", r"count\(split string\)"),
    ],
)
def test_another_aggregate_under_an_old_name_is_refused_before_the_claim(root, columns, column, was, now):
    """A count of 50, to which a sum of 49 were added, would become a meaningless 99.

    The job is unchanged, and its own pipeline goes on.
    """
    before = JobStores(sequence_job.at(root), cross_freely).observe().rows
    says = rf"checkpoint 2: state of operator 'by_key': column {column} was {was} and is now {now}: .*another name"
    with pytest.raises(CutDoesNotFitError, match=says):
        run(root, plan=plan(declared(**columns)))
    assert before == JobStores(sequence_job.at(root), cross_freely).observe().rows
    run(root)


def test_every_checkpoint_records_what_its_state_means(root):
    (by_key,) = [vertex for vertex in records(root)[2].vertices if vertex.vertex == "by_key"]
    assert ["rows count()", "total sum(value bigint)"] == [f"{each.column} {each}" for each in by_key.meanings]


def test_a_dry_run_in_place_shows_every_change_and_fails(root, typed):
    before = sorted(str(path) for path in root.rglob("*"))
    code, out, err = typed("run", f"{HERE}:counting", "--warehouse", root, "--dry-run")
    assert ExitCode.FAILED is code
    rows = [line.split("│")[1:-1] for line in out.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    of = "state of operator 'by_key'"
    assert ["meaning of state", of, "rows", "count()", "max(value bigint)", "refused"] in cells
    assert ["meaning of state", of, "total", "sum(value bigint)", "count()", "refused"] in cells
    assert "column rows was count() and is now max(value bigint)" in err
    assert "give the new column another name" in err
    assert "nothing was changed" in err
    assert before == sorted(str(path) for path in root.rglob("*"))


def test_a_dry_run_of_a_fork_shows_it_too(root, typed, tmp_path):
    """A restore from another warehouse is compared with the entry in that warehouse."""
    code, out, err = typed("run", f"{HERE}:counting", "--from", root, "--warehouse", tmp_path / "fork", "--dry-run")
    assert ExitCode.FAILED is code
    assert "max(value bigint)" in out
    assert "column rows was count()" in err
    assert not (tmp_path / "fork").exists()
