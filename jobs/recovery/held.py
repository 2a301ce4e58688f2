"""Holding a job while no tick runs: claim it as a tick would, mend its tables, append rows, release it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, assert_never

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import Row
from jobs.holding import claiming
from jobs.holding.boundaries import Boundary, cross_freely
from jobs.holding.claiming import Claimed
from jobs.holding.failures import ClaimUnsettledError, TablesBehindError
from jobs.holding.hold import Hold
from jobs.holding.job_stores import JobStores
from jobs.recovery.tables_behind import Doubt, mend, must_be_mendable, must_have_logs
from jobs.stores.checkpoints import NO_MARKS, Appended, Refused, Unknown
from jobs.stores.holders import this_process

_TRIES: Final = 5


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
