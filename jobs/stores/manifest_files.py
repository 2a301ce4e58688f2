"""Writes and reads the manifests of `checkpoints` as compressed, durable files, several at the same time."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pyarrow as pa

from checkpointing.commit.manifests import (
    Handles,
    Manifest,
    Stored,
    counted_by,
    handles_in,
    path_of,
    unfit,
)
from checkpointing.metadata.codec import ROW_CHARACTERS_MAX, UnreadableRowError
from checkpointing.metadata.record import CheckpointRecord, ManifestReference
from jobs.stores.warehouse import Warehouse

THREADS: Final = 16

_CODEC: Final = "zstd"


class ManifestFiles:
    """The manifests of one job. Their handles stay in memory while an entry names them."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Read no manifest yet."""
        self._warehouse = warehouse
        self._handles: dict[str, Handles | UnreadableRowError] = {}

    def write(self, stored: Stored) -> None:
        """Write the new manifests of an entry. They are durable on return.

        A file that is there already stays as it is. Its name has the checksum of its content, so its content is the
        same.
        """
        if stored.new:
            with ThreadPoolExecutor(min(THREADS, len(stored.new)), thread_name_prefix="manifest") as pool:
                list(pool.map(self._write, stored.new, stored.new.values()))
        self._handles |= {path_of(stored.entry, each): each.handles for each in stored.manifests}

    def read(self, entries: Iterable[CheckpointRecord]) -> None:
        """Read all manifests of these entries that are not in memory yet. Forget the manifests of all other entries."""
        wanted = {path_of(entry, each): (entry, each) for entry in entries for each in entry.manifests}
        known = {path: self._handles[path] for path in wanted if isinstance(self._handles.get(path), Handles)}
        missing = [path for path in wanted if path not in known]
        if missing:
            with ThreadPoolExecutor(min(THREADS, len(missing)), thread_name_prefix="manifest") as pool:
                found = list(pool.map(lambda path: self._read(*wanted[path]), missing))
            known |= zip(missing, found, strict=True)
        self._handles = known

    def of(self, entry: CheckpointRecord) -> tuple[Manifest, ...]:
        """Return the manifests of an entry. `read` must have read them. Raises UnreadableRowError for an unfit one."""
        return tuple(counted_by(entry, each, self._handles_of(entry, each)) for each in entry.manifests)

    def _handles_of(self, entry: CheckpointRecord, reference: ManifestReference) -> Handles:
        found = self._handles[path_of(entry, reference)]
        if isinstance(found, UnreadableRowError):
            raise found
        return found

    def _write(self, path: str, content: bytes) -> None:
        with suppress(FileExistsError):
            self._warehouse.place(path).write(pa.compress(content, _CODEC, asbytes=True))

    def _read(self, entry: CheckpointRecord, reference: ManifestReference) -> Handles | UnreadableRowError:
        path = path_of(entry, reference)
        try:
            packed = pa.BufferReader(self._warehouse.place(path).read(ROW_CHARACTERS_MAX))
            with pa.CompressedInputStream(packed, _CODEC) as content:
                return handles_in(entry, reference, content.read(ROW_CHARACTERS_MAX))
        except UnreadableRowError as error:
            return error
        except (OSError, pa.ArrowException) as error:
            return unfit(entry, f"{path} cannot be read ({type(error).__name__}: {error})")
