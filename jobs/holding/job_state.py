"""Is a tick of this job running? What a command must know before it asks one, or does without."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint, newest_claim, release_of
from checkpointing.identifiers import Generation, JobName
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Holder, Row
from jobs.holding.failures import NeverRunError, UnusableWarehouseError
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.holders import is_alive
from jobs.stores.lease import LeaseStore
from jobs.stores.obstacles import kind_of, obstacles
from jobs.stores.warehouse import Warehouse


class Activity(Enum):
    """What is known of a job's newest tick."""

    AT_REST = "at rest"
    """Nobody has claimed the job, or it is released, or its holder is certainly dead."""
    RUNNING = "running"
    """Its holder lives, or its lease runs."""
    SILENT = "silent"
    """Nobody here can tell whether the holder lives, and its lease has run out."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as its rows, its lease and the process table tell it; the holder of a job at rest may be None."""

    activity: Activity
    holder: Holder | None
    generation: Generation
    why: str


def has_run(warehouse: Warehouse) -> bool:
    """Return whether the job's own tables are there; a store would create what is missing.

    Raises UnusableWarehouseError if the warehouse is no folder.
    """
    kind = kind_of(warehouse.root)
    if kind not in {None, "a folder"}:
        raise UnusableWarehouseError(
            f"{warehouse.root} is {kind}, and a warehouse is a folder: name it with --warehouse"
        )
    paths = warehouse.paths
    return all(DeltaTable.is_deltatable(str(warehouse.path(name))) for name in (paths.checkpoints, paths.cuts))


def must_be_usable(warehouse: Warehouse) -> None:
    """Raise UnusableWarehouseError, naming the first obstacle, unless a tick can write into the warehouse."""
    found = next(obstacles(warehouse), None)
    if found is not None:
        raise UnusableWarehouseError(str(found))


def must_have_run(warehouse: Warehouse) -> None:
    """Raise NeverRunError, saying how to start the job, unless it has run in that warehouse."""
    if not has_run(warehouse):
        raise NeverRunError(warehouse.paths.job, warehouse.root)


def newest_restorable(root: Path, job: JobName) -> CheckpointRecord | None:
    """Return the checkpoint that the next tick begins from; None if the job never ran there."""
    warehouse = Warehouse(root, ProtocolPaths(job))
    if not has_run(warehouse):
        return None
    return newest_checkpoint(CheckpointStore(warehouse).observe()[1])


def observe_state(warehouse: Warehouse, checkpoints: CheckpointStore) -> JobState:
    """Return whether a tick of the job runs. Looks at rows, the lease and the process table; changes nothing."""
    _, rows = checkpoints.observe()
    return state_of(warehouse, rows)


def state_of(warehouse: Warehouse, rows: tuple[Row, ...]) -> JobState:
    """Return whether a tick of the job runs, these being its rows."""
    claim = newest_claim(rows)
    if claim is None:
        return JobState(Activity.AT_REST, None, Generation(0), "nobody has held the job before")
    if release_of(rows, claim.generation) is not None:
        return JobState(Activity.AT_REST, None, claim.generation, "the last tick ended normally")
    alive = is_alive(claim.holder)
    if alive is False:
        return JobState(Activity.AT_REST, claim.holder, claim.generation, f"{claim.holder} has died")
    lease = LeaseStore(warehouse).read()
    leased = lease is not None and lease.generation == claim.generation and lease.expires_ms > warehouse.now_ms()
    if alive or leased:
        return JobState(Activity.RUNNING, claim.holder, claim.generation, f"{claim.holder} holds the job")
    why = f"the lease of {claim.holder} has run out, and this host cannot see whether it lives"
    return JobState(Activity.SILENT, claim.holder, claim.generation, why)
