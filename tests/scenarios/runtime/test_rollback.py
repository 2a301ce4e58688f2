"""A job is rolled back in place, with its outputs, and goes on: no row is skipped, and none comes twice (K2)."""

from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.record import RowKind
from jobs.cli.main import execute
from jobs.pipeline.planning import plan
from jobs.reading import Cuts, cuts
from jobs.showing.plans import rows_again
from jobs.sources.position_words import PositionWords
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.driver import Inbox
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import NeverRunError
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from tests.scenarios.faults import orders_job
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime import evolving_job, newest_job
from tests.scenarios.runtime.evolving_job import FIRST, Version, shown
from tests.scenarios.runtime.newest_job import TABLE, expected
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    GOLD,
    JOB,
    KEEPS_ALL,
    STATE,
    LocalEngine,
    append_foreign,
    at,
    at_cut,
    build,
    contents,
    declared,
    dies_going_back,
    laid_out,
    newest,
    read_cut,
    records,
    tick,
    ticks,
)

UNHURRIED = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=9)
"""The configuration with one checkpoint, when the job is caught up."""


def state_rows(root, version=None):
    return sorted(pl.read_delta(str(root / STATE), version=version).rows())


def test_tables_state_and_positions_go_back_in_one_row(tmp_path, undisturbed):
    """Every table shows the same as at checkpoint N, read by cut and without.

    The rollback entry's parent is N. The next tick ends with exact tables.
    """
    first, *_, last = laid_out(tmp_path, 3)
    expected, at_first = at_cut(tmp_path, first), records(tmp_path)[first]
    version = CutStore(at(tmp_path)).read(CheckpointId(first))[STATE]
    state = state_rows(tmp_path, version)
    done = roll_back(at(tmp_path), first)
    row = newest(tmp_path)
    assert (RowKind.ROLLBACK, first, row) == (row.kind, row.parent, done.record)
    assert row.checkpoint > last
    assert [first, row.checkpoint] == sorted(records(tmp_path))
    assert expected == contents(tmp_path) == read_cut(tmp_path) == at_cut(tmp_path, row.checkpoint)
    assert state == state_rows(tmp_path)
    positions = [[each.position for each in vertex.subtasks] for vertex in row.vertices]
    assert [[each.position for each in vertex.subtasks] for vertex in at_first.vertices] == positions
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_dry_run_tells_all_and_changes_nothing(tmp_path):
    first, second, third = laid_out(tmp_path, 3)
    before = JobStores(at(tmp_path), cross_freely).observe()
    plan = preview_rollback(at(tmp_path), first)
    bronze = next(table for table in plan.tables if table.record.table == BRONZE)
    assert ((second, third), (), ()) == (plan.turn.dropped, plan.turn.abandoned, plan.turn.adopted)
    assert (third, first) == (plan.newest.checkpoint, plan.target.checkpoint)
    removed = pl.read_delta(str(tmp_path / BRONZE)).height - len(at_cut(tmp_path, first)[str(BRONZE)])
    again = rows_again(plan.splits, PositionWords(KEEPS_ALL.sources))
    assert removed == sum(file.rows for file in bronze.removes) == sum(again)
    assert ((), bronze.to_version) == (bronze.adds, CutStore(at(tmp_path)).read(CheckpointId(first))[BRONZE])
    after = JobStores(at(tmp_path), cross_freely).observe()
    assert (before.version, before.rows, before.cuts) == (after.version, after.rows, after.cuts)


@pytest.mark.dear
def test_old_txn_entries_skip_nothing(tmp_path, undisturbed):
    """The job is rolled back twice to N and goes on.

    Each table's log ends with the newest id, although it had ids above N before.
    """
    first, *_ = laid_out(tmp_path, 3)
    roll_back(at(tmp_path), first)
    ticks(tmp_path, 2)
    roll_back(at(tmp_path), first)
    tick(tmp_path)
    for table in (BRONZE, GOLD):
        shown = DeltaTable(str(tmp_path / table)).transaction_version(f"{JOB}/{table}")
        assert newest(tmp_path).checkpoint == shown
    assert undisturbed == read_cut(tmp_path)


