"""A tick holds its cut until a person approves or rejects it. No row shows before, and none is lost, even by a kill."""

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.commit.at_rest import held_cut
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import RowKind
from jobs.reading import Cuts, NoSuchCutError
from jobs.tick.at_rest.cancellation import delete_checkpoints
from jobs.tick.at_rest.held_cut import NothingToSettleError, approve, reject
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import KillAt
from jobs.warehouse.refusals import CutAwaitsApprovalError, SavepointRefusedError
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    GOLD,
    JOB,
    LocalEngine,
    at,
    build,
    contents,
    copied,
    read_cut,
    records,
)

SOME = {"a": 60, "b": 40}
"""The rows of the first tick. Later ticks have all rows."""

APPROVAL = (
    "Claim",
    "DiscardLeftovers",
    "AppendRow",
    "LogCommit:checkpoints",
    f"RollForward:{BRONZE}",
    f"RollForward:{GOLD}",
    "RollForwardCut",
    "Release",
)
REJECTION = ("Claim", "LogCommit:checkpoints", "Release")
SHORT = [("after:AppendRow", 1)]
EVERYWHERE = [(f"{side}:{step}", each) for step in APPROVAL for side in ("before", "after") for each in (1, 2)]
WHERE_IT_MATTERS = [*SHORT, *(pytest.param(*each, marks=pytest.mark.dear) for each in EVERYWHERE if each not in SHORT)]


def hold(root: Path, rows: dict[str, int] | None = None, **how: object) -> TickReport:
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(hold=True))
    return run_tick(build(rows), settings, engine=LocalEngine(), **how)


def tick(root: Path, rows: dict[str, int] | None = None) -> TickReport:
    return run_tick(build(rows), RuntimeSettings(warehouse=root), engine=LocalEngine())


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    def made(root: Path) -> None:
        tick(root, SOME)
        hold(root)

    copied(tmp_path, (JOB, "held"), made)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    return tmp_path


def waits(root: Path) -> bool:
    return held_cut(records(root).values()) is not None


def test_nothing_shows_before_the_approval_and_all_of_it_after(tmp_path):
    tick(tmp_path, SOME)
    before = contents(tmp_path)
    held = hold(tmp_path)
    assert TickOutcome.HELD is held.outcome
    assert "waits for approval: 'tidemark approve numbers' publishes it" in held.message
    assert before == read_cut(tmp_path) == contents(tmp_path)
    done = approve(at(tmp_path))
    assert (RowKind.CHECKPOINT, done.held.parent) == (done.record.kind, done.record.parent)
    after = contents(tmp_path)
    assert before != after == read_cut(tmp_path)
    assert not waits(tmp_path)
    report = tick(tmp_path)
    assert TickOutcome.CAUGHT_UP is report.outcome
    rest = sum(record.statistics.rows for record in report.completed)
    assert len(contents(tmp_path)[str(BRONZE)]) == len(after[str(BRONZE)]) + rest


@pytest.mark.dear
def test_ticks_that_hold_and_people_who_approve_come_to_the_same_tables(tmp_path, undisturbed):
    """After all approvals, the tables are those that one undisturbed tick makes of the same rows."""
    for _ in range(20):
        if hold(tmp_path).outcome is not TickOutcome.HELD:
            break
        approve(at(tmp_path))
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.dear
def test_the_pending_cut_can_be_read(waiting):
    cuts = Cuts(waiting, JOB)
    pending = cuts.pending()
    assert (str(BRONZE), str(GOLD)) == pending.tables == pending.changed
    shown = {table: sorted(pending.polars(table).collect().rows()) for table in pending.tables}
    added = pending.added(str(BRONZE)).collect().height
    assert (pending.rows, len(shown[str(BRONZE)])) == (
        added,
        added + cuts.latest().polars(str(BRONZE)).collect().height,
    )
    with pytest.raises(NoSuchCutError, match="waits for approval"):
        cuts.at(pending.checkpoint)
    approve(at(waiting))
    assert shown == contents(waiting)
    assert cuts.pending() is None


@pytest.mark.dear
def test_a_rejected_cut_leaves_nothing(waiting, undisturbed):
    """No table shows the cut. The next tick deletes its files, reads the same rows, and ends with exact tables."""
    before, held = contents(waiting), held_cut(records(waiting).values())
    assert held == reject(at(waiting))
    assert before == contents(waiting) == read_cut(waiting)
    tick(waiting)
    staged = {file for file in waiting.rglob("*.parquet") if f"/_data/{held.generation}/" in str(file)}
    assert not staged
    assert undisturbed == read_cut(waiting) == contents(waiting)


