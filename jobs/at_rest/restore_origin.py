"""Finds what `--from` names: an entry of the tick's own warehouse, of another one, or of a savepoint's copy.

It changes nothing.
"""

from dataclasses import dataclass
from typing import Final

from checkpointing.commit.approval import waits_for_approval
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, Generation, JobName
from checkpointing.metadata.field_validity import NUMBER_MAX
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row, RowKind
from jobs.holding.failures import NoSuchSavepointError, SavepointRefusedError
from jobs.holding.job_state import has_run
from jobs.storage.address import Root, is_same, parsed
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.savepoint_copy import read_manifest
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import whole_record

_IDS_MAX: Final = NUMBER_MAX // 2
"""Generations and ids go on above those of the restored entry, and must stay readable."""


@dataclass(frozen=True, slots=True)
class OwnRow:
    """An entry of the warehouse in which the tick runs. If `is_newest`, the tick begins from it anyway."""

    record: CheckpointRecord
    is_newest: bool


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """An entry of another warehouse, which names all its files. `is_copy`: that warehouse is a savepoint's copy."""

    warehouse: Warehouse
    record: CheckpointRecord
    last_generation: Generation
    last_id: CheckpointId
    is_copy: bool


Origin = OwnRow | ForeignRow


def find_origin(text: str, root: Root, job: JobName) -> Origin:
    """Return the entry that `--from TEXT` names for a tick in the warehouse `root`: `N`, `DIR` or `DIR@N`.

    Raises NoSuchSavepointError naming the savepoints that exist, TableNotCopyableError for a table whose files are not
    all known, and what the codec raises for entries of another version.
    """
    folder, number = _parsed(text)
    own = Warehouse(root, ProtocolPaths(job))
    if folder is None or is_same(folder, root):
        return _own(own, number, text)
    return _foreign(Warehouse(folder, ProtocolPaths(job)), number, text)


def _last_id(row: Row) -> int:
    """Return the highest id that the entry says was, or may have been, given out."""
    match row:
        case CheckpointRecord():
            return row.checkpoint
        case Claim():
            return row.first_id
        case Release():
            return row.next_id - 1


def _parsed(text: str) -> tuple[Root | None, int | None]:
    if text.isdigit():
        return None, int(text)
    folder, at, number = text.rpartition("@")
    if at and number.isdigit() and folder:
        return parsed(folder), int(number)
    return parsed(text), None


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
        held = "no such folder" if not warehouse.place("").is_folder() else f"no savepoint and no warehouse of {job}"
        raise NoSuchSavepointError(
            f"--from {text}: {root} is {held}; make one with 'tidemark savepoint {job} --to DIR', "
            "or name a checkpoint id of this warehouse, a folder DIR, or DIR@N"
        )
    _, rows = CheckpointStore(warehouse).observe()
    record = _chosen(rows, newest_checkpoint(rows), number, text, root)
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    generation, last_id = max(row.generation for row in rows), max(_last_id(row) for row in rows)
    if max(generation, last_id) > _IDS_MAX:
        raise SavepointRefusedError(
            f"--from {text}: the entries in {root} count generations or checkpoints up to {max(generation, last_id)}, "
            "which no job has reached: name another savepoint"
        )
    manifest = read_manifest(warehouse)
    return ForeignRow(
        warehouse=warehouse,
        record=whole_record(warehouse, record, records, CutStore(warehouse).all()),
        last_generation=generation,
        last_id=CheckpointId(last_id),
        is_copy=manifest is not None and list(records) == [manifest.savepoint],
    )


def _chosen(
    rows: tuple[Row, ...], newest: CheckpointRecord | None, number: int | None, text: str, root: Root
) -> CheckpointRecord:
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    found = newest if number is None else records.get(CheckpointId(number))
    if found is None:
        there = ", ".join(f"{each} ({records[each].kind.value})" for each in sorted(records)) or "none yet"
        what = "no checkpoint" if number is None else f"no checkpoint or savepoint {number}"
        raise NoSuchSavepointError(f"--from {text}: there is {what} in {root}; there are: {there}")
    if found.kind is RowKind.HELD:
        raise SavepointRefusedError(f"--from {text}: nobody may begin from it yet: {waits_for_approval(found)}")
    return found
