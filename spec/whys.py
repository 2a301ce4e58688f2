"""Judges the messages of failures: they must hold the words of the part that failed (E5).

A hook, a coordinator, a suite, a table check or a micro-batch says what is wrong. The message of the checkpoint that
fails, or of the tick that ends, must hold the same words. If a checkpoint expires because of a vertex, the message must
name a vertex. A wrong message makes no table wrong, but it misleads its
reader.
"""

from typing import Final

from checkpointing.coordinator.messages import HookFailed, OperatorCoordinatorFailed
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    CoordinatorResetFailed,
    Effect,
    EndTick,
    Fact,
    HookRestoreFailed,
    JudgementFailed,
    MicroBatchFailed,
    NotifyAborted,
    NotifyComplete,
    SuitesJudged,
    TableCheckFailed,
    TablesChecked,
    TickOutcome,
)
from spec.failures_in_a_row import FailuresInARow
from spec.hook_events import coordinator_of
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, begins_commit

_FAILURES: Final = frozenset(
    {
        HookFailed,
        OperatorCoordinatorFailed,
        JudgementFailed,
        SuitesJudged,
        TableCheckFailed,
        TablesChecked,
        MicroBatchFailed,
        HookRestoreFailed,
        CoordinatorResetFailed,
    }
)


class Whys(DoorJudge):
    """Judges the messages of checkpoints that fail, and of a tick that fails."""

    def __init__(self, door: Watched) -> None:
        """Begin with nothing that failed."""
        super().__init__(door)
        self._said: tuple[CheckpointId, tuple[str, ...]] | None = None
        """The checkpoint that fails because of this fact, and the words that its message must hold."""
        self._first: str | None = None
        """The words of the first fact after which the tick cannot go on."""
        self._was_troubled = False
        self._may_have_failed = False
        """True if a checkpoint has failed, and the tick may end because of that. What fails later is not the reason."""
        self._in_a_row = FailuresInARow()
        self._committing: set[CheckpointId] = set()
        """The checkpoints whose commit has begun. Later checkpoints wait until such a commit ends."""

    def told(self, fact: Begun | Fact) -> None:
        """Note what failed, and in which words."""
        self._said = None
        if type(fact) in _FAILURES:
            self._failed(fact)
        self._was_troubled = self.door.is_troubled or self.door.is_stopping

    def _failed(self, fact: Begun | Fact) -> None:
        match fact:
            case HookFailed(hook, checkpoint, message) if (hook, checkpoint) in self.door.asked_hooks:
                self._said = checkpoint, (message,)
            case OperatorCoordinatorFailed(name, checkpoint, message) if (
                coordinator_of(name),
                checkpoint,
            ) in self.door.asked_hooks:
                self._said = checkpoint, (message,)
            case JudgementFailed():
                self._said = fact.checkpoint, (fact.error,)
            case SuitesJudged() if not fact.passed:
                self._said = fact.checkpoint, (fact.message or fact.report,)
            case TableCheckFailed():
                self._said = fact.checkpoint, (fact.error,)
            case TablesChecked() if fact.problems:
                self._said = fact.checkpoint, tuple(fact.problems)
            case MicroBatchFailed() | HookRestoreFailed() | CoordinatorResetFailed() if not (
                self._was_troubled or self._may_have_failed
            ):
                self._first = fact.error if self._first is None else self._first
            case _:
                pass

    def asked(self, effect: Effect) -> None:
        """Judge a message."""
        commits = begins_commit(effect)
        if commits is not None:
            self._committing.add(commits)
        if isinstance(effect, (NotifyAborted, NotifyComplete)):
            self._ended(effect.checkpoint, effect.reason if isinstance(effect, NotifyAborted) else None)
        match effect:
            case NotifyAborted(checkpoint, _) if self._said is not None and checkpoint == self._said[0]:
                self._judge(f"checkpoint {checkpoint}", effect.message, self._said[1])
            case NotifyAborted(checkpoint, Reason.CHECKPOINT_EXPIRED) if self._waits_for_vertices(checkpoint):
                if not any(vertex.id in effect.message for vertex in self.door.setup.graph.vertices):
                    self.wrong(f"a vertex was late for {checkpoint}, but the message names none: {effect.message!r}")
            case EndTick() if self._first is not None:
                if effect.outcome is not TickOutcome.FAILED:
                    self.wrong(f"the tick ended as {effect.outcome.value}, and it had failed: {self._first}")
                self._judge("the tick", effect.message, (self._first,))
            case _:
                pass

    def _ended(self, checkpoint: CheckpointId, reason: Reason | None) -> None:
        """Note whether the tick may end because of this checkpoint. `reason` is None if it was completed."""
        tolerable = self.door.setup.config.tolerable_failures
        self._in_a_row.ended(checkpoint, reason, tolerable)
        counts = reason not in (None, Reason.CHECKPOINT_SUBSUMED)
        suspended = reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND
        self._may_have_failed |= self._in_a_row.is_over or (tolerable == 0 and counts) or suspended

    def _waits_for_vertices(self, checkpoint: CheckpointId) -> bool:
        """Return True if the checkpoint waited for vertices only: not for a hook, ids, or an earlier commit."""
        asked = any(hook[1] == checkpoint for hook in self.door.asked_hooks)
        return not (asked or self.door.reserving or self.door.pending & self._committing)

    def _judge(self, what: str, message: str, said: tuple[str, ...]) -> None:
        missing = [words for words in said if words not in message]
        if missing:
            self.wrong(f"{what} failed with {missing[0]!r}, and people hear {message!r}")
