"""Runs the coordinator's machine.

The real coordinator keeps every rule, and each planted bug breaks the rule it names.
"""

import inspect
import re
from dataclasses import replace

import pytest

from checkpointing.coordinator.completed import CompletedCheckpointStore, SharedStateRegistry, StoreChange, Unregistered
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator_state import PeriodicScheduler
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import AcknowledgeResult, RequestSucceeded
from checkpointing.coordinator.pending import PendingCheckpoint, PendingPhase
from checkpointing.coordinator.triggering import RequestDecider, Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.bugs.plant import bugs
from spec.machines import coordinator, coordinator_driver, coordinator_model
from spec.machines.coordinator import CoordinatorMachine
from spec.machines.judging import BrokenRuleError, expect


def test_the_coordinator_keeps_every_rule(run_machine):
    """Requests and answers come in any order. They get lost, are repeated, or come late."""
    run_machine(CoordinatorMachine)


def subsume_savepoints(monkeypatch):
    def subsume(self, checkpoint):
        self.abort_where(lambda pending: pending.id < checkpoint, CheckpointFailureReason.CHECKPOINT_EXPIRED)

    monkeypatch.setattr(Completion, "_subsume_older", subsume)


def subsume_nothing(monkeypatch):
    monkeypatch.setattr(Completion, "_subsume_older", lambda self, checkpoint: None)


def abort_what_is_being_committed(monkeypatch):
    monkeypatch.setattr(PendingCheckpoint, "is_finalising", property(lambda self: False))


def discard_shared_with_an_abort(monkeypatch):
    monkeypatch.setattr(
        PendingCheckpoint,
        "private_handles",
        property(lambda self: tuple(handle for state in self.states.values() for handle in state.handles)),
    )


def keep_shared_for_ever(monkeypatch):
    monkeypatch.setattr(SharedStateRegistry, "unregister_unused", lambda self, lowest: Unregistered())


def remember_the_first_user_only(monkeypatch):
    real = SharedStateRegistry.register

    def register(self, key, handle, checkpoint, **options):
        return real(self, key, handle, checkpoint if key not in self._entries else CheckpointId(0), **options)

    monkeypatch.setattr(SharedStateRegistry, "register", register)


def keep_one_more(monkeypatch):
    real = CompletedCheckpointStore.__init__

    def init(self, retained, *rest, **options):
        real(self, retained + 1, *rest, **options)

    monkeypatch.setattr(CompletedCheckpointStore, "__init__", init)


def never_let_private_files_go(monkeypatch):
    real = CompletedCheckpointStore._let_go

    def let_go(self, leaving):
        change = real(self, leaving)
        return StoreChange(change.subsumed, (), change.shared)

    monkeypatch.setattr(CompletedCheckpointStore, "_let_go", let_go)


def count_savepoints_too(monkeypatch):
    def failed(self, properties, reason, checkpoint, *, by_task=False, message=""):
        return self._count(reason, checkpoint, message)

    monkeypatch.setattr(FailurePolicy, "failed", failed)


def never_reset_the_count(monkeypatch):
    monkeypatch.setattr(FailurePolicy, "succeeded", lambda self, checkpoint: None)


def take_duplicates_for_news(monkeypatch):
    real = PendingCheckpoint.acknowledge

    def acknowledge(self, task, state):
        result = real(self, task, state)
        return AcknowledgeResult.SUCCESS if result is AcknowledgeResult.DUPLICATE else result

    monkeypatch.setattr(PendingCheckpoint, "acknowledge", acknowledge)


def commit_before_all_have_answered(monkeypatch):
    full = property(lambda self: self.phase is PendingPhase.TRIGGERED and len(self.unacknowledged) <= 1)
    monkeypatch.setattr(PendingCheckpoint, "is_fully_acknowledged", full)


def commit_the_newest_first(monkeypatch):
    from checkpointing.coordinator import completion

    monkeypatch.setattr(completion, "min", max, raising=False)


def forget_who_waits_for_a_commit(monkeypatch):
    real, next_one = Completion.committed, Completion._commit_next

    def committed(self, fact):
        with monkeypatch.context() as patch:
            patch.setattr(Completion, "_commit_next", lambda self: None)
            real(self, fact)

    monkeypatch.setattr(Completion, "committed", committed)
    monkeypatch.setattr(Completion, "_commit_next", next_one)


def answer_twice(monkeypatch):
    real = Completion._notify_complete

    def notify(self, pending, subsumed):
        if pending.request is not None:
            self._books.emit(RequestSucceeded(pending.request, pending.id))
        real(self, pending, subsumed)

    monkeypatch.setattr(Completion, "_notify_complete", notify)


