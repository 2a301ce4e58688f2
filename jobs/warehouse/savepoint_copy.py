"""Copies the files of an entry between storages. Each file is compared with its handle, and is durable at the end."""

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from checkpointing.commit.at_rest import Stamp, copied
from checkpointing.commit.recovery import publications
from checkpointing.completeness import complete_tables
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import PublishFailed
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.record import CheckpointRecord, Holder, Row, RowKind
from jobs.engine_paths import must_suit_delta
from jobs.storage.address import Root, is_inside, resolved
from jobs.storage.copy_folder import (
    Unfinished,
    drop_unfinished_copies,
    free_bytes,
    is_free,
    made_whole,
    transferred,
)
from jobs.storage.folder import is_link
from jobs.storage.json_files import document, read_document
from jobs.storage.place import StoragePlace, sync_above
from jobs.storage.port import Storage
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.file_checks import misfit
from jobs.warehouse.lease import is_alive, this_process
from jobs.warehouse.output_tables import load, whole_record
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

_WAY_OUT: Final = "Restore it from a backup, or name another savepoint"


class FileNotCopiedError(Exception):
    """A file is missing, or differs from its handle. The message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The progress of a copy, after each file."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int


Told = Callable[[Copied], None]
"""A function that is called after each copied file."""


NO_LINKS: Final[Mapping[str, str]] = MappingProxyType({})


def nobody(copied: Copied) -> None:
    """Do nothing with the progress of a copy."""
    del copied


def must_be_there(source: Storage, files: Iterable[FileHandle]) -> None:
    """Raise FileNotCopiedError for the first file that is missing or has another size. Call this before copying.

    A symbolic link in a table's folder is refused too, because the link could lead to any file of this machine.
    """
    for file in files:
        if file.inline:
            continue
        if is_link(source, file.path):
            raise FileNotCopiedError(
                f"{_named(source, file)} lies behind a symbolic link. Copy {source.root} with what its links lead to "
                "(cp -rL) if you trust it, and name the copy"
            )
        _must_fit_handle(source, file, misfit(file, StoragePlace(source, file.path).size()))


def copy_files(
    source: Storage,
    target: Storage,
    files: Iterable[FileHandle],
    *,
    link: bool = False,
    links: Mapping[str, str] = NO_LINKS,
    told: Told = nobody,
) -> dict[str, FileHandle]:
    """Copy the files durably to the same paths below `target`. Return a dict from paths to handles, all with checksums.

    With `link`, files become hard links where the file system supports them. `links` maps paths in the target to the
    paths in the source. Raises FileNotCopiedError for a file that is missing or damaged, and OSError for a target that
    cannot be written.
    """
    wanted = {file.path: file for file in files}
    bytes_all, copied_bytes = sum(file.bytes for file in wanted.values()), 0
    found: dict[str, FileHandle] = {}
    for number, (path, file) in enumerate(wanted.items(), start=1):
        old = replace(file, path=links.get(path, path))
        size, crc32 = _put(StoragePlace(source, old.path), StoragePlace(target, path), old, link=link)
        _must_fit_handle(source, old, misfit(old, size, crc32))
        found[path] = replace(file, crc32=crc32)
        copied_bytes += file.bytes
        told(Copied(number, len(wanted), copied_bytes, bytes_all))
    sync_above(target, wanted)
    return found


def link_files(storage: Storage, links: Mapping[str, str]) -> None:
    """Give files of a warehouse additional names. `links` maps each new name to the old name.

    If the storage cannot link the two places, the file is copied. This function syncs nothing. Before an entry that
    names the file is appended, the file is synced. Raises FileNotCopiedError for a missing file, and OSError for a
    read-only folder.
    """
    for path, old in links.items():
        try:
            storage.copy(old, path)
        except FileNotFoundError as error:
            raise FileNotCopiedError(f"file {old} in {storage.root} is missing. {_WAY_OUT}") from error


def _named(source: Storage, file: FileHandle) -> str:
    return f"file {file.path} in {source.root}"


def _must_fit_handle(source: Storage, file: FileHandle, wrong: str) -> None:
    if wrong:
        raise FileNotCopiedError(f"{_named(source, file)} {wrong}. {_WAY_OUT}")


def _put(here: StoragePlace, there: StoragePlace, file: FileHandle, *, link: bool) -> tuple[int, int]:
    """Copy one file, and return its size and checksum. An existing file with that name is replaced."""
    if file.inline:
        content = base64.b64decode(file.inline)
        there.replace(content)
        return len(content), zlib.crc32(content)
    try:
        return transferred(here, there, link=link)
    except FileNotFoundError as error:
        if here.exists():
            raise
        raise FileNotCopiedError(f"{_named(here.storage, file)} is missing. {_WAY_OUT}") from error


# ------------------------------------------------------------------
# Copies one savepoint into a new warehouse: one entry, its files, and its tables' logs.
#
# The copy is made beside its final place, and renamed when everything is durable. So a reader sees the whole copy or
# nothing. Any engine can read the copy's tables, and `tidemark run --from` restores the copy elsewhere.


class SavepointNotCopiedError(Exception):
    """The copy was not made. The message says why, and the way out. No part of the copy remains."""


class CopyManifest(BaseModel):
    """The description in a copy: which savepoint was copied, and from which warehouse."""

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

    Raises SavepointNotCopiedError, TableNotCopyableError and FileNotCopiedError. After an error, nothing of the copy
    remains. If a killed process left files beside `to`, the next copy to `to` deletes them.
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
    """The original: the entry that `whole_record` returned, all entries, and the table versions of its own cut."""

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
    CutStore(copy).record(record.checkpoint, versions.items(), complete=complete_tables(record))
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
    """Write a log that shows the savepoint for each table of the copy. Return the tables' versions."""
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
    """Return a dict from paths to all files that an entry names.

    These are the files of tables, states and ranges, staged files, and files of rows in flight.
    """
    return {file.path: file for file in handles_of(record)}


def checked_record(record: CheckpointRecord, files: Mapping[str, FileHandle]) -> CheckpointRecord:
    """Return the entry with the handles of its append tables as in the copy, with checksums."""
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
