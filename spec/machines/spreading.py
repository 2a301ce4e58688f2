"""Tests how key groups and non-keyed state are spread over subtasks at another parallelism (D3, D1).

The reference compares ranges with the subtask of each key group. It deals elements of non-keyed state as Flink does,
after it has counted how many each subtask gets.
"""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.key_groups import (
    KEY_GROUPS_MAX,
    InvalidParallelismError,
    KeyGroupRange,
    key_group_ranges,
    range_of,
)
from checkpointing.operator_state import (
    DistributionMode,
    InvalidRescaleError,
    OperatorStatePart,
    redistribute_operator_state,
)
from spec.machines.judging import expect

SPREAD: Final = "spread-over-subtasks"
"""Each key group belongs to one subtask. Each element of state goes to one subtask, or to all, as its mode says."""
_small = st.integers(0, 9)
_parts = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from([*DistributionMode]), st.integers(0, 3), st.integers(0, 5)),
    max_size=6,
)
Dealt = list[tuple[str, int, tuple[int, ...]]]
"""The parts that a subtask gets: the name of a state, the old subtask, and the offsets."""


class SpreadingMachine(RuleBasedStateMachine):
    """Draws one job after the other that changes its parallelism. Keeps nothing in between."""

    runs_short = True

    @rule(parallelism=_small, groups=st.sampled_from([0, 1, 3, 7, 8, 9, KEY_GROUPS_MAX, KEY_GROUPS_MAX + 1]))
    def spread_key_groups(self, parallelism: int, groups: int) -> None:
        """Give each key group to a subtask."""
        due = 1 <= parallelism <= groups <= KEY_GROUPS_MAX
        try:
            ranges = key_group_ranges(parallelism=parallelism, max_parallelism=groups)
            ones = [
                range_of(subtask=each, parallelism=parallelism, max_parallelism=groups) for each in range(parallelism)
            ]
        except InvalidParallelismError:
            expect(not due, SPREAD, f"{parallelism} subtasks and {groups} key groups are refused")
            return
        expect(due and list(ranges) == ones, SPREAD, f"{parallelism} subtasks, {groups} key groups: {ranges}")
        edges = {group for own in ranges for group in (own.first, own.last)}
        wrong = [
            group
            for group in sorted(edges)
            for index, own in enumerate(ranges)
            if (own.first <= group <= own.last) != (group * parallelism // groups == index)
        ]
        expect(not wrong, SPREAD, f"{parallelism} subtasks, {groups} key groups: {wrong} have another subtask")
        expect(sum(map(len, ranges)) == groups, SPREAD, f"{ranges} have not {groups} key groups")

    @rule(first=_small, more=_small, other=_small, other_more=_small)
    def intersect(self, first: int, more: int, other: int, other_more: int) -> None:
        """Return what two ranges have in common."""
        one, two = _range(first, more), _range(other, other_more)
        common = {*range(first, first + more + 1)} & {*range(other, other + other_more + 1)}
        found = one.intersection(two)
        known = set() if found is None else {*range(found.first, found.last + 1)}
        expect(known == common, SPREAD, f"{one} and {two} have {found} in common")

    @rule(given=_parts, old=st.integers(0, 4), new=st.integers(0, 5))
    def redistribute(self, given: list[tuple[str, DistributionMode, int, int]], old: int, new: int) -> None:
        """Spread state over the new subtasks. A state has one mode, and each old subtask has one part of it."""
        modes = {name: mode for name, mode, _, _ in reversed(given)}
        unique = {(name, subtask): elements for name, _, subtask, elements in reversed(given)}
        parts = [
            OperatorStatePart(name, modes[name], subtask, tuple(10 * subtask + each for each in range(elements)))
            for (name, subtask), elements in unique.items()
        ]
        due = old >= 1 and new >= 1 and all(part.old_subtask < old for part in parts)
        try:
            found = redistribute_operator_state(parts, old, new)
        except InvalidRescaleError:
            expect(not due, SPREAD, f"{parts} from {old} to {new} are refused")
            return
        expect(due and len(found) == new, SPREAD, f"{parts} from {old} to {new}: {found}")
        for subtask, got in enumerate(found):
            said = sorted((part.name, part.old_subtask, part.offsets) for part in got if part.offsets)
            known = sorted(_dealt(parts, subtask, old, new))
            expect(said == known, SPREAD, f"{parts} from {old} to {new}: {subtask} got {said}, due is {known}")


def _range(first: int, more: int) -> KeyGroupRange:
    return KeyGroupRange(first=first, last=first + more)


def _dealt(parts: list[OperatorStatePart], subtask: int, old: int, new: int) -> Dealt:
    """Return what a new subtask gets."""
    dealt: Dealt = []
    start = 0
    for name in dict.fromkeys(part.name for part in parts):
        own = sorted((part for part in parts if part.name == name), key=lambda part: part.old_subtask)
        if own[0].mode is DistributionMode.UNION:
            dealt += [(name, part.old_subtask, part.offsets) for part in own if part.offsets]
        elif own[0].mode is DistributionMode.BROADCAST:
            copies = [part for part in own if part.offsets]
            dealt += [
                (name, part.old_subtask, part.offsets) for part in copies if part is copies[subtask % len(copies)]
            ]
        elif old == new:
            dealt += [(name, part.old_subtask, part.offsets) for part in own if part.old_subtask == subtask]
        else:
            elements = [(part.old_subtask, offset) for part in own for offset in part.offsets]
            piles = [len(elements) // new + (pile < len(elements) % new) for pile in range(new)]
            pile = (subtask - start) % new
            mine = elements[sum(piles[:pile]) : sum(piles[: pile + 1])]
            olds = dict.fromkeys(of for of, _ in mine)
            dealt += [(name, of, tuple(offset for each, offset in mine if each == of)) for of in olds]
            start = (start + len(elements) % new) % new
    return [each for each in dealt if each[2]]
