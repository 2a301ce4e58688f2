"""One subtask of a sink that commits in two phases (F3; Flink: `TwoPhaseCommitSinkFunction`).

Rows go into the current transaction. The snapshot for checkpoint n pre-commits it and begins the next one. The
notification that n is complete commits every transaction that was pre-committed for an id <= n. Before that, nothing is
visible. The external system is behind effects, and each of them is answered by a fact.

No run reaches it. It judges Flink's own cases. Outside sinks that vote follow `pre_committed`: one entry commits all.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

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
    SinkEffect,
    SinkFact,
    SinkOpened,
    SinkSnapshotRequested,
    SinkState,
    SnapshotUnderWayError,
    StoreState,
    Transaction,
    TransactionCommitted,
    WarnOfTimeout,
    WriteElement,
)

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How old a transaction may get. None: the external system never drops one.

    At `warn_ratio` of that age, a commit warns. With `ignore_late_commit_errors`, a restore ignores the error of a
    commit that is older, since the external system has dropped the transaction.
    """

    name: str = ""
    transaction_timeout_ms: int | None = None
    warn_ratio: float | None = None
    ignore_late_commit_errors: bool = False


class TwoPhaseCommitSink:
    """Decides for one sink subtask which transaction begins, commits or aborts, and when."""

    __slots__ = (
        "_committing",
        "_current",
        "_effects",
        "_finished",
        "_first_error",
        "_next_number",
        "_pre_committed",
        "_restored",
        "_settings",
        "_snapshotting",
    )

    def __init__(self, settings: SinkSettings) -> None:
        """Begin closed. SinkOpened must come first."""
        self._settings = settings
        self._effects: list[SinkEffect] = []
        self._pre_committed: dict[CheckpointId, Transaction] = {}
        self._current: Transaction | None = None
        self._next_number = 0
        self._finished = False
        self._snapshotting: CheckpointId | None = None
        self._committing: tuple[Transaction, ...] = ()
        self._restored: tuple[Transaction, ...] = ()
        """The pre-committed transactions of the restored snapshot. The restore commits them again."""
        self._first_error: str | None = None

    def step(self, fact: SinkFact) -> tuple[SinkEffect, ...]:
        """Take one fact.

        Raise NoOpenTransactionError or SnapshotUnderWayError, without a change, if it may not come now.
        """
        self._effects = []
        match fact:
            case SinkOpened():
                self._open(fact)
            case ElementArrived():
                self._write(fact.value)
            case SinkSnapshotRequested():
                self._begin_snapshot(fact)
            case PreCommitted():
                self._finish_snapshot(fact.now_ms)
            case PreCommitFailed():
                self._snapshotting = None
                self._effects.append(FailSink(fact.error))
            case CompletionNotified():
                self._commit_up_to(fact)
            case TransactionCommitted():
                self._answered(fact.transaction)
            case CommitRefused():
                self._refused(fact)
            case InputFinished():
                self._finished = True
            case SinkClosed():
                self._close()
            case _:
                assert_never(fact)
        return tuple(self._effects)

    # -------------------------------------------------------------- opening

    def _open(self, fact: SinkOpened) -> None:
        left_open = None
        if fact.restored is not None:
            left_open = fact.restored.current
            self._restored = tuple(transaction for _, transaction in fact.restored.pre_committed)
            self._commit_all(self._restored, fact.now_ms)
        self._begin(fact.now_ms)
        if left_open is not None:
            self._effects.append(Abort(left_open))

    def _begin(self, now_ms: int) -> None:
        self._current = Transaction(self._next_number, now_ms, self._settings.name)
        self._next_number += 1
        self._effects.append(BeginTransaction(self._current))

    # -------------------------------------------------------------- phase one

    def _write(self, value: object) -> None:
        if self._snapshotting is not None:
            raise SnapshotUnderWayError(self._snapshotting)
        if self._current is None or self._finished:
            raise NoOpenTransactionError(value)
        self._effects.append(WriteElement(self._current, value))

    def _begin_snapshot(self, fact: SinkSnapshotRequested) -> None:
        if self._snapshotting is not None:
            raise SnapshotUnderWayError(self._snapshotting)
        self._snapshotting = fact.checkpoint
        if self._current is None:
            self._finish_snapshot(fact.now_ms)
        else:
            self._effects.append(PreCommit(self._current))

    def _finish_snapshot(self, now_ms: int) -> None:
        checkpoint = self._snapshotting
        if checkpoint is None:
            return
        self._snapshotting = None
        if self._current is not None:
            self._pre_committed[checkpoint] = self._current
            self._current = None
        if not self._finished:
            self._begin(now_ms)
        self._effects.append(StoreState(checkpoint, self._state()))

    def _state(self) -> SinkState:
        return SinkState(tuple(sorted(self._pre_committed.items(), key=lambda item: item[0])), self._current)

    # -------------------------------------------------------------- phase two

    def _commit_up_to(self, fact: CompletionNotified) -> None:
        due = sorted(checkpoint for checkpoint in self._pre_committed if checkpoint <= fact.checkpoint)
        self._commit_all(tuple(self._pre_committed.pop(checkpoint) for checkpoint in due), fact.now_ms)

    def _commit_all(self, transactions: tuple[Transaction, ...], now_ms: int) -> None:
        for transaction in transactions:
            self._warn_if_old(transaction, now_ms)
            self._committing += (transaction,)
            self._effects.append(Commit(transaction))

    def _warn_if_old(self, transaction: Transaction, now_ms: int) -> None:
        timeout_ms, ratio = self._settings.transaction_timeout_ms, self._settings.warn_ratio
        if timeout_ms is None or ratio is None:
            return
        age_ms = now_ms - transaction.begun_ms
        if age_ms > timeout_ms * ratio:
            self._effects.append(WarnOfTimeout(age_ms, timeout_ms))

    def _answered(self, transaction: Transaction) -> None:
        """Note an answer. All commits are tried; when all are answered, fail with the first error (FLINK-23471)."""
        self._committing = tuple(waiting for waiting in self._committing if waiting != transaction)
        if self._committing:
            return
        if self._first_error is not None:
            self._effects.append(FailSink(self._first_error))
            self._first_error = None

    def _refused(self, fact: CommitRefused) -> None:
        if fact.transaction not in self._committing:
            return
        if self._first_error is None and not self._is_lost(fact):
            self._first_error = fact.error
        self._answered(fact.transaction)

    def _is_lost(self, fact: CommitRefused) -> bool:
        timeout_ms = self._settings.transaction_timeout_ms
        if not self._settings.ignore_late_commit_errors or timeout_ms is None:
            return False
        return fact.transaction in self._restored and fact.now_ms - fact.transaction.begun_ms > timeout_ms

    def _close(self) -> None:
        if self._current is not None:
            self._effects.append(Abort(self._current))
            self._current = None
