"""The eighteen points where implementers go wrong, one test each, on the real doors of the core.

A case is written in the words of `tests/vectors`, and the judge in `spec` runs it, so it reads as a story. If the words
do not suffice, the test steps the door itself. Other tests go deeper into each part.
"""

import json
from pathlib import Path

import pytest

from checkpointing.commit.outside_sinks import SinkTransaction, to_commit, to_roll_back
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpointStore, SharedStateRegistry
from checkpointing.coordinator.plan import PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.failures import CheckpointFailureReason
from spec.flink import coordinator_cases, registry_cases
from spec.flink import messages as flink
from spec.flink.coordinator import FlinkCoordinator
from spec.flink.gate_cases import BarrierRun

VECTORS = Path(__file__).parents[1] / "vectors"
LEGEND = json.loads((VECTORS / "coordinator.json").read_text())["legend"]
SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
CANCELLED = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"


def gate_run(mode, channels, *events, **case):
    run = BarrierRun({"mode": mode, "channels": channels, "events": events, **case})
    for index, event in enumerate(events):
        run.do(index, list(event))
    return run


def trace(mode, channels, *events, **case):
    return [entry for _, entry in gate_run(mode, channels, *events, **case).trace]


def problems(given, steps, *expect):
    """Return the failed expectations of a coordinator's case. `expect` has pairs of (after, facts)."""
    entries = [{"after": after, **facts} for after, facts in expect]
    return coordinator_cases.run_case(LEGEND, {"given": given, "steps": steps, "expect": entries})


def test_1_the_last_channel_is_blocked_too_then_trigger_then_all_unblock():
    """Point 1: when a newer barrier comes, the old alignment is released, then aborted. Then the new barrier blocks."""
    assert [("blocked", 0), ("blocked", 1), ("trigger", 1), ("unblocked", 0), ("unblocked", 1)] == trace(
        "aligned_blocking", 2, ("barrier", 0, 1), ("barrier", 1, 1)
    )
    assert [("blocked", 0), ("unblocked", 0), ("abort", 1, SUBSUMED), ("blocked", 1)] == trace(
        "aligned_blocking", 2, ("barrier", 0, 1), ("barrier", 1, 2)
    )


@pytest.mark.parametrize("before", [("barrier", 0, 4), ("cancel", 0, 3)])
def test_2_an_obsolete_or_cancelled_barrier_resumes_its_channel(before):
    """Point 2: the channel that brought barrier 3 too late is read on. Otherwise everything would stop."""
    assert ("buffer", 1, 9) == trace("aligned_blocking", 3, before, ("barrier", 1, 3), ("buffer", 1, 9))[-1]


def test_3_a_newer_cancel_aborts_only_itself_when_blocking_and_both_when_buffering():
    """Point 3: the marker is cancel(3), and 1 is pending."""
    events = ("barrier", 0, 1), ("cancel", 1, 3)
    blocking, buffering = (trace(mode, 2, *events) for mode in ("aligned_blocking", "aligned_buffering"))
    assert [("abort", 3, CANCELLED)] == [entry for entry in blocking if entry[0] == "abort"]
    assert [("abort", 1, SUBSUMED), ("abort", 3, CANCELLED)] == [e for e in buffering if e[0] == "abort"]


def test_4_the_target_is_fixed_at_the_first_barrier_and_an_end_counts_once():
    """Point 4: a channel that ended before does not count. An end after the channel's own barrier adds nothing.

    An end instead of the barrier counts.
    """
    assert [1] == gate_run("aligned_blocking", 3, ("eop", 2), ("barrier", 0, 1), ("barrier", 1, 1)).ids("trigger")
    events = [("barrier", 0, 1), ("eop", 0), ("barrier", 1, 1)]
    assert [] == gate_run("aligned_blocking", 3, *events, fed_directly=[1]).ids("trigger")
    assert [1] == gate_run("aligned_blocking", 3, *events, ("eop", 2), fed_directly=[1]).ids("trigger")


def test_5_the_tracker_keeps_older_pending_ones_until_one_completes():
    """Point 5: a newer barrier drops nothing. A completion drops the older ones, without an abort."""
    begun = ("barrier", 0, 1), ("barrier", 0, 2)
    assert [("trigger", 1), ("trigger", 2)] == trace("at_least_once", 2, *begun, ("barrier", 1, 1), ("barrier", 1, 2))
    completed = gate_run("at_least_once", 2, *begun, ("barrier", 1, 2))
    assert [("trigger", 2)] == [entry for _, entry in completed.trace]
    assert () == completed.gate.pending()