def test_a_rollback_is_rolled_back(tmp_path, undisturbed):
    """A job can be rolled back to the entry of an earlier rollback, and to an entry before that rollback."""
    first, second, _ = laid_out(tmp_path, 3)
    cuts = {each: at_cut(tmp_path, each) for each in (first, second)}
    back = roll_back(at(tmp_path), second).record.checkpoint
    ticks(tmp_path, 1)
    roll_back(at(tmp_path), back)
    assert cuts[second] == read_cut(tmp_path) == contents(tmp_path)
    assert [first, second, back, newest(tmp_path).checkpoint] == sorted(records(tmp_path))
    roll_back(at(tmp_path), first)
    assert cuts[first] == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def asked(root, kind, *, after=0, plan=KEEPS_ALL):
    inbox, left = Inbox(), [after]
    before = set(records(root))

    def ask(name):
        left[0] -= name == "after:RunMicroBatch"
        if left[0] == 0:
            left[0] = -1
            inbox.put(SavepointRequested("asked", kind))

    ask("")
    run_tick(plan, RuntimeSettings(warehouse=root), engine=LocalEngine(), inbox=inbox, boundary=ask)
    return next(row.checkpoint for each, row in sorted(records(root).items()) if row.pinned and each not in before)


def test_a_stop_s_savepoint_outlives_the_line_and_can_be_gone_back_to(tmp_path, undisturbed):
    """A rollback to an earlier checkpoint marks the savepoint as abandoned.

    A rollback to the savepoint restores its files and removes the mark.
    """
    first, *_ = laid_out(tmp_path, 1)
    stopped = asked(tmp_path, SavepointKind.SUSPEND, after=1)
    expected = at_cut(tmp_path, stopped)
    assert (stopped,) == roll_back(at(tmp_path), first).plan.turn.abandoned
    assert (True, RowKind.ROLLBACK) == (records(tmp_path)[stopped].abandoned, newest(tmp_path).kind)
    ticks(tmp_path, 1)
    done = roll_back(at(tmp_path), stopped)
    assert (stopped,) == done.plan.turn.adopted
    assert not records(tmp_path)[stopped].abandoned
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    assert None not in lowest_n(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def lowest_n(root):
    actions = pa.table(DeltaTable(str(root / BRONZE)).get_add_actions(flatten=True))
    return actions["min.n"].to_pylist()


def test_a_plain_savepoint_is_gone_back_to_with_what_it_held_pending(tmp_path, undisturbed):
    """The savepoint's unpublished files are published under the new id. Files of later checkpoints are removed."""
    laid_out(tmp_path, 1)
    saved = asked(tmp_path, SavepointKind.PLAIN, after=1, plan=build(config=UNHURRIED))
    row = records(tmp_path)[saved]
    held_rows = sum(file.rows for table in row.tables if table.table == BRONZE for file in table.adds)
    before = len(at_cut(tmp_path, row.parent)[str(BRONZE)])
    assert (RowKind.SAVEPOINT, True, True) == (row.kind, held_rows > 0, newest(tmp_path).checkpoint > saved)
    done = roll_back(at(tmp_path), saved)
    assert newest(tmp_path) == done.record
    assert before + held_rows == pl.read_delta(str(tmp_path / BRONZE)).height == len(read_cut(tmp_path)[str(BRONZE)])
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_the_cut_that_a_savepoint_stands_on_stays_whole(tmp_path, monkeypatch, capsys):
    """Rows were read between the cut and the savepoint, so the two have different state files.

    The cut's entry stays as long as the savepoint: after newer checkpoints, after more versions of `checkpoints` than a
    reader looks back, and after a rollback to the savepoint.
    """
    keeps_one = build(config=UNHURRIED.model_copy(update={"retained": 1}))
    laid_out(tmp_path, 1)
    cut = newest(tmp_path).checkpoint
    saved = asked(tmp_path, SavepointKind.PLAIN, after=2, plan=keeps_one)
    assert cut == records(tmp_path)[saved].parent
    its, of_savepoint = (set(state_files(records(tmp_path)[each])) for each in (cut, saved))
    assert its - of_savepoint, "the cut has state files that the savepoint does not name"
    monkeypatch.setattr(cuts, "_LOOK_BACK", 1)

    def must_be_whole():
        there = Cuts(tmp_path, JOB).at(CheckpointId(cut))
        numbers = Counter(there.polars(BRONZE).collect()["key"])
        assert numbers == {row["key"]: row["rows"] for row in there.state("by_key").arrow().to_pylist()}
        assert 0 == execute(["doctor", MODULE, "--verify", "--warehouse", str(tmp_path)]), capsys.readouterr().out

    must_be_whole()
    roll_back(at(tmp_path), saved)
    must_be_whole()
    tick(tmp_path, plan=keeps_one)
    must_be_whole()
    assert [cut, saved] == sorted(records(tmp_path))[:2]
    dispose(at(tmp_path), saved)
    tick(tmp_path, plan=build(rows={"a": 200, "b": 200}, config=keeps_one.config))
    assert cut not in records(tmp_path)


def state_files(record):
    return [file.file.path for vertex in record.vertices for each in vertex.subtasks for file in each.state]


@pytest.mark.dear
def test_checkpoints_of_another_parallelism_are_left_and_gone_back_to(tmp_path, undisturbed):
    first, *_ = laid_out(tmp_path, 1)
    expected = read_cut(tmp_path)
    three = plan(declared(config=KEEPS_ALL.config), parallelism=3, config=KEEPS_ALL.config)
    ticks(tmp_path, 1, plan=three)
    assert 3 == len(next(vertex for vertex in newest(tmp_path).vertices if vertex.vertex == "by_key").subtasks)
    roll_back(at(tmp_path), first)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_what_others_appended_stays(tmp_path):
    first, *_ = laid_out(tmp_path, 1)
    expected = at_cut(tmp_path, first)[str(BRONZE)]
    append_foreign(tmp_path, 1)
    ticks(tmp_path, 1)
    append_foreign(tmp_path, 2)
    roll_back(at(tmp_path), first)
    shown = pl.read_delta(str(tmp_path / BRONZE))
    assert [1, 2] == sorted(shown.filter(split="x")["n"].to_list())
    assert expected == sorted(shown.filter(pl.col("split") != "x").rows())
    assert shown.height == len(read_cut(tmp_path)[str(BRONZE)])


def test_an_append_only_table_says_how_to_let_it_go_back(tmp_path):
    first, *_ = laid_out(tmp_path, 2)
    DeltaTable(str(tmp_path / BRONZE)).alter.set_table_properties({"delta.appendOnly": "true"})
    rows = set(records(tmp_path))
    with pytest.raises(TableNotRolledBackError, match=r"bronze/numbers is append-only.*'delta.appendOnly'='false'"):
        roll_back(at(tmp_path), first)
    assert rows == set(records(tmp_path))


def test_what_a_table_lost_to_a_foreign_delete_in_an_upsert_table_comes_back(tmp_path):
    """The rollback sets gold to the cut's files, whatever other writers did to the table."""
    first, *_ = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, first)
    DeltaTable(str(tmp_path / GOLD)).delete("key < 3")
    done = roll_back(at(tmp_path), first)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    assert any("DELETE" in note for note in done.notes)


