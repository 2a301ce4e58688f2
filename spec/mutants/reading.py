"""Plants bugs in the turns of the splits: who comes first, who is left out, and how many rows an epoch may have."""

from checkpointing.identifiers import VertexId
from checkpointing.job import readers
from checkpointing.job.readers import SourceReaders, Split
from spec.mutants.judges import READERS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ turns


@mutant("takes-turns", READERS)
def each_epoch_begins_with_the_same_split(patch: Patch) -> None:
    real = SourceReaders.barrier_sent

    def barrier_sent(self: SourceReaders, *, last: bool = False) -> None:
        real(self, last=last)
        self._turn = 0

    patch.put(SourceReaders, "barrier_sent", barrier_sent)


@mutant("takes-turns", READERS)
def the_sources_take_turns_and_not_their_splits(patch: Patch) -> None:
    def in_turn(self: SourceReaders) -> list[Split]:
        splits, sources = list(self._splits.values()), len(self._rows)
        first = (self._turn - 1) % sources * (len(splits) // sources)
        return splits[first:] + splits[:first]

    patch.put(SourceReaders, "_in_turn", in_turn)


@mutant("takes-turns", READERS)
def the_split_that_has_read_least_comes_last(patch: Patch) -> None:
    def in_turn(self: SourceReaders) -> list[Split]:
        return sorted(self._splits.values(), key=lambda split: -int(split.position or 0))

    patch.put(SourceReaders, "_in_turn", in_turn)


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
