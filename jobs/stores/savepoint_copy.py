"""Copies one savepoint into a warehouse of its own: one entry, its files, and its tables' logs.

The copy is made beside its final place, and renamed when everything is durable. So a reader sees the whole copy or
nothing. Any engine can read its tables, and `tidemark run --from` restores it elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
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
from jobs.storage.address import Root, is_inside, resolved
from jobs.storage.documents import document, read_document
from jobs.storage.place import StoragePlace
from jobs.storage.whole import Unfinished, drop_unfinished_copies, free_bytes, is_free, made_whole
from jobs.stores.checkpoints import Appended, CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.file_copies import Told, copy_files, must_be_there, nobody
from jobs.stores.holders import is_alive, this_process
from jobs.stores.publisher import Publisher
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse
from jobs.stores.whole_tables import load, whole_record


class SavepointNotCopiedError(Exception):
    """The copy was not made. The message says why, and the way out. No part of the copy is left."""


class CopyManifest(BaseModel):
    """The description in a copy: which savepoint it is, and where it was taken."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    job: str
    savepoint: CheckpointId
    taken_from: str
    copied_at_ms: int
    files: int
    bytes: int


def read_manifest(warehouse: Warehouse) -> CopyManifest | None:
    """Return the description of a savepoint copy, or None for any other warehouse."""
    return read_document(CopyManifest, warehouse.place(warehouse.paths.savepoint_copy))


def must_be_free(warehouse: Warehouse, to: Root) -> None:
    """Raise SavepointNotCopiedError unless `to` does not exist, or is an empty folder outside the warehouse.

    Raises UnusableFolderError for a folder whose name delta-rs cannot open.
    """
    if isinstance(to, Path):
        must_suit_delta(to)
    if not is_free(to, _is_dead):
        raise SavepointNotCopiedError(f"{to} is not empty: name a folder that does not exist yet")
    if is_inside(to, warehouse.root):
        raise SavepointNotCopiedError(f"{to} lies in the warehouse {warehouse.root} itself: name a folder outside it")


def copy_savepoint(warehouse: Warehouse, checkpoint: CheckpointId, to: Root, told: Told = nobody) -> CopyManifest:
    """Copy the savepoint of that entry into the folder `to`. Return the copy's description.

    Raises SavepointNotCopiedError, TableNotCopyableError and FileNotCopiedError, and leaves nothing in that case. If a
    killed process left files beside `to`, the next copy to `to` deletes them.
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
    must_be_there(warehouse.storage, files.values())
    _must_fit(to, sum(file.bytes for file in files.values()))
    drop_unfinished_copies(to, _is_dead)
    try:
        with made_whole(to, document(this_process())) as made:
            return _copy(_Original(warehouse, rows, whole, cuts.get(checkpoint, {})), made, told)
    except OSError as error:
        raise SavepointNotCopiedError(f"{to} could not be written ({error}): nothing of the copy is left") from error


@dataclass(frozen=True, slots=True)
class _Original:
    """The original: a whole entry, the entries around it, and the table versions of its own cut, if it has one."""

    warehouse: Warehouse
    rows: tuple[Row, ...]
    whole: CheckpointRecord
    cut: Mapping[TableName, int]


def _copy(original: _Original, made: Unfinished, told: Told) -> CopyManifest:
    warehouse, whole = original.warehouse, original.whole
    files = copy_files(warehouse.storage, made.storage, named_files(whole).values(), told=told)
    made.durable.update(files)
    copy = Warehouse(made.root, warehouse.paths, now_ms=warehouse.now_ms, writer=warehouse.writer)
    alone = {"kind": RowKind.CHECKPOINT, "pinned": True, "abandoned": False}
    record = checked_record(whole, files).model_copy(update=alone)
    versions = _publish(original, copy, record)
    _append_rows(copy, original.rows, record)
    CutStore(copy).record(record.checkpoint, versions.items())
    manifest = CopyManifest(
        job=str(warehouse.paths.job),
        savepoint=record.checkpoint,
        taken_from=str(resolved(warehouse.root)),
        copied_at_ms=warehouse.now_ms(),
        files=len(files),
        bytes=sum(file.bytes for file in files.values()),
    )
    copy.place(copy.paths.savepoint_copy).write(document(manifest))
    return manifest


def _publish(original: _Original, copy: Warehouse, record: CheckpointRecord) -> dict[TableName, int]:
    """Give each table of the copy a log that shows the savepoint. Return their versions."""
    logs = TableLogs(copy)
    publisher = Publisher(copy, logs)
    versions: dict[TableName, int] = {}
    for publication in publications(record):
        table = load(original.warehouse, publication.table, original.cut.get(publication.table))
        logs.log(publication.table).create(
            table.schema(),
            dict(table.metadata().configuration),
            partitioned_by=table.metadata().partition_columns,
        )
        answer = publisher.publish(publication, record.checkpoint)
        if isinstance(answer, PublishFailed):
            raise SavepointNotCopiedError(f"the copy's tables cannot be written: {answer.error}")
        versions[publication.table] = answer.version
    return versions


def _append_rows(copy: Warehouse, rows: tuple[Row, ...], record: CheckpointRecord) -> None:
    """Append a claim, the savepoint's entry and a release."""
    store = CheckpointStore(copy)
    version, _ = store.observe()
    for row in copied(record, rows, this_process(), Stamp(copy.now_ms(), uuid4().hex)):
        result = store.append(row, version)
        if not isinstance(result, Appended):
            raise SavepointNotCopiedError(f"the copy's entries cannot be written: {result}")
        version = result.version


def named_files(record: CheckpointRecord) -> dict[str, FileHandle]:
    """Return every file that an entry names, by path: of tables, states, ranges, staged files and rows in flight."""
    return {file.path: file for file in handles_of(record)}


def checked_record(record: CheckpointRecord, files: Mapping[str, FileHandle]) -> CheckpointRecord:
    """Return the entry with its append tables' handles as the copy has them, with checksums."""
    tables = tuple(
        table.model_copy(update={"adds": tuple(files.get(file.path, file) for file in table.adds)})
        for table in record.tables
    )
    return record.model_copy(update={"tables": tables})


def _must_fit(to: Root, bytes_needed: int) -> None:
    free = free_bytes(to)
    if free is not None and free < bytes_needed:
        raise SavepointNotCopiedError(
            f"the savepoint's files are {bytes_needed} bytes, and the disk of {to} has room for {free}: "
            "make room, or name a folder on another disk"
        )


def _is_dead(maker: StoragePlace) -> bool:
    process = read_document(Holder, maker)
    return process is not None and is_alive(process) is False
