"""Rollbacks of tables in which another writer has merged files: undone, left alone or refused by name. No Spark."""

import polars as pl
import pytest
from deltalake import DeltaTable

from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from tests.scenarios.runtime.rollback_job import append_foreign, at_cut, killed, laid_out, newest, tick, ticks
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, read_cut
from tests.scenarios.runtime.test_cancelling import contents


@pytest.mark.dear
def test_what_others_compacted_before_n_stays_compacted(tmp_path):
    """An OPTIMIZE before N belongs to what the table shows at N."""
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
    """Files of N that others merged later stay merged. Their rows are there once."""
    laid_out(tmp_path, 2)
    second = newest(tmp_path).checkpoint
    expected = read_cut(tmp_path)
    DeltaTable(str(tmp_path / BRONZE)).optimize.compact()
    ticks(tmp_path, 1)
    roll_back(at(tmp_path), second)
    assert expected == read_cut(tmp_path) == contents(tmp_path)


def merged(root, times=1):
    """Let another writer append a row and merge all files of bronze, so many times. Return the table."""
    table = DeltaTable(str(root / BRONZE))
    for number in range(times):
        append_foreign(root, 1_000 + number)
        table.update_incremental()
        table.optimize.compact()
    return table


@pytest.mark.parametrize("times", [1, 2])
def test_a_merge_of_old_and_new_rows_is_undone_first(tmp_path, times):
    """An OPTIMIZE over files of N, newer ones and others' rows is undone. The rows that others appended stay.

    The plan changes nothing, and says what is left to do then. No version of the table shows other rows meanwhile.
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
    """The undoing changes no row. So either nothing has happened yet, or the next tick finishes the rollback."""
    first, *_ = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, first)
    merged(tmp_path)
    before = contents(tmp_path)
    assert killed(tmp_path, first, boundary)
    assert before == contents(tmp_path)
    roll_back(at(tmp_path), first)
    assert expected[str(BRONZE)] == [row for row in read_cut(tmp_path)[str(BRONZE)] if 1_000 not in row]


def test_rows_that_others_merged_and_changed_are_refused_with_the_way_out(tmp_path, undisturbed):
    """If somebody has changed a merged file since, nobody can undo the merge without that change. It is named.

    When both are undone as the message says, the rollback works.
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
    """Another writer's own file from before the merge was vacuumed. Its row is only in the merged file now."""
    first, *_ = laid_out(tmp_path, 2)
    append_foreign(tmp_path, 1_000)
    table = DeltaTable(str(tmp_path / BRONZE))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TableNotRolledBackError, match="foreign OPTIMIZE"):
        roll_back(at(tmp_path), first)
