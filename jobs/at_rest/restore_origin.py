"""What a tick is to begin from: a row of its own warehouse, or any row of another one, a copy or a live one.

Finding it reads and changes nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, Generation, JobName
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row
from checkpointing.metadata.row_validity import NUMBER_MAX
from jobs.holding.failures import NoSuchSavepointError, SavepointRefusedError
from jobs.holding.job_state import has_run
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.savepoint_copy import read_manifest
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import whole_record

_IDS_MAX: Final = NUMBER_MAX // 2
"""Generations and ids go on above those of the row that is restored, and must stay readable for good."""


@dataclass(frozen=True, slots=True)
class OwnRow:
    """A row of the warehouse in which the tick runs; `is_newest`: it is the one that the tick begins from anyway."""

    record: CheckpointRecord
    is_newest: bool


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """A row of another warehouse, made whole. `is_copy`: that warehouse is a savepoint's copy, and nothing else."""

    warehouse: Warehouse
    record: CheckpointRecord
    last_generation: Generation
    last_id: CheckpointId
    is_copy: bool


Origin = OwnRow | ForeignRow


def find_origin(text: str, root: Path, job: JobName) -> Origin:
    """Return what `--from TEXT` means for the job's tick in the warehouse `root`: `N`, `DIR` or `DIR@N`.

    Raises NoSuchSavepointError naming the savepoints that exist, TableNotCopyableError for a table that cannot be
    told whole, and what the codec raises for rows of another version.
    """
    folder, number = _parsed(text)
    own = Warehouse(root, ProtocolPaths(job))
    if folder is None or folder.resolve() == root.resolve():
        return _own(own, number, text)
    return _foreign(Warehouse(folder, ProtocolPaths(job)), number, text)


def last_generation(rows: tuple[Row, ...]) -> Generation:
    """Return the highest generation that any row names."""
    return Generation(max((row.generation for row in rows), default=0))


def last_id(rows: tuple[Row, ...]) -> CheckpointId:
    """Return the highest id that was, or may have been, handed out."""
    used = (_last_id(row) for row in rows)
    return CheckpointId(max(used, default=0))


def _last_id(row: Row) -> int:
    match row:
        case CheckpointRecord():
            return row.checkpoint
        case Claim():
            return row.first_id
        case Release():
            return row.next_id - 1


def _parsed(text: str) -> tuple[Path | None, int | None]:
    if text.isdigit():
        return None, int(text)
    folder, at, number = text.rpartition("@")
    if at and number.isdigit() and folder:
        return Path(folder), int(number)
    return Path(text), None


def _own(warehouse: Warehouse, number: int | None, text: str) -> OwnRow:
    job, root = warehouse.paths.job, warehouse.root
    if not has_run(warehouse):
        raise NoSuchSavepointError(
            f"--from {text}: {job} has never run in {root}, so it has no checkpoint there; "
            "name the folder of a savepoint, or another warehouse as DIR@N"
        )
    _, rows = CheckpointStore(warehouse).observe()
    newest = newest_checkpoint(rows)
    record = _chosen(rows, newest, number, text, root)
    return OwnRow(record, newest is not None and record.checkpoint == newest.checkpoint)


def _foreign(warehouse: Warehouse, number: int | None, text: str) -> ForeignRow:
    job, root = warehouse.paths.job, warehouse.root
    if not has_run(warehouse):
        held = "no such folder" if not root.is_dir() else f"no savepoint and no warehouse of {job}"
        raise NoSuchSavepointError(
            f"--from {text}: {root} is {held}; make one with 'tidemark savepoint {job} --to DIR', "
            "or name a checkpoint id of this warehouse, a folder DIR, or DIR@N"
        )
    _, rows = CheckpointStore(warehouse).observe()
    record = _chosen(rows, newest_checkpoint(rows), number, text, root)
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    if max(last_generation(rows), last_id(rows)) > _IDS_MAX:
        raise SavepointRefusedError(
            f"--from {text}: the entries in {root} count generations or checkpoints up to "
            f"{max(last_generation(rows), last_id(rows))}, which no job has reached: name another savepoint"
        )
    manifest = read_manifest(warehouse)
    return ForeignRow(
        warehouse=warehouse,
        record=whole_record(warehouse, record, records, CutStore(warehouse).all()),
        last_generation=last_generation(rows),
        last_id=last_id(rows),
        is_copy=manifest is not None and list(records) == [manifest.savepoint],
    )


def _chosen(
    rows: tuple[Row, ...], newest: CheckpointRecord | None, number: int | None, text: str, root: Path
) -> CheckpointRecord:
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    found = newest if number is None else records.get(CheckpointId(number))
    if found is None:
        there = ", ".join(f"{each} ({records[each].kind.value})" for each in sorted(records)) or "none yet"
        what = "no checkpoint" if number is None else f"no checkpoint or savepoint {number}"
        raise NoSuchSavepointError(f"--from {text}: there is {what} in {root}; there are: {there}")
    return found
