"""A row of another warehouse restored into an empty one: exactly once, whatever strikes, or refused before anything."""

from contextlib import suppress
from uuid import uuid4

import polars as pl
import pytest

from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import RowKind
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.showing.plans import rows_again
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import NoSuchPositionError
from jobs.sources.position_words import PositionWords
from jobs.tick.at_rest.import_entry import OwnRow, find_origin, import_row, restorable
from jobs.tick.at_rest.source_reset import Reset, preview_reset, reset
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import SavepointRefusedError
from jobs.warehouse.savepoint_copy import FileNotCopiedError, copy_savepoint, named_files
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    JOB,
    KEEPS_ALL,
    ROWS,
    at,
    dies_importing,
    laid_out,
    newest,
    read_cut,
    records,
    run,
    tick,
    wanted,
)
from tests.scenarios.runtime.test_cancelling import contents


@pytest.fixture
def root(tmp_path):
    run(tmp_path / "warehouse", 2)
    return tmp_path / "warehouse"


@pytest.fixture
def copy(root, tmp_path):
    row = savepoint_at_rest(at(root))
    copy_savepoint(at(root), row.checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_fork_ends_as_if_it_had_never_been_one(root, copy, tmp_path, undisturbed):
    """The copy's content is published under a new id, and the rest is read once. The original stays as it was."""
    before = read_cut(root)
    fork = tmp_path / "fork"
    row = import_row(wanted(str(copy), fork))
    report = run(fork)
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert undisturbed == read_cut(fork)
    assert row.checkpoint == report.completed[0].checkpoint
    assert before == read_cut(root)
    assert read_cut(copy) == before


def test_a_restored_row_is_above_every_id_and_generation_of_its_origin(root, copy, tmp_path):
    """Names of staged files and ids are never used twice, from either warehouse."""
    used = JobStores(at(root), cross_freely).observe().rows
    row = import_row(wanted(str(copy), tmp_path / "fork"))
    assert row.generation > max(each.generation for each in used)
    assert row.checkpoint > max(each.checkpoint for each in records(root).values())
    assert (RowKind.CHECKPOINT, 0, False) == (row.kind, row.parent, row.pinned)


def test_any_row_of_a_live_warehouse_can_be_restored(root, tmp_path, undisturbed):
    """DIR@N restores an older checkpoint. The tables are as they were then, and go on from there."""
    older = min(records(root))
    fork = tmp_path / "fork"
    row = import_row(wanted(f"{root}@{older}", fork))
    assert sum(len(table.adds) for table in row.tables if table.table == BRONZE) == 1
    assert 2 == len(run(fork).completed[1:])
    assert undisturbed == read_cut(fork)


def test_a_fork_of_the_newest_row_that_was_never_published(root, tmp_path, undisturbed):
    """After a crash between the commit point and the tables, the restored job publishes what the entry holds."""
    with pytest.raises(Dead):
        run_dying(root, "before:PublishTable:bronze/numbers")
    fork = tmp_path / "fork"
    assert 300 == sum(file.rows for file in adds(import_row(wanted(str(root), fork))))
    run(fork)
    assert undisturbed == read_cut(fork)


def run_dying(root, boundary):
    from jobs.tick.tick import run_tick
    from jobs.tick.tick_settings import RuntimeSettings
    from tests.scenarios.runtime.sequence_job import LocalEngine, build

    report = run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=Mortal(boundary))
    raise Dead(report.message)


def adds(row):
    return [file for table in row.tables if table.table == BRONZE for file in table.adds]


def test_claiming_uses_the_copy_up(copy, tmp_path, undisturbed):
    """With --claim the folder is deleted once the entry is in, and the restored job needs nothing of it."""
    fork = tmp_path / "fork"
    import_row(wanted(str(copy), fork, claim=True))
    assert ["fork", "warehouse"] == sorted(path.name for path in tmp_path.iterdir())
    run(fork)
    assert undisturbed == read_cut(fork)


def test_a_warehouse_in_use_is_never_claimed(root, tmp_path):
    with pytest.raises(SavepointRefusedError, match=r"--claim would delete .* a warehouse in use"):
        import_row(wanted(str(root), tmp_path / "fork", claim=True))
    assert not (tmp_path / "fork").exists()
    assert {} != records(root)


def test_a_copy_that_a_tick_has_gone_on_in_is_never_claimed(copy, tmp_path, undisturbed):
    """Run in place, a copy is a warehouse in use like any other. A tick goes on from the savepoint there."""
    run(copy)
    assert undisturbed == read_cut(copy)
    with pytest.raises(SavepointRefusedError, match="no copy of one savepoint"):
        import_row(wanted(str(copy), tmp_path / "fork", claim=True))


def test_a_warehouse_with_checkpoints_takes_no_other_history(root, copy):
    """The refusal names both ways out, and nothing is changed."""
    before = JobStores(at(root), cross_freely).observe().version
    with pytest.raises(SavepointRefusedError, match=r"already holds numbers up to checkpoint 2.*--warehouse OTHER"):
        import_row(wanted(str(copy), root))
    assert before == JobStores(at(root), cross_freely).observe().version