def test_a_committed_checkpoint_is_published_before_it_is_left(tmp_path, monkeypatch, undisturbed):
    """A tick died after its commit point. The rollback first rolls that tick's entry forward, and then rolls back."""
    first, *_ = laid_out(tmp_path, 1)
    expected = read_cut(tmp_path)
    with pytest.raises(Dead):
        run_tick(
            KEEPS_ALL, RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), boundary=Mortal("after:AppendRow")
        )
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    pending = newest(tmp_path).checkpoint
    assert (pending,) == preview_rollback(at(tmp_path), first).turn.dropped
    assert pending == preview_rollback(at(tmp_path), first).pending.checkpoint
    assert None is roll_back(at(tmp_path), first).plan.pending
    shown = [entry["checkpoint"] for entry in published(tmp_path)]
    assert pending in shown
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def published(root):
    """Return Tidemark's own notes on its commits in bronze's log, newest first."""
    return [
        entry["tidemark"]
        for entry in DeltaTable(str(root / BRONZE)).history()
        if "checkpoint" in entry.get("tidemark", {})
    ]


def test_wrong_numbers_are_answered_with_right_ones(tmp_path):
    """A rollback to an unknown checkpoint or to the present one is refused. The errors name the possible targets."""
    with pytest.raises(NeverRunError, match="has never run in"):
        roll_back(at(tmp_path / "none"), 1)
    assert not (tmp_path / "none").exists()
    first, second, third = laid_out(tmp_path, 3)
    saved = savepoint_at_rest(at(tmp_path)).checkpoint
    offered = rf"it can go back to {saved} \(savepoint\), {second}, {first}$"
    for number, said in ((99, "has no checkpoint or savepoint 99"), (third, f"stands at checkpoint {third} already")):
        with pytest.raises(RollbackRefusedError, match=f"{said}: {offered}"):
            roll_back(at(tmp_path), number)


