"""Plants bugs in the turns of the splits: who comes first, who is left out, and how many rows an epoch may have."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from checkpointing.identifiers import VertexId
from checkpointing.job import readers
from checkpointing.job.readers import SourceReaders, Split
from checkpointing.messages import PollSource
from spec.mutants.judges import READERS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ turns


def _asked_in(patch: Patch, order: Callable[[SourceReaders, list[Split]], list[Split]]) -> None:
    """Ask the splits in another order. `order` gets them in the order of their names."""
    real = SourceReaders.polls

    def polls(self: SourceReaders, *given: Any, **named: Any) -> Iterator[PollSource]:  # noqa: ANN401
        splits = [self._splits[key] for key in sorted(self._splits)]
        for split in order(self, splits):
            self._splits.move_to_end((split.subtask.vertex, split.name))
        return real(self, *given, **named)

    patch.put(SourceReaders, "polls", polls)


@mutant("takes-turns", READERS)
def each_epoch_begins_with_the_same_split(patch: Patch) -> None:
    real = SourceReaders.barrier_sent

    def barrier_sent(self: SourceReaders, *, last: bool = False) -> None:
        real(self, last=last)
        for key in sorted(self._splits):
            self._splits.move_to_end(key)

    patch.put(SourceReaders, "barrier_sent", barrier_sent)


@mutant("takes-turns", READERS)
def turns_are_counted_by_call(patch: Patch) -> None:
    calls: Counter[SourceReaders] = Counter()

    def order(self: SourceReaders, splits: list[Split]) -> list[Split]:
        first = calls[self] % len(splits)
        calls[self] += 1
        return splits[first:] + splits[:first]

    _asked_in(patch, order)


@mutant("takes-turns", READERS)
def the_sources_take_turns_and_not_their_splits(patch: Patch) -> None:
    def order(self: SourceReaders, splits: list[Split]) -> list[Split]:
        first = next(iter(self._splits))[0]
        return sorted(splits, key=lambda split: split.subtask.vertex != first)

    _asked_in(patch, order)


@mutant("takes-turns", READERS)
def the_split_that_has_read_least_comes_last(patch: Patch) -> None:
    _asked_in(patch, lambda _, splits: sorted(splits, key=lambda split: -int(split.position or 0)))


# ------------------------------------------------------------------ who is asked


@mutant("polls-all", READERS)
def an_idle_split_is_asked_a_moment_too_late(patch: Patch) -> None:
    patch.put(readers, "_is_ready", lambda split, now_ms: not split.granted and now_ms > split.idle_until_ms)


@mutant("polls-all", READERS)
def the_last_row_of_a_quota_is_never_read(patch: Patch) -> None:
    real = SourceReaders._budget
    patch.put(SourceReaders, "_budget", lambda self, source: real(self, source) - 1)


@mutant("polls-all", READERS)
def a_split_that_failed_waits_until_all_have_answered(patch: Patch) -> None:
    real = SourceReaders._may_read

    def may_read(self: SourceReaders, split: Split) -> bool:
        return real(self, split) and not (split.failures and any(self._granted.values()))

    patch.put(SourceReaders, "_may_read", may_read)


# ------------------------------------------------------------------ limits


@mutant("limits-hold", READERS)
def rows_that_are_being_read_do_not_count_for_a_cap(patch: Patch) -> None:
    real = SourceReaders._budget

    def budget(self: SourceReaders, source: VertexId) -> int:
        return real(self, source) + (self._granted[source] if source in self._pacing.caps else 0)

    patch.put(SourceReaders, "_budget", budget)


@mutant("limits-hold", READERS)
def each_source_may_read_the_rows_of_all(patch: Patch) -> None:
    def counted_rows(self: SourceReaders) -> int:
        return max((self._rows[source] for source in self._counted), default=0)

    patch.put(SourceReaders, "_counted_rows", counted_rows)


@mutant("limits-hold", READERS)
def a_barrier_forgets_what_is_being_read(patch: Patch) -> None:
    real = SourceReaders.barrier_sent

    def barrier_sent(self: SourceReaders, *, last: bool = False) -> None:
        real(self, last=last)
        self._granted = dict.fromkeys(self._granted, 0)

    patch.put(SourceReaders, "barrier_sent", barrier_sent)
