"""Completed checkpoints and the store that keeps N of them (E4; Flink: `DefaultCompletedCheckpointStore`)."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.task import AcknowledgedState, Task
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

# ------------------------------------------------------------------
# Finds out which checkpoints still use a shared file (D4; Flink: `SharedStateRegistryImpl`, 1.15 and newer).
#
# There are no reference counts. An entry of the registry has the checkpoint that created the file, and the newest
# checkpoint that used it. When every kept checkpoint is newer than the latter, the file can be deleted. Aborting a
# checkpoint changes nothing here: its tasks may use the files again without another upload (FLINK-25395).


Handle = Hashable
"""A stored file; equal handles are the same file."""


class SharedStateConflictError(RuntimeError):
    """Two different files have the same key. The message names both files."""

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

    A real job's checkpoints have no folders, so `in_use` is empty there.
    """

    discarded: tuple[Handle, ...] = ()
    in_use: frozenset[CheckpointId] = frozenset()


class SharedStateRegistry:
    """The shared files that came with kept or failed checkpoints and that may still be in use."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, SharedStateEntry] = {}

    def register(self, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        """Record that `checkpoint` uses the file under `key`. Return the object that was registered first.

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
        """Forget the files that no checkpoint from `lowest` on has used. Return them, so that they are deleted."""
        return Unregistered(tuple(entry.handle for entry in self._drop_unused(lowest)))

    def _drop_unused(self, lowest: CheckpointId) -> list[SharedStateEntry]:
        """Forget these files in order of key, so that a registry restored from a snapshot deletes in the same order."""
        unused = sorted(key for key, entry in self._entries.items() if entry.last_used_by < lowest)
        return [self._entries.pop(key) for key in unused]

    def __len__(self) -> int:
        """Return how many files are registered."""
        return len(self._entries)


class DiscardCause(Enum):
    """Why a checkpoint is no longer needed."""

    SUBSUMED = "subsumed"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"


DISCARD_ALWAYS = frozenset(DiscardCause)
"""The policy for the job's own checkpoints, if they are not kept on cancellation."""
DISCARD_UNLESS_STOPPED = frozenset({DiscardCause.SUBSUMED, DiscardCause.FINISHED})
"""The policy for a checkpoint that is kept on cancellation (Flink: `CHECKPOINT_RETAINED_ON_CANCELLATION`)."""
DISCARD_NEVER: frozenset[DiscardCause] = frozenset()
"""The policy for a savepoint, or for a checkpoint that does not belong to the job."""