def test_6_in_flight_is_after_the_trigger_and_before_the_channels_own_barrier():
    """Point 6: segments in flight are also delivered."""
    numbers = [("buffer", 1, 4), ("barrier", 0, 1), ("buffer", 1, 5), ("buffer", 0, 6), ("barrier", 1, 1)]
    run = gate_run("unaligned", 3, *numbers, ("buffer", 1, 7), ("buffer", 2, 8), ("eop", 2))
    assert {1: [5, 8]} == run.in_flight
    assert [4, 5, 6, 7, 8] == [entry[2] for _, entry in run.trace if entry[0] == "buffer"]


def test_7_a_duplicate_discards_nothing_unknown_and_late_do_and_a_foreign_one_is_not_touched():
    """Point 7: it says whose private state an acknowledgement may delete."""
    steps = [["trigger", "c"], ["ack", "a", 1, "first"], ["ack", "a", 1, "again"], ["ack", "unknown", 1, "unknown"]]
    steps += [["ack", "b", 1, "foreign", {"job": "other"}], ["expire", 1], ["ack", "b", 1, "late"]]
    assert [] == problems(
        {"tasks": ["a", "b"]},
        steps,
        (2, {"ack_result": "DUPLICATE"}),
        (6, {"discarded": ["unknown", "first", "late"], "not_discarded": ["again", "foreign"]}),
    )


def test_8_shared_state_is_registered_on_every_acknowledgement_but_not_for_savepoints():
    """Point 8: this includes duplicates and late ones. An abort never deletes it."""
    shared = {"shared": {"k": "h"}}
    steps = [["trigger", "c"], ["ack", "a", 1, shared], ["ack", "a", 1, shared], ["expire", 1], ["ack", "b", 1, shared]]
    steps += [["savepoint", "s"], ["ack", "a", 2, {"shared": {"l": "of the savepoint"}}]]
    registered = {"shared_registrations": {"h": 3, "of the savepoint": 0}, "not_discarded": ["h"]}
    assert [] == problems({"tasks": ["a", "b"]}, steps, (6, registered))


def test_9_a_plain_savepoint_subsumes_nothing_is_not_stored_and_notifies_nothing():
    """Point 9: so a two-phase sink does not commit on it."""
    steps = [["trigger", "c"], ["savepoint", "s"], ["ack", "a", 2, "of the savepoint"]]
    facts = {"pending": [1], "completed": [], "complete_msgs": {"a": []}, "future": {"c": "pending", "s": "ok"}}
    assert [] == problems({"tasks": ["a"]}, steps, (2, {**facts, "not_discarded": ["of the savepoint"]}))


def test_10_the_newest_checkpoint_is_never_subsumed_by_savepoints():
    """Point 10: so more than N checkpoints may be retained."""
    steps = [["add", 1, "checkpoint"], *(["add", n, "savepoint"] for n in (2, 3))]
    case = {"kind": "subsume", "given": {"retained": 1}, "steps": steps, "expect": [{"after": 2, "retained": [1, 3]}]}
    assert [] == registry_cases.run_case({}, case)


def test_11_only_some_reasons_count_once_per_id_and_after_the_last_success():
    """Point 11: above the tolerable number, the job fails. If a stopping savepoint is declined, it always fails."""
    declined = {"reason": "CHECKPOINT_DECLINED"}
    reports = [["completed", 1], ["failed", 1, declined], ["failed", 2, declined], ["failed", 2, declined]]
    reports += [["failed", 3, {"reason": "CHECKPOINT_SUBSUMED"}], ["failed", 4, declined]]
    steps = [["report", *report] for report in reports]
    policy = {"unit": "failure_manager", "tolerable_failures": 1}
    assert [] == problems(policy, steps, (4, {"job_failed": 0}), (5, {"job_failed": 1}))
    stop = [["stop_with_savepoint", "s"], ["decline", "a", 1, "CHECKPOINT_DECLINED_TASK_NOT_READY"]]
    assert [] == problems({"tasks": ["a"], "tolerable_failures": 9}, stop, (1, {"job_failed": 1}))


def test_12_the_minimum_pause_holds_back_periodic_triggers_only():
    """Point 12: a user's checkpoints and savepoints are taken at once."""
    steps = [["start_scheduler"], ["trigger", "a"], ["ack", "t", 1], ["trigger", "p", {"periodic": True}]]
    steps += [["trigger", "u"], ["savepoint", "s"]]
    refused = {"future": {"p": "failed:MINIMUM_TIME_BETWEEN_CHECKPOINTS"}, "pending": []}
    assert [] == problems({"tasks": ["t"], "min_pause_ms": 1000}, steps, (3, refused), (5, {"pending": [2, 3]}))


