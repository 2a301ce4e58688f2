"""Plants bugs in the handling of splits that cannot be read."""

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.job import ending
from checkpointing.job.ending import Cause, Ending, TickPhase
from checkpointing.job.readers import SourceReaders
from checkpointing.messages import EndTick, TickOutcome
from spec.mutants.judges import UNREADABLE
from spec.mutants.planting import Patch, mutant


@mutant("splits-fail-alone", UNREADABLE)
def a_split_that_cannot_be_read_counts_as_idle(patch: Patch) -> None:
    def failed(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> bool:
        self.found_idle(source, name, now_ms)
        return False

    patch.put(SourceReaders, "failed", failed)


@mutant("splits-fail-alone", UNREADABLE)
def the_first_poll_that_fails_ends_the_tick(patch: Patch) -> None:
    real = SourceReaders.failed

    def failed(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> bool:
        real(self, source, name, now_ms)
        return True

    patch.put(SourceReaders, "failed", failed)


@mutant("splits-fail-alone", UNREADABLE)
def the_failures_of_a_split_add_up_although_it_answered(patch: Patch) -> None:
    counted: dict[tuple[int, VertexId, SplitId], int] = {}
    real = SourceReaders.failed

    def failed(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> bool:
        real(self, source, name, now_ms)
        split = (id(self), source, name)
        counted[split] = counted.get(split, 0) + 1
        return counted[split] > self._pacing.failures_max

    patch.put(SourceReaders, "failed", failed)


@mutant("splits-fail-alone", UNREADABLE)
def a_tick_stops_in_order_although_a_split_failed(patch: Patch) -> None:
    def split_failed(self: Ending, message: str, *, at_once: bool) -> None:
        if self.told(Cause.FAILURE if at_once else Cause.SPLIT_FAILED):
            self._end = EndTick(TickOutcome.STOPPED)

    patch.put(Ending, "split_failed", split_failed)


@mutant("splits-fail-alone", UNREADABLE)
def a_split_that_failed_too_often_takes_the_rows_of_the_others_with_it(patch: Patch) -> None:
    _move(patch, TickPhase.FAILING)


@mutant("not-too-early", UNREADABLE)
def a_split_that_cannot_be_read_is_asked_at_once(patch: Patch) -> None:
    real = SourceReaders.failed

    def failed(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> bool:
        beyond = real(self, source, name, now_ms)
        self._splits[source, name].idle_until_ms = 0
        return beyond

    patch.put(SourceReaders, "failed", failed)


@mutant("credit", UNREADABLE)
def nobody_is_read_while_a_split_cannot_be(patch: Patch) -> None:
    real = SourceReaders.polls

    def polls(self, now_ms, has_credit, **options):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN003, ANN202
        failing = {split.subtask for split in self._splits.values() if split.failures}
        given = lambda subtask: has_credit(subtask) and (not failing or subtask in failing)  # noqa: E731
        return real(self, now_ms, given, **options)

    patch.put(SourceReaders, "polls", polls)


@mutant("splits-fail-alone", UNREADABLE)
def a_split_that_failed_too_often_is_never_given_up(patch: Patch) -> None:
    _move(patch, TickPhase.RUNNING)


def _move(patch: Patch, reached: TickPhase) -> None:
    patch.put(ending, "MOVES", {**ending.MOVES, (TickPhase.RUNNING, Cause.SPLIT_FAILED): reached})
