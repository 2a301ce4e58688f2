"""A vertex or a table under another name, declared with `renamed_from=`, keeps its state and its rows (G2)."""

from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import TableName, VertexId
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import SavepointKind, SavepointRequested
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.savepoint_copy import copy_savepoint
from tests.scenarios.faults.orders_job import LocalEngine
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime.evolving_job import (
    BRONZE,
    FIRST,
    GOLD,
    JOB,
    RENAMED,
    SECOND,
    STATE,
    Version,
    at,
    build,
    columns,
    laid_out,
    newest,
    shown,
    tick,
    tick_named,
    versions,
)

HALF = 35
"""Rows of the first tick: five of each key."""
GOLD_2, BRONZE_2 = TableName("gold/per_key"), TableName("bronze/all")
STATE_2 = table_of_state(JOB, VertexId("per_key"))

OPERATOR = Version(operator="per_key", was={"operator": "sums"})
UPSERT = Version(gold=GOLD_2, was={"gold": GOLD})
APPEND = Version(bronze=BRONZE_2, was={"bronze": BRONZE})
SOURCE = Version(source="counted", was={"source": "numbers"})
STATELESS = Version(bronze_id="kept", was={"bronze_id": "bronze"})
VERSIONS = {"operator": OPERATOR, "upsert": UPSERT, "append": APPEND, "source": SOURCE, "stateless": STATELESS}


def numbers(root, table=BRONZE):
    return sorted(row[1] for row in shown(root, table))


