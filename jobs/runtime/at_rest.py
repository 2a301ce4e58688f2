"""What is done to a job's rows while no tick runs, and a savepoint of the newest cut. No Spark.

Each claims the job as a tick would, so that no tick begins meanwhile, appends its row, and releases.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, assert_never
from uuid import uuid4

from checkpointing.commit.net import nothing_staged
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind, Statistics
from jobs.runtime import claiming
from jobs.runtime.boundaries import Boundary, cross_freely
from jobs.runtime.claiming import Claimed
from jobs.runtime.failures import ClaimUnsettledError, SavepointRefusedError, TablesBehindError
from jobs.runtime.holding import Hold
from jobs.runtime.job_state import must_have_run
from jobs.runtime.job_stores import JobStores
from jobs.runtime.tables_behind import Doubt, mend, must_be_mendable, must_have_logs
from jobs.stores.checkpoints import NO_MARKS, Appended, Refused, Unknown
from jobs.stores.holders import this_process
from jobs.stores.warehouse import Warehouse

_TRIES: Final = 5


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


def append_row(
    stores: JobStores,
    row: Row,
    at_version: int,
    disposed: Iterable[CheckpointId] = (),
    marks: Mapping[CheckpointId, bool] = NO_MARKS,
) -> int:
    """Append a row behind that version and return its own; raise ClaimUnsettledError if it may not be in.

    The same commit drops the `disposed` rows, and marks others as on the line or off it.
    """
    result = stores.append(row, at_version, disposed=disposed, marks=marks)
    for _ in range(_TRIES):
        if not isinstance(result, Unknown):
            break
        result = stores.append(row, at_version, disposed=disposed, marks=marks)
    match result:
        case Appended():
            return result.version
        case Refused():
            raise ClaimUnsettledError(stores.warehouse.paths.job, f"taken over by {result.holder}")
        case Unknown():
            raise ClaimUnsettledError(stores.warehouse.paths.job, result.error)
        case _ as unreachable:
            assert_never(unreachable)


@contextmanager
def held(
    stores: JobStores, boundary: Boundary = cross_freely, *, beyond_behind: bool = False
) -> Iterator[tuple[Claimed, Hold]]:
    """Hold the job within this block, its tables as its recorded cuts say.

    Raises JobHeldError, naming who holds it, ClaimUnsettledError, and before the claim TablesBehindError. With
    `beyond_behind` tables that cannot be brought back stay as they are: a rollback leads out of that.
    """
    for _ in range(_TRIES):
        seen = stores.observe()
        plan = claiming.decide(seen, stores.warehouse, take_over=False)
        doubt = _mendable(stores, seen.rows, beyond_behind=beyond_behind)
        claimed = claiming.append_claim(stores, seen, plan, this_process(), boundary)
        if claimed is not None:
            break
    else:
        raise ClaimUnsettledError(stores.warehouse.paths.job, f"others wrote first {_TRIES} times")
    hold = Hold(stores, claimed.claim, claimed.at_version, boundary)
    try:
        if doubt is not None:
            mend(stores, doubt, boundary)
        yield claimed, hold
    finally:
        hold.release()


def _mendable(stores: JobStores, rows: tuple[Row, ...], *, beyond_behind: bool) -> Doubt | None:
    try:
        return must_have_logs(stores, must_be_mendable(stores, rows))
    except TablesBehindError:
        if beyond_behind:
            return None
        raise


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
