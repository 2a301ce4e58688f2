"""Plants bugs in which splits are asked, and for how many rows, and in what the readers know of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, SubtaskId, VertexId
from checkpointing.job import readers
from checkpointing.job.readers import SourceReaders, Split
from checkpointing.messages import PollSource
from spec.machines.splits import ASKED, KNOWN
from spec.mutants.judges import SPLITS
from spec.mutants.planting import Patch, mutant


@mutant(ASKED, SPLITS)
def a_split_without_credit_is_asked_once_more(patch: Patch) -> None:
    real = SourceReaders.polls

    def polls(
        self: SourceReaders, now_ms: int, has_credit: Callable[[SubtaskId], bool], *, barrier_waits: bool = False
    ) -> Iterator[PollSource]:
        def has_or_had(subtask: SubtaskId) -> bool:
            return has_credit(subtask) or subtask.index > 1

        return real(self, now_ms, has_or_had, barrier_waits=barrier_waits)

    patch.put(SourceReaders, "polls", polls)


@mutant(ASKED, SPLITS)
def the_first_split_gets_the_room_of_all(patch: Patch) -> None:
    patch.put(SourceReaders, "_shares", lambda self, one, other: one is other)


@mutant(ASKED, SPLITS)
def a_source_whose_cap_is_spent_takes_a_share(patch: Patch) -> None:
    real = SourceReaders._shares

    def shares(self: SourceReaders, one: Split, other: Split) -> bool:
        with_caps, self._pacing = self._pacing, replace(self._pacing, caps={})
        found = real(self, one, other)
        self._pacing = with_caps
        return found

    patch.put(SourceReaders, "_shares", shares)


@mutant(ASKED, SPLITS)
def rows_that_are_being_read_take_no_room(patch: Patch) -> None:
    real = SourceReaders._budget

    def budget(self: SourceReaders, source: VertexId) -> int:
        before, self._granted = self._granted, dict.fromkeys(self._granted, 0)
        room = real(self, source)
        self._granted = before
        return room

    patch.put(SourceReaders, "_budget", budget)


@mutant(ASKED, SPLITS)
def a_split_that_has_failed_is_asked_again_at_once(patch: Patch) -> None:
    def is_ready(split: readers.Split, now_ms: int) -> bool:
        return not split.granted and (split.failures > 0 or now_ms >= split.idle_until_ms)

    patch.put(readers, "_is_ready", is_ready)


@mutant(KNOWN, SPLITS)
def failures_that_are_not_in_a_row_add_up(patch: Patch) -> None:
    real = SourceReaders.found_idle

    def found_idle(self: SourceReaders, source: VertexId, name: SplitId, now_ms: int) -> None:
        before = self._polled(source, name).failures
        real(self, source, name, now_ms)
        self._splits[source, name].failures = before

    patch.put(SourceReaders, "found_idle", found_idle)


@mutant(KNOWN, SPLITS)
def rows_of_the_epoch_before_count_again(patch: Patch) -> None:
    real = SourceReaders.barrier_sent

    def barrier_sent(self: SourceReaders, *, last: bool = False) -> None:
        before = dict(self._rows)
        real(self, last=last)
        self._rows = before if last else self._rows

    patch.put(SourceReaders, "barrier_sent", barrier_sent)


@mutant(KNOWN, SPLITS)
def a_split_that_fails_counts_as_busy(patch: Patch) -> None:
    idle = property(lambda self: all(split.idle or self._is_held(split) for split in self._splits.values()))
    patch.put(SourceReaders, "all_idle", idle)


@mutant(KNOWN, SPLITS)
def a_split_that_was_idle_once_counts_as_idle(patch: Patch) -> None:
    real = SourceReaders.offered

    def offered(self: SourceReaders, slice_: SourceSlice) -> SubtaskId | None:
        split = self._splits[slice_.source, slice_.split]
        was_idle = split.idle
        sender = real(self, slice_)
        split.idle = was_idle
        return sender

    patch.put(SourceReaders, "offered", offered)
