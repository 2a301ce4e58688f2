"""A rollback that dies at a boundary never was, or the next tick finishes it; zombies change nothing."""

import shutil
from contextlib import suppress

import pytest

from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.refusals import ClaimUnsettledError
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.rollback_job import KEEPS_ALL, STATE, at_cut, killed, laid_out, newest, tick
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, LocalEngine, read_cut
from tests.scenarios.runtime.test_cancelling import contents

STEPS = (
    "Claim",
    "Lease",
    f"RollForward:{BRONZE}",
    f"RollForward:{STATE}",
    f"RollForward:{GOLD}",
    "RollForwardCut",
    "DiscardLeftovers",
    "AppendRow",
    "LogCommit:checkpoints",
    "LogCommit:tables",
    "LogCommit:cuts",
    "Release",
)
EVERYWHERE = [(f"{side}:{step}", each) for step in STEPS for side in ("before", "after") for each in (1, 2)]
SHORT = [("after:LogCommit:checkpoints", 2), ("after:AppendRow", 1), (f"after:RollForward:{GOLD}", 2)]
"""The row is in and nobody knows; nothing is published; one table is."""
WHERE_IT_MATTERS = [*SHORT, *(pytest.param(*each, marks=pytest.mark.dear) for each in EVERYWHERE if each not in SHORT)]
BOUNDARIES = [f"{side}:{step}" for step in STEPS for side in ("before", "after")]


@pytest.fixture
def pending(tmp_path, monkeypatch):
    """Return a warehouse whose last tick died behind its commit point, and the id to go back to."""
    first, *_ = laid_out(tmp_path, 2)
    with suppress(Dead):
        settings = RuntimeSettings(warehouse=tmp_path)
        run_tick(KEEPS_ALL, settings, engine=LocalEngine(), boundary=Mortal("after:AppendRow"))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    return tmp_path, first


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_death_at_a_boundary_is_made_up_for_by_the_next_rollback(pending, undisturbed, boundary, occurrence):
    """After a second rollback, every table shows the cut again, and the next ticks end exactly."""
    root, first = pending
    expected = at_cut(root, first)
    with suppress(Dead):
        roll_back(at(root), first, boundary=Mortal(boundary, occurrence))
    if newest(root).parent != first or newest(root).checkpoint not in CutStore(at(root)).recorded():
        roll_back(at(root), first)
    assert expected == read_cut(root) == contents(root)
    tick(root)
    assert undisturbed == read_cut(root) == contents(root)


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "occurrence"), WHERE_IT_MATTERS)
def test_a_death_at_a_boundary_is_made_up_for_by_the_next_tick(pending, undisturbed, boundary, occurrence):
    """Before the entry, the rollback never happened. After it, the next tick finishes it. Both results are exact."""
    root, first = pending
    died = False
    try:
        roll_back(at(root), first, boundary=Mortal(boundary, occurrence))
    except Dead:
        died = True
    row = newest(root)
    report = tick(root)
    if row.parent == first and died:
        assert row.checkpoint in {report.completed[0].checkpoint, report.completed[0].parent}
    assert undisturbed == read_cut(root) == contents(root)
    assert set(records(root)) == set(CutStore(at(root)).recorded())


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_killed_process_is_made_up_for_by_the_next_tick(tmp_path, undisturbed, boundary):
    """SIGKILL at each boundary: the process is gone with all that it held, and the next tick goes on exactly."""
    first, *_ = laid_out(tmp_path, 2)
    assert killed(tmp_path, first, boundary)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_kill_between_two_tables_leaves_neither_cut_mixed(tmp_path, undisturbed):
    """SIGKILL comes when bronze shows the new entry and gold does not. Readers by cut see a whole cut, old or new."""
    first, second = laid_out(tmp_path, 2)
    old, expected = at_cut(tmp_path, second), at_cut(tmp_path, first)
    assert killed(tmp_path, first, f"after:RollForward:{BRONZE}")
    assert old != contents(tmp_path) != expected
    assert old == at_cut(tmp_path, second) == read_cut(tmp_path)
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy)
    roll_back(at(copy), first)
    assert expected == read_cut(copy) == contents(copy)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_zombie_is_fenced_out(tmp_path, undisturbed, monkeypatch):
    """A tick claims while a rollback sleeps before its append. Then the append is refused, and nothing changes."""
    first, *_ = laid_out(tmp_path, 2)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)

    def asleep(name):
        if name == "before:AppendRow":
            tick(tmp_path)

    with pytest.raises(ClaimUnsettledError, match=r"taken over by process \d+"):
        roll_back(at(tmp_path), first, boundary=asleep)
    assert "rollback" not in {row.kind.value for row in records(tmp_path).values()}
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize("step", [f"before:RollForward:{BRONZE}", "before:RollForwardCut", "before:LogCommit:tables"])
def test_a_zombie_behind_its_row_publishes_nothing_twice(tmp_path, undisturbed, monkeypatch, step):
    """Another tick finishes the rollback and goes on. The zombie finds everything done, and undoes nothing."""
    first, *_ = laid_out(tmp_path, 2)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    slept = []

    def asleep(name):
        if name == step and not slept:
            slept.append(name)
            tick(tmp_path)

    roll_back(at(tmp_path), first, boundary=asleep)
    assert [step] == slept
    assert undisturbed == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)
