"""Finds out whether a job has run in a warehouse, and whether a tick of it runs now."""

from dataclasses import dataclass
from enum import Enum

from checkpointing.commit.approval import held_cut
from checkpointing.commit.fencing import newest_checkpoint, newest_claim, release_of
from checkpointing.identifiers import Generation
from checkpointing.metadata.record import CheckpointRecord, Holder, Release, Row
from jobs.holding.failures import NeverRunError, UnusableWarehouseError
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.delta_log import DeltaLog
from jobs.stores.holders import is_alive
from jobs.stores.lease import LeaseStore
from jobs.stores.obstacles import kind_at, obstacles
from jobs.stores.warehouse import Warehouse


class Activity(Enum):
    """Whether a job's newest tick runs."""

    AT_REST = "at rest"
    """No process has claimed the job, the last one has released it, or its holder is certainly dead."""
    RUNNING = "running"
    """Its holder lives, or its lease has not run out."""
    SILENT = "silent"
    """The lease has run out, and this host cannot see whether the holder lives."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Whether a job runs, from its entries, its lease and the process table. A job at rest may have no holder."""

    activity: Activity
    holder: Holder | None
    generation: Generation
    why: str


def has_run(warehouse: Warehouse) -> bool:
    """Return whether the job's own tables exist, without creating them. Raises UnusableWarehouseError."""
    kind = kind_at(warehouse, "")
    if kind not in {None, "a folder"}:
        raise UnusableWarehouseError(
            f"{warehouse.root} is {kind}, and a warehouse is a folder: name it with --warehouse"
        )
    paths = warehouse.paths
    return all(DeltaLog(warehouse.place(name)).exists() for name in (paths.checkpoints, paths.cuts))


def must_be_usable(warehouse: Warehouse) -> None:
    """Raise UnusableWarehouseError, naming the first obstacle, unless a tick can write into the warehouse."""
    found = next(obstacles(warehouse), None)
    if found is not None:
        raise UnusableWarehouseError(str(found))


def must_have_run(warehouse: Warehouse) -> None:
    """Raise NeverRunError, saying how to start the job, unless it has run in that warehouse."""
    if not has_run(warehouse):
        raise NeverRunError(warehouse.paths.job, warehouse.root)


def newest_restorable(warehouse: Warehouse) -> CheckpointRecord | None:
    """Return the checkpoint from which the next tick begins; None if the job never ran there."""
    if not has_run(warehouse):
        return None
    return newest_checkpoint(CheckpointStore(warehouse).observe()[1])


def waiting_cut(warehouse: Warehouse) -> CheckpointRecord | None:
    """Return the cut that waits for approval; None if there is none, or if the job never ran there."""
    return held_cut(CheckpointStore(warehouse).observe()[1]) if has_run(warehouse) else None


def observe_state(warehouse: Warehouse, checkpoints: CheckpointStore) -> JobState:
    """Return whether a tick of the job runs, from its entries as they are now. Changes nothing."""
    return state_of(warehouse, checkpoints.observe()[1])


def last_failure(rows: tuple[Row, ...]) -> Release | None:
    """Return the release of the newest tick if it failed, and if the job has moved to no other checkpoint since."""
    ticks = [row for row in rows if isinstance(row, Release) and row.ended is not None]
    newest = max(ticks, key=lambda row: row.generation, default=None)
    if newest is None or newest.ended is None or not newest.ended.has_failed:
        return None
    moved = (row for row in rows if isinstance(row, CheckpointRecord) and row.commits)
    return None if any(row.generation > newest.generation for row in moved) else newest


def state_of(warehouse: Warehouse, rows: tuple[Row, ...]) -> JobState:
    """Return whether a tick of the job runs, given its entries."""
    claim = newest_claim(rows)
    if claim is None:
        return JobState(Activity.AT_REST, None, Generation(0), "nobody has held the job before")
    release = release_of(rows, claim.generation)
    if release is not None:
        return JobState(Activity.AT_REST, None, claim.generation, release.why_free)
    alive = is_alive(claim.holder)
    if alive is False:
        return JobState(Activity.AT_REST, claim.holder, claim.generation, f"{claim.holder} has died")
    lease = LeaseStore(warehouse).read()
    leased = lease is not None and lease.generation == claim.generation and lease.expires_ms > warehouse.now_ms()
    if alive or leased:
        return JobState(Activity.RUNNING, claim.holder, claim.generation, f"{claim.holder} holds the job")
    why = f"the lease of {claim.holder} has run out, and this host cannot see whether it lives"
    return JobState(Activity.SILENT, claim.holder, claim.generation, why)
