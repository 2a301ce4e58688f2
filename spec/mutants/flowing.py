"""Plants bugs in the flow of rows, and in timers: credit, quotas, pauses, intervals, timeouts."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.channel_items import Barrier, Segment, SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CommitSucceeded,
    RequestFailed,
    RequestSucceeded,
)
from checkpointing.coordinator.scheduler import PeriodicScheduler
from checkpointing.gate import messages as gate
from checkpointing.gate.handler import Effects
from checkpointing.gate.messages import WakeGateAt
from checkpointing.gate.unaligned import AlternatingAligner
from checkpointing.identifiers import ChannelId, SplitId, VertexId
from checkpointing.job import lingering, readers
from checkpointing.job.credit import Credit
from checkpointing.job.door import JobDoor
from checkpointing.job.ending import Ending
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.readers import SourceReaders, Split
from checkpointing.job.setup import JobSetup
from checkpointing.job.wiring import Wiring
from checkpointing.messages import RunMicroBatch, SavepointKind, SavepointRequested, TimeAdvanced
from spec.explore_job import DrivenJob, SmallJob
from spec.faults import NONE, Faults
from spec.invariants import violations
from spec.mutants.judges import PAUSES, QUOTAS, ROWS_THAT_WAIT, directed
from spec.mutants.planting import Patch, mutant
from spec.pipeline import HOOKS, MAX_PARALLELISM, SPLITS, graph

_INTERVAL_MS = 100

# ------------------------------------------------------------------ credit


@mutant("credit")
def a_row_gives_a_byte_of_credit_back(patch: Patch) -> None:
    """The bug returns rows where bytes were charged."""
    real = Credit.processed

    def processed(self: Credit, channel: ChannelId, size_bytes: int) -> None:
        real(self, channel, size_bytes // 10)

    patch.put(Credit, "processed", processed)


@mutant("credit")
def credit_goes_back_to_the_first_sender(patch: Patch) -> None:
    real = Credit.processed

    def processed(self: Credit, channel: ChannelId, size_bytes: int) -> None:
        real(self, ChannelId(channel.edge, 0), size_bytes)

    patch.put(Credit, "processed", processed)


@mutant("credit")
def a_vertex_runs_as_soon_as_one_subtask_has_credit(patch: Patch) -> None:
    def has_credit(self: JobDoor, run: OperatorRun) -> bool:
        return any(self._job.credit.has(subtask) for subtask in run.vertex.subtasks())

    patch.put(JobDoor, "_has_credit", has_credit)


@mutant("credit", ROWS_THAT_WAIT)
def only_the_first_segment_in_flight_is_charged(patch: Patch) -> None:
    real = Wiring.recover

    def recover(self: Wiring, channel: ChannelId, segment: Segment) -> None:
        run = self.runs[channel.edge.downstream]
        if run.collected:
            run.collect(channel, segment, self.now_ms)
        else:
            real(self, channel, segment)

    patch.put(Wiring, "recover", recover)


@mutant("credit")
def an_idle_split_is_never_asked_again(patch: Patch) -> None:
    real = SourceReaders.found_idle

    def found_idle(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> None:
        real(self, source, name, now_ms)
        self._splits[source, name].idle_until_ms = 2**60

    patch.put(SourceReaders, "found_idle", found_idle)


# ------------------------------------------------------------------ quotas


@mutant("paced")
def an_epoch_begins_without_the_polls_under_way(patch: Patch) -> None:
    real = SourceReaders.barrier_sent

    def barrier_sent(self: SourceReaders, *, last: bool) -> None:
        real(self, last=last)
        self._granted = dict.fromkeys(self._granted, 0)

    patch.put(SourceReaders, "barrier_sent", barrier_sent)


@mutant("paced")
def the_counted_sources_do_not_see_each_others_polls(patch: Patch) -> None:
    real = SourceReaders._budget

    def budget(self: SourceReaders, source: VertexId) -> int:
        every = self._pacing.every_rows
        others = sum(self._granted[other] for other in self._counted if other != source)
        return real(self, source) + (others if every is not None and source in self._counted else 0)

    patch.put(SourceReaders, "_budget", budget)


@mutant("paced", QUOTAS)
def a_source_gives_each_of_its_splits_the_whole_quota(patch: Patch) -> None:
    real = SourceReaders._budget

    def budget(self: SourceReaders, source: VertexId) -> int:
        return real(self, source) + (self._granted[source] if source in self._pacing.caps else 0)

    patch.put(SourceReaders, "_budget", budget)


@mutant("paced")
def a_slice_may_have_one_row_too_many(patch: Patch) -> None:
    real = readers.pacing_of

    def pacing_of(setup: JobSetup) -> readers.Pacing:
        pacing = real(setup)
        return replace(pacing, slice_rows_max=pacing.slice_rows_max + 1)

    patch.function(readers, "pacing_of", pacing_of)


@mutant("paced")
def a_micro_batch_is_as_large_as_its_newest_segment_allows(patch: Patch) -> None:
    """The limit is compared with the last segment instead of all collected segments.

    Nothing else limits the micro-batch.
    """
    real = OperatorRun.start

    def collected_rows(self: OperatorRun) -> int:
        return self.collected[-1][1].rows if self.collected else 0

    def start(self: OperatorRun, rows_max: int) -> RunMicroBatch:
        return real(self, max(rows_max, sum(segment.rows for _, segment in self.collected)))

    patch.put(OperatorRun, "collected_rows", property(collected_rows))
    patch.put(OperatorRun, "start", start)


@mutant("paced")
def a_slice_of_several_rows_counts_as_one_row(patch: Patch) -> None:
    real = SourceReaders.offered

    def offered(self: SourceReaders, slice_: SourceSlice) -> object:
        before = self._rows[slice_.source]
        sent = real(self, slice_)
        self._rows[slice_.source] = min(self._rows[slice_.source], before + 1)
        return sent

    patch.put(SourceReaders, "offered", offered)


def _due(counts: Callable[[SourceReaders], int]) -> property:
    """Return `barrier_due` with other rows counted."""

    def barrier_due(self: SourceReaders) -> bool:
        every = self._pacing.every_rows
        return every is not None and not self._asked and counts(self) >= every

    return property(barrier_due)


@mutant("paced")
def a_checkpoint_is_due_after_rows_of_any_source(patch: Patch) -> None:
    patch.put(SourceReaders, "_counted_rows", lambda self: self.rows)


@mutant("paced")
def a_checkpoint_is_due_one_row_early(patch: Patch) -> None:
    patch.put(SourceReaders, "barrier_due", _due(lambda self: self._counted_rows() + 1))


@mutant("paced")
def rows_that_are_only_asked_for_make_a_checkpoint_due(patch: Patch) -> None:
    def sent_or_asked_for(self: SourceReaders) -> int:
        return self._counted_rows() + sum(self._granted[source] for source in self._counted)

    patch.put(SourceReaders, "barrier_due", _due(sent_or_asked_for))


# ------------------------------------------------------------------ too early


@mutant("not-too-early", PAUSES)
def the_pause_begins_with_the_trigger(patch: Patch) -> None:
    real = Completion.committed

    def committed(self: Completion, fact: CommitSucceeded) -> None:
        known = self._books.pending.get(fact.checkpoint)
        real(self, fact)
        if known is not None:
            self._books.last_completion_ms = known.triggered_ms

    patch.put(Completion, "committed", committed)


@mutant("not-too-early", PAUSES)
def only_the_first_completion_begins_a_pause(patch: Patch) -> None:
    real = Completion.committed

    def committed(self: Completion, fact: CommitSucceeded) -> None:
        before = self._books.last_completion_ms
        real(self, fact)
        self._books.last_completion_ms = before or self._books.last_completion_ms

    patch.put(Completion, "committed", committed)


@mutant("not-too-early")
def an_alignment_times_out_at_half_its_time(patch: Patch) -> None:
    real = AlternatingAligner._begin

    def begin(self: AlternatingAligner, barrier: Barrier) -> Effects:
        effects = real(self, barrier)
        if self._timer_ms is None:
            return effects
        self._timer_ms = (barrier.created_ms + self._timer_ms) // 2
        return [*effects[:-1], WakeGateAt(self._timer_ms)]

    patch.put(AlternatingAligner, "_begin", begin)


@mutant("not-too-early")
def an_idle_split_is_asked_again_at_once(patch: Patch) -> None:
    def is_ready(split: Split, now_ms: int) -> bool:
        return not split.granted

    patch.put(readers, "_is_ready", is_ready)


@mutant("not-too-early")
def before_a_barrier_an_idle_split_is_asked_at_once(patch: Patch) -> None:
    real = SourceReaders.ask_sooner

    def ask_sooner(self: SourceReaders, source: VertexId, name: SplitId, at_ms: int) -> None:
        real(self, source, name, 0)

    patch.put(SourceReaders, "ask_sooner", ask_sooner)


# ------------------------------------------------------------------ too late


@mutant("not-too-late")
def a_few_rows_wait_for_a_barrier_however_long(patch: Patch) -> None:
    real = lingering.is_time

    def is_time(job: Wiring, run: OperatorRun) -> bool:
        return real(job, run) and job.coordinator.next_due_ms is None

    patch.function(lingering, "is_time", is_time)


def _triggering_goes_on_after_a_failed_stop() -> bool:
    """Return whether triggering stays off. The hook of a stop's savepoint fails, and then the next interval passes."""
    config = CheckpointConfig(interval_ms=_INTERVAL_MS, tolerable_failures=9, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 4)
    driven = DrivenJob(SmallJob(graph=graph(1, hooks=HOOKS[:1]), config=config, rows=rows))
    driven.start()
    for _ in range(3):  # two sources and a hook are restored
        driven.answer(0)
    driven.tell(SavepointRequested("stop", SavepointKind.SUSPEND))
    failing = Faults(hook_fails=1.0)
    for kind, faults in ((AskOperatorCoordinator, NONE), (AskOperatorCoordinator, NONE), (AskHook, failing)):
        driven.answer(next(place for place, asked in enumerate(driven.outstanding) if isinstance(asked, kind)), faults)
    driven.tell(TimeAdvanced(driven.world.now_ms + 3 * _INTERVAL_MS))
    return not any(broken.invariant == "not-too-late" for broken in violations(driven.world.history))


