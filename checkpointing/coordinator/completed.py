"""Completed checkpoints and the store that keeps N of them (E4; Flink: `DefaultCompletedCheckpointStore`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.shared_state import (
    Handle,
    SharedStateRegistry,
    Unregistered,
)
from checkpointing.coordinator.task import AcknowledgedState, Task
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId


class DiscardCause(Enum):
    """Why a checkpoint is no longer needed."""

    SUBSUMED = "subsumed"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"


DISCARD_ALWAYS = frozenset(DiscardCause)
"""A checkpoint of the job's own that nobody retains."""
DISCARD_UNLESS_STOPPED = frozenset({DiscardCause.SUBSUMED, DiscardCause.FINISHED})
"""A checkpoint that is retained on cancellation (Flink: `CHECKPOINT_RETAINED_ON_CANCELLATION`)."""
DISCARD_NEVER: frozenset[DiscardCause] = frozenset()
"""A savepoint, or what is not the job's."""


class FinishedState(Enum):
    """How much of a vertex had finished when the checkpoint was taken (Flink: `VertexFinishedState`)."""

    RUNNING = "running"
    PARTIALLY_FINISHED = "partially_finished"
    FULLY_FINISHED = "fully_finished"


@dataclass(frozen=True, slots=True)
class CompletedVertex:
    """One vertex as the checkpoint saw it."""

    name: str
    tasks: tuple[Task, ...]
    max_parallelism: int
    finished: FinishedState = FinishedState.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A checkpoint that is stored. Mappings are compared, but take no part in the hash."""

    id: CheckpointId
    properties: CheckpointProperties
    triggered_ms: int = 0
    vertices: tuple[CompletedVertex, ...] = ()
    states: Mapping[Task, AcknowledgedState] = field(default_factory=dict, hash=False)
    coordinator_states: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    master_states: Mapping[str, str] = field(default_factory=dict, hash=False)
    discard_on: frozenset[DiscardCause] = DISCARD_ALWAYS
    unclaimed: bool = False
    """Restored without a claim: checkpoints after it are full until one completes (G3)."""

    @property
    def private_handles(self) -> tuple[str, ...]:
        """The handles that belong to this checkpoint alone."""
        tasks = (handle for state in self.states.values() for handle in state.private)
        return (*tasks, *(handle for handle in self.coordinator_states.values() if handle is not None))


class NoRetainedCheckpointError(ValueError):
    """A store that would keep no checkpoint at all."""

    def __init__(self, retained: int) -> None:
        super().__init__(f"retained is {retained}: at least one completed checkpoint must be kept")


@dataclass(frozen=True, slots=True)
class StoreChange:
    """What an addition or removal let go.

    `subsumed` left the store; `cleaned` are those whose own files may go now; `shared` are shared
    files that no kept checkpoint uses.
    """

    subsumed: tuple[CompletedCheckpoint, ...] = ()
    cleaned: tuple[CompletedCheckpoint, ...] = ()
    shared: tuple[Handle, ...] = ()


def subsume(checkpoints: Sequence[CompletedCheckpoint], retained: int) -> tuple[CompletedCheckpoint, ...]:
    """Return what leaves a store, oldest first, so that at most `retained` stay, if that can be.

    The newest always stays, and the newest that is no savepoint unless the newest of all is the
    savepoint of a stop (FLINK-21351; `CheckpointSubsumeHelper`).
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
    """Checkpoints that left the store but whose files may not go yet (Flink: `CheckpointsCleaner`)."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: list[CompletedCheckpoint] = []

    def add(self, checkpoint: CompletedCheckpoint) -> None:
        """Take over a checkpoint that left the store."""
        self._waiting.append(checkpoint)

    def clean(self, up_to: CheckpointId, in_use: frozenset[CheckpointId]) -> tuple[CompletedCheckpoint, ...]:
        """Let go of those older than `up_to` and not in use; the others wait for the next time."""
        going = tuple(c for c in self._waiting if c.id < up_to and c.id not in in_use)
        gone = {c.id for c in going}
        self._waiting = [c for c in self._waiting if c.id not in gone]
        return going


class CompletedCheckpointStore:
    """The completed checkpoints that are kept, oldest first, and the registry of what they share."""

    __slots__ = ("_checkpoints", "_retained", "_subsumed", "registry")

    def __init__(
        self,
        retained: int,
        registry: SharedStateRegistry,
        checkpoints: Iterable[CompletedCheckpoint] = (),
    ) -> None:
        """Hold `checkpoints` (recovered ones, in any order); raise NoRetainedCheckpointError for none to keep."""
        if retained < 1:
            raise NoRetainedCheckpointError(retained)
        self.registry = registry
        self._retained = retained
        self._checkpoints: list[CompletedCheckpoint] = sorted(checkpoints, key=lambda c: c.id)
        self._subsumed = SubsumedCheckpoints()

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """What is kept, oldest first."""
        return tuple(self._checkpoints)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest, or None."""
        return self._checkpoints[-1] if self._checkpoints else None

    @property
    def latest_id(self) -> CheckpointId:
        """The id of the newest; NO_CHECKPOINT for an empty store."""
        return self._checkpoints[-1].id if self._checkpoints else NO_CHECKPOINT

    def would_subsume(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Return what `add` would let leave the store; changes nothing."""
        return subsume((*self._checkpoints, checkpoint), self._retained)

    def add(self, checkpoint: CompletedCheckpoint) -> StoreChange:
        """Keep a checkpoint that is stored durably."""
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
