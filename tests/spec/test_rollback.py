"""Judges rollbacks: a healthy history passes, also with a rollback at its end, and each fault is found."""

from dataclasses import replace
from functools import cache

import pytest

from checkpointing.commit.at_rest import Rollback, Stamp
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.messages import EndTick, TickOutcome
from spec.history import CutWritten, DoorStarted, JobClaimed, RowCommitted, TickOver
from spec.holding import recovered_out_of_order
from spec.invariants import INVARIANTS
from spec.life import left_uncommitted
from spec.mishap_events import ListsWereStale
from spec.moves import NO_MOVES
from spec.rollback import not_gone_back, off_the_line
from spec.simulator import simulate


@cache
def healthy():
    """Return a simulated history of one warehouse at whose end some cuts still exist."""
    for seed in range(200):
        history = simulate(seed, moves=NO_MOVES).history
        commits = [event for event in history.events if isinstance(event, RowCommitted) and event.record.commits]
        if not commits:
            continue
        kept = set(commits[-1].kept)
        older = [event.record for event in commits[:-1] if event.record.checkpoint in kept]
        if older and not any(record.is_savepoint for record in older):
            return history, older[-1], commits[-1]
    raise AssertionError("no seed keeps two checkpoints")


def rolled_back(**changes):
    """Return a history that ends in a rollback to an older cut, and the entry of the rollback."""
    history, target, last = healthy()
    by = next(event.claim for event in reversed(history.events) if isinstance(event, JobClaimed))
    by = by.model_copy(update={"first_id": CheckpointId(last.record.checkpoint + 1000)})
    row = Rollback(target, target.tables).row(by, Stamp(0, "r")).model_copy(update=changes)
    kept = (*(each for each in last.kept if each <= target.checkpoint), row.checkpoint)
    cut = next(e for e in history.events if isinstance(e, CutWritten) and e.checkpoint == target.checkpoint)
    events = [RowCommitted(row, kept), replace(cut, checkpoint=row.checkpoint)]
    return replace(history, events=[*history.events, *events]), row


def test_a_history_without_rollbacks_is_one_line():
    """Whatever is killed and restored, each entry builds on the one before, and each tick begins from the newest."""
    for seed in range(15):
        history = simulate(seed, moves=NO_MOVES).history
        assert [] == [*off_the_line(history), *not_gone_back(history)], seed


def test_a_rollback_is_in_order():
    """Its entry goes back, the entries after the target leave, and its cut is its parent's."""
    history, _ = rolled_back()
    assert [] == [*off_the_line(history), *not_gone_back(history)]


@pytest.mark.parametrize(("hears", "is_shown"), [(True, True), (True, False), (False, True)])
def test_a_rollback_deletes_leftovers_unless_it_leaves_an_entry_behind(hears, is_shown):
    """It does not know that a cut is recorded if the store's reply was lost, or if a stale list lacks the cut.

    If it found every cut recorded when it claimed the job, it must delete the leftovers before its entry.
    """
    history, row = rolled_back(generation=Generation(99))
    claim = next(event.claim for event in history.events if isinstance(event, JobClaimed))
    claimed = JobClaimed(claim.model_copy(update={"generation": row.generation}))
    *before, entry, cut = history.events
    place = max(at for at, event in enumerate(before) if isinstance(event, CutWritten))
    looked = [] if is_shown else [ListsWereStale((before[place].checkpoint,))]
    told = [*before[: place + hears], *looked, claimed, *before[place + hears :]]
    history = replace(history, events=[*told, entry, cut])
    assert (hears and is_shown) == any("99 had deleted leftovers" in what for what in recovered_out_of_order(history))


def test_a_tick_from_the_old_line_is_found():
    """After a rollback, a tick must begin from its entry.

    `parent-line` says that the tick's first entry builds on it.
    """
    history, row = rolled_back()
    started = next(event for event in history.events if isinstance(event, DoorStarted))
    old = next(e.record for e in reversed(history.events) if isinstance(e, RowCommitted) and e.record != row)
    on_the_old = old.model_copy(update={"checkpoint": row.checkpoint + 1, "parent": old.checkpoint})
    events = [
        replace(started, generation=row.generation + 1, restored=old),
        RowCommitted(on_the_old, (row.checkpoint, on_the_old.checkpoint)),
    ]
    wrong = replace(history, events=[*history.events, *events])
    assert [f"began from {old.checkpoint}"] == [
        " ".join(each.split(",")[0].split()[2:]) for each in off_the_line(wrong)
    ]
    assert [f"row {on_the_old.checkpoint} builds on {old.checkpoint}, not on {row.checkpoint}"] == list(
        INVARIANTS["parent-line"](wrong)
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"checkpoint": 1}, "came after row"),
        ({"parent": 99_999}, "goes back to 99999, which is not there"),
    ],
)
def test_an_entry_that_is_no_rollback_of_this_line_is_found(fault, said):
    """Faults: an id that was used before, and a parent that does not exist."""
    history, _ = rolled_back(**fault)
    assert any(said in text for text in off_the_line(history))


def test_an_entry_of_the_abandoned_line_that_stays_is_found():
    """It is not pinned, so it must leave with the commit of the rollback."""
    history, row = rolled_back()
    last = history.events[-2]
    left = max(
        event.record.checkpoint
        for event in history.events[:-2]
        if isinstance(event, RowCommitted) and event.record.commits
    )
    events = [*history.events[:-2], replace(last, kept=(*last.kept, left)), history.events[-1]]
    found = list(off_the_line(replace(history, events=events)))
    assert [f"row {left} is still there after rollback {row.checkpoint} to {row.parent}"] == found


def test_positions_and_files_of_another_cut_are_found():
    """Faults: a rollback leaves a vertex, or a table, as it was."""
    history, row = rolled_back()
    wrong = replace(history.events[-2], record=row.model_copy(update={"vertices": row.vertices[1:]}))
    found = list(not_gone_back(replace(history, events=[*history.events[:-2], wrong, history.events[-1]])))
    assert [f"rollback {row.checkpoint} holds other positions or state than {row.parent}"] == found
    cut = history.events[-1]
    table = next(name for name, active in cut.active if active)
    other = replace(cut, active=tuple((name, frozenset() if name == table else each) for name, each in cut.active))
    found = list(not_gone_back(replace(history, events=[*history.events[:-1], other])))
    assert [f"{table} shows other files at rollback {row.checkpoint} than at checkpoint {row.parent}"] == found


@pytest.mark.parametrize(("behind", "is_broken"), [(1, False), (0, True)])
def test_a_zombie_that_ends_after_a_rollback_left_no_rows_unread(behind, is_broken):
    """It had caught up before the rollback. The rows that must be read again are not its fault."""
    history, row = rolled_back()
    more = ((split_of_orders(row), 1_000_000),)
    over = TickOver(Generation(row.generation - behind), EndTick(TickOutcome.CAUGHT_UP), more, row)
    found = list(left_uncommitted(replace(history, events=[*history.events, over])))
    assert is_broken is bool(found)


def split_of_orders(row):
    return next(SplitId(vertex.splits[0]) for vertex in row.vertices if vertex.splits)
