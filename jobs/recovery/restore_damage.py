"""Finds damaged files before a tick restores from them, and names an older checkpoint that is whole (K2).

A tick checks that all files that it begins from exist and have the right size. If they have few bytes and lie in a
folder, it compares checksums too. From an object store it would have to download them, and a store keeps checksums of
its own. Each file is verified again when it is read. A rollback verifies all files.
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
from jobs.storage.folder import Folder
from jobs.stores.soundness import damages
from jobs.stores.warehouse import Warehouse

CHECKSUM_BYTES_MAX: Final = 64 * 1024 * 1024
"""Up to this total a starting tick compares checksums too, which takes less than 0.1 s."""


class DamagedCheckpointError(TickRefusedError):
    """The checkpoint from which a tick would begin is damaged. The message names the file and the way back."""


def observe_sound(stores: JobStores, run_ended: Callable[[str], bool | None] | None = None) -> Observed:
    """Return what a starting tick must know; raise DamagedCheckpointError for an entry that cannot be read."""
    try:
        return stores.observe(run_ended)
    except UnreadableRowError as error:
        raise DamagedCheckpointError(f"{error}. {way_out(stores.warehouse)}") from error


def must_be_sound(warehouse: Warehouse, plan: RecoveryPlan) -> None:
    """Raise DamagedCheckpointError unless all files are whole from which the tick restores, or which it publishes."""
    row = plan.restore
    if row is None:
        return
    needed = tuple({file.path: file for file in _needed(row, publish=plan.roll_forward is not None)}.values())
    few = isinstance(warehouse.storage, Folder) and sum(file.bytes for file in needed) <= CHECKSUM_BYTES_MAX
    found = next(damages(warehouse.storage, needed, checksums=few), None)
    if found is not None:
        raise DamagedCheckpointError(
            f"{row.kind.value} {row.checkpoint} of {row.job} is damaged: {found}. {way_out(warehouse, besides=row)}"
        )


def _needed(row: CheckpointRecord, *, publish: bool) -> Iterator[FileHandle]:
    yield from handles_to_restore(row)
    for table in row.tables if publish else ():
        yield from (*table.adds, *table.files)


def way_out(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> str:
    """Return how to go on: the command that goes back to the newest entry that is whole. It reads every file."""
    job, root = warehouse.paths.job, warehouse.root
    good = newest_sound(warehouse, besides=besides)
    if good is None:
        return (
            "No other retained checkpoint is whole: restore the file from a backup, or start over in an empty "
            f"warehouse ('tidemark run {job} --warehouse EMPTY_FOLDER')"
        )
    where = "" if str(root).rpartition("/")[2] == "warehouse" else f" --warehouse {typed(root)}"
    return (
        f"Restore it from a backup, or go back to {good.kind.value} {good.checkpoint}, the next that is whole: "
        f"'tidemark rollback {job} {good.checkpoint}{where}' (first with --dry-run to see what that changes)"
    )


def newest_sound(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> CheckpointRecord | None:
    """Return the newest entry that can be read and restored, comparing checksums; None if there is none."""
    try:
        rows = JobStores(warehouse, cross_freely, beyond_damage=True).observe().rows
    except UnreadableRowError:
        return None
    records = [row for row in rows if isinstance(row, CheckpointRecord) and row != besides]
    return next((row for row in restorable(records) if is_sound(warehouse, row)), None)


def is_sound(warehouse: Warehouse, row: CheckpointRecord) -> bool:
    """Return whether every file that a restore of this entry reads is as its handle says."""
    files: Iterable[FileHandle] = _needed(row, publish=not row.commits)
    return next(damages(warehouse.storage, files, checksums=True), None) is None
