"""Translates a door's facts and effects into events: the same for simulations, explorations and traces of real runs.

The stores write their own events. This module has those between a door and its driver.
"""

from collections.abc import Iterator

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.identifiers import Generation
from checkpointing.messages import (
    CancelJudgement,
    CheckTables,
    Effect,
    Fact,
    FilesCompacted,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    RunMicroBatch,
    SavepointFailed,
    SavepointRequested,
    SavepointTaken,
    SliceOffered,
    SourceIdle,
    SuitesJudged,
    TableCheckFailed,
    TablesChecked,
    WakeAt,
)
from spec.compaction_events import CompactionTold
from spec.history import (
    CheckBegun,
    CheckpointEnded,
    Event,
    SavepointAnswered,
    SavepointAsked,
    SegmentSent,
    SegmentsRun,
    SegmentsTakenBack,
    TablesLookedAt,
    WorkMeasured,
)
from spec.hook_events import answered, called
from spec.judgement_events import JudgementBegun, JudgementBroke, JudgementCancelled, JudgementTold
from spec.upstream import CutReached


def events_of_fact(generation: Generation, fact: Fact) -> Iterator[Event]:  # noqa: PLR0912 - one line a fact
    """Yield the events of a fact: which segments were sent, and who asked for what."""
    match fact:
        case SourceIdle():
            """It is the most frequent fact, and changes nothing."""
        case SliceOffered(SourceSlice() as sent):
            yield from _sent(generation, sent)
        case MicroBatchFinished():
            for output in fact.outputs:
                yield SegmentSent(generation, fact.vertex, fact.micro_batch, StagedSegment(output.emitted))
            if fact.work:
                yield WorkMeasured(generation, fact.vertex, fact.micro_batch, fact.work)
        case MicroBatchNotStaged():
            yield SegmentsTakenBack(generation, fact.vertex, fact.micro_batch)
        case SavepointRequested():
            yield SavepointAsked(generation, fact.request, fact.kind)
        case SuitesJudged():
            yield JudgementTold(generation, fact.vertex, fact.checkpoint, fact.passed, fact.report)
        case JudgementFailed():
            yield JudgementBroke(generation, fact.vertex, fact.checkpoint)
        case FilesCompacted() if fact.found:
            yield CompactionTold(
                generation, frozenset(each.into.path for one in fact.found for each in one.compactions)
            )
        case TablesChecked():
            yield TablesLookedAt(generation, fact.checkpoint, allow=not fact.problems)
        case TableCheckFailed():
            yield TablesLookedAt(generation, fact.checkpoint, allow=None)
        case _:
            yield from answered(generation, fact)


def _sent(generation: Generation, sent: SourceSlice) -> Iterator[Event]:
    """Yield the rows of a slice, if it has any, and the cut of another job that it reaches."""
    if sent.rows or sent.cut is None:
        yield SegmentSent(generation, sent.source, 0, sent)
    if sent.cut is not None and sent.at_cut:
        yield CutReached(generation, sent.source, sent.split, sent.end, sent.cut)


def events_of_effect(generation: Generation, effect: Effect) -> Iterator[Event]:
    """Yield the events of an effect: with what a micro-batch begins, and what listeners are told of a checkpoint."""
    match effect:
        case PollSource() | WakeAt():
            """They are the most frequent effects, and change nothing."""
        case RunMicroBatch():
            yield SegmentsRun(generation, effect.vertex, effect.micro_batch, effect.inputs)
        case JudgeSuites():
            judged = frozenset(file.path for _, files in effect.files for file in files)
            yield JudgementBegun(generation, effect.vertex, effect.checkpoint, judged)
        case CheckTables():
            yield CheckBegun(generation, effect.checkpoint, effect.tables, effect.leaving)
        case CancelJudgement():
            yield JudgementCancelled(generation, effect.vertex, effect.checkpoint)
        case NotifyComplete():
            yield CheckpointEnded(generation, effect.checkpoint, None, effect.positions)
        case NotifyAborted():
            yield CheckpointEnded(generation, effect.checkpoint, effect.reason)
        case SavepointTaken():
            yield SavepointAnswered(generation, effect.request, effect.checkpoint)
        case SavepointFailed():
            yield SavepointAnswered(generation, effect.request, None)
        case _:
            yield from called(generation, effect)