def sums(rows):
    return [(key, rows // 7 + (key < rows % 7)) for key in range(7)]


def must_be_exact(root, version, rows):
    """Assert that every table of a pipeline version has each of this many rows exactly once."""
    assert sums(rows) == shown(root, version.gold)
    assert list(range(rows)) == numbers(root, version.bronze)
    state = table_of_state(JOB, VertexId(version.operator))
    assert sums(rows) == sorted(row[2:] for row in rows_of_state(root, state))


def rows_of_state(root, state):
    found = {}
    for row in DeltaTable(str(root / state)).to_pyarrow_table().to_pylist():
        found[row["key"]] = max(found.get(row["key"], 0), row["n"])
    return [("", "", key, n) for key, n in found.items()]


@pytest.mark.matrix
@pytest.mark.parametrize("version", [*VERSIONS.values(), RENAMED], ids=[*VERSIONS, "all"])
def test_a_declared_rename_keeps_everything(tmp_path, version):
    """State, positions and rows are kept under the new names. Later ticks with the same code change nothing."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, version)
    must_be_exact(tmp_path, version, HALF + 1)
    tick(tmp_path, HALF + 9, version)
    tick(tmp_path, HALF + 9, version)
    must_be_exact(tmp_path, version, HALF + 9)


def test_the_old_code_goes_on_after_a_tick_that_renamed_nothing(tmp_path):
    """Then the new code goes on. The empty table that its first tick made is no obstacle, whatever its columns."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF, RENAMED)
    tick(tmp_path, HALF + 1, SECOND)
    tick(tmp_path, HALF + 2, replace(RENAMED, sums=SECOND.sums, values=True))
    assert list(range(HALF + 2)) == sorted(row[1] for row in shown(tmp_path, BRONZE_2))


def test_a_rename_happens_in_one_commit_a_table(tmp_path):
    """The first commit after the empty table shows every row, old and new. No reader sees a part of them."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, RENAMED)
    for table in (GOLD_2, BRONZE_2):
        assert 1 == DeltaTable(str(tmp_path / table)).version()
    first = newest(tmp_path)
    assert {GOLD_2, BRONZE_2, STATE_2} == {table.table for table in first.tables}
    assert {GOLD_2, BRONZE_2, STATE_2} == {each.table for each in first.columns}


def test_a_rename_moves_no_byte(tmp_path):
    """The files of the old tables get a second name. Apart from them, the new table has only the new tick's file."""
    laid_out(tmp_path, HALF)
    old = {path.stat().st_ino for path in (tmp_path / BRONZE / "_data").rglob("*.parquet")}
    tick(tmp_path, HALF + 1, RENAMED)
    linked = {path.stat().st_ino for path in (tmp_path / BRONZE_2 / "_data").rglob("*.parquet")}
    assert old < linked
    assert 1 == len(linked - old)


def test_renamed_twice_and_back(tmp_path):
    """Each version of the pipeline declares the names of the version before it. Old names become free again."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, RENAMED)
    third = Version(
        operator="third",
        gold="gold/third",
        bronze="bronze/third",
        was={"operator": "per_key", "gold": GOLD_2, "bronze": BRONZE_2, "source": "counted", "bronze_id": "kept"},
    )
    tick(tmp_path, HALF + 2, third)
    must_be_exact(tmp_path, third, HALF + 2)
    back = Version(was={"operator": "third", "gold": "gold/third", "bronze": "bronze/third"})
    tick(tmp_path, HALF + 3, back)
    tick(tmp_path, HALF + 4, back)
    tick(tmp_path, HALF + 5)
    must_be_exact(tmp_path, FIRST, HALF + 5)


@pytest.mark.matrix
@pytest.mark.parametrize("version", [*VERSIONS.values(), RENAMED], ids=[*VERSIONS, "all"])
def test_a_rollback_across_a_rename_and_either_version_goes_on(tmp_path, version):
    """Old cuts still name the old tables. After the rollback, the new code renames again. The old code works too."""
    laid_out(tmp_path, HALF)
    first, before = newest(tmp_path).checkpoint, shown(tmp_path, GOLD)
    tick(tmp_path, HALF + 9, version)
    roll_back(at(tmp_path), first)
    assert before == shown(tmp_path, GOLD)
    assert list(range(HALF)) == numbers(tmp_path)
    tick(tmp_path, HALF + 1, version)
    must_be_exact(tmp_path, version, HALF + 1)
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 3)
    must_be_exact(tmp_path, FIRST, HALF + 3)


def test_a_rename_needs_no_file_that_left_its_table(tmp_path):
    """The entry of a rollback names the files that it removed. A clean-up deletes them before the table is renamed."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 9)
    roll_back(at(tmp_path), first)
    (bronze,) = [table for table in newest(tmp_path).tables if table.table == BRONZE]
    assert bronze.removes
    clean_up(at(tmp_path), 0)
    assert not any((tmp_path / file.path).exists() for file in bronze.removes)
    tick(tmp_path, HALF + 1, RENAMED)
    must_be_exact(tmp_path, RENAMED, HALF + 1)


def test_rows_of_others_in_an_append_table_come_along(tmp_path):
    laid_out(tmp_path, HALF)
    frame = pl.read_delta(str(tmp_path / BRONZE)).head(1).with_columns(n=pl.lit(-1, dtype=pl.Int64))
    frame.write_delta(str(tmp_path / BRONZE), mode="append")
    tick(tmp_path, HALF + 1, APPEND)
    assert [-1, *range(HALF + 1)] == numbers(tmp_path, BRONZE_2)
    assert sums(HALF + 1) == shown(tmp_path, GOLD)


def test_columns_and_names_change_at_once(tmp_path):
    """A new column comes with the rename of its table, and counts since the old checkpoint."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 7, replace(RENAMED, sums=SECOND.sums, values=True))
    assert [(key, 6, HALF + key) for key in range(7)] == shown(tmp_path, GOLD_2)
    recorded = {each.table: each.columns for each in newest(tmp_path).columns}
    assert [("key", 0), ("n", 0), ("top", first)] == [(column.name, column.after) for column in recorded[GOLD_2]]


@pytest.mark.matrix
@pytest.mark.parametrize("version", [*VERSIONS.values(), RENAMED], ids=[*VERSIONS, "all"])
def test_what_was_committed_under_the_old_names_is_published_under_them_first(tmp_path, monkeypatch, version):
    """The tick first rolls the checkpoint forward, and then renames. The checkpoint's cut has only the old tables."""
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    tick(tmp_path, HALF)
    with pytest.raises(Dead):
        tick(tmp_path, HALF + 7, boundary=Mortal("after:AppendRow"))
    pending = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 8, version)
    assert {BRONZE, GOLD, STATE} == set(CutStore(at(tmp_path)).read(pending))
    assert sums(HALF + 7) == shown(tmp_path, GOLD, CutStore(at(tmp_path)).read(pending)[GOLD])
    must_be_exact(tmp_path, version, HALF + 8)


def test_a_clean_up_beside_the_renaming_tick_leaves_its_links_alone(tmp_path):
    """No entry names the new links yet, and they are as old as the files that they link to.

    But the links belong to the current generation.
    """
    laid_out(tmp_path, HALF)
    seen = []

    def boundary(name):
        if name == "before:AppendRow" and not seen:
            seen.append(len(unnamed(tmp_path, BRONZE_2)))
            clean_up(at(tmp_path), 0)
            seen.append(len(unnamed(tmp_path, BRONZE_2)))

    tick(tmp_path, HALF + 1, RENAMED, boundary=boundary)
    assert [2, 2] == seen
    must_be_exact(tmp_path, RENAMED, HALF + 1)


def test_a_savepoint_of_before_restores_elsewhere_under_the_new_names(tmp_path):
    """After `savepoint --to` and `run --from`, the other warehouse has only the new tables, with each row once."""
    root, copy, fork = (tmp_path / name for name in ("root", "copy", "fork"))
    tick(root, HALF)
    row = savepoint_at_rest(at(root))
    copy_savepoint(at(root), row.checkpoint, copy)
    for claim, origin in ((False, str(root)), (True, str(copy))):
        to = fork / str(claim)
        import_row(Import(origin=find_origin(origin, to, JOB), root=to, plan=build(HALF, RENAMED), claim=claim))
        assert not (to / BRONZE).exists()
        tick(to, HALF + 1, RENAMED)
        must_be_exact(to, RENAMED, HALF + 1)
        tick(to, HALF + 2, RENAMED)
        must_be_exact(to, RENAMED, HALF + 2)


def unnamed(root, table):
    rows = (row for row in CheckpointStore(at(root)).observe()[1] if isinstance(row, CheckpointRecord))
    named = frozenset().union(*(files_of(row) for row in rows))
    there = (path.relative_to(root).as_posix() for path in (root / table / "_data").rglob("*.parquet"))
    return sorted(set(there) - named)


def test_a_second_rollback_takes_the_columns_of_an_abandoned_name_back(tmp_path):
    """After the first rollback no entry lists the table, and the table still has a new column.

    The second rollback removes that column.
    """
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 1, RENAMED)
    renamed = newest(tmp_path).checkpoint
    back = {"operator": "per_key", "gold": GOLD_2, "bronze": BRONZE_2, "source": "counted", "bronze_id": "kept"}
    tick(tmp_path, HALF + 2, Version(was=back))
    saved = savepoint_at_rest(at(tmp_path)).checkpoint
    tick(tmp_path, HALF + 9, Version(sums=SECOND.sums, values=True, was=back))
    assert ["key", "n", "top"] == columns(tmp_path, GOLD)
    roll_back(at(tmp_path), renamed)
    assert [] == shown(tmp_path, GOLD)
    roll_back(at(tmp_path), saved)
    assert ["key", "n"] == columns(tmp_path, GOLD)
    must_be_exact(tmp_path, FIRST, HALF + 2)