def test_13_a_store_write_of_unknown_outcome_deletes_nothing():
    """Point 13: the checkpoint fails and counts, and its files stay."""
    steps = [["trigger", "c"], ["ack", "t", 1, "perhaps stored"]]
    facts = {"error": "FINALIZE_CHECKPOINT_FAILURE", "not_discarded": ["perhaps stored"], "job_failed": 1}
    given = {"tasks": ["t"], "fault": ["store_add_unknown"], "tolerable_failures": 0}
    assert [] == problems(given, steps, (1, {**facts, "future": {"c": "failed"}}))


def test_14_publishing_commits_its_own_transaction_and_a_restore_rolls_back_those_of_failed_checkpoints():
    """Point 14: what is left of a committed checkpoint is committed once more or never, and no later one is touched."""
    one, two, three = (SinkTransaction("j", "a", 1, checkpoint) for checkpoint in (1, 2, 3))
    assert (two,) == to_commit((one, two, three), 2)
    assert (one, two) == to_roll_back((one, two, three), before=3)
    assert () == to_commit((one, three), 2)


def test_16_after_no_claim_checkpoints_are_full_until_one_completes():
    """Point 16: a failed one does not end it."""
    steps = [["restore", "savepoint", {"mode": "NO_CLAIM"}], ["trigger", "a"], ["decline", "t", 2, "TASK_FAILURE"]]
    steps += [["trigger", "b"], ["ack", "t", 3], ["trigger", "c"]]
    types = {"t": {"2": "FULL_CHECKPOINT", "3": "FULL_CHECKPOINT", "4": "CHECKPOINT"}}
    assert [] == problems({"tasks": ["t"], "savepoint": {"id": 1}}, steps, (5, {"checkpoint_type": types}))


def finalising():
    """Return a coordinator whose checkpoint 1 waits for the outcome of its commit. All tasks have acknowledged 2."""
    door = FlinkCoordinator(
        CoordinatorSettings(job="job", max_concurrent=None, timeout_ms=10),
        Topology((PlannedVertex("t", ("t",)),)),
        CompletedCheckpointStore(1, SharedStateRegistry()),
    )
    effects = []
    for checkpoint in (1, 2):
        effects += door.step(told.CheckpointRequested(f"c{checkpoint}", CHECKPOINT))
        effects += door.step(told.CheckpointIdFetched(checkpoint))
        effects += door.step(told.LocationCreated(checkpoint))
    for checkpoint in (1, 2):
        effects += door.step(told.TaskAcknowledged("job", "t", checkpoint))
    return door, effects


def test_17_only_its_commit_ends_a_checkpoint_whose_commit_is_unknown():
    """Point 17: it cannot expire, be declined or be aborted. The commit of the next one waits for its outcome."""
    door, effects = finalising()
    assert [1] == [effect.checkpoint for effect in effects if isinstance(effect, told.CommitCheckpoint)]
    suspended = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    for fact in (
        flink.CheckpointTimeoutFired(1),
        told.TaskDeclined("job", "t", 1, CheckpointFailureReason.CHECKPOINT_DECLINED),
        flink.AbortRequested(suspended),
    ):
        door.tell(fact)
        assert 1 in [pending.id for pending in door.pending]
    assert told.RequestSucceeded("c1", 1) in door.step(told.CommitSucceeded(1))
    door, _ = finalising()
    commits = [effect for effect in door.step(told.CommitSucceeded(1)) if isinstance(effect, told.CommitCheckpoint)]
    assert [2] == [commit.checkpoint for commit in commits]


def test_18_the_next_checkpoint_carries_the_staged_files_of_an_aborted_one():
    """Point 18: a staged file is a shared handle. Neither an abort nor the next completion deletes it."""
    staged = {"shared": {"f": "staged file"}}
    steps = [["trigger", "a"], ["ack", "t", 1, staged], ["decline", "u", 1, "CHECKPOINT_DECLINED"]]
    steps += [["trigger", "b"], ["ack", "t", 2, staged], ["ack", "u", 2]]
    kept = {"not_discarded": ["staged file"]}
    assert [] == problems({"tasks": ["t", "u"]}, steps, (2, {**kept, "pending": []}), (5, {**kept, "completed": [2]}))
