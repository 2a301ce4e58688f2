"""A savepoint of the newest cut while no tick runs. No Spark.

It holds the job as a tick would, so that no tick begins meanwhile. What is committed is published first.
"""

from checkpointing.commit.at_rest import SavepointAtRest
from checkpointing.identifiers import JobName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.errand import SAVEPOINT
from checkpointing.tick.messages import RowChosen, Work
from jobs.holding.boundaries import cross_freely
from jobs.holding.failures import SavepointRefusedError
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.recovery.at_rest import Task, done_at_rest
from jobs.stores.warehouse import Warehouse


def savepoint_at_rest(warehouse: Warehouse) -> CheckpointRecord:
    """Append a savepoint of the newest checkpoint under a new id, and return it (A9).

    Raises NeverRunError; SavepointRefusedError if there is no checkpoint yet; JobHeldError if a tick runs;
    ClaimUnsettledError if the outcome cannot be told; RollForwardError and CutsNotRecordedError if a committed
    checkpoint cannot be published.
    """
    must_have_run(warehouse)

    def chosen(work: Work) -> RowChosen:
        if work.plan.restore is None:
            raise no_checkpoint_yet(warehouse.paths.job)
        return RowChosen(SavepointAtRest(work.plan.restore))

    task = Task(errand=SAVEPOINT, do_work=chosen, keeps_lease=False)
    return done_at_rest(JobStores(warehouse, cross_freely), task).entry


def no_checkpoint_yet(job: JobName) -> SavepointRefusedError:
    """Return what to say of a job without a completed checkpoint."""
    return SavepointRefusedError(
        f"{job} has completed no checkpoint yet, so there is nothing to make a savepoint of: run 'tidemark run {job}' "
        "until it has one"
    )
