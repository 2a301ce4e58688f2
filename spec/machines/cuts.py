"""The machine of splits that read cuts of other jobs: restored anywhere, answering in any order, with barriers between.

Its reference notes for each split the newest cut that it has reached. A group is *even* if all its splits have reached
the same cut, or none has reached any. A barrier may be sent only while every group is even (A10).
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.job.polling import CutGroups, SplitKey
from spec.machines.judging import expect

EVEN_AT_BARRIERS = "even-at-barriers"
"""A barrier is held back exactly while the splits of some group stand at different cuts."""
ONE_CUT_AT_A_TIME = "one-cut-at-a-time"
"""A group reads up to one cut: the one that its first split finds. Only splits that have not reached it read on."""
CUTS_ANNOUNCED = "cuts-announced"
"""A barrier is asked for exactly while all splits of some group have reached a cut, and none has followed."""
SHOP, BANK, OTHER = VertexId("shop"), VertexId("bank"), VertexId("numbers")
GROUPS = {SHOP: "upstream", BANK: "elsewhere"}
SPLITS: dict[str, tuple[SplitKey, ...]] = {
    "upstream": tuple((SHOP, SplitId(name)) for name in ("a", "b", "c")),
    "elsewhere": ((BANK, SplitId("d")),),
}
FREE: SplitKey = (OTHER, SplitId("e"))
_KNOWN = {split: name for name, splits in SPLITS.items() for split in splits}
_pick = st.integers(0, 20)


class CutGroupsMachine(RuleBasedStateMachine):
    """Three tables of one upstream job, one of another job, and a split of another kind."""

    def __init__(self) -> None:
        """Begin before the first cut."""
        super().__init__()
        self.restore([False, False, False, False])

    @initialize(read=st.lists(st.booleans(), min_size=4, max_size=4))
    def restore(self, read: list[bool]) -> None:
        """Begin at a cut. Splits that were added since then have not been read."""
        splits = (*_KNOWN, FREE)
        self.at: dict[SplitKey, int | None] = {
            split: 0 if was_read else None for split, was_read in zip(_KNOWN, read, strict=True)
        }
        positions = {split: None if self.at.get(split) is None else "0" for split in splits}
        self.groups = CutGroups(GROUPS, positions)
        self.newest = dict.fromkeys(SPLITS, 1)
        self.target: dict[str, int | None] = dict.fromkeys(SPLITS)
        self.polled: dict[SplitKey, str | None] = {}

    # -------------------------------------------------------------- what happens

    @rule(name=st.sampled_from(sorted(SPLITS)))
    def publish(self, name: str) -> None:
        """An upstream job publishes another cut."""
        self.newest[name] += 1

    @rule(pick=_pick)
    def poll(self, pick: int) -> None:
        """Ask a split that may be asked. While a group seeks a cut, one split at a time is asked."""
        free = [split for split in _KNOWN if split not in self.polled and not self._has_arrived(split)]
        for split in free[pick % (len(free) or 1) :][:1]:
            name = _KNOWN[split]
            others = any(other in self.polled for other in SPLITS[name])
            seeks = self.groups.seeks(split, iter(self.polled))
            due = self.target[name] is None and others
            expect(seeks == due, ONE_CUT_AT_A_TIME, f"{split} waits for another one: {seeks}")
            if not seeks:
                self.polled[split] = self.groups.cut_for(split)

    @precondition(lambda self: self.polled)
    @rule(pick=_pick, reaches=st.sampled_from([True, True, False]))
    def answer(self, pick: int, reaches: bool) -> None:  # noqa: FBT001
        """A split brings rows, perhaps up to the cut."""
        split = [*self.polled][pick % len(self.polled)]
        name, asked = _KNOWN[split], self.polled.pop(split)
        begins = self.target[name] is None
        cut = self.newest[name] if asked is None else int(asked)
        if begins and self.at[split] == cut:
            return  # it is idle
        slice_ = SourceSlice(*split, str(self.at[split] or 0), str(cut), "", 1, 1, cut=str(cut), at_cut=reaches)
        others = self.groups.offered(split, slice_)
        self.target[name] = cut
        if reaches:
            self.at[split] = cut
        due = frozenset(SPLITS[name]) - {split} if begins else frozenset()
        expect(others == due, ONE_CUT_AT_A_TIME, f"{sorted(others)} read on, due are {sorted(due)}")

    @precondition(lambda self: not self.groups.hold_barrier)
    @rule()
    def send_barrier(self) -> None:
        """A checkpoint's barrier follows all rows."""
        self.groups.barrier_sent()
        self.target = dict.fromkeys(SPLITS)

    # -------------------------------------------------------------- the reference

    def _has_arrived(self, split: SplitKey) -> bool:
        target = self.target[_KNOWN[split]]
        return target is not None and self.at[split] == target

    def _is_even(self, name: str) -> bool:
        """Return whether all splits stand at one cut. One that has rows beyond its cut stands at none."""
        target, splits = self.target[name], SPLITS[name]
        if target is not None:
            return all(self.at[split] == target for split in splits)
        return len({self.at[split] is None for split in splits}) == 1

    @invariant()
    def barriers_wait_for_uneven_groups(self) -> None:
        """Compare the groups with the reference."""
        uneven = [name for name in SPLITS if not self._is_even(name)]
        held = self.groups.hold_barrier
        expect(held == bool(uneven), EVEN_AT_BARRIERS, f"held: {held}, uneven are {uneven}: {self.at}, {self.target}")
        full = [name for name in SPLITS if self.target[name] is not None and self._is_even(name)]
        due = self.groups.barrier_due
        expect(due == bool(full), CUTS_ANNOUNCED, f"asked for: {due}, at a cut are {full}")

    @invariant()
    def splits_read_up_to_one_cut(self) -> None:
        """Compare what is said of each split with the reference."""
        for split, name in _KNOWN.items():
            target = self.target[name]
            waits, arrived = self.groups.waits_at_cut(split), self._has_arrived(split)
            expect(waits == arrived, ONE_CUT_AT_A_TIME, f"{split} waits: {waits}, at {self.at[split]} of {target}")
            said = self.groups.cut_for(split)
            expect(said == (None if target is None else str(target)), ONE_CUT_AT_A_TIME, f"{split} reads up to {said}")
            behind = self.groups.is_behind(split)
            due = not self._is_even(name) and not arrived
            expect(behind == due, EVEN_AT_BARRIERS, f"a barrier waits for {split}: {behind}")
        alone = self.groups.is_behind(FREE) or self.groups.waits_at_cut(FREE) or self.groups.cut_for(FREE)
        expect(not alone, ONE_CUT_AT_A_TIME, f"{FREE} reads no cuts")
