"""Tests a sink that commits in two phases. It writes, pre-commits, commits late, dies, and is restored.

Its reference is the contract of Flink's `TwoPhaseCommitSinkFunction` (F3), written as the due effects of each fact. No
job runs this sink, so no seed of the simulator reaches it.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

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
from checkpointing.commit.two_phase_sink import SinkSettings, TwoPhaseCommitSink
from checkpointing.identifiers import CheckpointId
from spec.machines.judging import expect

TWO_PHASES: Final = "commits-in-two-phases"
"""Each row goes into the open transaction. A snapshot pre-commits it, and the notification of that snapshot or of a
later one commits it. A restore commits the pre-committed transactions, and aborts the open one. When all commits are
answered, the first error of a commit fails the sink."""

_TIMEOUT_MS, _RATIO, _WARNS_MS = 100, 0.5, 50
_settings = st.sampled_from(
    [
        SinkSettings(),
        SinkSettings(transaction_timeout_ms=_TIMEOUT_MS, warn_ratio=_RATIO, ignore_late_commit_errors=True),
        SinkSettings(transaction_timeout_ms=_TIMEOUT_MS, warn_ratio=_RATIO),
        SinkSettings(transaction_timeout_ms=_TIMEOUT_MS, ignore_late_commit_errors=True),
        SinkSettings(warn_ratio=_RATIO, ignore_late_commit_errors=True),
    ]
)
_waits = st.sampled_from([0, 0, 0, 1, _TIMEOUT_MS])
_ages = st.sampled_from([0, _WARNS_MS, _WARNS_MS + 1, _TIMEOUT_MS, _TIMEOUT_MS, _TIMEOUT_MS + 1])
"""The least age of a transaction when its commit is due or refused."""
_pick = st.integers(0, 20)


@dataclass
class _Life:
    """What the reference remembers of the sink between two restores."""

    sink: TwoPhaseCommitSink
    current: Transaction | None = None
    waiting: dict[CheckpointId, Transaction] = field(default_factory=dict)
    """The pre-committed transactions, by checkpoint."""
    restored: tuple[Transaction, ...] = ()
    """The transactions that the restore commits."""
    asked: list[Transaction] = field(default_factory=list)
    """The commits without an answer."""
    error: str | None = None
    snapshot: CheckpointId | None = None
    begun: int = 0
    has_finished: bool = False


class TwoPhaseSinkMachine(RuleBasedStateMachine):
    """Drives one subtask of a sink through several restores."""

    def __init__(self) -> None:
        """Begin with a fresh sink."""
        super().__init__()
        self.now_ms = 1_000
        self.lives = 0
        self.rows = 0
        self.newest = 0
        self.stored: list[SinkState] = []
        self.begin(SinkSettings())

    @initialize(settings=_settings)
    def begin(self, settings: SinkSettings) -> None:
        """Begin a job without state."""
        self.settings, self.stored = settings, []
        self._open(None)

    # -------------------------------------------------------------- lives

    @precondition(lambda self: self.stored)
    @rule(pick=_pick, wait_ms=_waits, closes=st.booleans(), really=st.sampled_from([True, False]))
    def restore(self, pick: int, wait_ms: int, closes: bool, really: bool) -> None:  # noqa: FBT001
        """Let the sink die, or close it. Then restore one of the snapshots."""
        if not really:
            return
        self.now_ms += wait_ms
        current = self.life.current
        if closes:
            self._is_told(SinkClosed(), *([] if current is None else [Abort(current)]))
            self._is_told(SinkClosed())
        self._open(self.stored[-1 - pick % len(self.stored)])

    def _open(self, restored: SinkState | None) -> None:
        self.lives += 1
        own = replace(self.settings, name=f"life {self.lives}")
        self.life = _Life(TwoPhaseCommitSink(own))
        self._is_refused(ElementArrived(0), NoOpenTransactionError)
        commits: list[SinkEffect] = []
        aborts: list[SinkEffect] = []
        if restored is not None:
            self.life.restored = tuple(transaction for _, transaction in restored.pre_committed)
            commits = self._due_commits(self.life.restored)
            aborts = [Abort(restored.current)] if restored.current is not None else []
        self._is_told(SinkOpened(self.now_ms, restored), *commits, self._begins(), *aborts)

    def _begins(self) -> SinkEffect:
        """Return the effect that begins the next transaction of this life."""
        self.life.current = Transaction(self.life.begun, self.now_ms, f"life {self.lives}")
        self.life.begun += 1
        return BeginTransaction(self.life.current)

    # -------------------------------------------------------------- phase one

    @rule(rows=st.integers(0, 2), age_ms=_ages, ends=st.booleans())
    def go_on(self, rows: int, age_ms: int, ends: bool) -> None:  # noqa: FBT001
        """Rows arrive, and a checkpoint completes."""
        for _ in range(rows):
            self.write()
        if self.life.snapshot is None:
            self.take_a_snapshot(0, 0)
        self.pre_commit(0)
        if ends:
            self.notify(0, age_ms)

    @rule()
    def write(self) -> None:
        """A row arrives."""
        self.rows += 1
        life, fact = self.life, ElementArrived(self.rows)
        if life.snapshot is not None:
            self._is_refused(fact, SnapshotUnderWayError)
        elif life.current is None or life.has_finished:
            self._is_refused(fact, NoOpenTransactionError)
        else:
            self._is_told(fact, WriteElement(life.current, self.rows))

    @rule(wait_ms=_waits, skipped=st.integers(0, 1))
    def take_a_snapshot(self, wait_ms: int, skipped: int) -> None:
        """A barrier arrives. Some checkpoints were aborted before it."""
        self.now_ms += wait_ms
        self.newest += 1 + skipped
        life, fact = self.life, SinkSnapshotRequested(CheckpointId(self.newest), self.now_ms)
        if life.snapshot is not None:
            self._is_refused(fact, SnapshotUnderWayError)
        elif life.current is None:
            self._is_told(fact, StoreState(fact.checkpoint, self._state()))
        else:
            life.snapshot = fact.checkpoint
            self._is_told(fact, PreCommit(life.current))

    @rule(wait_ms=_waits)
    def pre_commit(self, wait_ms: int) -> None:
        """The external system has pre-committed. A late answer changes nothing."""
        self.now_ms += wait_ms
        life, begins = self.life, list[SinkEffect]()
        if life.snapshot is None:
            self._is_told(PreCommitted(self.now_ms))
            return
        checkpoint, life.snapshot = life.snapshot, None
        if life.current is not None:
            life.waiting[checkpoint] = life.current
        life.current = None
        if not life.has_finished:
            begins = [self._begins()]
        self.stored.append(self._state())
        self._is_told(PreCommitted(self.now_ms), *begins, StoreState(checkpoint, self._state()))

    @precondition(lambda self: self.life.snapshot is not None)
    @rule()
    def fail_to_pre_commit(self) -> None:
        """The external system cannot pre-commit. The transaction stays open."""
        self.life.snapshot = None
        self._is_told(PreCommitFailed("it broke"), FailSink("it broke"))

    @rule(really=st.sampled_from([True, False, False, False]))
    def finish(self, really: bool) -> None:  # noqa: FBT001
        """No more rows come."""
        if really:
            self.life.has_finished = True
            self._is_told(InputFinished())

    def _state(self) -> SinkState:
        return SinkState(tuple(sorted(self.life.waiting.items())), self.life.current)

    # -------------------------------------------------------------- phase two

    @precondition(lambda self: self.life.asked)
    @rule(refused=st.lists(st.booleans(), min_size=1, max_size=4), pick=_pick, age_ms=_ages)
    def answer(self, refused: list[bool], pick: int, age_ms: int) -> None:
        """All commits are answered, in some order."""
        while self.life.asked:
            if refused[len(self.life.asked) % len(refused)]:
                self.refuse(pick, age_ms)
            else:
                self.commit(pick)

    @rule(back=st.integers(0, 4), age_ms=_ages)
    def notify(self, back: int, age_ms: int) -> None:
        """A checkpoint is complete: the newest, or an older one."""
        checkpoint = CheckpointId(max(0, self.newest - back))
        due = [each for each in sorted(self.life.waiting) if each <= checkpoint]
        for each in due[-1:]:
            self._ages(self.life.waiting[each], age_ms)
        commits = self._due_commits(tuple(self.life.waiting.pop(each) for each in due))
        self._is_told(CompletionNotified(checkpoint, self.now_ms), *commits)

    @precondition(lambda self: self.life.asked)
    @rule(pick=_pick)
    def commit(self, pick: int) -> None:
        """The external system reports that a commit succeeded, now or before."""
        transaction = self._answered(pick)
        self._is_told(TransactionCommitted(transaction), *self._due_failure())

    @precondition(lambda self: self.life.asked)
    @rule(pick=_pick, age_ms=_ages)
    def refuse(self, pick: int, age_ms: int) -> None:
        """A commit is refused. The sink ignores this for a restored transaction that may have timed out."""
        transaction, life = self._answered(pick), self.life
        self._ages(transaction, age_ms)
        is_late = (
            self.settings.ignore_late_commit_errors
            and self.settings.transaction_timeout_ms is not None
            and transaction in life.restored
            and self.now_ms > transaction.begun_ms + _TIMEOUT_MS
        )
        error = f"{transaction} was refused at {self.now_ms}"
        if life.error is None and not is_late:
            life.error = error
        fact = CommitRefused(transaction, error, self.now_ms)
        self._is_told(fact, *self._due_failure())
        self._is_told(fact)  # an answer that comes twice changes nothing

    def _ages(self, transaction: Transaction, age_ms: int) -> None:
        """Let time pass until the transaction has this age."""
        self.now_ms = max(self.now_ms, transaction.begun_ms + age_ms)

    def _answered(self, pick: int) -> Transaction:
        return self.life.asked.pop(pick % len(self.life.asked))

    def _due_failure(self) -> list[SinkEffect]:
        """Return the failure that is due once all commits are answered, if one was refused."""
        error = self.life.error
        if self.life.asked or error is None:
            return []
        self.life.error = None
        return [FailSink(error)]

    def _due_commits(self, transactions: tuple[Transaction, ...]) -> list[SinkEffect]:
        due: list[SinkEffect] = []
        for each in transactions:
            age_ms = self.now_ms - each.begun_ms
            warns = self.settings.warn_ratio is not None and self.settings.transaction_timeout_ms is not None
            due += [WarnOfTimeout(age_ms, _TIMEOUT_MS)] if warns and age_ms > _WARNS_MS else []
            due.append(Commit(each))
        self.life.asked += transactions
        return due

    # -------------------------------------------------------------- judging

    def _is_told(self, fact: SinkFact, *due: SinkEffect) -> None:
        effects = self.life.sink.step(fact)
        expect(effects == due, TWO_PHASES, f"{fact} leads to {effects}, due are {due}")

    def _is_refused(self, fact: SinkFact, kind: type[Exception]) -> None:
        try:
            effects = self.life.sink.step(fact)
        except kind:
            return
        expect(holds=False, invariant=TWO_PHASES, what=f"{fact} leads to {effects}, and is to be refused")