def tell_plain_savepoints(monkeypatch):
    from checkpointing.coordinator.properties import CheckpointProperties

    monkeypatch.setattr(CheckpointProperties, "commits", property(lambda self: True))


def ignore_the_limit(monkeypatch):
    monkeypatch.setattr(RequestDecider, "_reached", lambda self, count: False)


def give_an_old_id(monkeypatch):
    real = Triggering.id_fetched

    def id_fetched(self, checkpoint):
        real(self, CheckpointId(max(1, checkpoint - 2)))

    monkeypatch.setattr(Triggering, "id_fetched", id_fetched)


def forget_the_pause(monkeypatch):
    real = Triggering._view
    monkeypatch.setattr(Triggering, "_view", lambda self: replace(real(self), pause_left_ms=0))


def leave_requests_queued(monkeypatch):
    monkeypatch.setattr(Triggering, "drop_queued", lambda self, reason: None)


def wake_in_the_past(monkeypatch):
    monkeypatch.setattr(PeriodicScheduler, "postpone_to", lambda self, at_ms: setattr(self, "next_ms", 1))


def let_statistics_steer(monkeypatch):
    real = Completion._notify_complete

    def notify(self, pending, subsumed):
        if len(self._books.statistics.history()) <= 1:
            real(self, pending, subsumed)

    monkeypatch.setattr(Completion, "_notify_complete", notify)


def wedge_on_an_abort_while_triggering(monkeypatch):
    def settle(self):
        while self._books.queue_stirred:
            self._books.queue_stirred = False
            self._apply(self._decider.choose(self._view()))

    monkeypatch.setattr(Triggering, "settle", settle)


ROOMS = (coordinator, coordinator_driver, coordinator_model, coordinator_driver, coordinator_driver)
BUGS = {
    "savepoints are subsumed": (subsume_savepoints, {"ends-once"}),
    "older checkpoints are left pending": (subsume_nothing, {"ends-once"}),
    "what is being committed is aborted": (abort_what_is_being_committed, {"ends-once"}),
    "an abort deletes shared files": (discard_shared_with_an_abort, {"private", "shared", "shared-needed"}),
    "shared files are kept for ever": (keep_shared_for_ever, {"shared"}),
    "only the first user of a file counts": (remember_the_first_user_only, {"shared", "shared-needed"}),
    "one checkpoint too many is kept": (keep_one_more, {"retention"}),
    "private files outlive their checkpoint": (never_let_private_files_go, {"private"}),
    "savepoints' failures count": (count_savepoints_too, {"failures"}),
    "a success changes no count": (never_reset_the_count, {"failures"}),
    "a duplicate counts": (take_duplicates_for_news, {"acknowledged"}),
    "a commit does not wait for all": (commit_before_all_have_answered, {"no-commit-after-abort"}),
    "the newest is committed first": (commit_the_newest_first, {"commit-order"}),
    "who waited for a commit is forgotten": (forget_who_waits_for_a_commit, {"no-deadlock"}),
    "a request is answered twice": (answer_twice, {"answered-once"}),
    "more are pending than may be": (ignore_the_limit, {"concurrent"}),
    "ids fall": (give_an_old_id, {"ids-rise"}),
    "the minimum pause is forgotten": (forget_the_pause, {"pause"}),
    "a stop leaves requests queued": (leave_requests_queued, {"queue"}),
    "the timer is due in the past": (wake_in_the_past, {"wake"}),
    "statistics steer": (let_statistics_steer, {"statistics-never-steer"}),
    "an abort wedges the trigger": (wedge_on_an_abort_while_triggering, {"no-deadlock", "queue-held"}),
    "plain savepoints are told complete": (tell_plain_savepoints, {"ends-once", "told-truly"}),
}


def test_every_rule_of_the_coordinator_can_be_broken():
    """The list above and `spec/bugs` have every rule. If nothing can break a rule, it is none."""
    text = "".join(map(inspect.getsource, ROOMS))
    rules = set(re.findall(r'(?:expect\([^"]*|BrokenRuleError\()"([a-z-]+)"', text))
    planted = {bug.rule for bug in bugs().values()}
    rules |= {coordinator_driver.TELLS}
    assert rules <= planted.union(*(found for _, found in BUGS.values()))


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_coordinator_is_found(bug, monkeypatch, hunt):
    """A planted bug breaks the rule that it names, within the ci profile. The other rules are not asked."""
    plant, expected = BUGS[bug]
    plant(monkeypatch)

    def asked(holds, invariant, what=""):
        expect(holds or invariant not in expected, invariant, what)

    for module in ROOMS:
        monkeypatch.setattr(module, "expect", asked)
    with pytest.raises(BrokenRuleError) as broken:
        hunt(CoordinatorMachine)
    assert broken.value.invariant in expected
