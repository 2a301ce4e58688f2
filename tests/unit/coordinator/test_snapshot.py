"""The door's snapshot holds everything: a restored coordinator goes on as the original would."""

import pytest

from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.messages import (
    CheckpointIdFetched,
    CheckpointRequested,
    CommitSucceeded,
    CoordinatorTimeAdvanced,
    HookAnswered,
    LocationCreated,
    SchedulerStarted,
    TaskAcknowledged,
    TaskDeclined,
)
from checkpointing.coordinator.plan import PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT, savepoint
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.shared_state import SharedStateRegistry
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason

FACTS = (
    SchedulerStarted(7),
    CheckpointRequested("c1", CHECKPOINT),
    CheckpointRequested("sp", savepoint(unaligned=True)),
    CheckpointIdFetched(1),
    LocationCreated(1),
    HookAnswered("h", 1, "A"),
    TaskAcknowledged("job", "a", 1, AcknowledgedState(("p",), (("k", "s"),), ("payload",))),
    TaskAcknowledged("job", "b", 1),
    CommitSucceeded(1),
    CheckpointIdFetched(2),
    LocationCreated(2),
    CoordinatorTimeAdvanced(900),
    HookAnswered("h", 2),
    TaskDeclined("job", "a", 2, CheckpointFailureReason.CHECKPOINT_DECLINED),
    CoordinatorTimeAdvanced(2500),
    CheckpointIdFetched(3),
    CoordinatorTimeAdvanced(9000),
)


def coordinator():
    """Return a coordinator with every sort of timer, hook and limit."""
    settings = CoordinatorSettings(
        job="job", interval_ms=1000, min_pause_ms=10, timeout_ms=5000, hooks=("h",), tolerable_failures=1
    )
    topology = Topology((PlannedVertex("a", ("a",)), PlannedVertex("b", ("b",))))
    return CheckpointCoordinator(settings, topology, CompletedCheckpointStore(1, SharedStateRegistry()))


@pytest.mark.parametrize("cut", range(len(FACTS)))
def test_a_restored_coordinator_goes_on_like_the_original(cut):
    """Whatever the cut, effects and snapshots after it are the same, and the snapshot is not aliased."""
    original, restored = coordinator(), coordinator()
    for fact in FACTS[:cut]:
        original.step(fact)
    snapshot = original.snapshot()
    restored.restore(snapshot)
    assert (snapshot, hash(snapshot)) == (restored.snapshot(), hash(restored.snapshot()))
    assert [original.step(fact) for fact in FACTS[cut:]] == [restored.step(fact) for fact in FACTS[cut:]]
    assert original.snapshot() == restored.snapshot()
    fresh = coordinator()
    fresh.restore(snapshot)
    assert snapshot == fresh.snapshot()


def test_different_states_have_different_snapshots():
    """Every fact of the story changes the snapshot."""
    driven, seen = coordinator(), []
    for fact in FACTS:
        driven.step(fact)
        assert driven.snapshot() not in seen
        seen.append(driven.snapshot())
