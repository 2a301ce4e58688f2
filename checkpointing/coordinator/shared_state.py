"""Finds out which checkpoints still use a shared file (D4; Flink: `SharedStateRegistryImpl`, 1.15 and newer).

Nothing is counted. An entry remembers the checkpoint that created the file, and the newest one that used it. When every
kept checkpoint is newer than the last user, the file can go. Aborting a checkpoint changes nothing here: its tasks may
use the files again without another upload (FLINK-25395).
"""

from collections.abc import Hashable
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId

Handle = Hashable
"""A stored file; equal handles are the same file."""


class SharedStateConflictError(RuntimeError):
    """Two different files have one key. The message names both."""

    def __init__(self, key: str, known: Handle, offered: Handle) -> None:
        super().__init__(
            f"shared state {key!r} is {known!r}, but {offered!r} was registered under the same key; "
            "a key names one immutable file: give the new file a key of its own"
        )


@dataclass(slots=True)
class SharedStateEntry:
    """One shared file: which checkpoint created it, and which one used it last."""

    handle: Handle
    created_by: CheckpointId
    last_used_by: CheckpointId


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The result of `unregister_unused`: files to delete, and checkpoints whose folders hold a file in use.

    The product's checkpoints have no folders, so `in_use` is empty there.
    """

    discarded: tuple[Handle, ...] = ()
    in_use: frozenset[CheckpointId] = frozenset()


class SharedStateRegistry:
    """The shared files that kept or failed checkpoints have handed over, and that may still be in use."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, SharedStateEntry] = {}

    def register(self, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        """Note that `checkpoint` uses the file under `key`. Return the object that was registered first.

        Raises SharedStateConflictError if the key belongs to another file.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = SharedStateEntry(handle, checkpoint, checkpoint)
            return handle
        if entry.handle != handle:
            raise SharedStateConflictError(key, entry.handle, handle)
        entry.last_used_by = max(entry.last_used_by, checkpoint)
        return entry.handle

    def unregister_unused(self, lowest: CheckpointId) -> Unregistered:
        """Forget the files that no checkpoint from `lowest` on has used, and return them to be deleted."""
        return Unregistered(tuple(entry.handle for entry in self._drop_unused(lowest)))

    def _drop_unused(self, lowest: CheckpointId) -> list[SharedStateEntry]:
        """Forget them in order of key, so that a registry that took over a snapshot deletes in the same order."""
        unused = sorted(key for key, entry in self._entries.items() if entry.last_used_by < lowest)
        return [self._entries.pop(key) for key in unused]

    def __len__(self) -> int:
        """Return how many files are registered."""
        return len(self._entries)
