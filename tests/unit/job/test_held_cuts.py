"""A job that holds its checkpoint: one entry of kind HELD, nothing published, and the tick ends."""

import pytest

from checkpointing.commit.at_rest import Approved, Stamp, to_settle, turn_of
from checkpointing.commit.cleanup import needed_cuts, referenced
from checkpointing.commit.fencing import newest_checkpoint, restorable
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    EndTick,
    NotifyComplete,
    PollSource,
    PublishTable,
    RecordCut,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    TickOutcome,
)
from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.record import RowKind
from tests.unit.job.conftest import CLAIM

HOLD = TickLimits(hold=True)


@pytest.fixture
def held(job):
    """Return a story whose tick has held a cut, and the cut's entry."""
    story = job.story(job.two_sources(), linger_ms=0, limits=HOLD)
    story.offers("left", 3)
    story.finishes()
    story.is_idle("left", "right")
    story.checks()
    return story, story.appends()


def test_a_held_checkpoint_is_an_entry_and_the_end(held):
    """The tables are checked, nothing is published or told, and the tick ends saying how to settle the cut."""
    story, row = held
    assert (RowKind.HELD, True, False) == (row.kind, row.pinned, row.commits)
    assert any(isinstance(told, CheckTables) for told in story.told)
    assert not [told for told in story.told if isinstance(told, PublishTable | RecordCut | NotifyComplete)]
    (end,) = [told for told in story.told if isinstance(told, EndTick)]
    assert TickOutcome.HELD is end.outcome
    assert f"cut {row.checkpoint} of" in end.message


def test_a_tick_that_holds_refuses_a_stop_and_takes_a_savepoint(job):
    """A stop would publish. A plain savepoint publishes nothing, and the tick goes on."""
    story = job.story(job.two_sources(), linger_ms=0, limits=HOLD)
    story.offers("left", 3)
    story.tell(SavepointRequested("stop", SavepointKind.SUSPEND))
    (refused,) = [told for told in story.told if isinstance(told, SavepointFailed)]
    assert CheckpointFailureReason.CHECKPOINT_DECLINED is refused.reason
    assert "tidemark cancel" in refused.message
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.finishes()
    assert RowKind.SAVEPOINT is story.appends().kind


def test_a_held_cut_is_kept_and_nobody_begins_from_it(held):
    """Its files and its parent's cut stay. It is not the newest checkpoint, and no rollback offers it."""
    _, row = held
    assert newest_checkpoint((row,)) is None
    assert () == restorable([row])
    assert {file.path for table in row.tables for file in table.adds} <= referenced([row]).pinned
    assert row.parent in needed_cuts((row,), ())
    told = row.model_copy(update={"vertices": (), "tables": ()})
    assert told == decode(encode(told, writer="test"))


def test_an_approved_cut_replaces_the_held_one(held):
    """It has the held cut's parent, tables and vertices under a new id, and drops the held entry in its commit."""
    _, row = held
    recipe = Approved(to_settle((row,), row.job, approve=True).held)
    claim = CLAIM.model_copy(update={"generation": 2, "first_id": 7})
    approved = recipe.row(claim, Stamp(99, "n"))
    assert (RowKind.CHECKPOINT, False, 7, row.parent) == (
        approved.kind,
        approved.pinned,
        approved.checkpoint,
        approved.parent,
    )
    assert (row.vertices, row.tables, row.columns) == (approved.vertices, approved.tables, approved.columns)
    assert (row.checkpoint,) == turn_of(recipe, (row,)).dropped


def test_a_cut_of_another_checkpoint_is_not_approved(held):
    """An entry that does not continue from the newest checkpoint can only be rejected."""
    _, row = held
    other = row.model_copy(update={"kind": RowKind.CHECKPOINT, "pinned": False, "checkpoint": 5, "parent": 0})
    strange = row.model_copy(update={"checkpoint": 6, "parent": 4})
    settlement = to_settle((other, strange), row.job, approve=True)
    assert (None, True) == (settlement.held, "tidemark reject" in settlement.why_not)
    assert strange == to_settle((other, strange), row.job, approve=False).held


def test_an_append_of_unknown_outcome_holds_or_fails(held):
    """The entry is the only effect of the tick that others see."""
    story, row = held
    assert [row] == [told.row for told in story.told if isinstance(told, AppendRow)]


def test_a_tick_that_holds_takes_one_checkpoint_at_a_time(job):
    """More rows than `every_rows` come before the cut is held. A second checkpoint could only be aborted."""
    config = {"every_rows": 3, "slice_rows_max": 3, "max_concurrent": 2}
    story = job.story(job.two_sources(), config, linger_ms=0, limits=HOLD)
    while story.all(PollSource):
        story.offers(story.all(PollSource)[0].source, 3)
    assert 1 == len(story.door.pending)