def test_a_table_that_is_there_already_is_refused(copy, tmp_path):
    """A warehouse is not empty if it has a full table of that name, even for a job without entries."""
    fork = tmp_path / "fork"
    pl.DataFrame({"split": ["x"]}).write_delta(str(fork / BRONZE))
    with pytest.raises(SavepointRefusedError, match=r"table bronze/numbers is already in .* and holds rows"):
        restorable(wanted(str(copy), fork))


def test_a_damaged_copy_is_refused_and_the_warehouse_starts_as_if_nothing_had_been(copy, tmp_path, undisturbed):
    """The copying finds a flipped bit. No entry is appended, and a tick without --from starts fresh."""
    [row] = records(copy).values()
    path = copy / max(named_files(row))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    fork = tmp_path / "fork"
    with pytest.raises(FileNotCopiedError, match="is damaged"):
        import_row(wanted(str(copy), fork))
    assert {} == records(fork)
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.kill
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("boundary", ["after:Claim", "before:CopyFiles", "after:CopyFiles", "before:AppendImported"])
def test_a_restore_killed_before_its_row_can_begin_again_or_start_fresh(copy, tmp_path, undisturbed, boundary, again):
    """After SIGKILL before the commit point, --from works again.

    Without --from, the files go and the job starts fresh.
    """
    fork = tmp_path / "fork"
    killed(dies_importing, str(copy), fork, boundary)
    assert {} == records(fork)
    if again:
        row = import_row(wanted(str(copy), fork))
        assert 200 == sum(file.rows for file in adds(row))
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.kill
@pytest.mark.parametrize("claim", [False, True])
@pytest.mark.parametrize("boundary", ["after:AppendImported", "before:Release"])
def test_a_restore_killed_after_its_row_is_one(copy, tmp_path, undisturbed, boundary, claim):
    """After SIGKILL behind the commit point, the next tick publishes the entry and goes on. The copy is still whole."""
    fork = tmp_path / "fork"
    killed(dies_importing, str(copy), fork, boundary, claim=claim)
    assert 1 == len(records(fork))
    run(fork)
    assert undisturbed == read_cut(fork)
    with pytest.raises(SavepointRefusedError, match="already holds numbers"):
        import_row(wanted(str(copy), fork))
    assert 200 == pl.read_delta(str(copy / BRONZE)).height


def test_a_fresh_start_leaves_no_file_of_a_restore_behind(copy, tmp_path):
    """Files that were copied and never committed are ordinary leftovers."""
    fork = tmp_path / "fork"
    with pytest.raises(Dead):
        import_row(wanted(str(copy), fork), boundary=Mortal("after:CopyFiles"))
    [row] = records(copy).values()
    assert all((fork / path).exists() for path in named_files(row))
    run(fork, take_over=True)
    assert not any((fork / path).exists() for path in named_files(row))


def renamed(**how):
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=7)).table(BRONZE, id="bronze")
    if "vertex" in how:
        numbers.key_by("key").aggregate(how["vertex"], rows=count()).upsert("gold/other")
    return plan(pipeline)


def test_tables_that_the_pipeline_no_longer_has_are_named(copy, tmp_path):
    """They are refused without the flag. With it they stay behind, and the rest is restored."""
    with pytest.raises(SavepointRefusedError, match=r"holds table gold/by_key.*--allow-non-restored-state"):
        restorable(wanted(str(copy), tmp_path / "fork", plan=renamed()))
    row = restorable(wanted(str(copy), tmp_path / "fork", plan=renamed(), allow_non_restored_state=True)).record
    assert [BRONZE] == [table.table for table in row.tables]
    assert ["numbers", "bronze"] == [vertex.vertex for vertex in row.vertices]


def test_what_from_means(root, copy, tmp_path):
    """A number, or this warehouse's folder, means an own entry.

    Another folder, with or without @N, means a foreign one.
    """
    newest = max(number for number, row in records(root).items() if row.kind is RowKind.CHECKPOINT)
    for text in (str(newest), str(root), f"{root}@{newest}", f"{root}/."):
        assert OwnRow(records(root)[newest], is_newest=True) == find_origin(text, root, JOB)
    assert not find_origin("1", root, JOB).is_newest
    assert find_origin(str(copy), root, JOB).is_copy
    assert not find_origin(f"{root}@1", tmp_path / "fork", JOB).is_copy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("99", r"there is no checkpoint or savepoint 99 in .*; there are: 1 \(checkpoint\), 2 \(checkpoint\)"),
        ("nowhere", "nowhere is no such folder; make one with 'tidemark savepoint numbers --to DIR'"),
        ("nowhere@3", "nowhere is no such folder"),
        (".", "no savepoint and no warehouse of numbers"),
    ],
)
def test_a_from_that_leads_nowhere_says_what_is_there(root, tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SavepointRefusedError, match=said):
        find_origin(text, root, JOB)