@pytest.mark.parametrize("swapped", [False, True], ids=["first", "back"])
def test_a_savepoint_that_a_renaming_tick_takes_at_once(tmp_path, swapped):
    """The savepoint has the new names before any checkpoint has.

    The job can be rolled back to the savepoint, and another warehouse can begin from it.
    """
    root, fork = tmp_path / "root", tmp_path / "fork"
    tick(root, HALF)
    version, rows = RENAMED, HALF
    if swapped:
        tick(root, HALF + 1, RENAMED)
        back = {"operator": "per_key", "gold": GOLD_2, "bronze": BRONZE_2, "source": "counted", "bronze_id": "kept"}
        version, rows = Version(was=back), HALF + 1
    inbox = Inbox()
    inbox.put(SavepointRequested("now", SavepointKind.PLAIN))
    run_tick(build(HALF + 9, version), RuntimeSettings(warehouse=root), engine=LocalEngine(), inbox=inbox)
    (saved,) = [row for row in CheckpointStore(at(root)).observe()[1] if getattr(row, "pinned", False)]
    origin = find_origin(f"{root}@{saved.checkpoint}", fork, JOB)
    import_row(Import(origin=origin, root=fork, plan=build(HALF + 9, version)))
    tick(fork, HALF + 9, version)
    must_be_exact(fork, version, HALF + 9)
    roll_back(at(root), saved.checkpoint)
    held = len(numbers(root, version.bronze))
    assert rows <= held < HALF + 9
    assert list(range(held)) == numbers(root, version.bronze)
    assert sums(held) == shown(root, version.gold)
    tick(root, HALF + 9, version)
    must_be_exact(root, version, HALF + 9)


