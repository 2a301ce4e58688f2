"""The two-phase sink commits each complete transaction once, and no other."""

import pytest

from checkpointing.commit.sink_messages import (
    Abort,
    BeginTransaction,
    Commit,
    CommitRefused,
    CompletionNotified,
    ElementArrived,
    FailSink,
    InputFinished,
    NoOpenTransactionError,
    PreCommit,
    PreCommitFailed,
    PreCommitted,
    SinkClosed,
    SinkOpened,
    SinkSnapshotRequested,
    SinkState,
    SnapshotUnderWayError,
    StoreState,
    Transaction,
    WarnOfTimeout,
)
from checkpointing.commit.two_phase_sink import SinkSettings, TwoPhaseCommitSink

T0, T1, T2 = (Transaction(number, 0) for number in range(3))


def opened(**settings):
    """Return an open sink."""
    sink = TwoPhaseCommitSink(SinkSettings(**settings))
    sink.step(SinkOpened(0))
    return sink


def snapshot(sink, checkpoint, now_ms=0):
    """Take a snapshot whose pre-commit succeeds. Return the stored state."""
    effects = sink.step(SinkSnapshotRequested(checkpoint, now_ms))
    if any(isinstance(effect, PreCommit) for effect in effects):
        effects = sink.step(PreCommitted(now_ms))
    (stored,) = [effect.state for effect in effects if isinstance(effect, StoreState)]
    return stored


def test_a_snapshot_stores_the_transactions_to_commit_and_to_abort():
    """The state has the pre-committed transaction and the new, current one (F3)."""
    sink = opened()
    assert SinkState(((1, T0),), T1) == snapshot(sink, 1)


def test_a_notification_commits_every_id_up_to_its_own_once():
    """notify(n) commits all ids <= n in order. A second or late one finds nothing (issue 4, item 14)."""
    sink = opened()
    for checkpoint in (1, 2, 3):
        snapshot(sink, checkpoint)
    assert (Commit(T0), Commit(T1)) == sink.step(CompletionNotified(2, 0))
    assert () == sink.step(CompletionNotified(1, 0))
    assert () == sink.step(CompletionNotified(2, 0))


def test_one_failing_commit_stops_no_other_and_fails_the_sink():
    """All commits are tried. When all have answered, the first error is raised (FLINK-23471)."""
    sink = opened()
    snapshot(sink, 1)
    snapshot(sink, 2)
    sink.step(CompletionNotified(2, 0))
    assert () == sink.step(CommitRefused(T0, "first", 0))
    assert (FailSink("first"),) == sink.step(CommitRefused(T1, "second", 0))
    assert () == sink.step(CommitRefused(T1, "again", 0))


def test_a_restore_commits_all_pending_and_aborts_the_current():
    """The restored snapshot's pre-committed transactions are complete. The current one never was (F3)."""
    state = snapshot(opened(), 1)
    sink = TwoPhaseCommitSink(SinkSettings(name="second life"))
    begun = Transaction(0, 9, "second life")
    assert (Commit(T0), BeginTransaction(begun), Abort(T1)) == sink.step(SinkOpened(9, state))


@pytest.mark.parametrize(("age_ms", "fails"), [(1000, True), (1001, False)])
def test_a_late_commit_error_in_a_restore_may_be_ignored(age_ms, fails):
    """After the timeout, the external system has dropped the transaction. Before it, the error counts."""
    state = snapshot(opened(), 1)
    sink = TwoPhaseCommitSink(SinkSettings(transaction_timeout_ms=1000, ignore_late_commit_errors=True))
    sink.step(SinkOpened(age_ms, state))
    assert fails == (sink.step(CommitRefused(T0, "lost", age_ms)) == (FailSink("lost"),))


def test_outside_a_restore_a_late_commit_error_always_counts():
    """The commit was promised. If the transaction is lost, the job must know."""
    sink = opened(transaction_timeout_ms=10, ignore_late_commit_errors=True)
    snapshot(sink, 1)
    sink.step(CompletionNotified(1, 999))
    assert (FailSink("lost"),) == sink.step(CommitRefused(T0, "lost", 999))


def test_once_a_restore_is_over_a_late_commit_error_counts():
    """Only restored transactions may be lost, and all of them have been answered."""
    sink = TwoPhaseCommitSink(SinkSettings(transaction_timeout_ms=10, ignore_late_commit_errors=True))
    sink.step(SinkOpened(999, SinkState(((1, T0),), None)))
    assert () == sink.step(CommitRefused(T0, "lost", 999))
    (_, own), *_ = snapshot(sink, 2, 999).pre_committed
    sink.step(CompletionNotified(2, 2_000))
    assert (FailSink("lost"),) == sink.step(CommitRefused(own, "lost", 2_000))


def test_a_failed_pre_commit_keeps_the_transaction():
    """The snapshot fails, and its rows belong to the next one."""
    sink = opened()
    sink.step(SinkSnapshotRequested(1, 0))
    assert (FailSink("full"),) == sink.step(PreCommitFailed("full"))
    assert SinkState(((2, T0),), T1) == snapshot(sink, 2)


def test_after_the_end_of_input_no_transaction_begins():
    """The last snapshot takes the last transaction, and a later one stores none (FLINK-23473, FLINK-24065)."""
    sink = opened()
    sink.step(InputFinished())
    assert SinkState(((1, T0),), None) == snapshot(sink, 1)
    assert SinkState(((1, T0),), None) == snapshot(sink, 2)
    with pytest.raises(NoOpenTransactionError, match="'late'"):
        sink.step(ElementArrived("late"))


def test_rows_between_pre_commit_and_its_answer_are_refused():
    """A row or a second snapshot before the answer is refused, and nothing changes."""
    sink = opened()
    sink.step(SinkSnapshotRequested(1, 0))
    for fact in (ElementArrived("row"), SinkSnapshotRequested(2, 0)):
        with pytest.raises(SnapshotUnderWayError, match="checkpoint 1"):
            sink.step(fact)
    assert (BeginTransaction(T1), StoreState(1, SinkState(((1, T0),), T1))) == sink.step(PreCommitted(0))


def test_old_transactions_warn_when_they_are_committed():
    """The warning comes above the ratio of the timeout, not at it."""
    for age_ms, warned in ((500, False), (501, True)):
        sink = opened(transaction_timeout_ms=1000, warn_ratio=0.5)
        snapshot(sink, 1)
        assert warned == (WarnOfTimeout(age_ms, 1000) in sink.step(CompletionNotified(1, age_ms)))


def test_closing_aborts_the_current_transaction_only():
    """A restore commits the pre-committed transactions."""
    sink = opened()
    snapshot(sink, 1)
    assert (Abort(T1),) == sink.step(SinkClosed())
    assert () == sink.step(SinkClosed())
