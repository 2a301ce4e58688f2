"""The invariants of checkpoints that fail: for which reasons, and how many failures the job survives (E3, E5).

They compare what judges and stores answered with what listeners were told. So traces of real runs are judged too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, VertexId
from checkpointing.messages import EndTick, InputSegments, TickOutcome
from spec.failures_in_a_row import FLINKS_LIST, FailuresInARow
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    History,
    SavepointAsked,
    SegmentsRun,
    SegmentsTakenBack,
    TablesLookedAt,
    TickOver,
)
from spec.judgement_events import JudgementBroke, JudgementTold

GIVEN = frozenset(
    {
        Reason.QUALITY,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.TABLE_CHANGED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons for which a checkpoint may fail only if an answer gave them."""

_Checkpoint = tuple[Generation, CheckpointId]


@dataclass(slots=True)
class _Answers:
    """What was answered about each checkpoint before it ended."""

    given: dict[_Checkpoint, set[Reason]] = field(default_factory=dict)
    must: dict[_Checkpoint, Reason] = field(default_factory=dict)
    """Checkpoints that must fail now, and the reason."""
    ended: set[_Checkpoint] = field(default_factory=set)
    unwritten: set[Generation] = field(default_factory=set)
    """Generations in which a micro-batch could not be written. Any checkpoint may have waited for it."""

    def give(self, checkpoint: _Checkpoint, reason: Reason) -> None:
        """Note a reason. The first one decides, unless the checkpoint has ended."""
        self.given.setdefault(checkpoint, set()).add(reason)
        if checkpoint not in self.ended:
            self.must.setdefault(checkpoint, reason)

    def end(self, checkpoint: _Checkpoint, reason: Reason | None) -> Iterator[str]:
        """Take the end of a checkpoint. Yield what is wrong with its reason."""
        self.ended.add(checkpoint)
        due = self.must.pop(checkpoint, None)
        told = "it completed" if reason is None else f"it failed with {reason.name}"
        if due is not None and due is not reason:
            yield f"checkpoint {checkpoint[1]} had to fail with {due.name}, and {told}"
        elif reason is Reason.CHECKPOINT_ASYNC_EXCEPTION and checkpoint[0] in self.unwritten:
            return
        elif reason in GIVEN and reason not in self.given.get(checkpoint, ()):
            yield f"checkpoint {checkpoint[1]}: {told}, and no answer said so"


def wrongly_declined(history: History) -> Iterator[str]:
    """Yield every checkpoint that failed for a reason that no answer gave, or went on although an answer gave one."""
    answers = _Answers()
    for event in history.events:
        match event:
            case JudgementTold(generation, _, checkpoint, passed) if not passed:
                answers.give((generation, checkpoint), Reason.QUALITY)
            case SegmentsTakenBack(generation):
                answers.unwritten.add(generation)
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
class _TakenBack:
    """A micro-batch that could not be written: its segments, and the id that a barrier must exceed to retry it."""

    inputs: tuple[InputSegments, ...]
    after: CheckpointId


@dataclass(slots=True)
class _Tries:
    """What one generation's vertices run over, and what they had to take back."""

    ids: list[CheckpointId] = field(default_factory=list)
    complete: CheckpointId = NO_CHECKPOINT
    running: dict[VertexId, tuple[InputSegments, ...]] = field(default_factory=dict)
    owed: dict[VertexId, _TakenBack] = field(default_factory=dict)
    used: dict[VertexId, CheckpointId] = field(default_factory=dict)
    """The newest checkpoint whose barrier allowed a vertex to try again."""

    def takes_back(self, vertex: VertexId) -> None:
        """Note a micro-batch that a vertex could not write."""
        after = max(self.complete, self.used.get(vertex, NO_CHECKPOINT))
        self.owed[vertex] = _TakenBack(self.running.get(vertex, ()), after)

    def runs(self, vertex: VertexId, inputs: tuple[InputSegments, ...]) -> Iterator[str]:
        """Take a micro-batch. If it is a retry, yield what is wrong with it."""
        self.running[vertex] = inputs
        owed = self.owed.pop(vertex, None)
        if owed is None:
            return
        newer = [checkpoint for checkpoint in self.ids if checkpoint > owed.after]
        if not newer:
            yield f"{vertex} tried again before the next barrier"
        self.used[vertex] = min(newer, default=owed.after)
        now = {(each.upstream, each.input): each.segments for each in inputs}
        for each in owed.inputs:
            again = now.get((each.upstream, each.input), ())
            if any(one != other for one, other in zip(each.segments, again, strict=False)):
                yield f"{vertex} tried again with other rows of {each.upstream} than those that it took back"


def badly_retried(history: History) -> Iterator[str]:
    """Yield every vertex that retries a micro-batch too soon, or with other rows than it could not write."""
    generations: dict[Generation, _Tries] = {}
    for event in history.events:
        match event:
            case CheckpointTriggered(generation, checkpoint):
                generations.setdefault(generation, _Tries()).ids.append(checkpoint)
            case CheckpointEnded(generation, checkpoint, None):
                tries = generations.setdefault(generation, _Tries())
                tries.complete = max(tries.complete, checkpoint)
            case SegmentsRun(generation, vertex, _, inputs):
                yield from generations.setdefault(generation, _Tries()).runs(vertex, inputs)
            case SegmentsTakenBack(generation, vertex):
                generations.setdefault(generation, _Tries()).takes_back(vertex)
            case _:
                pass


def wrongly_counted(history: History) -> Iterator[str]:
    """Yield every tick that survived one failed checkpoint too many, or that failed too early.

    A tick that was asked for savepoints is not judged. Other rules decide whether their failures count; the
    coordinator's machine knows them.
    """
    if history.tolerable is None:
        return
    rows: dict[Generation, FailuresInARow] = {}
    asked: set[Generation] = set()
    for event in history.without_flow:
        match event:
            case SavepointAsked(generation):
                asked.add(generation)
            case CheckpointEnded(generation, checkpoint, reason):
                rows.setdefault(generation, FailuresInARow()).ended(checkpoint, reason, history.tolerable)
            case TickOver(generation, end) if generation not in asked:
                yield from _of_tick(generation, end, rows.get(generation, FailuresInARow()), history.tolerable)
            case _:
                pass


def _of_tick(generation: Generation, end: EndTick, row: FailuresInARow, tolerable: int) -> Iterator[str]:
    """Judge the end of a tick.

    A commit with unknown outcome ends it with FINALIZE_CHECKPOINT_FAILURE, and fails no checkpoint.
    """
    if row.is_over and end.outcome is not TickOutcome.FAILED:
        yield f"generation {generation} survived more than {tolerable} failed checkpoints in a row"
    too_many = end.reason in FLINKS_LIST - {Reason.FINALIZE_CHECKPOINT_FAILURE}
    if too_many and not row.is_over:
        yield f"generation {generation} ended with {end.reason}, after {row.count} failures in a row of {tolerable}"
