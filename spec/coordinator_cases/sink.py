"""The two-phase-commit sink with an external system of transactions around it."""

from collections.abc import Mapping
from typing import assert_never

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
    StoreState,
    Transaction,
    TransactionCommitted,
    WarnOfTimeout,
    WriteElement,
)
from checkpointing.commit.two_phase_sink import SinkSettings, TwoPhaseCommitSink
from spec.coordinator_cases.unit import Step, StepError, UnknownWordError, Value


class SinkUnit:
    """One sink subtask and what it writes to."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        """Open a fresh sink: it has a first, empty transaction."""
        self._given = given
        self._now_ms = 0
        self._lives = 0
        self._rows: dict[Transaction, list[str]] = {}
        self._committed: set[Transaction] = set()
        self._aborted: set[Transaction] = set()
        self._aborts = 0
        self._states: dict[int, SinkState] = {}
        self._warnings: list[list[int]] = []
        self._faults: dict[str, bool] = {"pre_commit_fails": False, "commit_fails": False}
        self._error: str | None = None
        self._sink = self._new_sink()
        self._tell(SinkOpened(self._now_ms))

    def _new_sink(self) -> TwoPhaseCommitSink:
        self._lives += 1
        self._aborts = 0
        return TwoPhaseCommitSink(
            SinkSettings(
                name=f"life {self._lives}",
                transaction_timeout_ms=self._given.get("transaction_timeout_ms"),
                warn_ratio=self._given.get("warn_ratio"),
                ignore_late_commit_errors=bool(self._given.get("ignore_late_commit_errors", False)),
            )
        )

    def do(self, step: Step) -> None:
        """Do a step."""
        self._error = None
        try:
            self._call(step)
        except NoOpenTransactionError as error:
            raise StepError("no_open_transaction") from error
        if self._error is not None:
            raise StepError(self._error)

    def _call(self, step: Step) -> None:
        match step.word:
            case "element":
                self._tell(ElementArrived(step.args[0]))
            case "snapshot":
                self._tell(SinkSnapshotRequested(step.args[0], self._now_ms))
            case "notify_complete":
                self._tell(CompletionNotified(step.args[0], self._now_ms))
            case "finish":
                self._tell(InputFinished())
            case "close":
                self._tell(SinkClosed())
            case "advance_ms":
                self._now_ms += step.args[0]
            case "set":
                self._faults[step.args[0]] = step.args[1]
            case "restore":
                self._sink = self._new_sink()
                self._tell(SinkOpened(self._now_ms, self._states[step.args[1]]))
            case _:
                raise UnknownWordError(step.word)

    def _tell(self, fact: SinkFact) -> None:
        answers = [answer for effect in self._sink.step(fact) if (answer := self._carry_out(effect)) is not None]
        for answer in answers:
            self._tell(answer)

    def _carry_out(self, effect: SinkEffect) -> SinkFact | None:
        match effect:
            case BeginTransaction():
                self._rows[effect.transaction] = []
            case WriteElement():
                self._rows[effect.transaction].append(str(effect.value))
            case PreCommit():
                return (
                    PreCommitFailed("pre_commit_error")
                    if self._faults["pre_commit_fails"]
                    else PreCommitted(self._now_ms)
                )
            case Commit():
                return self._commit(effect.transaction)
            case Abort():
                self._aborts += 1
                self._aborted.add(effect.transaction)
            case StoreState():
                self._states[effect.checkpoint] = effect.state
            case WarnOfTimeout():
                self._warnings.append([effect.age_ms, effect.timeout_ms])
            case FailSink():
                self._error = effect.error
            case _:
                assert_never(effect)
        return None

    def _commit(self, transaction: Transaction) -> SinkFact:
        if self._faults["commit_fails"]:
            return CommitRefused(transaction, "commit_error", self._now_ms)
        self._committed.add(transaction)
        return TransactionCommitted(transaction)

    def fact(self, name: str, _expected: Value) -> Value:
        """Tell a fact."""
        ended = self._committed | self._aborted
        facts = {
            "visible": sorted(value for transaction in self._committed for value in self._rows[transaction]),
            "open_transactions": len(self._rows.keys() - ended),
            "aborted": self._aborts,
            "warnings": self._warnings,
        }
        return facts[name]