def test_a_new_table_under_a_name_of_before_begins_empty(tmp_path):
    """The table's old rows belong to older cuts. It shows only later rows. A rollback brings the old rows back."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 5, APPEND)
    assert list(range(HALF)) == numbers(tmp_path)
    tick(tmp_path, HALF + 9, FIRST, allowed=True)
    assert list(range(HALF + 5, HALF + 9)) == numbers(tmp_path)
    tick(tmp_path, HALF + 12, FIRST)
    assert list(range(HALF + 5, HALF + 12)) == numbers(tmp_path)
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 12, FIRST)
    assert list(range(HALF + 12)) == numbers(tmp_path)


# ------------------------------------------------------------------
# A table or an operator under another name is refused before the claim, because it would begin without its rows (G2).


"""Rows of the first tick: five of each key."""
GOLD_RENAMED, BRONZE_RENAMED = Version(gold="gold/per_key"), Version(bronze="bronze/all")
OPERATOR_RENAMED = Version(operator="per_key")


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (GOLD_RENAMED, "has table gold/sums, which the pipeline no longer has, and gold/per_key is new in it"),
        (BRONZE_RENAMED, "has table bronze/numbers, which the pipeline no longer has, and bronze/all is new in it"),
        (OPERATOR_RENAMED, "holds state of 'sums', which the pipeline no longer has, and 'per_key' is new in it"),
    ],
)
def test_an_undeclared_rename_changes_nothing_and_says_both_names(tmp_path, version, says):
    """There is no claim, no new table and no new version. With the old names, the job goes on."""
    laid_out(tmp_path, HALF)
    before, rows = versions(tmp_path), newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match=says) as refused:
        tick(tmp_path, HALF + 7, version)
    assert "--allow-non-restored-state" in str(refused.value)
    assert (before, rows) == (versions(tmp_path), newest(tmp_path))
    assert not (tmp_path / "gold/per_key").exists()
    tick(tmp_path, HALF + 7)
    assert [(key, 6) for key in range(7)] == shown(tmp_path, GOLD)


def test_what_the_user_leaves_behind_stays_behind(tmp_path):
    """Only the first tick needs the flag. The new table then goes on counting, and the old table is unchanged."""
    laid_out(tmp_path, HALF)
    old = shown(tmp_path, GOLD)
    tick(tmp_path, HALF + 1, GOLD_RENAMED, allowed=True)
    tick(tmp_path, HALF + 2, GOLD_RENAMED)
    assert [(0, 6), (1, 6)] == shown(tmp_path, "gold/per_key")
    assert old == shown(tmp_path, GOLD)
    assert all(GOLD not in str(path) for path in _named(tmp_path))


def _named(root):
    return [
        keyed.file.path
        for vertex in newest(root).vertices
        for snapshot in vertex.subtasks
        for ranges in snapshot.ranges
        for keyed in ranges.files
    ]


# ------------------------------------------------------------------
# A tick dies at each boundary of a rename. The new code and the old code go on (G2).


BOUNDARIES = [
    "after:Claim",
    "before:EnsureTables",
    "after:EnsureTables",
    "before:LinkRenamed",
    "after:LinkRenamed",
    "after:RunMicroBatch",
    "before:AppendRow",
    "after:AppendRow",
    f"before:PublishTable:{BRONZE_2}",
    f"after:PublishTable:{BRONZE_2}",
    f"after:PublishTable:{GOLD_2}",
    f"after:PublishTable:{STATE_2}",
    "before:RecordCut",
    "after:RecordCut",
    "before:Release",
]
COMMITTED = BOUNDARIES[BOUNDARIES.index("after:AppendRow") :]


@pytest.mark.kill
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_old_code_after_a_tick_killed_as_it_renames(tmp_path, boundary):
    """After a death before the commit point, the old code goes on. After a later one, it is refused with both names."""
    laid_out(tmp_path, HALF)
    killed(tick_named, tmp_path, HALF + 7, "renamed", kill_at=boundary)
    if boundary in COMMITTED:
        with pytest.raises(CutDoesNotFitError, match="renamed_from="):
            tick(tmp_path, HALF + 9)
        tick(tmp_path, HALF + 9, RENAMED)
        must_be_exact(tmp_path, RENAMED, HALF + 9)
    else:
        tick(tmp_path, HALF + 9)
        must_be_exact(tmp_path, FIRST, HALF + 9)
        tick(tmp_path, HALF + 10, RENAMED)
        must_be_exact(tmp_path, RENAMED, HALF + 10)
    assert [] == unnamed(tmp_path, BRONZE_2)
