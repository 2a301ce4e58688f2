"""A savepoint of the newest cut while no tick runs. No Spark.

It claims the job as a tick would, so that no tick begins meanwhile, appends its row, and releases.
"""

from uuid import uuid4

from checkpointing.commit.net import nothing_staged
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics
from jobs.holding.boundaries import cross_freely
from jobs.holding.claiming import Claimed
from jobs.holding.failures import SavepointRefusedError
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.recovery.held import append_row, held
from jobs.stores.warehouse import Warehouse


def savepoint_at_rest(warehouse: Warehouse) -> CheckpointRecord:
    """Append a savepoint of the newest checkpoint under a new id, and return it (A9).

    Raises NeverRunError; SavepointRefusedError if there is no checkpoint yet; JobHeldError if a tick runs;
    ClaimUnsettledError if the outcome cannot be told.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely)
    with held(stores) as (claimed, hold):
        newest = claimed.plan.restore
        if newest is None:
            raise no_checkpoint_yet(warehouse.paths.job)
        row = _savepoint_of(newest, claimed, warehouse.now_ms())
        hold.next_id = CheckpointId(row.checkpoint + 1)
        hold.at_version = append_row(stores, row, hold.at_version)
    return row


def no_checkpoint_yet(job: JobName) -> SavepointRefusedError:
    """Return what to say of a job without a completed checkpoint."""
    return SavepointRefusedError(
        f"{job} has completed no checkpoint yet, so there is nothing to make a savepoint of: run 'tidemark run {job}' "
        "until it has one"
    )


def _savepoint_of(newest: CheckpointRecord, claimed: Claimed, at_ms: int) -> CheckpointRecord:
    """Return a savepoint of a committed cut: its snapshots, with nothing of its own for any table."""
    return newest.model_copy(
        update={
            "kind": RowKind.SAVEPOINT,
            "pinned": True,
            "checkpoint": claimed.claim.first_id,
            "parent": newest.checkpoint,
            "generation": claimed.claim.generation,
            "nonce": uuid4().hex,
            "vertices": nothing_staged(newest),
            "tables": (),
            "statistics": Statistics(triggered_ms=at_ms, committed_ms=at_ms, rows=0),
        }
    )
