"""Plants bugs in the sink that commits in two phases: in its commits after a notification, and in its restore."""

from dataclasses import replace

from checkpointing.commit.sink_messages import (
    CommitRefused,
    CompletionNotified,
    SinkOpened,
    Transaction,
)
from checkpointing.commit.two_phase_sink import TwoPhaseCommitSink
from spec.mutants.judges import TWO_PHASE_SINKS
from spec.mutants.planting import Patch, mutant


@mutant("commits-in-two-phases", TWO_PHASE_SINKS)
def a_notification_commits_its_own_checkpoint_alone(patch: Patch) -> None:
    def commit(self: TwoPhaseCommitSink, fact: CompletionNotified) -> None:
        due = self._pre_committed.pop(fact.checkpoint, None)
        if due is not None:
            self._commit_all((due,), fact.now_ms)

    patch.put(TwoPhaseCommitSink, "_commit_up_to", commit)


@mutant("commits-in-two-phases", TWO_PHASE_SINKS)
def a_restore_leaves_the_open_transaction_of_the_snapshot(patch: Patch) -> None:
    real = TwoPhaseCommitSink._open

    def begin(self: TwoPhaseCommitSink, fact: SinkOpened) -> None:
        restored = None if fact.restored is None else replace(fact.restored, current=None)
        real(self, replace(fact, restored=restored))

    patch.put(TwoPhaseCommitSink, "_open", begin)


@mutant("commits-in-two-phases", TWO_PHASE_SINKS)
def any_late_refusal_is_ignored_while_a_restore_goes_on(patch: Patch) -> None:
    real = TwoPhaseCommitSink._is_lost

    def is_lost(self: TwoPhaseCommitSink, fact: CommitRefused) -> bool:
        own = self._restored
        goes_on = not {*own}.isdisjoint({*self._committing, fact.transaction})
        self._restored = (*own, fact.transaction) if goes_on else own
        lost = real(self, fact)
        self._restored = own
        return lost

    patch.put(TwoPhaseCommitSink, "_is_lost", is_lost)


@mutant("commits-in-two-phases", TWO_PHASE_SINKS)
def the_first_answer_tells_the_error(patch: Patch) -> None:
    real = TwoPhaseCommitSink._answered

    def answered(self: TwoPhaseCommitSink, transaction: Transaction) -> None:
        waiting, self._committing = self._committing, ()
        real(self, transaction)
        self._committing = tuple(each for each in waiting if each != transaction)

    patch.put(TwoPhaseCommitSink, "_answered", answered)


@mutant("commits-in-two-phases", TWO_PHASE_SINKS)
def a_finished_sink_begins_another_transaction(patch: Patch) -> None:
    real = TwoPhaseCommitSink._finish_snapshot

    def finish(self: TwoPhaseCommitSink, now_ms: int) -> None:
        self._finished = False
        real(self, now_ms)

    patch.put(TwoPhaseCommitSink, "_finish_snapshot", finish)
