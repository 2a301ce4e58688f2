"""Tests the table of cuts: it holds the version of each table at a checkpoint, once, and it stays bounded."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import Lease
from checkpointing.commit.recovery import RecoveryPlan, decide_recovery
from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.record import TableRecord
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutsNotRecordedError, CutStore
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
SILVER, GOLD = TableName("silver/flights"), TableName("gold/routes")


def test_a_cut_is_read_back_by_its_checkpoint(warehouse):
    CutStore(warehouse).record(ONE, [(SILVER, 3), (GOLD, 4)])
    cuts = CutStore(warehouse)
    assert {SILVER: 3, GOLD: 4} == cuts.read(ONE)
    assert cuts.read(TWO) is None
    assert frozenset({ONE}) == cuts.recorded()


def test_recording_again_changes_nothing(warehouse):
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 3)])
    cuts.record(ONE, [(SILVER, 9)])
    CutStore(warehouse).record(ONE, [(SILVER, 9)])
    assert {SILVER: 3} == cuts.read(ONE)
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).version()


def test_a_later_cut_removes_the_cuts_of_subsumed_checkpoints(warehouse):
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


# ------------------------------------------------------------------
# Tests that recording a cut drops no cut on which an entry rests that has none of its own.


ONE_OF_NEEDED_CUTS, STOP, BACK, NEXT = (CheckpointId(number) for number in (1, 2, 3, 4))


@pytest.fixture
def stores(warehouse, silver, schema):
    stores = JobStores(warehouse, cross_freely)
    stores.ensure([Table(silver, TableMode.APPEND)], {silver: schema})
    return stores


def test_a_savepoint_whose_cut_was_lost_keeps_the_cut_before_it(stores, rows, tables, silver):
    """The cut of a stop's savepoint was lost, and a user rolled back. Later the entry before it is subsumed.

    The savepoint's tables follow from the cut of that entry, so somebody who goes back to it needs this cut.
    """

    def commits(number, cut=True, **changes):
        entry = rows.checkpoint(number, pinned=number == STOP)
        entry = entry.model_copy(update={"parent": min(entry.parent, ONE_OF_NEEDED_CUTS)})
        stores.append(entry, number - 1, **changes)
        publication = Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {f"k{number}": number}),))
        version = stores.publish(publication, number).version
        if cut:
            stores.record_cut(number, [(silver, version)])

    commits(ONE_OF_NEEDED_CUTS)
    commits(STOP, cut=False)
    commits(BACK, marks={STOP: True})
    commits(NEXT, subsumed=[ONE_OF_NEEDED_CUTS, BACK])
    assert {ONE_OF_NEEDED_CUTS, NEXT} == set(stores.recorded_cuts())


# ------------------------------------------------------------------
# Tests that one call observes everything that recovery needs for its decision.


def _observe(warehouse):
    return JobStores(warehouse, cross_freely).observe()


def test_a_job_that_never_ran_is_seen_as_empty(warehouse):
    """The first tick sees no entries and no holder."""
    seen = _observe(warehouse)
    assert (0, (), frozenset()) == (seen.version, seen.rows, seen.cuts)
    assert (None, None) == (seen.holder.alive, seen.holder.lease)


def test_a_committed_but_unpublished_entry_is_seen_and_rolled_forward(warehouse, tables, silver, schema, rows):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    file = tables.stage(silver, {"a": 1})
    record = TableRecord(table=silver, mode=TableMode.APPEND, adds=(file,), parent_version=0)
    claim = rows.claim(1).model_copy(update={"holder": this_process()})
    row = rows.checkpoint(1, tables=(record,))
    store = CheckpointStore(warehouse)
    store.append(claim, 0)
    store.append(row, 1)
    LeaseStore(warehouse).renew(Generation(1), claim.holder, lease_ms=60_000)
    seen = _observe(warehouse)
    assert (2, (row, claim), True) == (seen.version, seen.rows, seen.holder.alive)
    assert isinstance(seen.holder.lease, Lease)
    plan = decide_recovery(seen, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert row == plan.roll_forward
    tables.publisher.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(1))
    CutStore(warehouse).record(CheckpointId(1), [(silver, 1)])
    seen = _observe(warehouse)
    plan = decide_recovery(seen, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert (None, row) == (plan.roll_forward, plan.restore)
