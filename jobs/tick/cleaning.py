"""Cleans up a job at rest, beside a running tick, or at the end of a tick.

At rest the clean-up claims the job, so that all other generations are older. Beside a tick it does not touch the files
of the tick's generation. A file of an older generation can be used by the tick only if an entry names it
(`checkpointing.commit.cleanup`).
"""

from dataclasses import dataclass, replace
from typing import Final

import structlog

from checkpointing.commit.cleanup import CleanupDecision, decide_cleanup, is_due
from checkpointing.identifiers import Generation
from checkpointing.tick.attempts import CLEANUP as CLEAN_UP_AT_REST
from checkpointing.tick.messages import Work, Worked
from jobs.storage.copy_folder import free_bytes
from jobs.storage.place import drop_unfinished
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.warehouse.boundaries import CLEANUP, Boundary, around, cross_freely
from jobs.warehouse.cleanup import Deleted, Gathered, delete_unneeded, drop_empty_folders, gather, note_look, read_looks
from jobs.warehouse.cuts_table import ReservationStore
from jobs.warehouse.job_stores import Activity, JobStores, must_have_run, state_of
from jobs.warehouse.refusals import JobHeldError
from jobs.warehouse.warehouse import Warehouse

FILES_PER_TICK: Final = 5_000
"""At its end, a tick deletes at most so many files, in about a second. The next clean-up deletes the others."""

_UNFINISHED_MS: Final = 3_600_000
"""If an unfinished file beside the lease or the records of looks is older than this, a dead process left it behind."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a clean-up found and did.

    `beside` names the process that holds the job, and `notes` the untouched tables.
    """

    decision: CleanupDecision
    deleted: Deleted
    beside: str | None
    notes: tuple[str, ...]
    free_bytes: int | None


def plan_cleanup(warehouse: Warehouse, grace_ms: int) -> Cleanup:
    """Return what a clean-up would do now, without changing anything. Raises NeverRunError."""
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely)
    state = state_of(warehouse, stores.entries.rows())
    at_rest = state.activity is Activity.AT_REST
    current = Generation(state.generation + 1) if at_rest else state.generation
    found = gather(stores.held, current, grace_ms, others_hold=not at_rest)
    return _report(warehouse, found, decide_cleanup(found.facts), Deleted(), None if at_rest else str(state.holder))


def clean_up(warehouse: Warehouse, grace_ms: int, *, boundary: Boundary = cross_freely) -> Cleanup:
    """Delete unneeded files. An interrupted clean-up can simply be run again.

    Raises NeverRunError, CutsNotRecordedError, and ClaimUnsettledError if other processes claim the job all the time,
    or if the store's answers and lists do not show which entries the job has.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, boundary)
    state = state_of(warehouse, stores.entries.rows())
    if state.activity is Activity.AT_REST:
        try:
            return _at_rest(stores, grace_ms, boundary)
        except JobHeldError as held_by:
            state = replace(state, holder=held_by.holder, generation=held_by.generation)
    found = gather(stores.held, state.generation, grace_ms, others_hold=True)
    return _carry_out(warehouse, found, boundary, beside=str(state.holder))


def clean_up_after_tick(stores: JobStores, generation: Generation, grace_ms: int, boundary: Boundary) -> None:
    """Clean up at the end of a tick that still holds the job.

    An error is logged, and does not change how the tick ends.
    """
    warehouse = stores.warehouse
    try:
        stores.cuts.drop_unneeded()
        found = gather(stores.held, generation, grace_ms, others_hold=False)
        done = _carry_out(warehouse, found, boundary, most=FILES_PER_TICK)
        stores.finish_erasure(grace_ms)
    except Exception:  # noqa: BLE001 - the tick has done its work; the next one cleans up
        _log.exception("clean-up failed", job=warehouse.paths.job)
        return
    if done.deleted.files:
        _log.info("cleaned up", files=len(done.deleted.files), bytes=done.deleted.bytes)


def is_cleanup_due(warehouse: Warehouse, grace_ms: int) -> bool:
    """Return whether the last clean-up is so long ago that even a tick without a checkpoint should clean up."""
    return is_due(read_looks(warehouse), warehouse.now_ms(), grace_ms)


def _at_rest(stores: JobStores, grace_ms: int, boundary: Boundary) -> Cleanup:
    warehouse = stores.warehouse
    done: list[Cleanup] = []

    def cleaned(work: Work) -> Worked:
        stores.cuts.drop_unneeded()
        found = gather(stores.held, work.claim.generation, grace_ms, others_hold=False)
        done.append(_carry_out(warehouse, found, boundary))
        stores.finish_erasure(grace_ms)
        return Worked()

    done_at_rest(stores, Task(errand=CLEAN_UP_AT_REST, do_work=cleaned), boundary)
    return done[0]


def _carry_out(
    warehouse: Warehouse, found: Gathered, boundary: Boundary, *, beside: str | None = None, most: int | None = None
) -> Cleanup:
    decision = decide_cleanup(found.facts)
    with around(boundary, CLEANUP):
        if found.look is not None:
            note_look(warehouse, found.facts.looks, found.look, found.facts.grace_ms)
        deleted = delete_unneeded(warehouse, decision.delete[:most])
        ReservationStore(warehouse).forget()
        if beside is None:
            drop_empty_folders(warehouse, found.tables, found.facts.current)
            drop_unfinished(warehouse.place(warehouse.paths.folder), before_ms=warehouse.now_ms() - _UNFINISHED_MS)
    return _report(warehouse, found, decision, deleted, beside)


def _report(
    warehouse: Warehouse, found: Gathered, decision: CleanupDecision, deleted: Deleted, beside: str | None
) -> Cleanup:
    free = free_bytes(warehouse.root)
    return Cleanup(decision, deleted, beside, (*found.notes, *deleted.failed), free)
