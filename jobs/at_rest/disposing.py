"""Disposing of a savepoint while no tick runs: its row goes, and the state files that only it named. No Spark."""

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.paths import ROOT
from checkpointing.metadata.record import CheckpointRecord, Row
from checkpointing.tick.errand import DISPOSAL
from checkpointing.tick.messages import Work, Worked
from jobs.holding.boundaries import cross_freely
from jobs.holding.failures import ClaimUnsettledError, NoSuchSavepointError, SavepointRefusedError
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.recovery.at_rest import Task, done_at_rest
from jobs.stores.reservations import deletable
from jobs.stores.savepoint_copy import named_files
from jobs.stores.warehouse import Warehouse


def dispose(warehouse: Warehouse, checkpoint: int) -> int:
    """Delete a savepoint's row, and the state files that no other row names; return how many files went.

    A row that a dead tick committed is published first: until then state tables show files that it names no more.

    Raises NeverRunError; JobHeldError, naming who holds the job; SavepointRefusedError for a row that is no
    savepoint, or is what the next tick begins from; RollForwardError and CutsNotRecordedError, and then the savepoint
    stays; ClaimUnsettledError if its row may still be there.
    """
    must_have_run(warehouse)
    stores, job = JobStores(warehouse, cross_freely), warehouse.paths.job
    seen: list[Row] = []

    def possible(rows: Observed, _: RecoveryPlan) -> None:
        _disposable(rows.rows, checkpoint, job)

    def dropped(work: Work) -> Worked:
        seen.extend(work.seen.rows)
        return Worked((_disposable(work.seen.rows, checkpoint, job).checkpoint,))

    done_at_rest(stores, Task(errand=DISPOSAL, do_work=dropped, possible=possible))
    gone = _disposable(tuple(seen), checkpoint, job)
    if gone in stores.observe().rows:
        raise ClaimUnsettledError(job, f"savepoint {gone.checkpoint} is still there")
    # As the rows were while the job was held. A tick that has begun since may have subsumed some of them, and until it
    # has published its first checkpoint, state tables show the files of the one before.
    kept = [row for row in seen if isinstance(row, CheckpointRecord) and row != gone]
    named = {path for row in kept for path in named_files(row)}
    unused = [path for path in sorted(named_files(gone)) if path.startswith(f"{ROOT}/") and path not in named]
    return sum(warehouse.delete(path) for path in deletable(warehouse, unused))


def _disposable(rows: tuple[Row, ...], checkpoint: int, job: JobName) -> CheckpointRecord:
    found = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    row = found.get(CheckpointId(checkpoint))
    savepoints = ", ".join(str(each) for each in sorted(found) if found[each].is_savepoint) or "none"
    if row is None:
        raise NoSuchSavepointError(f"{job} has no savepoint {checkpoint}: its savepoints are {savepoints}")
    if row == newest_checkpoint(rows):
        raise SavepointRefusedError(
            f"savepoint {checkpoint} is what the next tick of {job} begins from, so it stays: dispose of it once a "
            "newer checkpoint has completed"
        )
    if not row.is_savepoint:
        raise SavepointRefusedError(
            f"{checkpoint} of {job} is a checkpoint, which is deleted when newer ones complete; "
            f"its savepoints are {savepoints}"
        )
    return row