@dataclass(frozen=True, slots=True)
class CompletedVertex:
    """One vertex in a completed checkpoint."""

    name: str
    tasks: tuple[Task, ...]
    max_parallelism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A checkpoint that is stored. Its mappings are compared, but are not part of its hash."""

    id: CheckpointId
    properties: CheckpointProperties
    triggered_ms: int = 0
    vertices: tuple[CompletedVertex, ...] = ()
    states: Mapping[Task, AcknowledgedState] = field(default_factory=dict, hash=False)
    coordinator_states: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    master_states: Mapping[str, str] = field(default_factory=dict, hash=False)
    discard_on: frozenset[DiscardCause] = DISCARD_ALWAYS
    unclaimed: bool = False
    """True if it was restored without a claim on its files.

    Later checkpoints are full until one of them completes (G3).
    """

    @property
    def private_handles(self) -> tuple[str, ...]:
        """The handles that no other checkpoint uses."""
        tasks = (handle for state in self.states.values() for handle in state.private)
        return (*tasks, *(handle for handle in self.coordinator_states.values() if handle is not None))


class NoRetainedCheckpointError(ValueError):
    """A store was asked to keep no checkpoint at all."""

    def __init__(self, retained: int) -> None:
        super().__init__(f"retained is {retained}: at least one completed checkpoint must be kept")


@dataclass(frozen=True, slots=True)
class StoreChange:
    """What left the store through an addition or a removal.

    `subsumed` are the checkpoints that left the store. The own files of `cleaned` may be deleted now. `shared` are
    shared files that no kept checkpoint uses.
    """

    subsumed: tuple[CompletedCheckpoint, ...] = ()
    cleaned: tuple[CompletedCheckpoint, ...] = ()
    shared: tuple[Handle, ...] = ()


def subsume(checkpoints: Sequence[CompletedCheckpoint], retained: int) -> tuple[CompletedCheckpoint, ...]:
    """Return the checkpoints that leave a store, oldest first, so that at most `retained` stay if possible.

    The newest checkpoint always stays. The newest checkpoint that is not a savepoint also stays, unless the newest of
    all is the savepoint of a stop (FLINK-21351; `CheckpointSubsumeHelper`).
    """
    excess = len(checkpoints) - retained
    if excess <= 0:
        return ()
    newest = checkpoints[-1]
    protected = {newest.id}
    ordinary = [c.id for c in checkpoints if not c.properties.is_savepoint]
    if ordinary and not newest.properties.is_synchronous:
        protected.add(ordinary[-1])
    return tuple(c for c in checkpoints if c.id not in protected)[:excess]


class SubsumedCheckpoints:
    """Checkpoints that left the store, whose files may not be deleted yet (Flink: `CheckpointsCleaner`)."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Begin with no checkpoint."""
        self._waiting: list[CompletedCheckpoint] = []

    def add(self, checkpoint: CompletedCheckpoint) -> None:
        """Add a checkpoint that left the store."""
        self._waiting.append(checkpoint)

    def clean(self, up_to: CheckpointId, in_use: frozenset[CheckpointId]) -> tuple[CompletedCheckpoint, ...]:
        """Remove and return the checkpoints older than `up_to` that are not in use.

        The others wait for the next call.
        """
        going = tuple(c for c in self._waiting if c.id < up_to and c.id not in in_use)
        gone = {c.id for c in going}
        self._waiting = [c for c in self._waiting if c.id not in gone]
        return going


class CompletedCheckpointStore:
    """The completed checkpoints that are kept, oldest first, and the registry of their shared files."""

    __slots__ = ("_checkpoints", "_retained", "_subsumed", "registry")

    def __init__(
        self,
        retained: int,
        registry: SharedStateRegistry,
        checkpoints: Iterable[CompletedCheckpoint] = (),
    ) -> None:
        """Begin with recovered `checkpoints`, in any order.

        Raise NoRetainedCheckpointError if the store is to keep none.
        """
        if retained < 1:
            raise NoRetainedCheckpointError(retained)
        self.registry = registry
        self._retained = retained
        self._checkpoints: list[CompletedCheckpoint] = sorted(checkpoints, key=lambda c: c.id)
        self._subsumed = SubsumedCheckpoints()

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """The kept checkpoints, oldest first."""
        return tuple(self._checkpoints)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest checkpoint, or None."""
        return self._checkpoints[-1] if self._checkpoints else None

    @property
    def latest_id(self) -> CheckpointId:
        """The id of the newest checkpoint. NO_CHECKPOINT for an empty store."""
        return self._checkpoints[-1].id if self._checkpoints else NO_CHECKPOINT

    def would_subsume(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Return what would leave the store if `add` were called. Changes nothing."""
        return subsume((*self._checkpoints, checkpoint), self._retained)

    def add(self, checkpoint: CompletedCheckpoint) -> StoreChange:
        """Add a checkpoint that is stored durably, and return what leaves the store."""
        leaving = self.would_subsume(checkpoint)
        self._checkpoints.append(checkpoint)
        return self._let_go(leaving)

    def _let_go(self, leaving: tuple[CompletedCheckpoint, ...]) -> StoreChange:
        gone = {c.id for c in leaving}
        self._checkpoints = [c for c in self._checkpoints if c.id not in gone]
        for checkpoint in leaving:
            self._subsumed.add(checkpoint)
        lowest = min((c.id for c in self._checkpoints if not c.properties.is_savepoint), default=None)
        if lowest is None:
            return StoreChange(subsumed=leaving)
        unregistered: Unregistered = self.registry.unregister_unused(lowest)
        cleaned = self._subsumed.clean(lowest, unregistered.in_use)
        going = tuple(c for c in cleaned if DiscardCause.SUBSUMED in c.discard_on)
        return StoreChange(subsumed=leaving, cleaned=going, shared=unregistered.discarded)