@mutant("not-too-late", directed(_triggering_goes_on_after_a_failed_stop, "not-too-late"))
def nobody_starts_the_scheduler_when_a_stop_has_failed(patch: Patch) -> None:
    real = Ending.answered

    def answered(
        self: Ending, effect: RequestSucceeded | RequestFailed, kind: SavepointKind | None, *, behind_barrier: bool
    ) -> bool:
        real(self, effect, kind, behind_barrier=behind_barrier)
        return False

    patch.put(Ending, "answered", answered)


@mutant("not-too-late")
def every_other_trigger_is_left_out(patch: Patch) -> None:
    real = PeriodicScheduler.fire

    def fire(self: PeriodicScheduler, now_ms: int) -> bool:
        there = real(self, now_ms)
        if self.next_ms is not None and self.interval_ms is not None:
            self.next_ms += self.interval_ms
        return there

    patch.put(PeriodicScheduler, "fire", fire)


@mutant("not-too-late")
def company_that_comes_makes_segments_wait_anew(patch: Patch) -> None:
    real = OperatorRun.collect

    def collect(self: OperatorRun, channel: ChannelId, segment: Segment, now_ms: int) -> None:
        real(self, channel, segment, now_ms)
        self.collected_since_ms = now_ms

    patch.put(OperatorRun, "collect", collect)


@mutant("not-too-late")
def the_timer_of_an_alignment_is_never_run(patch: Patch) -> None:
    real = Wiring.from_gate

    def from_gate(self: Wiring, run: OperatorRun, effects: tuple[gate.GateEffect, ...]) -> None:
        real(self, run, tuple(effect for effect in effects if not isinstance(effect, WakeGateAt)))

    patch.put(Wiring, "from_gate", from_gate)


@mutant("not-too-late", PAUSES)
def a_trigger_that_the_pause_delayed_comes_an_interval_later(patch: Patch) -> None:
    def postpone_to(self: PeriodicScheduler, at_ms: int) -> None:
        if self.running and self.interval_ms is not None:
            self.next_ms = at_ms + self.interval_ms

    patch.put(PeriodicScheduler, "postpone_to", postpone_to)
