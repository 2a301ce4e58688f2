"""Observing: one call sees all that recovery decides by."""

from checkpointing.commit.fencing import Lease
from checkpointing.commit.recovery import RecoveryPlan, decide_recovery
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import Publication
from checkpointing.metadata.record import TableRecord
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.holders import this_process
from jobs.stores.lease import LeaseStore
from jobs.stores.observe import TableSeen, observe


def _observe(warehouse, tables):
    return observe(warehouse, CheckpointStore(warehouse), CutStore(warehouse), tables.logs)


def test_a_job_that_never_ran_is_seen_as_empty(warehouse, tables):
    """The first tick sees no rows, no holder, no tables."""
    seen = _observe(warehouse, tables)
    assert (0, (), frozenset(), ()) == (seen.facts.version, seen.facts.rows, seen.facts.cuts, seen.tables)
    assert (None, None) == (seen.facts.holder.alive, seen.facts.holder.lease)


def test_a_committed_but_unpublished_row_is_seen_and_rolled_forward(warehouse, tables, silver, schema, rows):
    """Rows, the holder's life, its lease and what each table shows, before and after publishing."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    file = tables.stage(silver, {"a": 1})
    record = TableRecord(table=silver, mode=TableMode.APPEND, adds=(file,), parent_version=0)
    claim = rows.claim(1).model_copy(update={"holder": this_process()})
    row = rows.checkpoint(1, tables=(record,))
    store = CheckpointStore(warehouse)
    store.append(claim, 0)
    store.append(row, 1)
    LeaseStore(warehouse).renew(Generation(1), claim.holder, lease_ms=60_000)
    seen = _observe(warehouse, tables)
    assert (2, (row, claim), True) == (seen.facts.version, seen.facts.rows, seen.facts.holder.alive)
    assert isinstance(seen.facts.holder.lease, Lease)
    assert (TableSeen(silver, CheckpointId(0), 0),) == seen.tables
    plan = decide_recovery(seen.facts, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert row == plan.roll_forward
    tables.publisher.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(1))
    CutStore(warehouse).record(CheckpointId(1), [(silver, 1)])
    seen = _observe(warehouse, tables)
    assert (TableSeen(silver, CheckpointId(1), 1),) == seen.tables
    plan = decide_recovery(seen.facts, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert (None, row) == (plan.roll_forward, plan.restore)