MODULE = "tests.scenarios.runtime.sequence_job:as_pipeline"


def typed(capsys, *words):
    execute([str(word) for word in words])
    return " ".join(capsys.readouterr().out.split())


def test_the_plan_and_the_end_say_the_same_rows_and_none_below_zero(tmp_path, capsys):
    first, *_ = laid_out(tmp_path, 2)
    saved = savepoint_at_rest(at(tmp_path)).checkpoint
    rows = newest(tmp_path).statistics.rows
    told = f"the next tick reads {rows} rows again"
    planned = typed(capsys, "rollback", MODULE, first, "--warehouse", tmp_path, "--dry-run")
    assert told in planned
    assert f"tidemark savepoint {MODULE}" in planned
    assert told in typed(capsys, "rollback", MODULE, first, "--warehouse", tmp_path)
    forward = f"the next tick reads 0 rows again, and skips {rows} rows that the tables show again"
    assert forward in typed(capsys, "rollback", MODULE, saved, "--warehouse", tmp_path, "--dry-run")
    assert forward in typed(capsys, "rollback", MODULE, saved, "--warehouse", tmp_path)


def test_a_plan_without_positions_that_can_be_counted_says_what_the_checkpoints_counted(tmp_path, capsys):
    """Without the pipeline's code, positions are only texts.

    The printed table shows `unknown`, and the sentence below it has the number of rows that the checkpoints counted.
    """
    first, *_ = laid_out(tmp_path, 2)
    rows = newest(tmp_path).statistics.rows
    said = typed(capsys, "rollback", JOB, first, "--warehouse", tmp_path, "--dry-run")
    assert " unknown " in said
    assert f"the next tick reads {rows} rows again, as the checkpoints counted them" in said


# ------------------------------------------------------------------
# Rollbacks of tables in which another writer has merged files. The rollback undoes the merge, leaves it alone, or is
# refused with an error that names the merge. No Spark.


@pytest.mark.dear
def test_what_others_compacted_before_n_stays_compacted(tmp_path):
    laid_out(tmp_path, 1)
    append_foreign(tmp_path, 1)
    DeltaTable(str(tmp_path / BRONZE)).optimize.compact()
    _, second = ticks(tmp_path, 1)
    expected = read_cut(tmp_path)
    tick(tmp_path)
    roll_back(at(tmp_path), second)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert 301 == pl.read_delta(str(tmp_path / BRONZE)).height


