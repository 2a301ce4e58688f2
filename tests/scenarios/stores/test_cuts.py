"""Tests the table of cuts: it holds the version of each table at a checkpoint, once, and it stays bounded."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.codec import UnreadableRowError
from jobs.warehouse.cuts_table import CutsNotRecordedError, CutStore
from jobs.warehouse.delta_log import CommitMoment

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
SILVER, GOLD = TableName("silver/flights"), TableName("gold/routes")


def test_a_cut_is_read_back_by_its_checkpoint(warehouse):
    """Any process reads the versions of all tables."""
    CutStore(warehouse).record(ONE, [(SILVER, 3), (GOLD, 4)])
    cuts = CutStore(warehouse)
    assert {SILVER: 3, GOLD: 4} == cuts.read(ONE)
    assert cuts.read(TWO) is None
    assert frozenset({ONE}) == cuts.recorded()


def test_recording_again_changes_nothing(warehouse):
    """The first record of a cut is the cut."""
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 3)])
    cuts.record(ONE, [(SILVER, 9)])
    CutStore(warehouse).record(ONE, [(SILVER, 9)])
    assert {SILVER: 3} == cuts.read(ONE)
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).version()


def test_a_later_cut_removes_the_cuts_of_subsumed_checkpoints(warehouse):
    """The commit of a new cut removes the cuts of checkpoints that are not retained."""
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 1)])
    cuts.record(TWO, [(SILVER, 2)])
    cuts.record(THREE, [(SILVER, 3)], retained=[TWO, THREE])
    assert frozenset({TWO, THREE}) == cuts.recorded()
    assert {SILVER: 2} == cuts.read(TWO)


@pytest.mark.parametrize("moment", CommitMoment)
def test_a_lost_reply_or_request_records_once(warehouse, moment):
    """After an error before or after the commit, the store looks again."""
    struck = []

    def hook(now):
        if now is moment and not struck:
            struck.append(now)
            raise OSError("lost")

    CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).to_pyarrow_table().num_rows
    assert [moment] == struck


def test_two_different_cuts_recorded_at_once_are_both_kept(warehouse):
    """If a rival commits in between, the store looks again."""
    rival = CutStore(warehouse)
    cuts = CutStore(warehouse, hook=lambda now: now is CommitMoment.BEFORE and rival.record(ONE, [(SILVER, 1)]))
    cuts.record(TWO, [(SILVER, 2)])
    assert ({SILVER: 1}, {SILVER: 2}) == (cuts.read(ONE), cuts.read(TWO))


def test_a_log_that_always_fails_is_a_clear_error(warehouse):
    """The error names the checkpoint and the cause."""

    def hook(now):
        if now is CommitMoment.BEFORE:
            raise OSError("disk full")

    with pytest.raises(CutsNotRecordedError, match="checkpoint 1 could not be recorded: disk full"):
        CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])


def test_a_cut_with_an_impossible_time_is_refused_by_name(warehouse):
    """A starting tick reads the times of all cuts.

    It names a wrong one with its folder instead of ending in a traceback.
    """
    CutStore(replace(warehouse, now_ms=lambda: -1)).record(ONE, [(SILVER, 1)])
    with pytest.raises(UnreadableRowError, match=r"-1 is no checkpoint, no version and no time\. Restore the folder"):
        CutStore(warehouse).all()
