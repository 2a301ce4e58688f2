"""Tests that one call observes everything that recovery needs for its decision."""

from checkpointing.commit.fencing import Lease
from checkpointing.commit.recovery import RecoveryPlan, decide_recovery
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import Publication
from checkpointing.metadata.record import TableRecord
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process


def _observe(warehouse):
    return JobStores(warehouse, cross_freely).observe()


def test_a_job_that_never_ran_is_seen_as_empty(warehouse):
    """The first tick sees no entries and no holder."""
    seen = _observe(warehouse)
    assert (0, (), frozenset()) == (seen.version, seen.rows, seen.cuts)
    assert (None, None) == (seen.holder.alive, seen.holder.lease)


def test_a_committed_but_unpublished_entry_is_seen_and_rolled_forward(warehouse, tables, silver, schema, rows):
    """The observation has the entries, whether the holder lives, and its lease, before and after publishing."""
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
