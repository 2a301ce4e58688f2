"""A checkpoint that has begun and is neither completed nor aborted (A7; Flink: `PendingCheckpoint`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    CompletedCheckpoint,
    DiscardCause,
)
from checkpointing.coordinator.messages import AcknowledgeResult
from checkpointing.coordinator.plan import CheckpointPlan
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.task import NO_STATE, AcknowledgedState, Task
from checkpointing.identifiers import CheckpointId


class PendingPhase(Enum):
    """How far a pending checkpoint has come."""

    LOCATING = "locating"
    """Its location is being created. Nobody was asked for a snapshot yet."""
    TRIGGERING = "triggering"
    """Operator coordinators answer, then hooks. The tasks are not triggered yet."""
    TRIGGERED = "triggered"
    """The tasks are triggered, and their acknowledgements are awaited."""
    ACKNOWLEDGED = "acknowledged"
    """All have answered. The commit of an earlier checkpoint is still in progress."""
    FINALISING = "finalising"
    """Its commit is in progress. It cannot expire, be declined, be aborted or be subsumed."""


_P = PendingPhase
PHASES: Final[Mapping[PendingPhase, tuple[PendingPhase, ...]]] = MappingProxyType(
    {
        _P.LOCATING: (_P.TRIGGERING,),
        _P.TRIGGERING: (_P.TRIGGERED,),
        _P.TRIGGERED: (_P.ACKNOWLEDGED,),
        _P.ACKNOWLEDGED: (_P.FINALISING,),
        _P.FINALISING: (),
    }
)
"""phase -> the phases that may follow. Every other transition is a bug of the coordinator."""
ABORTABLE: Final = tuple(phase for phase in PendingPhase if phase is not PendingPhase.FINALISING)
"""The phases in which a checkpoint may end without its commit."""


class PhaseOrderError(RuntimeError):
    """A checkpoint was to enter a phase that may not follow its present one. Nothing was changed."""


@dataclass(slots=True, kw_only=True)
class PendingCheckpoint:
    """Collects the answers for one checkpoint. Each answer takes constant time, for a job of any size."""

    id: CheckpointId
    request: str | None
    properties: CheckpointProperties
    plan: CheckpointPlan
    triggered_ms: int
    expires_ms: int | None
    phase: PendingPhase = PendingPhase.LOCATING
    unacknowledged: set[Task] = field(default_factory=set)
    states: dict[Task, AcknowledgedState] = field(default_factory=dict)
    unanswered_coordinators: set[str] = field(default_factory=set)
    coordinator_states: dict[str, str | None] = field(default_factory=dict)
    unanswered_hooks: set[str] = field(default_factory=set)
    master_states: dict[str, str] = field(default_factory=dict)

    def advance(self, phase: PendingPhase) -> None:
        """Enter the next phase. Raise PhaseOrderError if it may not follow."""
        if phase not in PHASES[self.phase]:
            raise PhaseOrderError(f"checkpoint {self.id} can't be {phase.value}: it is {self.phase.value}")
        self.phase = phase

    def acknowledge(self, task: Task, state: AcknowledgedState | None) -> AcknowledgeResult:
        """Record a task's acknowledgement. Return SUCCESS, DUPLICATE or UNKNOWN."""
        try:
            self.unacknowledged.remove(task)
        except KeyError:
            return AcknowledgeResult.DUPLICATE if task in self.states else AcknowledgeResult.UNKNOWN
        self.states[task] = NO_STATE if state is None else state
        return AcknowledgeResult.SUCCESS

    def answer_coordinator(self, coordinator: str, state: str | None) -> None:
        """Record an operator coordinator's snapshot (A7)."""
        self.unanswered_coordinators.discard(coordinator)
        self.coordinator_states[coordinator] = state

    def answer_hook(self, hook: str, state: str | None) -> None:
        """Record a master hook's answer. None is an answer too, but is not stored (A8)."""
        self.unanswered_hooks.discard(hook)
        if state is not None:
            self.master_states[hook] = state

    @property
    def is_fully_acknowledged(self) -> bool:
        """True if all tasks were triggered and have acknowledged.

        Tasks are triggered only after all operator coordinators and hooks have answered.
        """
        return self.phase is PendingPhase.TRIGGERED and not self.unacknowledged

    @property
    def is_finalising(self) -> bool:
        """True while its commit is in progress."""
        return self.phase not in ABORTABLE

    @property
    def private_handles(self) -> tuple[str, ...]:
        """The handles to discard if it fails. Shared handles are not discarded then (FLINK-25395)."""
        tasks = (handle for state in self.states.values() for handle in state.private)
        return (*tasks, *(handle for handle in self.coordinator_states.values() if handle is not None))

    def complete(self, discard_on: frozenset[DiscardCause]) -> CompletedCheckpoint:
        """Return the completed checkpoint, once its commit has succeeded. Only the user discards a savepoint."""
        return CompletedCheckpoint(
            id=self.id,
            properties=self.properties,
            triggered_ms=self.triggered_ms,
            vertices=self.plan.vertices,
            states=dict(self.states),
            coordinator_states=dict(self.coordinator_states),
            master_states=dict(self.master_states),
            discard_on=DISCARD_NEVER if self.properties.is_savepoint else discard_on,
        )
