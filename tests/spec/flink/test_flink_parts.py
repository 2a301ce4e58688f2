"""Tests which checkpoints and shared files stay when a store is closed, as in Flink's test cases."""

import pytest

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    DISCARD_UNLESS_STOPPED,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CompletedVertex,
    FinishedState,
    SharedStateRegistry,
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
from checkpointing.coordinator.task import AcknowledgedState, TaskState
from spec.flink.completed_store import (
    FlinkCheckpointStore,
    FlinkRegistry,
    JobStatus,
    RestoredKind,
    RestoreMode,
    StoreShutDownError,
)
from spec.flink.coordinator import CheckpointIdCounter, FlinkCoordinator
from spec.flink.messages import AssignState, RestoreFinished, RestoreKind, RestoreRequested, SetNextCheckpointId
from spec.flink.registry_cases import ReferenceCountingRegistry
from spec.flink.stop_with_savepoint import (
    RestartJob,
    RestartScheduler,
    SavepointCompleted,
    SavepointFailed,
    StopFailed,
    StopFailure,
    StopHandler,
    StopOrder,
    StopSucceeded,
    TasksEnded,
    UnsupportedStopEventError,
)
from spec.world.branching import digest


def checkpoint(number, **fields):
    """Return a completed checkpoint."""
    return CompletedCheckpoint(id=number, properties=CHECKPOINT, **fields)


def store(*checkpoints):
    """Return a store that keeps one checkpoint, with its own registry."""
    return FlinkCheckpointStore(1, SharedStateRegistry(), checkpoints)


def test_a_final_status_keeps_retained_checkpoints():
    """A checkpoint retained on cancellation stays on disk, with its shared files.

    If the job finished, it is deleted (G3).
    """
    for status, gone in ((JobStatus.CANCELED, []), (JobStatus.FINISHED, ["a"]), (JobStatus.SUSPENDED, [])):
        holding = store(checkpoint(1, discard_on=DISCARD_UNLESS_STOPPED))
        holding.registry.register("a", "a", 1)
        assert gone == list(holding.shut_down(status).shared)


def test_nothing_is_added_to_a_closed_store():
    """A store that was shut down refuses, and stays empty."""
    holding = store()
    holding.shut_down(JobStatus.RUNNING)
    with pytest.raises(StoreShutDownError, match="checkpoint 7"):
        holding.add(checkpoint(7))
    assert holding.checkpoints == ()


def test_suspension_empties_a_store_in_memory_only():
    """Nobody can recover checkpoints that are only in memory, so they are deleted without their shared files.

    A durable store keeps all.
    """
    for durable, cleaned in ((True, []), (False, [1])):
        holding = FlinkCheckpointStore(1, SharedStateRegistry(), durable=durable)
        holding.add(checkpoint(1))
        change = holding.shut_down(JobStatus.SUSPENDED)
        assert cleaned == [each.id for each in change.cleaned]
        assert () == change.shared


# ------------------------------------------------------------------
# Flink's counter of checkpoint ids, which its test cases drive.


def test_ids_rise_from_any_start():
    """The counter begins at 1 and never repeats an id. It refuses an id below the first (A6)."""
    counter = CheckpointIdCounter()
    assert [1, 2] == [counter.fetch(), counter.fetch()]
    counter.go_on_at(10)
    assert (10, 11) == (counter.fetch(), counter.next_id)
    with pytest.raises(ValueError, match="ids begin at 1"):
        counter.go_on_at(0)


# ------------------------------------------------------------------
# Flink's old registry of shared files, which counted references.


def test_the_counting_registry_deletes_a_file_without_references():
    """Two users give back two references. Only then is the file deleted (Flink up to 1.14)."""
    registry = ReferenceCountingRegistry()
    registry.register("k", "h")
    assert 2 == registry.register("k", "h").references
    assert () == registry.unregister("k").discarded
    assert ("h",) == registry.unregister("k").discarded


def test_an_unknown_key_is_ignored():
    """To give back a reference that nobody took, or the last one twice, changes nothing."""
    registry = ReferenceCountingRegistry()
    assert (None, 0, ()) == _told(registry.unregister("k"))
    registry.register("k", "h")
    assert (None, 0, ("h",)) == _told(registry.unregister("k"))
    assert (None, 0, ()) == _told(registry.unregister("k"))
    assert ("h", 1, ()) == _told(registry.register("k", "h"))


def _told(outcome):
    return outcome.handle, outcome.references, outcome.discarded


# ------------------------------------------------------------------
# A restore gives each task, hook and coordinator its own state, and refuses misfits before it changes anything.


STATE = AcknowledgedState(private=("s",))


def vertices(*names, finished=FinishedState.RUNNING, most=128):
    """Return vertices of one task each, as a checkpoint saw them."""
    return tuple(CompletedVertex(name, (name,), most, finished) for name in names)


def coordinator(*checkpoints, **settings):
    """Return a coordinator of the job a -> b with these checkpoints in its store."""
    topology = Topology((PlannedVertex("a", ("a",)), PlannedVertex("b", ("b",))), (PlannedEdge("a", "b"),))
    kept = CompletedCheckpointStore(5, FlinkRegistry(), checkpoints)
    return FlinkCoordinator(CoordinatorSettings(job="job", **settings), topology, kept)


def checkpoint_of_restore(number=4, **fields):
    """Return a completed checkpoint of the job a -> b."""
    given = {"vertices": vertices("a", "b"), "states": {"a": STATE}, **fields}
    return CompletedCheckpoint(id=number, properties=CHECKPOINT, **given)