# ------------------------------------------------------------------
# One source goes to another position, tables and state stay: said clearly, refused by name, finished after a death.


SOURCES = KEEPS_ALL.sources
WORDS = PositionWords(SOURCES)


def positions(root):
    vertex = next(vertex for vertex in newest(root).vertices if vertex.splits)
    return dict(zip(vertex.splits, (subtask.position for subtask in vertex.subtasks), strict=True))


def test_a_source_is_read_again_from_its_start(tmp_path):
    """Tables stay as they are. The next tick appends every row again, as the command said."""
    laid_out(tmp_path, 2)
    before, shown = newest(tmp_path), contents(tmp_path)
    plan, row = reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (RowKind.RESET, before.checkpoint, ()) == (row.kind, row.parent, row.tables)
    assert ({"a": None, "b": None}, shown) == (positions(tmp_path), contents(tmp_path))
    assert shown == read_cut(tmp_path)
    again = sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 + again == pl.read_delta(str(tmp_path / BRONZE)).height
    assert 300 + again == sum(row[1] for row in read_cut(tmp_path)["gold/by_key"])


def test_one_split_goes_to_its_end_and_the_other_stays(tmp_path):
    laid_out(tmp_path, 1)
    stood = positions(tmp_path)
    plan, _ = reset(at(tmp_path), SOURCES, Reset("numbers", "end", "b"))
    assert {"a": stood["a"], "b": "150"} == positions(tmp_path)
    skipped = -sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 - skipped == pl.read_delta(str(tmp_path / BRONZE)).height


def test_a_dry_run_changes_nothing(tmp_path):
    """It shows the splits that move, and how many rows lie between."""
    laid_out(tmp_path, 1)
    before = JobStores(at(tmp_path), cross_freely).observe()
    stood = positions(tmp_path)
    plan = preview_reset(at(tmp_path), SOURCES, Reset("numbers", "7", "a"))
    assert [("a", stood["a"], "7")] == [(split.split, split.now, split.then) for split in plan.splits]
    assert [int(stood["a"]) - 7] == rows_again(plan.splits, WORDS)
    after = JobStores(at(tmp_path), cross_freely).observe()
    assert (before.version, before.rows) == (after.version, after.rows)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (Reset("nunbers", "start"), RollbackRefusedError, "reads no source 'nunbers': did you mean 'numbers'"),
        (Reset("numbers", "start", "c"), RollbackRefusedError, "has read no split 'c': there are a, b"),
        (Reset("numbers", "../x"), NoSuchPositionError, "'../x' is not a position in split a.*a number from 0 to 150"),
        (Reset("numbers", "151"), NoSuchPositionError, "'151' is not a position in split a.*a number from 0 to 150"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(tmp_path, asked, error, said):
    """The answer lists source, split or positions that exist. No entry is appended."""
    laid_out(tmp_path, 1)
    before = set(records(tmp_path))
    with pytest.raises(error, match=said):
        reset(at(tmp_path), SOURCES, asked)
    assert before == set(records(tmp_path))


def test_a_job_that_has_nothing_yet_is_refused(tmp_path):
    JobStores(at(tmp_path / "new"), cross_freely)
    with pytest.raises(SavepointRefusedError, match="completed no checkpoint yet"):
        reset(at(tmp_path / "new"), SOURCES, Reset("numbers", "start"))


def test_what_a_dead_tick_has_left_goes_with_the_reset(tmp_path):
    """The reset's entry is of a newer generation. Afterwards such a file would look as if it had been used."""
    laid_out(tmp_path, 1)
    stood, shown = newest(tmp_path), contents(tmp_path)
    counter = next(vertex.micro_batch for vertex in stood.vertices if vertex.vertex == "bronze")
    left = tmp_path / BRONZE / "_data" / str(stood.generation) / f"bronze-{counter + 1}-{uuid4().hex}.parquet"
    left.write_bytes(b"left behind")
    reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (False, shown) == (left.exists(), contents(tmp_path))


@pytest.mark.kill
@pytest.mark.parametrize(
    "boundary", ["after:Claim", "before:AppendRow", "after:AppendRow", "before:RollForwardCut", "before:Release"]
)
def test_a_death_on_the_way_is_made_up_for(tmp_path, monkeypatch, boundary):
    """Before the entry nothing has changed. After it, the next tick begins from it."""
    laid_out(tmp_path, 1)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    before = newest(tmp_path)
    with suppress(Dead):
        reset(at(tmp_path), SOURCES, Reset("numbers", "end"), boundary=Mortal(boundary))
    happened = newest(tmp_path) != before
    assert happened is (boundary not in ("after:Claim", "before:AppendRow"))
    rows = pl.read_delta(str(tmp_path / BRONZE)).height
    tick(tmp_path)
    assert (rows if happened else 300) == pl.read_delta(str(tmp_path / BRONZE)).height
