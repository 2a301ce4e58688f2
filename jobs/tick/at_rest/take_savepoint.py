"""Takes a savepoint of the newest cut, and disposes of savepoints, while no tick runs. No Spark."""

from collections.abc import Iterable

from checkpointing.commit.at_rest import SavepointAtRest, is_savable, waits_for_approval
from checkpointing.commit.fencing import disposed_with, newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.paths import ROOT
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from checkpointing.tick.attempts import DISPOSAL, SAVEPOINT
from checkpointing.tick.messages import RowChosen, Work, Worked
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import deletable
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.refusals import ClaimUnsettledError, NoSuchSavepointError, SavepointRefusedError
from jobs.warehouse.savepoint_copy import named_files
from jobs.warehouse.warehouse import Warehouse


def savepoint_at_rest(warehouse: Warehouse) -> CheckpointRecord:
    """Append a savepoint of the newest checkpoint under a new id, and return it (A9).

    This process holds the job as a tick would, so that no tick begins meanwhile. A committed checkpoint is published
    first.

    Raises NeverRunError, SavepointRefusedError if there is no checkpoint yet or if it holds rows in flight,
    JobHeldError if a tick runs, and ClaimUnsettledError if it is unknown whether the entry was appended. Raises
    RollForwardError if a committed checkpoint cannot be published, and CutsNotRecordedError if its cut cannot be
    recorded.
    """
    must_have_run(warehouse)
    job = warehouse.paths.job

    def possible(_: Observed, plan: RecoveryPlan) -> None:
        _savable(plan, job)

    def chosen(work: Work) -> RowChosen:
        return RowChosen(SavepointAtRest(_savable(work.plan, job)))

    task = Task(errand=SAVEPOINT, do_work=chosen, possible=possible, keeps_lease=False)
    return done_at_rest(JobStores(warehouse, cross_freely), task).entry


def _savable(plan: RecoveryPlan, job: JobName) -> CheckpointRecord:
    """Return the newest checkpoint. Raise SavepointRefusedError if no savepoint can be made of it."""
    newest = plan.restore
    if newest is None:
        raise no_checkpoint_yet(job)
    if not is_savable(newest):
        raise SavepointRefusedError(
            f"checkpoint {newest.checkpoint} of {job} is unaligned and holds rows in flight, and a savepoint holds "
            f"none: run 'tidemark run {job}' until it is caught up and take the savepoint then, or take it while a "
            "tick runs"
        )
    return newest


def no_checkpoint_yet(job: JobName) -> SavepointRefusedError:
    """Return the error for a job without a completed checkpoint."""
    return SavepointRefusedError(
        f"{job} has completed no checkpoint yet, so there is nothing to make a savepoint of: run 'tidemark run {job}' "
        "until it has one"
    )


def dispose(warehouse: Warehouse, checkpoint: int) -> int:
    """Delete a savepoint's entry, and the state files that no other entry names. Return how many files were deleted.

    An abandoned checkpoint is deleted too if it stayed only because it is an ancestor of the savepoint.

    A checkpoint that a dead tick committed is published first. Until then, state tables show files that the
    checkpoint's entry no longer names.

    Raises NeverRunError, JobHeldError, and SavepointRefusedError for an entry that is no savepoint, or from which the
    next tick begins. Raises RollForwardError if a table cannot be published, and CutsNotRecordedError if a cut cannot
    be recorded. In these cases the savepoint stays. Raises ClaimUnsettledError if the savepoint's entry may still
    exist.
    """
    must_have_run(warehouse)
    stores, job = JobStores(warehouse, cross_freely), warehouse.paths.job
    seen: list[Row] = []

    def possible(rows: Observed, _: RecoveryPlan) -> None:
        _disposable(rows.rows, checkpoint, job)

    def dropped(work: Work) -> Worked:
        seen.extend(work.seen.rows)
        gone = _disposable(work.seen.rows, checkpoint, job)
        return Worked(disposed_with(gone, _records(work.seen.rows)))

    done_at_rest(stores, Task(errand=DISPOSAL, do_work=dropped, possible=possible))
    gone = _disposable(tuple(seen), checkpoint, job)
    if gone in stores.observe().rows:
        raise ClaimUnsettledError(job, f"savepoint {gone.checkpoint} is still there")
    # `seen` has the entries of the time when the job was held. A tick that has begun since may have subsumed some of
    # them. Until that tick has published its first checkpoint, state tables show the files of the checkpoint before.
    records = _records(seen)
    dropped_too = disposed_with(gone, records)
    named = {path for row in records if row.checkpoint not in dropped_too for path in named_files(row)}
    theirs = {path for row in records if row.checkpoint in dropped_too for path in named_files(row)}
    unused = [path for path in sorted(theirs) if path.startswith(f"{ROOT}/") and path not in named]
    return sum(warehouse.delete(path) for path in deletable(warehouse, unused))


def _records(rows: Iterable[Row]) -> tuple[CheckpointRecord, ...]:
    return tuple(row for row in rows if isinstance(row, CheckpointRecord))


def _is_users(row: CheckpointRecord) -> bool:
    return row.is_savepoint and row.kind is not RowKind.HELD


def _disposable(rows: tuple[Row, ...], checkpoint: int, job: JobName) -> CheckpointRecord:
    found = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    row = found.get(CheckpointId(checkpoint))
    savepoints = ", ".join(str(each) for each in sorted(found) if _is_users(found[each])) or "none"
    if row is None:
        raise NoSuchSavepointError(f"{job} has no savepoint {checkpoint}: its savepoints are {savepoints}")
    if row.kind is RowKind.HELD:
        raise SavepointRefusedError(f"{checkpoint} of {job} is no savepoint: {waits_for_approval(row)}")
    if row == newest_checkpoint(rows):
        raise SavepointRefusedError(
            f"savepoint {checkpoint} is what the next tick of {job} begins from, so it stays: dispose of it once a "
            "newer checkpoint has completed"
        )
    others = [str(each.checkpoint) for each in found.values() if not each.commits and each.parent == row.checkpoint]
    if row.is_savepoint and row.commits and others:
        raise SavepointRefusedError(
            f"savepoint {checkpoint} of {job} has the tables of savepoint {', '.join(others)}, which was taken after "
            f"it: dispose of {others[0]} first"
        )
    if not row.is_savepoint:
        raise SavepointRefusedError(
            f"{checkpoint} of {job} is a checkpoint, which is deleted when newer ones complete; "
            f"its savepoints are {savepoints}"
        )
    return row
