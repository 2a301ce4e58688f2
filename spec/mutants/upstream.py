"""Plants bugs in sources that read cuts of another job: where their barriers are, and who asks for them (A10)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.messages import NotifyCheckpointAborted
from checkpointing.identifiers import SplitId, SubtaskId
from checkpointing.job import cut_groups
from checkpointing.job.cut_groups import CutGroup, CutGroups, SplitKey
from checkpointing.job.door import JobDoor
from checkpointing.job.readers import SourceReaders
from checkpointing.job.wiring import Wiring
from checkpointing.messages import PollSource, SliceOffered
from spec.explore_job import DrivenJob, SmallJob, join_graph
from spec.faults import NONE
from spec.machines.cuts import CUTS_ANNOUNCED, EVEN_AT_BARRIERS, ONE_CUT_AT_A_TIME
from spec.mutants.judges import CUT_GROUPS, STOPS_AT_CUTS, UPSTREAM, directed
from spec.mutants.planting import Patch, mutant
from spec.pipeline import MAX_PARALLELISM, ORDERS, PAYMENTS
from spec.upstream import BANK, SHOP


@mutant("at-one-cut", UPSTREAM)
def a_barrier_does_not_wait_for_a_cut(patch: Patch) -> None:
    patch.put(CutGroups, "hold_barrier", property(lambda _: False))


@mutant("at-one-cut", UPSTREAM)
def a_barrier_waits_for_the_first_split_at_a_cut_only(patch: Patch) -> None:
    patch.put(CutGroup, "is_at_cut", property(lambda group: bool(group.arrived)))


@mutant("at-one-cut", UPSTREAM)
def a_barrier_waits_for_the_cut_of_one_upstream_job_only(patch: Patch) -> None:
    patch.put(CutGroups, "hold_barrier", property(lambda self: all(group.holds_barrier for group in self._groups)))


@mutant("at-one-cut", UPSTREAM)
def a_barrier_is_sent_beside_a_split_that_is_at_no_cut_yet(patch: Patch) -> None:
    patch.put(cut_groups, "_are_uneven", lambda splits, positions: False)


@mutant("at-one-cut", UPSTREAM)
def a_slice_ends_the_way_to_a_cut(patch: Patch) -> None:
    real = CutGroup.offered

    def offered(self: CutGroup, split: SplitKey, slice_: SourceSlice) -> None:
        real(self, split, slice_)
        self.arrived.add(split)

    patch.put(CutGroup, "offered", offered)


@mutant("cut-announced", UPSTREAM)
def a_cut_asks_for_no_checkpoint(patch: Patch) -> None:
    patch.put(CutGroups, "barrier_due", property(lambda _: False))


@mutant("no-deadlock", STOPS_AT_CUTS)
def the_barrier_of_an_aborted_checkpoint_is_sent_at_the_cut(patch: Patch) -> None:
    real = Wiring._aborted

    def aborted(self: Wiring, effect: NotifyCheckpointAborted) -> None:
        held = [*self._held]
        real(self, effect)
        self._held = held

    patch.put(Wiring, "_aborted", aborted)


@mutant("no-deadlock", UPSTREAM)
def a_split_is_not_told_of_the_cut_that_another_found(patch: Patch) -> None:
    patch.put(CutGroups, "cut_for", lambda self, split: None)


def _two_jobs_come_to_their_cuts() -> bool:
    """Run a tick whose barrier waits until both upstream jobs are at a cut. Return whether the tick ends."""
    config = CheckpointConfig(interval_ms=None, max_parallelism=MAX_PARALLELISM, slice_rows_max=1)
    rows = {SplitId("a"): 1, SplitId("c"): 2}
    groups = {ORDERS: SHOP, PAYMENTS: BANK}
    driven = DrivenJob(SmallJob(graph=join_graph(), config=config, rows=rows, cut_groups=groups))
    driven.start()
    for source, at_cut in ((PAYMENTS, False), (ORDERS, True), (PAYMENTS, True)):
        poll = next(each for each in driven.outstanding if isinstance(each, PollSource) and each.source == source)
        driven.outstanding.remove(poll)
        offered = driven.hands.carry_out(poll, driven.generation, NONE)
        if not isinstance(offered, SliceOffered) or not isinstance(offered.slice, SourceSlice):
            return False
        driven.tell(SliceOffered(replace(offered.slice, cut=f"a cut of {source}", at_cut=at_cut)))
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    return driven.end is not None


@mutant("no-deadlock", directed(_two_jobs_come_to_their_cuts, "no-deadlock"))
def a_barrier_that_waits_is_never_sent(patch: Patch) -> None:
    real = JobDoor._offered

    def offered(self: JobDoor, fact: SliceOffered) -> None:
        held, self._job._held = self._job._held, []
        real(self, fact)
        self._job._held = held + self._job._held

    patch.put(JobDoor, "_offered", offered)


@mutant("cut-announced", UPSTREAM)
def a_barrier_that_waits_for_a_cut_waits_for_credit(patch: Patch) -> None:
    real = SourceReaders.polls

    def polls(
        self: SourceReaders, now_ms: int, has_credit: Callable[[SubtaskId], bool], *, barrier_waits: bool = False
    ) -> Iterator[PollSource]:
        return real(self, now_ms, has_credit)

    patch.put(SourceReaders, "polls", polls)


@mutant("cut-announced", UPSTREAM)
def a_split_reads_beyond_the_cut_before_its_barrier(patch: Patch) -> None:
    patch.put(CutGroups, "waits_at_cut", lambda self, split: False)


@mutant("alignment", UPSTREAM)
def a_cut_without_rows_is_sent_as_a_segment(patch: Patch) -> None:
    def offered(self: JobDoor, fact: SliceOffered) -> None:
        assert isinstance(fact.slice, SourceSlice)  # noqa: S101 - a seeded bug
        sender = self._job.readers.offered(fact.slice)
        if sender is not None:
            self._job.ending.uncommitted = True
            self._job.epochs.read(sender, fact.slice)
            self._job.broadcast(sender, fact.slice)
            self._job.release_barriers()

    patch.put(JobDoor, "_offered", offered)


# ------------------------------------------------------------------ groups of splits


@mutant(EVEN_AT_BARRIERS, CUT_GROUPS)
def a_group_with_a_new_split_stays_uneven(patch: Patch) -> None:
    real = CutGroup.offered

    def offered(self: CutGroup, split: SplitKey, slice_: SourceSlice) -> None:
        before = self.uneven
        real(self, split, slice_)
        self.uneven = before

    patch.put(CutGroup, "offered", offered)


@mutant(EVEN_AT_BARRIERS, CUT_GROUPS)
def a_barrier_passes_until_a_split_has_reached_the_cut(patch: Patch) -> None:
    patch.put(CutGroup, "holds_barrier", property(lambda group: bool(group.arrived) and not group.is_at_cut))


@mutant(EVEN_AT_BARRIERS, CUT_GROUPS)
def a_barrier_waits_for_every_split_of_a_group(patch: Patch) -> None:
    def is_behind(self: CutGroups, split: SplitKey) -> bool:
        group = self._of.get(split)
        return group is not None and group.holds_barrier

    patch.put(CutGroups, "is_behind", is_behind)


@mutant(ONE_CUT_AT_A_TIME, CUT_GROUPS)
def two_splits_seek_a_cut_at_once(patch: Patch) -> None:
    patch.put(CutGroups, "seeks", lambda self, split, polled: False)


@mutant(ONE_CUT_AT_A_TIME, CUT_GROUPS)
def a_split_is_asked_for_any_cut(patch: Patch) -> None:
    patch.put(CutGroups, "cut_for", lambda self, split: None)


@mutant(ONE_CUT_AT_A_TIME, CUT_GROUPS)
def a_found_cut_is_told_to_nobody(patch: Patch) -> None:
    real = CutGroups.offered

    def offered(self: CutGroups, split: SplitKey, slice_: SourceSlice) -> frozenset[SplitKey]:
        real(self, split, slice_)
        return frozenset()

    patch.put(CutGroups, "offered", offered)


@mutant(CUTS_ANNOUNCED, CUT_GROUPS)
def a_barrier_is_asked_for_when_all_groups_are_at_a_cut(patch: Patch) -> None:
    patch.put(CutGroups, "barrier_due", property(lambda self: all(group.is_at_cut for group in self._groups)))


@mutant(CUTS_ANNOUNCED, CUT_GROUPS)
def a_barrier_is_asked_for_when_any_split_is_at_a_cut(patch: Patch) -> None:
    patch.put(CutGroups, "barrier_due", property(lambda self: any(group.arrived for group in self._groups)))


@mutant(CUTS_ANNOUNCED, CUT_GROUPS)
def a_barrier_is_asked_for_while_a_group_is_on_its_way(patch: Patch) -> None:
    patch.put(CutGroups, "barrier_due", property(lambda self: any(group.target is not None for group in self._groups)))
