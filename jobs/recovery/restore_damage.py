"""A damaged checkpoint is found before anything is restored from it, and an older good one is named instead (K2).

A tick looks at existence and size of all files that it begins from, and at their checksums where these are few
bytes; each file is verified once more when it is read. A rollback verifies everything.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from checkpointing.commit.line import restorable
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.handles import FileHandle
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.files import handles_to_restore
from checkpointing.metadata.record import CheckpointRecord
from jobs.engine_paths import typed
from jobs.holding.boundaries import cross_freely
from jobs.holding.failures import TickRefusedError
from jobs.holding.job_stores import JobStores
from jobs.stores.soundness import damages
from jobs.stores.warehouse import Warehouse

CHECKSUM_BYTES_MAX: Final = 64 * 1024 * 1024
"""Up to this many bytes in all a starting tick compares checksums too: less than 0.1 s."""


class DamagedCheckpointError(TickRefusedError):
    """What a tick would begin from is damaged: names row and file, and the command that goes back to a good one."""


def observe_sound(stores: JobStores, run_ended: Callable[[str], bool | None] | None = None) -> Observed:
    """Return what a starting tick must know; raise DamagedCheckpointError for a row that cannot be read."""
    try:
        return stores.observe(run_ended)
    except UnreadableRowError as error:
        raise DamagedCheckpointError(f"{error}. {way_out(stores.warehouse)}") from error


def must_be_sound(warehouse: Warehouse, plan: RecoveryPlan) -> None:
    """Raise DamagedCheckpointError unless all files are there that the tick restores from, or has yet to publish."""
    row = plan.restore
    if row is None:
        return
    needed = tuple({file.path: file for file in _needed(row, publish=plan.roll_forward is not None)}.values())
    few = sum(file.bytes for file in needed) <= CHECKSUM_BYTES_MAX
    found = next(damages(warehouse.root, needed, checksums=few), None)
    if found is not None:
        raise DamagedCheckpointError(
            f"{row.kind.value} {row.checkpoint} of {row.job} is damaged: {found}. {way_out(warehouse, besides=row)}"
        )


def _needed(row: CheckpointRecord, *, publish: bool) -> Iterator[FileHandle]:
    yield from handles_to_restore(row)
    for table in row.tables if publish else ():
        yield from (*table.adds, *table.files)


def way_out(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> str:
    """Return how to go on: the newest row that is whole, by the command that goes back to it; looks at every file."""
    job, root = warehouse.paths.job, warehouse.root
    good = newest_sound(warehouse, besides=besides)
    if good is None:
        return (
            "No other retained checkpoint is whole: restore the file from a backup, or start over in an empty "
            f"warehouse ('tidemark run {job} --warehouse EMPTY_FOLDER')"
        )
    where = "" if root.name == "warehouse" else f" --warehouse {typed(root)}"
    return (
        f"Restore it from a backup, or go back to {good.kind.value} {good.checkpoint}, the next that is whole: "
        f"'tidemark rollback {job} {good.checkpoint}{where}' (first with --dry-run to see what that changes)"
    )


def newest_sound(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> CheckpointRecord | None:
    """Return the newest row that can be read and gone back to, checksums compared; None if there is none."""
    try:
        rows = JobStores(warehouse, cross_freely, beyond_damage=True).observe().rows
    except UnreadableRowError:
        return None
    records = [row for row in rows if isinstance(row, CheckpointRecord) and row != besides]
    return next((row for row in restorable(records) if is_sound(warehouse, row)), None)


def is_sound(warehouse: Warehouse, row: CheckpointRecord) -> bool:
    """Return whether every file that a restore from this row reads is as its handle says."""
    files: Iterable[FileHandle] = _needed(row, publish=not row.commits)
    return next(damages(warehouse.root, files, checksums=True), None) is None
