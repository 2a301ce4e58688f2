"""Cuts: which version of each table belongs to a checkpoint, recorded once and bounded."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.codec import UnreadableRowError
from jobs.stores.cuts import CutsNotRecordedError, CutStore
from jobs.stores.delta_log import CommitMoment

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
SILVER, GOLD = TableName("silver/flights"), TableName("gold/routes")


def test_a_cut_is_read_back_by_its_checkpoint(warehouse):
    """The versions of all tables, by any process."""
    CutStore(warehouse).record(ONE, [(SILVER, 3), (GOLD, 4)])
    cuts = CutStore(warehouse)
    assert {SILVER: 3, GOLD: 4} == cuts.read(ONE)
    assert cuts.read(TWO) is None
    assert frozenset({ONE}) == cuts.recorded()


def test_recording_again_changes_nothing(warehouse):
    """Idempotent: the first record of a cut is the cut."""
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 3)])
    cuts.record(ONE, [(SILVER, 9)])
    CutStore(warehouse).record(ONE, [(SILVER, 9)])
    assert {SILVER: 3} == cuts.read(ONE)
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).version()


def test_cuts_of_subsumed_checkpoints_go_with_a_later_one(warehouse):
    """Bounded to the retained checkpoints, in one commit with the new cut."""
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 1)])
    cuts.record(TWO, [(SILVER, 2)])
    cuts.record(THREE, [(SILVER, 3)], retained=[TWO, THREE])
    assert frozenset({TWO, THREE}) == cuts.recorded()
    assert {SILVER: 2} == cuts.read(TWO)


@pytest.mark.parametrize("moment", CommitMoment)
def test_a_lost_reply_or_request_records_once(warehouse, moment):
    """An error on either side of the commit is met by looking again."""
    struck = []

    def hook(now):
        if now is moment and not struck:
            struck.append(now)
            raise OSError("lost")

    CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).to_pyarrow_table().num_rows
    assert [moment] == struck


def test_two_that_record_different_cuts_at_once_lose_neither(warehouse):
    """A rival's commit in between is met by looking again."""
    rival = CutStore(warehouse)
    cuts = CutStore(warehouse, hook=lambda now: now is CommitMoment.BEFORE and rival.record(ONE, [(SILVER, 1)]))
    cuts.record(TWO, [(SILVER, 2)])
    assert ({SILVER: 1}, {SILVER: 2}) == (cuts.read(ONE), cuts.read(TWO))


def test_a_log_that_always_fails_is_a_clear_error(warehouse):
    """The error names the checkpoint and what was met."""

    def hook(now):
        if now is CommitMoment.BEFORE:
            raise OSError("disk full")

    with pytest.raises(CutsNotRecordedError, match="checkpoint 1 could not be recorded: disk full"):
        CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])


def test_a_cut_that_says_an_impossible_time_is_refused_by_name(warehouse):
    """A start reads the times of all cuts, so a wrong one is named with its folder instead of ending in a traceback."""
    CutStore(replace(warehouse, now_ms=lambda: -1)).record(ONE, [(SILVER, 1)])
    with pytest.raises(UnreadableRowError, match=r"-1 is no checkpoint, no version and no time\. Restore the folder"):
        CutStore(warehouse).all()
