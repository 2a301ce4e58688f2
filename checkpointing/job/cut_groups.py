"""Decides which cut of an upstream job a group of splits reads next, and whether a barrier may be sent (A10).

Splits that read tables of one upstream job form a group. The invariant: at every barrier, all splits of a group stand
at one cut of that job. So the group reads up to one cut, stops, and asks for a barrier itself. If anybody else asks for
a barrier in the meantime, that barrier waits until the group has reached its cut.

| state of the group                               | polls                               | a barrier     |
|--------------------------------------------------|-------------------------------------|---------------|
| stands at a cut, and knows no newer one          | one split at a time, for any cut    | may be sent   |
| reads up to a cut that one of its splits found   | all splits behind, up to that cut   | waits         |
| all its splits have reached that cut             | none                                | is requested  |
| has a split at a cut and a new one at none       | one split at a time, for any cut    | waits         |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, VertexId

SplitKey = tuple[VertexId, SplitId]


class MixedCutsError(ValueError):
    """A source of cuts answered a poll with rows of another cut than the requested one. The group is unchanged."""


@dataclass(slots=True)
class CutGroup:
    """The splits of one group, and the cut up to which they read."""

    splits: frozenset[SplitKey]
    uneven: bool
    """True if some splits stand at a cut and others have no position yet."""
    target: str | None = None
    arrived: set[SplitKey] = field(default_factory=set)

    @property
    def is_at_cut(self) -> bool:
        """Return True if every split has reached the group's cut, and no barrier has followed yet."""
        return self.target is not None and self.arrived == self.splits

    @property
    def holds_barrier(self) -> bool:
        """Return True if a barrier would find splits at different cuts."""
        return self.uneven if self.target is None else not self.is_at_cut

    def offered(self, split: SplitKey, slice_: SourceSlice) -> None:
        """Take a slice. After a barrier, the first slice decides which cut the group reads. Raises MixedCutsError."""
        if slice_.cut is None or self.target not in (None, slice_.cut) or split in self.arrived:
            raise MixedCutsError(f"split {split[1]} of {split[0]} offered rows of cut {slice_.cut}, not {self.target}")
        self.target = slice_.cut
        if slice_.at_cut:
            self.arrived.add(split)
        self.uneven = self.uneven and not self.is_at_cut

    def barrier_sent(self) -> None:
        """Record that a barrier was sent at the cut. The group may now read up to another cut."""
        self.target = None
        self.arrived.clear()


class CutGroups:
    """All groups of a job. Splits of other kinds of sources belong to no group."""

    def __init__(self, groups: Mapping[VertexId, str], positions: Mapping[SplitKey, str | None]) -> None:
        """Begin at these positions. A split without a position has not been read yet."""
        by_name: dict[str, set[SplitKey]] = {}
        for split in positions:
            if split[0] in groups:
                by_name.setdefault(groups[split[0]], set()).add(split)
        self._groups = tuple(CutGroup(frozenset(splits), _are_uneven(splits, positions)) for splits in by_name.values())
        self._of = {split: group for group in self._groups for split in group.splits}

    @property
    def hold_barrier(self) -> bool:
        """Return True if a barrier must wait until a group has reached its cut."""
        return any(group.holds_barrier for group in self._groups)

    @property
    def barrier_due(self) -> bool:
        """Return True if a group has reached a cut, so that its barrier must be requested."""
        return any(group.is_at_cut for group in self._groups)

    def offered(self, split: SplitKey, slice_: SourceSlice) -> frozenset[SplitKey]:
        """Take a slice. Return the splits that must read on to the same cut. Raises MixedCutsError."""
        group = self._of.get(split)
        if group is None:
            return frozenset()
        begins = group.target is None
        group.offered(split, slice_)
        return group.splits - {split} if begins else frozenset()

    def barrier_sent(self) -> None:
        """Record that a barrier was sent behind all rows that the splits have read."""
        for group in self._groups:
            group.barrier_sent()

    def is_behind(self, split: SplitKey) -> bool:
        """Return True if a barrier waits, or would wait, for rows of this split."""
        group = self._of.get(split)
        return group is not None and group.holds_barrier and split not in group.arrived

    def waits_at_cut(self, split: SplitKey) -> bool:
        """Return True if the split has reached its group's cut, and reads on only after the next barrier."""
        group = self._of.get(split)
        return group is not None and split in group.arrived

    def cut_for(self, split: SplitKey) -> str | None:
        """Return the cut up to which a poll of this split may read, or None for any cut."""
        group = self._of.get(split)
        return None if group is None else group.target

    def seeks(self, split: SplitKey, polled: Iterable[SplitKey]) -> bool:
        """Return True if another split of the group is being asked for a cut right now.

        Two splits, asked at the same time, might find different cuts.
        """
        group = self._of.get(split)
        return group is not None and group.target is None and not group.splits.isdisjoint(polled)


def _are_uneven(splits: Iterable[SplitKey], positions: Mapping[SplitKey, str | None]) -> bool:
    return len({positions[split] is None for split in splits}) > 1
