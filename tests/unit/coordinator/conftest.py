"""Drives a coordinator of two tasks. All its requests are answered at once, unless a test says otherwise.

It is the product's coordinator with the facts of Flink's own cases added (`spec.flink.coordinator`).
"""

import pytest

from checkpointing.coordinator.completed import CompletedCheckpointStore, SharedStateRegistry
from checkpointing.coordinator.messages import (
    CheckpointIdFetched,
    CheckpointRequested,
    CommitCheckpoint,
    CommitSucceeded,
    CoordinatorEffect,
    CoordinatorFact,
    CreateLocation,
    DiscardState,
    FetchCheckpointId,
    LocationCreated,
    StateDiscarded,
    TaskAcknowledged,
    TaskDeclined,
)
from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.coordinator import FlinkCoordinator

JOB = "job"
SOURCE, SINK = "source", "sink"
TASKS = (SOURCE, SINK)


class Driven:
    """Drives a coordinator. If `answers_commit` is False, CommitCheckpoint gets no answer."""

    def __init__(self, *, retained: int = 1, answers_commit: bool = True, **settings: object) -> None:
        """Build the coordinator. A limit that is not given is unlimited, and a time is never."""
        chosen = {"max_concurrent": None, "tolerable_failures": None, **settings}
        topology = Topology(
            (PlannedVertex(SOURCE, (SOURCE,)), PlannedVertex(SINK, (SINK,))), (PlannedEdge(SOURCE, SINK),)
        )
        self.door = FlinkCoordinator(
            CoordinatorSettings(job=JOB, **chosen), topology, CompletedCheckpointStore(retained, SharedStateRegistry())
        )
        self.answers_commit = answers_commit
        self.next_id = 1
        self.effects: list[CoordinatorEffect] = []

    def tell(self, *facts: CoordinatorFact) -> list[CoordinatorEffect]:
        """Tell facts, answer all effects that can be answered at once, and return all effects."""
        begin = len(self.effects)
        waiting = list(facts)
        while waiting:
            effects = self.door.tell(waiting.pop(0))
            self.effects.extend(effects)
            waiting.extend(answer for effect in effects if (answer := self._answer(effect)) is not None)
        return self.effects[begin:]

    def _answer(self, effect: CoordinatorEffect) -> CoordinatorFact | None:
        match effect:
            case FetchCheckpointId():
                self.next_id += 1
                return CheckpointIdFetched(CheckpointId(self.next_id - 1))
            case CreateLocation():
                return LocationCreated(effect.checkpoint)
            case DiscardState():
                return StateDiscarded(effect.checkpoint)
            case CommitCheckpoint() if self.answers_commit:
                return CommitSucceeded(effect.checkpoint)
            case _:
                return None

    def trigger(self, name: str = "c", properties: CheckpointProperties = CHECKPOINT) -> list[CoordinatorEffect]:
        return self.tell(CheckpointRequested(name, properties))

    def acknowledge(
        self, checkpoint: int, *tasks: str, state: AcknowledgedState | None = None
    ) -> list[CoordinatorEffect]:
        return self.tell(*(TaskAcknowledged(JOB, task, CheckpointId(checkpoint), state) for task in tasks or TASKS))

    def decline(
        self, checkpoint: int, reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED
    ) -> list[CoordinatorEffect]:
        return self.tell(TaskDeclined(JOB, SINK, CheckpointId(checkpoint), reason))

    @staticmethod
    def of_type(effects: list[CoordinatorEffect], *types: type) -> list[CoordinatorEffect]:
        return [effect for effect in effects if isinstance(effect, types)]

    @property
    def pending(self) -> list[int]:
        return [pending.id for pending in self.door.pending]

    @property
    def completed(self) -> list[int]:
        return [checkpoint.id for checkpoint in self.door.store.checkpoints]


@pytest.fixture
def drive() -> type[Driven]:
    return Driven