def test_each_task_hook_and_coordinator_gets_its_own_state():
    """Tasks, hooks and operator coordinators are restored from one checkpoint; without state they get None (G1)."""
    source = checkpoint_of_restore(master_states={"h": "A"}, coordinator_states={"oc": "so"})
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
    door = coordinator(checkpoint_of_restore(vertices=vertices("a", "gone")), operator_coordinators=("oc",))
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
        (checkpoint_of_restore(vertices=vertices("a", "gone")), "operator 'gone', which the job no longer has"),
        (
            checkpoint_of_restore(vertices=vertices("a", most=64)),
            "max parallelism 128, but checkpoint 4 was taken with 64",
        ),
        (checkpoint_of_restore(master_states={"x": "A"}), "master hook 'x', which is not registered"),
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
    door = coordinator(checkpoint_of_restore(vertices=vertices("a", "gone"), master_states={"x": "A"}))
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
    door = coordinator(
        checkpoint_of_restore(vertices=(*vertices("a", finished=upstream), *vertices("b", finished=downstream)))
    )
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
    effects = door.tell(RestoreRequested(RestoreKind.SAVEPOINT, savepoint=checkpoint_of_restore(6), mode=mode))
    assert SetNextCheckpointId(7) in effects
    (kept,) = door.store.checkpoints
    assert (kind, owned) == (kept.properties.kind, kept.discard_on != DISCARD_NEVER)
    assert full == door.is_forced_full


def test_a_refused_savepoint_does_not_enter_the_store():
    """The coordinator's store is as before."""
    door = coordinator()
    with pytest.raises(RestoreRefusedError):
        door.tell(RestoreRequested(RestoreKind.SAVEPOINT, savepoint=checkpoint_of_restore(vertices=vertices("gone"))))
    assert door.store.checkpoints == ()


def test_restoring_from_no_savepoint_is_refused():
    """None is not taken for an empty savepoint."""
    with pytest.raises(RestoreRefusedError, match="name one"):
        coordinator().tell(RestoreRequested(RestoreKind.SAVEPOINT))


def test_a_shut_down_coordinator_restores_nothing():
    """Only a new coordinator can restore."""
    door = coordinator(checkpoint_of_restore())
    door.step(ShutDown())
    with pytest.raises(RestoreRefusedError, match="shut down"):
        door.tell(RestoreRequested(RestoreKind.LATEST))


# ------------------------------------------------------------------
# Tests which files of a restored checkpoint may be deleted, as in Flink's test cases.


@pytest.mark.parametrize(
    ("mode", "discarded"), [(RestoreMode.CLAIM, {"old"}), (RestoreMode.NO_CLAIM, set()), (RestoreMode.LEGACY, set())]
)
def test_unclaimed_files_are_forgotten_but_never_deleted(mode, discarded):
    """The job may delete shared files only after a restore that claimed them (FLINK-26985)."""
    registry = FlinkRegistry()
    registry.register_restored(3, {"old": "old"}, mode)
    registry.register("new", "new", 4)
    assert discarded == set(registry.unregister_unused(4).discarded)
    assert len(registry) == 1


def test_a_native_savepoints_folder_stays_while_its_files_are_used():
    """The shared files lie inside the savepoint's folder. Those of a retained checkpoint do not."""
    for kind, in_use in ((RestoredKind.NATIVE_SAVEPOINT, {3}), (RestoredKind.RETAINED_CHECKPOINT, set())):
        registry = FlinkRegistry()
        registry.register_restored(3, {"k": "h"}, RestoreMode.CLAIM, kind)
        registry.register("k", "h", 5)
        assert in_use == registry.unregister_unused(5).in_use


# ------------------------------------------------------------------
# A stop with a savepoint waits for the savepoint's result, and then for the ends of the tasks.


DONE = TasksEnded((TaskState.FINISHED, TaskState.FINISHED))


def test_a_good_savepoint_and_finished_tasks_stop_the_job():
    """The answer is the path of the savepoint."""
    handler = StopHandler()
    assert ((), (StopSucceeded("path"),)) == (handler.step(SavepointCompleted("path")), handler.step(DONE))


def test_a_failed_savepoint_lets_the_job_go_on():
    """Periodic checkpoints go on. This stop ignores how the tasks end later."""
    handler = StopHandler()
    effects = handler.step(SavepointFailed("why"))
    assert (RestartScheduler(), StopFailed(StopFailure.SAVEPOINT, "why")) == effects
    assert handler.step(DONE) == ()


def test_a_task_that_did_not_finish_restarts_the_job_and_keeps_the_savepoint():
    """Some tasks have committed and finished. So the whole job restarts from the good savepoint."""
    handler = StopHandler()
    handler.step(SavepointCompleted("path"))
    restart, failed = handler.step(TasksEnded((TaskState.FINISHED, TaskState.FAILED)))
    assert isinstance(restart, RestartJob)
    assert (StopFailure.STOPPING, "path") == (failed.failure, failed.savepoint)


def test_an_event_out_of_order_is_refused_and_changes_nothing():
    """Errors: the tasks' ends before the savepoint's result, and a second result."""
    handler = StopHandler()
    with pytest.raises(UnsupportedStopEventError):
        handler.step(DONE)
    handler.step(SavepointCompleted("path"))
    with pytest.raises(UnsupportedStopEventError):
        handler.step(SavepointFailed("again"))
    assert (StopSucceeded("path"),) == handler.step(DONE)
    with pytest.raises(UnsupportedStopEventError):
        handler.step(SavepointCompleted("again"))


def test_early_ends_wait_for_the_savepoints_result():
    """Whichever comes first, the handler gets the savepoint before the ends."""
    savepoint = SavepointCompleted("path")
    late, early = StopOrder(), StopOrder()
    assert [(savepoint,), (DONE,)] == [late.step(savepoint), late.step(DONE)]
    assert [(), (savepoint, DONE)] == [early.step(DONE), early.step(savepoint)]
