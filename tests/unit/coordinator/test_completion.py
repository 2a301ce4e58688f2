"""Tests how a pending checkpoint ends. Each test is a rule that implementers get wrong."""

import pytest

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    SharedStateConflictError,
    SharedStateRegistry,
)
from checkpointing.coordinator.messages import (
    AcknowledgeResult,
    AnswerAcknowledge,
    CommitCheckpoint,
    CommitFailed,
    CommitSucceeded,
    CoordinatorTimeAdvanced,
    DiscardState,
    FailJob,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OperatorCoordinatorAnswered,
    RequestFailed,
    RequestSucceeded,
    ShutDown,
    TaskAcknowledged,
    TaskDeclined,
    TriggerTask,
)
from checkpointing.coordinator.properties import CHECKPOINT, savepoint, synchronous_savepoint
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.messages import AbortRequested, CheckpointTimeoutFired, CommitUnknown, TaskFailed

SOURCE, SINK = "source", "sink"
PRIVATE = AcknowledgedState(private=("p",))


def shared(*handles):
    return AcknowledgedState(shared=tuple((handle, handle) for handle in handles))


def results(driven, effects):
    return [effect.result for effect in driven.of_type(effects, AnswerAcknowledge)]


def test_all_acknowledged_commits_once_with_every_state(drive):
    """The last acknowledgement sends one commit with the states of all tasks (E2)."""
    driven = drive(answers_commit=False)
    driven.trigger()
    effects = driven.acknowledge(1, state=shared("h"))
    (commit,) = driven.of_type(effects, CommitCheckpoint)
    assert {"source": shared("h"), "sink": shared("h")} == dict(commit.states)


def test_a_snapshot_that_comes_before_the_trigger_counts(drive):
    """A task that its source induced acknowledges before it is told.

    The commit waits until all tasks are told (A10).
    """
    driven = drive(operator_coordinators=("oc",), answers_commit=False)
    driven.trigger()
    early = driven.acknowledge(1, state=shared("h"))
    assert results(driven, early) == [AcknowledgeResult.SUCCESS, AcknowledgeResult.SUCCESS]
    assert driven.of_type(driven.effects, TriggerTask, CommitCheckpoint) == []
    later = driven.tell(OperatorCoordinatorAnswered("oc", CheckpointId(1)))
    told, commit = driven.of_type(later, TriggerTask, CommitCheckpoint)
    assert (SOURCE, {SOURCE: shared("h"), SINK: shared("h")}) == (told.task, dict(commit.states))


def test_shared_state_is_registered_before_the_commit(drive):
    """The shared files are registered before the commit is sent (FLINK-6640)."""
    driven = drive(answers_commit=False)
    driven.trigger()
    driven.acknowledge(1, state=shared("h"))
    assert driven.door.pending[0].is_finalising
    assert len(driven.door.store.registry) == 1


def test_a_duplicate_acknowledgement_discards_nothing(drive):
    """A second acknowledgement is DUPLICATE. Its state may be the very one that counted (E1)."""
    driven = drive()
    driven.trigger()
    effects = [*driven.acknowledge(1, "source", state=PRIVATE), *driven.acknowledge(1, "source", state=PRIVATE)]
    assert results(driven, effects) == [AcknowledgeResult.SUCCESS, AcknowledgeResult.DUPLICATE]
    assert driven.of_type(effects, DiscardState) == []


@pytest.mark.parametrize(
    ("task", "checkpoint", "result"),
    [("stranger", 1, AcknowledgeResult.UNKNOWN), ("source", 9, AcknowledgeResult.DISCARDED)],
)
def test_state_of_unknown_task_or_checkpoint_is_discarded(drive, task, checkpoint, result):
    """If no checkpoint can use private state, it is discarded at once (E1)."""
    driven = drive()
    driven.trigger()
    effects = driven.acknowledge(checkpoint, task, state=PRIVATE)
    assert results(driven, effects) == [result]
    assert driven.of_type(effects, DiscardState) == [DiscardState(checkpoint, ("p",))]


def test_a_foreign_jobs_acknowledgement_is_not_touched(drive):
    """The message of another job does not count, and its state is not deleted (E1)."""
    driven = drive()
    driven.trigger()
    effects = driven.tell(TaskAcknowledged("another", "source", 1, PRIVATE))
    assert results(driven, effects) == [AcknowledgeResult.FOREIGN]
    assert driven.of_type(effects, DiscardState) == []
    assert driven.door.pending[0].unacknowledged == {"source", "sink"}


