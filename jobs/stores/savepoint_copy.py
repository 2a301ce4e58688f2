"""Copies one savepoint into a warehouse of its own, with one row, its files and its tables' logs.

The copy is made beside its place, and renamed into it when everything is durable: a reader sees the whole copy or none.
Any engine can read its tables, and `tidemark run --from` restores it elsewhere.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from checkpointing.commit.at_rest import Stamp, copied
from checkpointing.commit.recovery import publications
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import PublishFailed
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.record import CheckpointRecord, Holder, Row, RowKind
from jobs.engine_paths import must_suit_delta
from jobs.stores.checkpoints import Appended, CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.file_copies import Told, copy_files, must_be_there, nobody
from jobs.stores.files import read_document, sync, write_durable
from jobs.stores.holders import is_alive, this_process
from jobs.stores.publisher import Publisher
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import load, whole_record

_MAKER: Final = "maker.json"


class SavepointNotCopiedError(Exception):
    """The copy was not made: says why and the way out. Nothing of it is left behind."""


class CopyManifest(BaseModel):
    """The description in a copy: the savepoint that it is, and where it was taken."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    job: str
    savepoint: CheckpointId
    taken_from: str
    copied_at_ms: int
    files: int
    bytes: int


def read_manifest(warehouse: Warehouse) -> CopyManifest | None:
    """Return what a savepoint copy says of itself; None for any other warehouse."""
    return read_document(CopyManifest, warehouse.path(warehouse.paths.savepoint_copy))


def must_be_free(warehouse: Warehouse, to: Path) -> None:
    """Raise SavepointNotCopiedError unless `to` is no folder yet, or an empty one outside the warehouse.

    Raises UnusableFolderError for a folder whose name delta-rs cannot open.
    """
    must_suit_delta(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise SavepointNotCopiedError(f"{to} is not empty: name a folder that does not exist yet")
    if to.resolve().is_relative_to(warehouse.root.resolve()):
        raise SavepointNotCopiedError(f"{to} lies in the warehouse {warehouse.root} itself: name a folder outside it")


def copy_savepoint(warehouse: Warehouse, checkpoint: CheckpointId, to: Path, told: Told = nobody) -> CopyManifest:
    """Make a copy of that row in the folder `to`, and return what it says of itself.

    Raises SavepointNotCopiedError, TableNotCopyableError and FileNotCopiedError, and leaves nothing behind then. The
    next copy to `to` deletes what a killed process left beside it.
    """
    must_be_free(warehouse, to)
    _, rows = CheckpointStore(warehouse).observe()
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    if checkpoint not in records:
        there = ", ".join(str(each) for each in sorted(records)) or "none"
        raise SavepointNotCopiedError(f"{warehouse.paths.job} has no savepoint {checkpoint}: there are {there}")
    record = records[checkpoint]
    cuts = CutStore(warehouse).all()
    whole = whole_record(warehouse, record, records, cuts)
    files = named_files(whole)
    must_be_there(warehouse.root, files.values())
    _must_fit(to, sum(file.bytes for file in files.values()))
    _drop_abandoned(to)
    beside = to.with_name(f".{to.name}.{uuid4()}.partial")
    try:
        manifest = _copy(_Original(warehouse, rows, whole, cuts.get(checkpoint, {})), beside, told)
        beside.rename(to)
        sync(to.parent)
    except OSError as error:
        raise SavepointNotCopiedError(f"{to} could not be written ({error}): nothing of the copy is left") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return manifest


@dataclass(frozen=True, slots=True)
class _Original:
    """The original of a copy: a whole row, the rows around it, and its own cut's versions, if it has one."""

    warehouse: Warehouse
    rows: tuple[Row, ...]
    whole: CheckpointRecord
    cut: Mapping[TableName, int]


def _copy(original: _Original, beside: Path, told: Told) -> CopyManifest:
    warehouse, whole = original.warehouse, original.whole
    write_durable(beside / _MAKER, this_process().model_dump_json().encode())
    files = copy_files(warehouse.root, beside, named_files(whole).values(), told=told)
    copy = Warehouse(beside, warehouse.paths, now_ms=warehouse.now_ms, writer=warehouse.writer)
    alone = {"kind": RowKind.CHECKPOINT, "pinned": True, "abandoned": False}
    record = checked_record(whole, files).model_copy(update=alone)
    versions = _publish(original, copy, record)
    _append_rows(copy, original.rows, record)
    CutStore(copy).record(record.checkpoint, versions.items())
    manifest = CopyManifest(
        job=str(warehouse.paths.job),
        savepoint=record.checkpoint,
        taken_from=str(warehouse.root.resolve()),
        copied_at_ms=warehouse.now_ms(),
        files=len(files),
        bytes=sum(file.bytes for file in files.values()),
    )
    write_durable(copy.path(copy.paths.savepoint_copy), manifest.model_dump_json(indent=1).encode())
    (beside / _MAKER).unlink()
    _sync_all(beside, files)
    return manifest


def _publish(original: _Original, copy: Warehouse, record: CheckpointRecord) -> dict[TableName, int]:
    """Give each table of the copy a log that shows the savepoint; return their versions."""
    logs = TableLogs(copy)
    publisher = Publisher(copy, logs)
    versions: dict[TableName, int] = {}
    for publication in publications(record):
        table = load(original.warehouse, publication.table, original.cut.get(publication.table))
        logs.log(publication.table).create(table.schema(), dict(table.metadata().configuration))
        answer = publisher.publish(publication, record.checkpoint)
        if isinstance(answer, PublishFailed):
            raise SavepointNotCopiedError(f"the copy's tables cannot be written: {answer.error}")
        versions[publication.table] = answer.version
    return versions


def _append_rows(copy: Warehouse, rows: tuple[Row, ...], record: CheckpointRecord) -> None:
    """Write a claim, the savepoint and a release."""
    store = CheckpointStore(copy)
    version, _ = store.observe()
    for row in copied(record, rows, this_process(), Stamp(copy.now_ms(), uuid4().hex)):
        result = store.append(row, version)
        if not isinstance(result, Appended):
            raise SavepointNotCopiedError(f"the copy's entries cannot be written: {result}")
        version = result.version


def named_files(record: CheckpointRecord) -> dict[str, FileHandle]:
    """Return every file that a row names, by path: of tables, states and ranges, staged files and those in flight."""
    return {file.path: file for file in handles_of(record)}


def checked_record(record: CheckpointRecord, files: Mapping[str, FileHandle]) -> CheckpointRecord:
    """Return the row with its append tables' handles as the copying found them, checksums known."""
    tables = tuple(
        table.model_copy(update={"adds": tuple(files.get(file.path, file) for file in table.adds)})
        for table in record.tables
    )
    return record.model_copy(update={"tables": tables})


def _must_fit(to: Path, bytes_needed: int) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(to.parent).free
    if free < bytes_needed:
        raise SavepointNotCopiedError(
            f"the savepoint's files are {bytes_needed} bytes, and {to.parent} has room for {free}: "
            "make room, or name a folder on another disk"
        )


def _drop_abandoned(to: Path) -> None:
    """Delete what a killed process left beside `to`; what a live one is writing stays."""
    for folder in to.parent.glob(f".{to.name}.*.partial"):
        maker = read_document(Holder, folder / _MAKER)
        if maker is not None and is_alive(maker) is False:
            shutil.rmtree(folder, ignore_errors=True)


def _sync_all(root: Path, copied: Mapping[str, FileHandle]) -> None:
    """Make durable what was written besides the copied files, and every name."""
    sync(root)
    for path in root.rglob("*"):
        if str(path.relative_to(root)) not in copied:
            sync(path)
