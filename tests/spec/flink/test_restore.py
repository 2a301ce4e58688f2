"""A restore gives each task, hook and coordinator its own state, and refuses misfits before it changes anything."""

import pytest

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CompletedVertex,
    FinishedState,
)
from checkpointing.coordinator.coordinator import RestoreRefusedError
from checkpointing.coordinator.messages import (
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
    ShutDown,
)
from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT, SnapshotKind
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState
from spec.explore_branching import digest
from spec.flink.coordinator import FlinkCoordinator
from spec.flink.messages import AssignState, RestoreFinished, RestoreKind, RestoreRequested, SetNextCheckpointId
from spec.flink.shared_state import FlinkRegistry, RestoreMode

STATE = AcknowledgedState(private=("s",))


def vertices(*names, finished=FinishedState.RUNNING, most=128):
    """Return vertices of one task each, as a checkpoint saw them."""
    return tuple(CompletedVertex(name, (name,), most, finished) for name in names)


def coordinator(*checkpoints, **settings):
    """Return a coordinator of the job a -> b with these checkpoints in its store."""
    topology = Topology((PlannedVertex("a", ("a",)), PlannedVertex("b", ("b",))), (PlannedEdge("a", "b"),))
    kept = CompletedCheckpointStore(5, FlinkRegistry(), checkpoints)
    return FlinkCoordinator(CoordinatorSettings(job="job", **settings), topology, kept)


def checkpoint(number=4, **fields):
    """Return a completed checkpoint of the job a -> b."""
    given = {"vertices": vertices("a", "b"), "states": {"a": STATE}, **fields}
    return CompletedCheckpoint(id=number, properties=CHECKPOINT, **given)


def test_each_task_hook_and_coordinator_gets_its_own_state():
    """Tasks, hooks and operator coordinators are restored from one checkpoint; without state they get None (G1)."""
    source = checkpoint(master_states={"h": "A"}, coordinator_states={"oc": "so"})
    door = coordinator(source, hooks=("h", "i"), operator_coordinators=("oc",))
    assert door.tell(RestoreRequested(RestoreKind.LATEST)) == (
        AssignState("a", 4, STATE),
        AssignState("b", 4, None),
        RestoreHook("h", 4, "A"),
        RestoreHook("i", 4, None),
        ResetOperatorCoordinator("oc", 4, "so"),
        RestoreFinished(4, finished_checked=False),
    )


def test_a_region_leaves_the_operator_coordinators_alone():
    """Only part of the job restarts. The operator coordinators go on, and state without an owner is allowed."""
    door = coordinator(checkpoint(vertices=vertices("a", "gone")), operator_coordinators=("oc",))
    effects = door.tell(RestoreRequested(RestoreKind.REGION))
    assert not any(isinstance(effect, ResetOperatorCoordinator) for effect in effects)


@pytest.mark.parametrize("kind", [RestoreKind.LATEST, RestoreKind.INITIAL, RestoreKind.REGION])
def test_without_a_checkpoint_hooks_are_reset(kind):
    """The job starts from the beginning. Only a global restart empties the operator coordinators."""
    effects = coordinator(hooks=("h",), operator_coordinators=("oc",)).tell(RestoreRequested(kind))
    emptied = (ResetOperatorCoordinator("oc", None),) if kind is RestoreKind.LATEST else ()
    assert (ResetHook("h"), *emptied, RestoreFinished(None, finished_checked=False)) == effects


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (checkpoint(vertices=vertices("a", "gone")), "operator 'gone', which the job no longer has"),
        (checkpoint(vertices=vertices("a", most=64)), "max parallelism 128, but checkpoint 4 was taken with 64"),
        (checkpoint(master_states={"x": "A"}), "master hook 'x', which is not registered"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(source, message):
    """The message names the operator and the way out. The coordinator is unchanged (G2)."""
    door = coordinator(source)
    before = digest([door])
    with pytest.raises(RestoreRefusedError, match=message):
        door.tell(RestoreRequested(RestoreKind.LATEST))
    assert before == digest([door])


def test_state_without_an_operator_may_be_dropped():
    """With allow-non-restored, all other state is restored (G2)."""
    door = coordinator(checkpoint(vertices=vertices("a", "gone"), master_states={"x": "A"}))
    effects = door.tell(RestoreRequested(RestoreKind.LATEST, allow_non_restored=True))
    assert RestoreFinished(4, finished_checked=False) == effects[-1]


@pytest.mark.parametrize(
    ("upstream", "downstream", "fits"),
    [
        (FinishedState.FULLY_FINISHED, FinishedState.FULLY_FINISHED, True),
        (FinishedState.FULLY_FINISHED, FinishedState.PARTIALLY_FINISHED, True),
        (FinishedState.RUNNING, FinishedState.FULLY_FINISHED, False),
        (FinishedState.PARTIALLY_FINISHED, FinishedState.PARTIALLY_FINISHED, False),
    ],
)
def test_a_finished_operator_needs_finished_inputs(upstream, downstream, fits):
    """No running operator may come before a finished one (VertexFinishedStateChecker)."""
    door = coordinator(checkpoint(vertices=(*vertices("a", finished=upstream), *vertices("b", finished=downstream))))
    if fits:
        assert RestoreFinished(4, finished_checked=True) == door.tell(RestoreRequested(RestoreKind.INITIAL))[-1]
    else:
        with pytest.raises(RestoreRefusedError, match="operator 'b'"):
            door.tell(RestoreRequested(RestoreKind.INITIAL))


@pytest.mark.parametrize(
    ("mode", "kind", "owned", "full"),
    [
        (RestoreMode.CLAIM, SnapshotKind.CHECKPOINT, True, False),
        (RestoreMode.NO_CLAIM, SnapshotKind.CHECKPOINT, False, True),
        (RestoreMode.LEGACY, SnapshotKind.SAVEPOINT, False, False),
    ],
)
def test_the_restore_mode_decides_who_owns_a_savepoint(mode, kind, owned, full):
    """After CLAIM, the job owns it. Otherwise it is never deleted, and NO_CLAIM forces full checkpoints (G3)."""
    door = coordinator()
    effects = door.tell(RestoreRequested(RestoreKind.SAVEPOINT, savepoint=checkpoint(6), mode=mode))
    assert SetNextCheckpointId(7) in effects
    (kept,) = door.store.checkpoints
    assert (kind, owned) == (kept.properties.kind, kept.discard_on != DISCARD_NEVER)
    assert full == door.is_forced_full


def test_a_refused_savepoint_does_not_enter_the_store():
    """The coordinator's store is as before."""
    door = coordinator()
    with pytest.raises(RestoreRefusedError):
        door.tell(RestoreRequested(RestoreKind.SAVEPOINT, savepoint=checkpoint(vertices=vertices("gone"))))
    assert door.store.checkpoints == ()


def test_restoring_from_no_savepoint_is_refused():
    """None is not taken for an empty savepoint."""
    with pytest.raises(RestoreRefusedError, match="name one"):
        coordinator().tell(RestoreRequested(RestoreKind.SAVEPOINT))


def test_a_shut_down_coordinator_restores_nothing():
    """Only a new coordinator can restore."""
    door = coordinator(checkpoint())
    door.step(ShutDown())
    with pytest.raises(RestoreRefusedError, match="shut down"):
        door.tell(RestoreRequested(RestoreKind.LATEST))