def test_a_compaction_of_old_files_after_n_is_not_undone(tmp_path):
    """Files of checkpoint N that others merged later stay merged. Their rows are there once."""
    laid_out(tmp_path, 2)
    second = newest(tmp_path).checkpoint
    expected = read_cut(tmp_path)
    DeltaTable(str(tmp_path / BRONZE)).optimize.compact()
    ticks(tmp_path, 1)
    roll_back(at(tmp_path), second)
    assert expected == read_cut(tmp_path) == contents(tmp_path)


def merged(root, times=1):
    table = DeltaTable(str(root / BRONZE))
    for number in range(times):
        append_foreign(root, 1_000 + number)
        table.update_incremental()
        table.optimize.compact()
    return table


@pytest.mark.parametrize("times", [1, 2])
def test_a_merge_of_old_and_new_rows_is_undone_first(tmp_path, times):
    """An OPTIMIZE over files of checkpoint N, newer files and others' rows is undone. The others' rows stay.

    The preview changes nothing, and has the removals that remain after the undoing. The undoing changes no row.
    """
    first, *_ = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, first)
    version, before = merged(tmp_path, times).version(), contents(tmp_path)
    plan = preview_rollback(at(tmp_path), first)
    assert (version, before) == (DeltaTable(str(tmp_path / BRONZE)).version(), contents(tmp_path))
    done = roll_back(at(tmp_path), first)
    assert done.notes[0].startswith(f"{BRONZE}: undid foreign OPTIMIZE at version {version}")
    assert times == done.notes[0].count("OPTIMIZE")
    assert [each.removes for each in plan.tables] == [each.removes for each in done.plan.tables]
    undone = pl.read_delta(str(tmp_path / BRONZE), version=version + 1)
    assert before[str(BRONZE)] == sorted(undone.rows())
    others = undone.filter(pl.col("n") >= 1_000).rows()
    assert (
        sorted([*expected[str(BRONZE)], *others]) == read_cut(tmp_path)[str(BRONZE)] == contents(tmp_path)[str(BRONZE)]
    )
    assert expected[str(GOLD)] == read_cut(tmp_path)[str(GOLD)]
    tick(tmp_path)
    assert 300 + times == pl.read_delta(str(tmp_path / BRONZE)).height


@pytest.mark.parametrize("boundary", ["before:LogCommit:tables", "after:LogCommit:tables", "after:AppendRow"])
def test_a_rollback_that_dies_beside_the_undoing_of_a_merge_loses_nothing(tmp_path, boundary):
    """The undoing of the merge changes no row, so a death does not change the table. A second rollback succeeds."""
    first, *_ = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, first)
    merged(tmp_path)
    before = contents(tmp_path)
    killed(dies_going_back, tmp_path, first, boundary)
    assert before == contents(tmp_path)
    roll_back(at(tmp_path), first)
    assert expected[str(BRONZE)] == [row for row in read_cut(tmp_path)[str(BRONZE)] if 1_000 not in row]


def test_rows_that_others_merged_and_changed_are_refused_with_the_way_out(tmp_path, undisturbed):
    """If a merged file was changed since, the merge cannot be undone without the change. The error names the merge.

    After both are undone as the message says, the rollback succeeds.
    """
    first, *_ = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, first)
    table = DeltaTable(str(tmp_path / BRONZE))
    table.optimize.compact()
    merge = table.version()
    table.delete("n = 3")
    before, rows = contents(tmp_path), set(records(tmp_path))
    said = rf"foreign OPTIMIZE at version {merge} removed files .*VERSION AS OF {merge - 1}\)"
    with pytest.raises(TableNotRolledBackError, match=said):
        roll_back(at(tmp_path), first)
    assert (before, rows) == (contents(tmp_path), set(records(tmp_path)))
    table.restore(merge - 1)
    roll_back(at(tmp_path), first)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_a_merge_whose_files_are_gone_is_refused(tmp_path):
    """The file that another writer appended before the merge was vacuumed, so its row is only in the merged file."""
    first, *_ = laid_out(tmp_path, 2)
    append_foreign(tmp_path, 1_000)
    table = DeltaTable(str(tmp_path / BRONZE))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TableNotRolledBackError, match="foreign OPTIMIZE"):
        roll_back(at(tmp_path), first)


