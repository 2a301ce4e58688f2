"""What a starting tick must see before it decides anything: one call, no effect."""

from collections.abc import Callable

from checkpointing.commit.fencing import HolderObserved, newest_claim
from checkpointing.commit.recovery import Observed
from checkpointing.metadata.record import Claim
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.holders import is_alive
from jobs.stores.lease import LeaseStore
from jobs.stores.warehouse import Warehouse


def observe(
    warehouse: Warehouse,
    checkpoints: CheckpointStore,
    cuts: CutStore,
    run_ended: Callable[[str], bool | None] | None = None,
) -> Observed:
    """Gather what recovery needs. Raises what the codec raises for rows that cannot be read."""
    version, rows = checkpoints.observe()
    return Observed(
        version=version,
        rows=rows,
        cuts=cuts.recorded(),
        holder=_holder(newest_claim(rows), LeaseStore(warehouse), run_ended),
        now_ms=warehouse.now_ms(),
    )


def _holder(claim: Claim | None, leases: LeaseStore, run_ended: Callable[[str], bool | None] | None) -> HolderObserved:
    lease = leases.read()
    alive = is_alive(claim.holder, run_ended) if claim is not None else None
    return HolderObserved(alive=alive, lease=lease.lease() if lease is not None else None)
