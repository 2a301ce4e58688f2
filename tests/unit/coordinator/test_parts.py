"""Tests single parts of the coordinator: what they refuse, and a tracker that keeps no history.

Flink's own scenarios, the coordinator's machine and the properties of plans test everything else.
"""

import pytest

from checkpointing.coordinator.completed import (
    CompletedCheckpointStore,
    SharedStateConflictError,
    SharedStateRegistry,
)
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.messages import DiscardState, OperatorCoordinatorAnswered
from checkpointing.coordinator.plan import Topology, compute_plan
from checkpointing.coordinator.properties import (
    CHECKPOINT,
    CheckpointProperties,
    SnapshotKind,
    TerminationRefusedError,
)
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import EdgeId, JobGraph, Vertex, VertexKind


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_only_a_synchronous_savepoint_may_terminate(kind):
    """Any other request with the MAX watermark is refused with this message (A9)."""
    with pytest.raises(TerminationRefusedError, match="only synchronous savepoints are allowed to advance"):
        CheckpointProperties(kind=kind, terminate=True)


def test_the_topology_of_a_job_graph_has_its_subtasks():
    """The job graph becomes the coordinator's topology. A source is a vertex without an input."""
    graph = JobGraph(
        (Vertex("s", VertexKind.SOURCE, 2, splits=("x", "y")), Vertex("k", VertexKind.KEYED, 2)), (EdgeId("s", "k"),)
    )
    topology = Topology.of(graph, 16)
    assert tuple(graph.vertex("s").subtasks()) == compute_plan(topology).to_trigger
    assert [16, 16] == [vertex.max_parallelism for vertex in topology.vertices]


def test_the_newest_completed_and_failed_checkpoints_are_known_without_a_history():
    """Pending checkpoints are known until they end."""
    tracker = StatisticsTracker(0)
    for checkpoint in (1, 2, 3, 4):
        tracker.began(checkpoint, CHECKPOINT, 0)
    tracker.completed(1, CHECKPOINT, 5)
    tracker.completed(2, CHECKPOINT, 6)
    tracker.failed(3, CheckpointFailureReason.CHECKPOINT_EXPIRED, 7)
    status = {n: known and known.status.value for n in (1, 2, 3, 4) for known in [tracker.of(n)]}
    assert {1: None, 2: "COMPLETED", 3: "FAILED", 4: "IN_PROGRESS"} == status
    assert () == tracker.history()


def test_a_conflict_names_key_and_files():
    """Another file under a known key is refused, and the entry stays."""
    registry = SharedStateRegistry()
    registry.register("k", "one", 1)
    with pytest.raises(SharedStateConflictError, match="'k' is 'one'"):
        registry.register("k", "two", 2)
    assert registry.unregister_unused(2).discarded == ("one",)


def test_the_state_of_a_source_that_comes_after_its_checkpoint_ended_is_discarded():
    """No entry names this state, so nothing else would delete it (A7)."""
    coordinator = CheckpointCoordinator(
        CoordinatorSettings(job="j"), Topology(()), CompletedCheckpointStore(1, SharedStateRegistry())
    )
    assert (DiscardState(3, ("late",)),) == coordinator.step(OperatorCoordinatorAnswered("left", 3, "late"))