# ------------------------------------------------------------------
# Before a commit that removes files from a table, the tick checks that the files are there. Another writer may have
# merged them.


HALF = 35
APPEND = Version(bronze=TableName("bronze/all"), was={"bronze": evolving_job.BRONZE})


def numbers(root):
    return sorted(row[1] for row in shown(root, evolving_job.BRONZE))


def test_a_neighbour_that_merged_files_that_are_to_leave_is_named_before_the_commit(tmp_path):
    """The tick fails, and its checkpoint is not committed. After the merge is undone, the next tick goes on."""
    evolving_job.laid_out(tmp_path, HALF)
    evolving_job.tick(tmp_path, HALF + 2)
    before = evolving_job.tick(tmp_path, HALF + 5, APPEND)
    merged = []

    def boundary(name):
        if name == "before:CheckTables" and not merged:
            neighbour = DeltaTable(str(tmp_path / evolving_job.BRONZE))
            merged.append(neighbour.version() + 1)
            neighbour.optimize.compact()

    settings = RuntimeSettings(warehouse=tmp_path, allow_non_restored_state=True)
    report = run_tick(
        evolving_job.build(HALF + 9, FIRST), settings, None, engine=orders_job.LocalEngine(), boundary=boundary
    )
    assert (TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED) == (report.outcome, report.reason)
    assert f"table {evolving_job.BRONZE}: foreign OPTIMIZE at version {merged[0]} removed files" in report.message
    assert f"TO VERSION AS OF {merged[0] - 1})" in report.message
    assert before.completed[-1].checkpoint == evolving_job.newest(tmp_path).checkpoint
    assert list(range(HALF + 2)) == numbers(tmp_path)
    DeltaTable(str(tmp_path / evolving_job.BRONZE)).restore(merged[0] - 1)
    evolving_job.tick(tmp_path, HALF + 9, FIRST, allowed=True)
    assert list(range(HALF + 5, HALF + 9)) == numbers(tmp_path)


# ------------------------------------------------------------------
# Overwrite tables beside the commands that act on a job at rest: a held cut, a restored savepoint, a clean-up.


@pytest.mark.parametrize("approves", [True, False])
def test_a_held_cut_of_an_overwrite_table_waits_for_a_person(tmp_path, approves):
    """The table shows the earlier versions until a person approves the cut. A rejected cut leaves no trace."""
    newest_job.tick(tmp_path, 23)
    newest_job.tick(tmp_path, 41, hold=True)
    assert expected(23) == newest_job.shown(tmp_path)
    pending = Cuts(tmp_path, newest_job.JOB).pending()
    held = sorted(pending.polars(TABLE).collect().select("key", "n").rows())
    assert expected(41) == held
    if approves:
        approve(newest_job.at(tmp_path))
        assert expected(41) == newest_job.shown(tmp_path)
    else:
        reject(newest_job.at(tmp_path))
        assert expected(23) == newest_job.shown(tmp_path)
    newest_job.tick(tmp_path, 55)
    assert expected(55) == newest_job.shown(tmp_path)


def test_a_savepoint_of_an_overwrite_table_begins_another_warehouse(tmp_path):
    """The savepoint's files are copied, and newer versions replace them there. The first warehouse does not change."""
    here, there = tmp_path / "here", tmp_path / "there"
    newest_job.tick(here, 23)
    saved = savepoint_at_rest(newest_job.at(here))
    newest_job.tick(here, 35)
    import_row(
        Import(
            origin=find_origin(f"{here}@{saved.checkpoint}", there, newest_job.JOB),
            root=there,
            plan=newest_job.build(23),
        )
    )
    newest_job.tick(there, 23)
    assert (expected(35), expected(23)) == (newest_job.shown(here), newest_job.shown(there))
    newest_job.tick(there, 47)
    assert (expected(35), expected(47)) == (newest_job.shown(here), newest_job.shown(there))
