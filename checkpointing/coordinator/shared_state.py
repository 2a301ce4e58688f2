"""Who still uses a shared file (D4; Flink: `SharedStateRegistryImpl`, 1.15 and newer).

Nothing is counted. An entry remembers which checkpoint created it and the newest one that used it; a
file goes when every checkpoint that is kept is newer than its last user. Aborting a checkpoint
changes nothing here: its tasks may use the files again without another upload (FLINK-25395).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from checkpointing.identifiers import CheckpointId

Handle = Hashable
"""A stored file; equal handles are the same file."""


class RestoreMode(Enum):
    """Who owns the files of what a job was restored from (G3; Flink: `RestoreMode`)."""

    CLAIM = "CLAIM"
    """The job: it deletes them when they are unused."""
    NO_CLAIM = "NO_CLAIM"
    """Somebody else: they are never deleted, and checkpoints are full until one completes."""
    LEGACY = "LEGACY"
    """Somebody else, but the job goes on referring to them."""


class RestoredKind(Enum):
    """Where the shared files of a restored checkpoint lie (Flink: `SharingFilesStrategy`)."""

    RETAINED_CHECKPOINT = "retained_checkpoint"
    """Outside its own folder, which may go while they are used."""
    NATIVE_SAVEPOINT = "native_savepoint"
    """In its own folder, which must stay while one of them is used."""


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
    keeps_creator: bool = False
    """Whether the folder of the restored checkpoint that created it must stay while it is used."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """What an `unregister_unused` found: files to delete, and restored checkpoints still in use."""

    discarded: tuple[Handle, ...] = ()
    in_use: frozenset[CheckpointId] = frozenset()


@dataclass(frozen=True, slots=True)
class SharedStateSnapshot:
    """The registry's whole state, canonical."""

    entries: frozenset[tuple[str, Handle, CheckpointId, CheckpointId, bool]]
    unclaimed_up_to: CheckpointId | None
    restored: frozenset[tuple[CheckpointId, RestoredKind]]


class SharedStateRegistry:
    """The shared files that any checkpoint, kept or failed, has handed over and none has outlived."""

    __slots__ = ("_entries", "_restored", "_unclaimed_up_to")

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, SharedStateEntry] = {}
        self._unclaimed_up_to: CheckpointId | None = None
        self._restored: dict[CheckpointId, RestoredKind] = {}

    def register(
        self,
        key: str,
        handle: Handle,
        checkpoint: CheckpointId,
        *,
        prevent_discarding_created_checkpoint: bool = False,
    ) -> Handle:
        """Note that `checkpoint` uses the file under `key`; return the object that was registered first.

        Raises SharedStateConflictError if another file is known under the key. The flag counts only on
        an entry that existed before, and sticks.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = SharedStateEntry(handle, checkpoint, checkpoint)
            return handle
        if entry.handle != handle:
            raise SharedStateConflictError(key, entry.handle, handle)
        entry.last_used_by = max(entry.last_used_by, checkpoint)
        entry.keeps_creator = entry.keeps_creator or prevent_discarding_created_checkpoint
        return entry.handle

    def register_restored(
        self,
        checkpoint: CheckpointId,
        shared: Mapping[str, Handle],
        mode: RestoreMode,
        kind: RestoredKind = RestoredKind.RETAINED_CHECKPOINT,
    ) -> None:
        """Register what a restored checkpoint shares; unclaimed, its files and all older ones stay (FLINK-26985)."""
        for key, handle in shared.items():
            self.register(key, handle, checkpoint)
        self._restored[checkpoint] = kind
        if mode is not RestoreMode.CLAIM:
            self._unclaimed_up_to = max(checkpoint, self._unclaimed_up_to or checkpoint)

    def unregister_unused(self, lowest: CheckpointId) -> Unregistered:
        """Forget what no checkpoint from `lowest` on has used; unclaimed files are forgotten, not deleted.

        In order of key, so that a registry that took over a snapshot deletes in the same order.
        """
        unused = sorted(key for key, entry in self._entries.items() if entry.last_used_by < lowest)
        dropped = [self._entries.pop(key) for key in unused]
        return Unregistered(
            discarded=tuple(entry.handle for entry in dropped if not self._is_unclaimed(entry)),
            in_use=frozenset(e.created_by for e in self._entries.values() if self._keeps_creator(e)),
        )

    def __len__(self) -> int:
        """Return how many files are registered."""
        return len(self._entries)

    def snapshot(self) -> SharedStateSnapshot:
        """Return the whole state, canonical and hashable."""
        entries = frozenset(
            (key, e.handle, e.created_by, e.last_used_by, e.keeps_creator) for key, e in self._entries.items()
        )
        return SharedStateSnapshot(entries, self._unclaimed_up_to, frozenset(self._restored.items()))

    def restore(self, snapshot: SharedStateSnapshot) -> None:
        """Become what `snapshot` says."""
        self._entries = {key: SharedStateEntry(*rest) for key, *rest in snapshot.entries}  # type: ignore[arg-type]
        self._unclaimed_up_to = snapshot.unclaimed_up_to
        self._restored = dict(snapshot.restored)

    def _is_unclaimed(self, entry: SharedStateEntry) -> bool:
        return self._unclaimed_up_to is not None and entry.created_by <= self._unclaimed_up_to

    def _keeps_creator(self, entry: SharedStateEntry) -> bool:
        kind = self._restored.get(entry.created_by)
        return kind is RestoredKind.NATIVE_SAVEPOINT or (kind is not None and entry.keeps_creator)
