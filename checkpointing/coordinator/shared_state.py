"""Who still uses a shared file (D4; Flink: `SharedStateRegistryImpl`, 1.15 and newer).

Nothing is counted. An entry remembers which checkpoint created it and the newest one that used it; a
file goes when every checkpoint that is kept is newer than its last user. Aborting a checkpoint
changes nothing here: its tasks may use the files again without another upload (FLINK-25395).
"""

from collections.abc import Hashable
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId

Handle = Hashable
"""A stored file; equal handles are the same file."""


class SharedStateConflictError(RuntimeError):
    """Two different files under one key: names both."""

    def __init__(self, key: str, known: Handle, offered: Handle) -> None:
        super().__init__(
            f"shared state {key!r} is {known!r}, but {offered!r} was registered under the same key; "
            "a key names one immutable file: give the new file a key of its own"
        )


@dataclass(slots=True)
class SharedStateEntry:
    """One shared file: who created it and who used it last."""

    handle: Handle
    created_by: CheckpointId
    last_used_by: CheckpointId


@dataclass(frozen=True, slots=True)
class Unregistered:
    """What an `unregister_unused` found: files to delete, and checkpoints whose folders hold a file in use.

    The product's checkpoints have no folders, so `in_use` is empty there.
    """

    discarded: tuple[Handle, ...] = ()
    in_use: frozenset[CheckpointId] = frozenset()


class SharedStateRegistry:
    """The shared files that any checkpoint, kept or failed, has handed over and none has outlived."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, SharedStateEntry] = {}

    def register(self, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        """Note that `checkpoint` uses the file under `key`; return the object that was registered first.

        Raises SharedStateConflictError if another file is known under the key.
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
        """Forget what no checkpoint from `lowest` on has used, and return it to be deleted."""
        return Unregistered(tuple(entry.handle for entry in self._drop_unused(lowest)))

    def _drop_unused(self, lowest: CheckpointId) -> list[SharedStateEntry]:
        """Forget them in order of key, so that a registry that took over a snapshot deletes in the same order."""
        unused = sorted(key for key, entry in self._entries.items() if entry.last_used_by < lowest)
        return [self._entries.pop(key) for key in unused]

    def __len__(self) -> int:
        """Return how many files are registered."""
        return len(self._entries)
