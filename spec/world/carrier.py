"""Carries out a door's effects on the simulated world, with the faults that a scenario draws."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, assert_never

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.commit.fencing import rival_of
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, Generation, SplitId, VertexId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CompactFiles,
    CoordinatorReset,
    CoordinatorResetFailed,
    CutRecorded,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    FilesCompacted,
    HookRestored,
    HookRestoreFailed,
    JudgementFailed,
    JudgeSuites,
    LookForRival,
    MicroBatchFailed,
    MicroBatchFinished,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowUnknown,
    RunMicroBatch,
    SavepointFailed,
    SavepointRequested,
    SavepointTaken,
    SliceOffered,
    SourceEnded,
    SourceIdle,
    SubtaskOutput,
    SuitesJudged,
    TableCheckFailed,
    TablesChecked,
    WakeAt,
)
from spec.history import (
    CheckBegun,
    CheckpointEnded,
    CompactionTold,
    Event,
    JudgementBegun,
    JudgementBroke,
    JudgementCancelled,
    JudgementTold,
    SavepointAnswered,
    SavepointAsked,
    SegmentSent,
    SegmentsRun,
    SegmentsTakenBack,
    TablesLookedAt,
    WorkMeasured,
    answered,
    called,
)
from spec.reference.pipeline import (
    ESTIMATED,
    PUBLISHES,
    ROW_BYTES,
    SEQUENCE,
    CutReached,
    Upstreams,
    position_before,
    rows_before,
)
from spec.world.faults import NONE, Faults, Scenario
from spec.world.micro_batches import MicroBatches, compacted
from spec.world.stores import NO_ANSWER, FileGoneError, Harm, StoreBrokeError, World, merged, optimize, undo_merges

if TYPE_CHECKING:
    from collections.abc import Collection


QUALITY_MESSAGE = "a row was bad: repair it"


class Hands:
    """Acts on the world. `readable` has the number of rows that each split has now."""

    def __init__(self, world: World, random: Random, *, in_order: bool) -> None:
        self._world = world
        self._random = random
        self._micro_batches = MicroBatches(world, in_order=in_order)
        self.readable: dict[SplitId, int] = {}
        self.transaction_rows = 1
        """How many rows a transaction of a source has."""
        self.upstreams: Upstreams | None = None
        """The jobs whose cuts the sources read, if they read any."""
        self.ending: Collection[SplitId] = ()
        """The splits that end after the last readable row, instead of being idle there."""
        self._seen: dict[tuple[Generation, SplitId], int] = {}
        """How many rows each split had when a generation last polled it."""
        self._retained: dict[tuple[Generation, CheckpointId], frozenset[CheckpointId]] = {}

    def cut_groups(self, graph: JobGraph) -> dict[VertexId, str]:
        """Return the upstream job of each source that reads cuts."""
        return {} if self.upstreams is None else self.upstreams.groups(graph)

    def offered(self, graph: JobGraph, by: Generation, *, still: bool) -> tuple[tuple[SplitId, int], ...]:
        """Return how many rows of each split its source offered when this generation last polled it.

        Without `still`, splits that read cuts are left out, because another job may publish at any time.
        """
        splits = [split for source in graph.sources() for split in source.splits]
        known = [split for split in splits if still or not self._reads_cuts(split)]
        return tuple((split, self._offers(split, by)) for split in known)

    def _reads_cuts(self, split: SplitId) -> bool:
        return self.upstreams is not None and self.upstreams.has(split)

    def _offers(self, split: SplitId, by: Generation) -> int:
        if (by, split) in self._seen:
            return self._seen[by, split]
        if self.upstreams is None or not self.upstreams.has(split):
            return self.readable[split]
        return self.upstreams.place(self.upstreams.newest(split), split)

    def begin(self, effect: Effect, generation: Generation) -> None:
        """Read what the effect will need, before other processes have their turns."""
        if isinstance(effect, RecordCut):
            self._retained[generation, effect.checkpoint] = self._world.retained(effect.checkpoint)

    def carry_out(  # noqa: C901, PLR0911, PLR0912 - a line for each effect
        self, effect: Effect, generation: Generation, faults: Faults
    ) -> Fact | None:
        """Carry out one effect. Return the fact that answers it, or None if it has no answer.

        Raises StoreBrokeError if a write fails, and no fact can report its failure.
        """
        match effect:
            case PollSource():
                return self._poll(effect, generation, faults)
            case RunMicroBatch():
                return self._run(effect, faults)
            case JudgeSuites():
                return self._judge(effect, generation, faults)
            case CheckTables():
                return self._check(effect, generation, faults)
            case AppendRow():
                return self._append(effect, faults)
            case PublishTable():
                return self._publish(effect, faults)
            case RecordCut():
                return self._record(effect, generation)
            case CompactFiles():
                return self._compact(effect, generation, faults)
            case DiscardFiles():
                self._world.discard(self._world.readers.discardable(effect.paths, self._world.now_ms))
            case LookForRival():
                _, rows = self._world.before if self._world.is_stale() else (0, self._world.rows())
                return RivalSeen(rival_of(rows, effect.generation))
            case AskHook():
                return self._ask(effect, faults)
            case RestoreHook() | ResetHook():
                broken = self._strikes(faults.hook_restore_fails)
                return HookRestoreFailed(effect.hook, "it is away") if broken else HookRestored(effect.hook)
            case AskOperatorCoordinator() | ResetOperatorCoordinator():
                return self._to_coordinator(effect, generation, faults)
            case (
                CancelJudgement()
                | CloseHook()
                | NotifyComplete()
                | NotifyAborted()
                | SavepointTaken()
                | SavepointFailed()
                | WakeAt()
                | EndTick()
            ):
                pass
            case _:
                assert_never(effect)
        return None

    def _poll(self, effect: PollSource, generation: Generation, faults: Faults) -> Fact:
        if self._strikes(faults.poll_fails):
            return PollFailed(effect.source, effect.split, f"a file of split {effect.split} is damaged")
        start = rows_before(effect.position)
        if self.upstreams is not None and self.upstreams.has(effect.split):
            return self._poll_cut(effect, generation, self.upstreams)
        readable = self._seen[generation, effect.split] = self.readable.get(effect.split, 0)
        rows = min(effect.max_rows, readable - start)
        if rows <= 0:
            return (SourceEnded if effect.split in self.ending else SourceIdle)(effect.source, effect.split)
        whole = (start + rows) // self.transaction_rows * self.transaction_rows
        end = whole if whole > start else (start // self.transaction_rows + 1) * self.transaction_rows
        ends = (position_before(start), position_before(end))
        rows, estimated = end - start, effect.split == ESTIMATED
        size = rows * ROW_BYTES
        return SliceOffered(SourceSlice(effect.source, effect.split, *ends, "", rows, size, rows_estimated=estimated))

    def _poll_cut(self, effect: PollSource, generation: Generation, upstreams: Upstreams) -> Fact:
        """Answer with rows up to the wanted cut of another job, by default its newest, or with idle if there are none.

        A split that was never read gets a slice to its first cut even without a row, as `CutSource.poll` documents.
        """
        if effect.cut is None and self._strikes(PUBLISHES):
            upstreams.publish(effect.split)
        number = upstreams.newest(effect.split) if effect.cut is None else int(effect.cut)
        start, place = rows_before(effect.position), upstreams.place(number, effect.split)
        self._seen[generation, effect.split] = place
        is_there = number == 0 or (effect.position is not None and start == place)
        if effect.cut is None and is_there:
            return SourceIdle(effect.source, effect.split)
        end = min(start + effect.max_rows, place)
        size = (end - start) * ROW_BYTES
        return SliceOffered(
            SourceSlice(
                effect.source,
                effect.split,
                effect.position or position_before(0),
                position_before(end),
                "",
                end - start,
                size,
                cut=str(number),
                at_cut=end == place,
            )
        )

    def _run(self, effect: RunMicroBatch, faults: Faults) -> Fact:
        failed = MicroBatchFailed(effect.vertex, effect.micro_batch, "a task died")
        try:
            finished = self._micro_batches.run(effect)
        except FileGoneError:
            return failed
        if self._strikes(faults.micro_batch_not_staged):
            self._clear_away(effect, finished)
            return MicroBatchNotStaged(effect.vertex, effect.micro_batch, "the disk is full")
        return failed if self._strikes(faults.micro_batch_fails) else finished

    def _compact(self, effect: CompactFiles, generation: Generation, faults: Faults) -> Fact:
        if self._strikes(faults.compaction_fails):
            return FilesCompacted(error="the disk is full")
        try:
            found = compacted(self._world, effect, generation)
        except FileGoneError:
            return FilesCompacted(error="a file is gone")
        if found.found and self._strikes(faults.optimize):
            optimize(self._world, found.found[0].table)
        return found

    def _clear_away(self, effect: RunMicroBatch, finished: MicroBatchFinished) -> None:
        """Delete what a micro-batch wrote before the disk was full.

        After every second micro-batch, these files stay.
        """
        had = {keyed.file.path for own in effect.ranges for entry in own for keyed in entry.files}
        written = (path for output in finished.outputs for path in _written(output) if path not in had)
        if finished.micro_batch % 2:
            self._world.discard(tuple(written))

    def _judge(self, effect: JudgeSuites, generation: Generation, faults: Faults) -> Fact:
        try:
            for _, files in effect.files:
                for file in files:
                    self._world.read(file.path, f"suites of checkpoint {effect.checkpoint}", generation)
        except FileGoneError:
            return JudgementFailed(effect.vertex, effect.checkpoint, "a file is gone")
        if self._strikes(faults.judge_fails):
            return JudgementFailed(effect.vertex, effect.checkpoint, "the judge is ill")
        passed = not self._strikes(faults.suite_fails)
        return SuitesJudged(effect.vertex, effect.checkpoint, passed, "{}", "" if passed else QUALITY_MESSAGE)

    def _ask(self, effect: AskHook, faults: Faults) -> Fact | None:
        """Ask a hook. Its state holds the checkpoint's id. The hook `SEQUENCE` has no state at every second id."""
        if self._strikes(faults.hook_hangs):
            return None
        if self._strikes(faults.hook_fails):
            return HookFailed(effect.hook, effect.checkpoint, "it is away")
        if self._strikes(faults.hook_state_is_bad):
            return HookAnswered(effect.hook, effect.checkpoint, "{")
        silent = effect.hook == SEQUENCE and effect.checkpoint % 2
        state = None if silent else json.dumps([effect.hook, effect.checkpoint, effect.triggered_ms])
        return HookAnswered(effect.hook, effect.checkpoint, state)

    def _to_coordinator(
        self, effect: AskOperatorCoordinator | ResetOperatorCoordinator, generation: Generation, faults: Faults
    ) -> Fact:
        """Restore a source's coordinator, or ask it. Its state holds the request. It has no state at every third id."""
        name = effect.coordinator
        if isinstance(effect, ResetOperatorCoordinator):
            broken = self._strikes(faults.hook_restore_fails)
            return CoordinatorResetFailed(name, "it is away") if broken else CoordinatorReset(name)
        checkpoint = effect.checkpoint
        if self._strikes(faults.hook_fails):
            return OperatorCoordinatorFailed(name, checkpoint, "it is away")
        if self._strikes(faults.hook_state_is_bad):
            return OperatorCoordinatorAnswered(name, checkpoint, "{")
        silent = effect.checkpoint % 3 == 0
        return OperatorCoordinatorAnswered(
            name, checkpoint, None if silent else json.dumps([name, checkpoint, generation])
        )

    def _check(self, effect: CheckTables, generation: Generation, faults: Faults) -> Fact:
        if self._strikes(faults.check_fails):
            return TableCheckFailed(effect.checkpoint, "the log cannot be read")
        changed = ("a column was dropped: put it back",) if self._strikes(faults.table_problem) else ()
        if faults == NONE:
            undo_merges(self._world, effect.leaving)
        moved = tuple(f"a neighbour has merged {path}: undo it" for path in merged(self._world, effect.leaving))
        checked = TablesChecked(effect.checkpoint, (*changed, *moved))
        return checked if checked.problems or not effect.pre_commits else self._vote(effect, generation, faults)

    def _vote(self, effect: CheckTables, generation: Generation, faults: Faults) -> Fact:
        """Let the outside sinks pre-commit. If one sink refuses or does not answer, others may have voted already."""
        harm, refused = self._world.harm(), self._strikes(faults.check_fails)
        number = self._random.randrange(len(effect.pre_commits)) if refused else len(effect.pre_commits)
        votes = self._world.outside.vote(effect, generation, refuses=number)
        if harm is not Harm.WRITE_LOST:
            self._world.history.events.extend(votes)
        if refused or harm is not None:
            return TableCheckFailed(effect.checkpoint, "an outside sink does not take the rows")
        return TablesChecked(effect.checkpoint, ())

    def _publish(self, effect: PublishTable, faults: Faults) -> Fact:
        failed = PublishFailed(effect.checkpoint, effect.publication.table, "the log refuses")
        harm = self._world.harm()
        if self._strikes(faults.publish_fails) or harm is Harm.WRITE_LOST:
            return failed
        answer = self._world.publish(effect.checkpoint, effect.publication)
        return failed if harm is Harm.REPLY_LOST else answer

    def _record(self, effect: RecordCut, generation: Generation) -> Fact:
        """Record a cut. No fact reports a failure of this, so the error ends the tick."""
        begun_with = self._retained.pop((generation, effect.checkpoint), None)
        retained = begun_with or self._world.retained(effect.checkpoint)
        harm = self._world.harm()
        if harm is not Harm.WRITE_LOST:
            self._world.record_cut(effect.checkpoint, effect.versions, retained)
        if harm is not None:
            raise StoreBrokeError(NO_ANSWER)
        return CutRecorded(effect.checkpoint)

    def _append(self, effect: AppendRow, faults: Faults) -> Fact:
        harm = self._world.harm()
        if self._strikes(faults.write_lost) or harm is Harm.WRITE_LOST:
            self._world.as_stored(effect.row)  # its manifests are there, and the entry is not
            return RowUnknown(effect.row.nonce, NO_ANSWER)
        answer = self._world.append(effect.row, effect.at_version, effect.subsumed)
        lost = self._strikes(faults.reply_lost) or harm is Harm.REPLY_LOST
        return RowUnknown(effect.row.nonce, "the connection broke") if lost else answer

    def _strikes(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability


def _written(output: SubtaskOutput) -> frozenset[str]:
    """Return the paths of all files in a subtask's output. A range that was written also lists older files."""
    rows = (*output.emitted, *(file for _, file in output.staged))
    keyed = (*output.state, *(file for entry in output.ranges for file in entry.files))
    return frozenset({file.path for file in rows} | {each.file.path for each in keyed})


# ------------------------------------------------------------------
# What a simulated tick waits for: effects in progress, and answers that come late.


@dataclass(slots=True)
class UnderWay:
    """Effects and answers, each with the time at which it is due."""

    effects: list[tuple[int, int, Effect]] = field(default_factory=list)
    answers: list[tuple[int, int, Fact]] = field(default_factory=list)
    _queued: int = 0

    @property
    def due_ms(self) -> int | None:
        """When the next effect or answer is due, or None."""
        effect_ms = self.effects[0][0] if self.effects else None
        answer_ms = self.answers[0][0] if self.answers else None
        if effect_ms is None or answer_ms is None:
            return effect_ms if answer_ms is None else answer_ms
        return min(effect_ms, answer_ms)

    def begin(self, effect: Effect, due_ms: int) -> None:
        """Begin to carry out an effect."""
        self._queued += 1
        heappush(self.effects, (due_ms, self._queued, effect))

    def answer_later(self, fact: Fact, due_ms: int) -> None:
        """Hold an answer back until it is due."""
        self._queued += 1
        heappush(self.answers, (due_ms, self._queued, fact))

    def next_due(self, now_ms: int) -> Effect | None:
        return heappop(self.effects)[2] if self.effects and self.effects[0][0] <= now_ms else None

    def next_answer(self, now_ms: int) -> Fact | None:
        """Remove and return an answer that is due, or None."""
        return heappop(self.answers)[2] if self.answers and self.answers[0][0] <= now_ms else None

    def cancel(self, cancelled: CancelJudgement) -> None:
        """Drop a judgement that still waits for a thread. A judgement that has begun answers nevertheless."""
        if cancelled.checkpoint % 2 == 0:
            asked = cancelled.vertex, cancelled.checkpoint
            self.effects[:] = [each for each in self.effects if not _judges(each[2], asked)]
            heapify(self.effects)

    def clear(self) -> None:
        """Drop all effects and answers."""
        self.effects.clear()
        self.answers.clear()


def latency_ms(effect: Effect, scenario: Scenario, random: Random) -> int:
    """Draw how long an effect takes."""
    longest = scenario.latency_ms
    if isinstance(effect, PollSource):
        slow = effect.split == scenario.slow_split
        return random.randint(100, 400) if slow else random.randint(1, longest["poll"])
    return random.randint(1, longest["run" if isinstance(effect, RunMicroBatch | CompactFiles) else "store"])


def _judges(effect: Effect, asked: tuple[object, object]) -> bool:
    return isinstance(effect, JudgeSuites) and (effect.vertex, effect.checkpoint) == asked


# ------------------------------------------------------------------
# Translates a door's facts and effects into events: the same for simulations and traces of real runs.
#
# The stores write their own events. This module writes the events between a door and its driver.


def events_of_fact(generation: Generation, fact: Fact) -> Iterator[Event]:  # noqa: PLR0912 - one line a fact
    """Yield the events of a fact, such as segments that were sent and requests for savepoints."""
    match fact:
        case SourceIdle():
            """This fact is the most frequent one, and has no event."""
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
    """Yield the events of an effect: the inputs of a micro-batch, and the reports on a checkpoint to listeners."""
    match effect:
        case PollSource() | WakeAt():
            """These effects are the most frequent ones, and have no events."""
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
