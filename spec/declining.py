"""What must be true of checkpoints that fail: for which reasons they do, and how many the job survives (E3, E5).

Told by what judges and stores answered, and by what listeners were told, so traces of real runs are judged too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.messages import EndTick, TickOutcome
from spec.history import (
    CheckpointEnded,
    History,
    JudgementBroke,
    JudgementTold,
    SavepointAsked,
    TablesLookedAt,
    TickOver,
)

FLINKS_LIST = frozenset(
    {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_EXPIRED,
        Reason.CHECKPOINT_DECLINED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons that Flink's `CheckpointFailureManager` counts."""
GIVEN = frozenset(
    {
        Reason.QUALITY,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.TABLE_CHANGED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons that a checkpoint fails for only if an answer gave them."""

_Checkpoint = tuple[Generation, CheckpointId]


@dataclass(slots=True)
class _Answers:
    """What was answered about each checkpoint until it ended."""

    given: dict[_Checkpoint, set[Reason]] = field(default_factory=dict)
    must: dict[_Checkpoint, Reason] = field(default_factory=dict)
    """Checkpoints that must fail now, and for which reason."""
    ended: set[_Checkpoint] = field(default_factory=set)

    def give(self, checkpoint: _Checkpoint, reason: Reason) -> None:
        """Note a reason; the first one decides unless the checkpoint has ended."""
        self.given.setdefault(checkpoint, set()).add(reason)
        if checkpoint not in self.ended:
            self.must.setdefault(checkpoint, reason)

    def end(self, checkpoint: _Checkpoint, reason: Reason | None) -> Iterator[str]:
        """Take the end of a checkpoint; yield what is wrong with its reason."""
        self.ended.add(checkpoint)
        due = self.must.pop(checkpoint, None)
        told = "it completed" if reason is None else f"it failed with {reason.name}"
        if due is not None and due is not reason:
            yield f"checkpoint {checkpoint[1]} had to fail with {due.name}, and {told}"
        elif reason in GIVEN and reason not in self.given.get(checkpoint, ()):
            yield f"checkpoint {checkpoint[1]}: {told}, and no answer said so"


def wrongly_declined(history: History) -> Iterator[str]:
    """Yield every checkpoint that failed for a reason that no answer gave, or went on although one did."""
    answers = _Answers()
    for event in history.events:
        match event:
            case JudgementTold(generation, _, checkpoint, passed) if not passed:
                answers.give((generation, checkpoint), Reason.QUALITY)
            case JudgementBroke(generation, _, checkpoint):
                answers.give((generation, checkpoint), Reason.CHECKPOINT_ASYNC_EXCEPTION)
            case TablesLookedAt(generation, checkpoint, allow) if not allow:
                known = Reason.FINALIZE_CHECKPOINT_FAILURE if allow is None else Reason.TABLE_CHANGED
                answers.give((generation, checkpoint), known)
            case CheckpointEnded(generation, checkpoint, reason):
                yield from answers.end((generation, checkpoint), reason)
            case TickOver(generation):
                for each in [each for each in answers.must if each[0] == generation]:
                    yield f"checkpoint {each[1]} had to fail with {answers.must.pop(each).name}, and never did"
            case _:
                pass


@dataclass(slots=True)
class _Row:
    """The failures in a row of one generation."""

    count: int = 0
    success: CheckpointId = NO_CHECKPOINT
    is_over: bool = False
    """One too many was counted."""

    def ended(self, checkpoint: CheckpointId, reason: Reason | None, tolerable: int) -> None:
        """Take the end of a checkpoint."""
        if checkpoint < self.success:
            return
        if reason is None:
            self.count, self.success = 0, checkpoint
        elif reason in FLINKS_LIST:
            self.count += 1
            self.is_over = self.is_over or self.count > tolerable


def wrongly_counted(history: History) -> Iterator[str]:
    """Yield every tick that survived one failed checkpoint too many, or failed of them too early.

    Of a tick that was asked for savepoints nothing is said: their failures count by other rules, which the machine of
    the coordinator knows.
    """
    if history.tolerable is None:
        return
    rows: dict[Generation, _Row] = {}
    asked: set[Generation] = set()
    for event in history.events:
        match event:
            case SavepointAsked(generation):
                asked.add(generation)
            case CheckpointEnded(generation, checkpoint, reason):
                rows.setdefault(generation, _Row()).ended(checkpoint, reason, history.tolerable)
            case TickOver(generation, end) if generation not in asked:
                yield from _of_tick(generation, end, rows.get(generation, _Row()), history.tolerable)
            case _:
                pass


def _of_tick(generation: Generation, end: EndTick, row: _Row, tolerable: int) -> Iterator[str]:
    """A commit of unknown fate ends a tick with FINALIZE_CHECKPOINT_FAILURE too, and fails no checkpoint."""
    if row.is_over and end.outcome is not TickOutcome.FAILED:
        yield f"generation {generation} survived more than {tolerable} failed checkpoints in a row"
    too_many = end.reason in FLINKS_LIST - {Reason.FINALIZE_CHECKPOINT_FAILURE}
    if too_many and not row.is_over:
        yield f"generation {generation} ended with {end.reason}, after {row.count} failures in a row of {tolerable}"