def test_abort_discards_private_state_and_keeps_shared(drive):
    """The shared files of an aborted checkpoint stay until a later one completes without them (FLINK-25395)."""
    driven = drive()
    driven.trigger("c1")
    driven.acknowledge(1, "source", state=AcknowledgedState(("p",), (("k", "h"),)))
    assert driven.of_type(driven.decline(1), DiscardState) == [DiscardState(1, ("p",))]
    driven.trigger("c2")
    assert driven.of_type(driven.acknowledge(2), DiscardState) == [DiscardState(2, ("h",))]


def test_a_late_acknowledgement_registers_its_shared_state(drive):
    """Shared state counts as used, whatever happened to the checkpoint, so that no task loses it (D4)."""
    driven = drive()
    driven.acknowledge(5, "source", state=shared("late"))
    assert len(driven.door.store.registry) == 1


def test_a_synchronous_savepoint_notifies_and_subsumes(drive):
    """The job stops after it, so sinks commit on it. It is not stored (A9, F4)."""
    driven = drive()
    driven.trigger("c")
    driven.trigger("stop", synchronous_savepoint(unaligned=False, terminate=True))
    effects = driven.acknowledge(2)
    assert [n.task for n in driven.of_type(effects, NotifyCheckpointComplete)] == ["source", "sink"]
    assert ([], []) == (driven.pending, driven.completed)


def test_completion_aborts_older_checkpoints_but_not_savepoints(drive):
    """A newer completed checkpoint aborts only older pending checkpoints (E4)."""
    driven = drive()
    driven.trigger("sp", savepoint(unaligned=False))
    driven.trigger("c2")
    driven.trigger("c3")
    effects = driven.acknowledge(3)
    reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
    assert driven.of_type(effects, RequestFailed) == [RequestFailed("c2", reason, reason.message, 2)]
    assert driven.pending == [1]


@pytest.mark.parametrize(
    "fact",
    [
        CheckpointTimeoutFired(1),
        CoordinatorTimeAdvanced(10**9),
        TaskDeclined("job", "sink", 1, CheckpointFailureReason.CHECKPOINT_DECLINED),
        AbortRequested(CheckpointFailureReason.JOB_FAILOVER_REGION),
        TaskFailed("sink"),
        ShutDown(),
    ],
)
def test_only_its_commit_ends_a_finalising_checkpoint(drive, fact):
    """Until the outcome of its commit is known, it cannot expire, be declined or be aborted (issue 4, item 17)."""
    driven = drive(answers_commit=False, timeout_ms=100)
    driven.trigger()
    driven.acknowledge(1)
    assert driven.of_type(driven.tell(fact), RequestFailed, NotifyCheckpointAborted) == []
    assert driven.of_type(driven.tell(CommitSucceeded(1)), RequestSucceeded) == [RequestSucceeded("c", 1)]


def test_a_certain_commit_failure_discards_and_counts(drive):
    """If the store refuses, the checkpoint fails and counts, and its private state is deleted (FLINK-32347)."""
    driven = drive(answers_commit=False, tolerable_failures=0)
    driven.trigger()
    driven.acknowledge(1, "source", state=PRIVATE)
    driven.acknowledge(1, "sink")
    effects = driven.tell(CommitFailed(1))
    assert driven.of_type(effects, DiscardState) == [DiscardState(1, ("p",))]
    assert [f.reason.name for f in driven.of_type(effects, FailJob)] == ["FINALIZE_CHECKPOINT_FAILURE"]
    assert [n.task for n in driven.of_type(effects, NotifyCheckpointAborted)] == ["source", "sink"]


def test_an_unknown_commit_outcome_deletes_nothing(drive):
    """It may be stored. To delete its files could destroy the only copy (FLINK-22494)."""
    driven = drive(answers_commit=False)
    driven.trigger()
    driven.acknowledge(1, state=PRIVATE)
    effects = driven.tell(CommitUnknown(1))
    assert driven.of_type(effects, DiscardState) == []
    assert [f.request for f in driven.of_type(effects, RequestFailed)] == ["c"]


def test_the_commit_names_the_checkpoints_that_it_subsumes(drive):
    """One commit adds the new entry and removes the subsumed ones, so the effect names them."""
    driven = drive(retained=2)
    for checkpoint in (1, 2):
        driven.trigger(f"c{checkpoint}")
        driven.acknowledge(checkpoint)
    driven.trigger("c3")
    (commit,) = driven.of_type(driven.acknowledge(3), CommitCheckpoint)
    assert (1,) == commit.subsumed
    assert driven.completed == [2, 3]