@pytest.mark.dear
def test_nothing_moves_the_job_while_a_cut_waits(waiting):
    """A tick ends as held. Commands that would abandon the cut are refused, and their messages say how to settle it."""
    entries, before = records(waiting), contents(waiting)
    plan = build()
    assert TickOutcome.HELD is tick(waiting).outcome is hold(waiting).outcome
    first, held = min(entries), held_cut(entries.values()).checkpoint
    for refused, moves in (
        (CutAwaitsApprovalError, lambda: roll_back(at(waiting), first)),
        (RollbackRefusedError, lambda: preview_rollback(at(waiting), first)),
        (CutAwaitsApprovalError, lambda: reset(at(waiting), plan.sources, Reset("numbers", "start"))),
        (CutAwaitsApprovalError, lambda: delete_checkpoints(at(waiting), plan)),
        (SavepointRefusedError, lambda: dispose(at(waiting), held)),
    ):
        with pytest.raises(refused, match=f"cut {held} of numbers waits for approval: 'tidemark approve numbers'"):
            moves()
    assert (entries, before) == (records(waiting), contents(waiting))


@pytest.mark.dear
def test_a_savepoint_and_a_clean_up_leave_the_pending_cut_alone(waiting, undisturbed):
    """A savepoint keeps the rows that the tables show. A clean-up without grace keeps the files of the pending cut."""
    saved = savepoint_at_rest(at(waiting))
    clean_up(at(waiting), 0)
    done = approve(at(waiting))
    assert done.record.parent == saved.parent
    tick(waiting)
    assert undisturbed == read_cut(waiting) == contents(waiting)


@pytest.mark.dear
def test_what_is_not_there_is_not_settled(tmp_path):
    """If no cut waits, approval and rejection fail, and the error says how to make a pending cut."""
    tick(tmp_path)
    for settle in (approve, reject):
        with pytest.raises(NothingToSettleError, match="'tidemark run numbers --hold' makes one"):
            settle(at(tmp_path))


@pytest.mark.dear
def test_a_damaged_cut_is_not_approved(waiting):
    held = held_cut(records(waiting).values())
    lost = next(file.path for table in held.tables for file in table.adds)
    (waiting / lost).unlink()
    with pytest.raises(NothingToSettleError, match="tidemark reject numbers"):
        approve(at(waiting))
    assert waits(waiting)
    reject(at(waiting))


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "occurrence"), WHERE_IT_MATTERS)
def test_an_approval_that_dies_never_was_or_is_finished(waiting, undisturbed, boundary, occurrence):
    """Before the approval's entry, the cut still waits. After it, the next tick publishes the rest. Both are exact."""
    with suppress(Dead):
        approve(at(waiting), Mortal(boundary, occurrence))
    if waits(waiting):
        approve(at(waiting))
    tick(waiting)
    assert undisturbed == read_cut(waiting) == contents(waiting)


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("boundary", [f"{side}:{step}" for step in REJECTION for side in ("before", "after")])
def test_a_rejection_that_dies_never_was_or_is_whole(waiting, undisturbed, boundary):
    """The cut still waits, or it is gone with all its rows, which the next tick reads again."""
    with suppress(Dead):
        reject(at(waiting), Mortal(boundary))
    if waits(waiting):
        reject(at(waiting))
    tick(waiting)
    assert undisturbed == read_cut(waiting) == contents(waiting)


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("boundary", ["before:AppendRow", "after:AppendRow", "before:Release"])
def test_a_tick_that_dies_while_it_holds_loses_nothing(tmp_path, undisturbed, monkeypatch, boundary):
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    with suppress(Dead):
        hold(tmp_path, boundary=Mortal(boundary))
    assert waits(tmp_path) == (boundary != "before:AppendRow")
    hold(tmp_path)
    approve(at(tmp_path))
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.dear
def test_a_rejection_beside_an_approval_takes_nothing_from_it(waiting, undisturbed):
    """An approval takes the job over from a rejection that sleeps. The rejection notices, and deletes nothing."""

    def asleep(name: str) -> None:
        if name == "before:Release" and waits(waiting):
            approve(at(waiting))

    with pytest.raises(Exception, match="another process may have settled cut"):
        reject(at(waiting), asleep)
    tick(waiting)
    assert undisturbed == read_cut(waiting) == contents(waiting)


def test_the_commands_show_and_settle_the_cut(waiting, typed):
    where = ("--warehouse", waiting)
    held = held_cut(records(waiting).values()).checkpoint
    code, said, _ = typed("cut", JOB, "pending", *where)
    assert (0, True) == (code, f"pending cut {held} of numbers" in said)
    assert "publish it: tidemark approve numbers" in said
    assert f"cut {held} waits for approval" in typed("checkpoints", "list", JOB, *where)[1]
    assert "tidemark reject numbers" in typed("doctor", JOB, *where)[1]
    code, said, _ = typed("approve", JOB, *where)
    assert (0, True) == (code, f"cut {held} is approved, as checkpoint" in said)
    code, _, said = typed("reject", JOB, *where)
    assert (4, True) == (code, "no cut of numbers waits for approval" in said)


if __name__ == "__main__":
    approve(at(Path(sys.argv[1])), KillAt(sys.argv[2], 1))