def test_an_abort_names_the_latest_completed_id(drive):
    """A task that missed a completion can still commit (FLINK-21080)."""
    driven = drive()
    driven.trigger("c1")
    driven.acknowledge(1)
    driven.trigger("c2")
    effects = driven.decline(2)
    assert [(2, 1)] * 2 == [
        (n.checkpoint, n.latest_completed) for n in driven.of_type(effects, NotifyCheckpointAborted)
    ]


def test_two_files_under_one_key_are_refused_by_name(drive):
    """A shared key names one immutable file. If another file comes under it, the caller has a defect."""
    driven = drive()
    driven.trigger()
    driven.acknowledge(1, "source", state=AcknowledgedState(shared=(("k", "one"),)))
    with pytest.raises(SharedStateConflictError, match="'k' is 'one', but 'two'"):
        driven.acknowledge(1, "sink", state=AcknowledgedState(shared=(("k", "two"),)))


def test_an_expired_checkpoint_is_remembered(drive):
    """A late acknowledgement of an expired checkpoint gets another answer than one of an unknown checkpoint."""
    driven = drive(timeout_ms=100)
    driven.trigger()
    driven.tell(CoordinatorTimeAdvanced(100))
    late, unknown = (driven.acknowledge(checkpoint, "source")[0] for checkpoint in (1, 99))
    assert (True, False) == (late.accepted, unknown.accepted)


def test_after_the_shutdown_acknowledgements_change_nothing(drive):
    """The coordinator has been shut down, so nothing is registered and nothing deleted."""
    driven = drive()
    driven.trigger()
    driven.tell(ShutDown())
    effects = driven.acknowledge(1, "source", state=AcknowledgedState(("p",), (("k", "h"),)))
    assert effects == [AnswerAcknowledge("source", 1, AcknowledgeResult.DISCARDED, accepted=False)]
    assert len(driven.door.store.registry) == 0


@pytest.mark.parametrize(
    "reason", [CheckpointFailureReason.QUALITY, CheckpointFailureReason.TABLE_CHANGED, CheckpointFailureReason.FENCED]
)
def test_a_failure_that_the_next_attempt_would_meet_again_fails_the_job(drive, reason):
    """A rejected suite, a changed table and a lost claim are never tolerated. The message reaches the user (J3, G5)."""
    driven = drive(answers_commit=False)
    driven.trigger()
    driven.acknowledge(1)
    effects = driven.tell(CommitFailed(1, reason, "say why"))
    assert driven.of_type(effects, FailJob) == [FailJob(reason, "say why")]


# ------------------------------------------------------------------
# The store keeps N checkpoints. A shared file is deleted when nobody uses it, and not earlier.


SAVEPOINT = savepoint(unaligned=False)
STOP = synchronous_savepoint(unaligned=False, terminate=False)


def checkpoint(number, properties=CHECKPOINT, **fields):
    return CompletedCheckpoint(id=number, properties=properties, **fields)


def store(retained=1, *checkpoints):
    return CompletedCheckpointStore(retained, SharedStateRegistry(), checkpoints)


@pytest.mark.parametrize(
    ("retained", "added", "kept"),
    [
        (1, [CHECKPOINT, SAVEPOINT, SAVEPOINT], [1, 3]),
        (1, [CHECKPOINT, CHECKPOINT, STOP], [3]),
        (2, [CHECKPOINT, SAVEPOINT, CHECKPOINT], [2, 3]),
        (1, [SAVEPOINT, CHECKPOINT], [2]),
        (3, [CHECKPOINT] * 5, [3, 4, 5]),
    ],
)
def test_the_oldest_checkpoints_are_subsumed(retained, added, kept):
    """Never the newest, nor the newest ordinary one unless the job stopped (E4, FLINK-21351)."""
    holding = store(retained)
    for number, properties in enumerate(added, start=1):
        holding.add(checkpoint(number, properties))
    assert kept == [c.id for c in holding.checkpoints]


def test_a_conflict_names_key_and_files():
    """Another file under a known key is refused, and the entry stays."""
    registry = SharedStateRegistry()
    registry.register("k", "one", 1)
    with pytest.raises(SharedStateConflictError, match="'k' is 'one'"):
        registry.register("k", "two", 2)
    assert registry.unregister_unused(2).discarded == ("one",)
