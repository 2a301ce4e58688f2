"""Every key group belongs to one subtask, and a rescale moves each to exactly one new subtask."""

from itertools import pairwise

import pytest

from checkpointing.key_groups import InvalidParallelismError, key_group_ranges, range_of
from checkpointing.operator_state import (
    DistributionMode,
    InvalidRescaleError,
    OperatorStatePart,
    redistribute_operator_state,
)
from spec.flink.key_groups import (
    MaxParallelismChangedError,
    default_max_parallelism,
    key_group_of_hash,
    redistribute_keyed,
    subtask_of,
)
from spec.flink.rescale_cases import ChannelMapper, Gate, map_subtasks, redistribute_inputs, redistribute_outputs

PAIRS = [(1, 1), (13, 1), (13, 2), (128, 7), (32767, 1), (32767, 13), (32768, 32768)]


@pytest.mark.parametrize(("most", "parallelism"), PAIRS)
def test_ranges_and_indexes_agree(most, parallelism):
    """The ranges follow one another without a gap, and every key group belongs to the subtask of its range (D3)."""
    sizes = {"parallelism": parallelism, "max_parallelism": most}
    ranges = key_group_ranges(**sizes)
    assert (0, most - 1) == (ranges[0].first, ranges[-1].last)
    assert all(before.last + 1 == after.first for before, after in pairwise(ranges))
    for subtask, owned in enumerate(ranges):
        assert owned == range_of(subtask=subtask, **sizes)
        assert {subtask} == {subtask_of(key_group=group, **sizes) for group in (owned.first, owned.last)}


@pytest.mark.parametrize(("most", "parallelism"), [(0, 1), (1, 0), (2, 3), (32769, 1), (-1, -1)])
def test_numbers_out_of_bounds_are_refused_by_name(most, parallelism):
    """The error names the rule 1 <= parallelism <= max parallelism <= 32768."""
    sizes = {"parallelism": parallelism, "max_parallelism": most}
    for call in (
        lambda: key_group_ranges(**sizes),
        lambda: range_of(subtask=0, **sizes),
        lambda: subtask_of(key_group=0, **sizes),
    ):
        with pytest.raises(InvalidParallelismError, match=f"parallelism {parallelism} with max.*<= 32768 must hold"):
            call()


def test_a_default_leaves_room_to_grow():
    """Half as much again, rounded up to a power of two, at least 128, at most 32768."""
    assert [128, 256, 32768] == [default_max_parallelism(parallelism=p) for p in (85, 86, 32768)]
    with pytest.raises(InvalidParallelismError):
        default_max_parallelism(parallelism=0)


def test_the_minimum_hash_has_a_key_group():
    """The smallest signed number has no absolute value. Still every hash gets a key group."""
    hashes = (-(2**31), -1, 0, 2**31 - 1)
    assert all(0 <= key_group_of_hash(key_hash=hash_, max_parallelism=7) < 7 for hash_ in hashes)


def test_another_number_of_key_groups_is_refused():
    """Keys would be in other groups. A number that was only derived is replaced by the stored one."""
    sizes = {"max_parallelism": 42, "old_parallelism": 3, "new_parallelism": 3}
    with pytest.raises(MaxParallelismChangedError, match="set max_parallelism back to 42"):
        redistribute_keyed(**sizes, configured_max_parallelism=20)
    assert redistribute_keyed(**sizes) == redistribute_keyed(**sizes, configured_max_parallelism=42)


def test_ranges_are_those_of_flink():
    """As Flink's KeyGroupRangeAssignment does, 128 key groups on 3 subtasks become 43, 43 and 42."""
    ranges = key_group_ranges(parallelism=3, max_parallelism=128)
    assert ["0..42", "43..85", "86..127"] == [str(own) for own in ranges]


def part(mode, subtask, *offsets, name="s"):
    return OperatorStatePart(name, DistributionMode(mode), subtask, offsets)


def test_union_state_is_redistributed_at_equal_parallelism_and_split_state_is_not():
    """Every subtask gets the whole UNION state, also without rescaling (issue 4, item 15)."""
    union, split = part("UNION", 0, 1, name="u"), part("SPLIT", 0, 1, 2)
    assert ((split, union), (union,)) == redistribute_operator_state((union, split), 2, 2)


def test_split_state_is_balanced_over_all_states():
    """The loads differ by at most one over all states together, and not only within each."""
    parts = [part("SPLIT", 0, *range(4), name=name) for name in ("a", "b", "c")]
    loads = [sum(len(p.offsets) for p in got) for got in redistribute_operator_state(parts, 1, 3)]
    assert [4, 4, 4] == loads


def test_state_of_an_unknown_subtask_is_refused():
    """The error names the state and the subtask. A parallelism below one is refused too."""
    with pytest.raises(InvalidRescaleError, match="'s' of subtask 2"):
        redistribute_operator_state([part("SPLIT", 2, 1)], 2, 3)
    with pytest.raises(InvalidRescaleError, match="at least 1"):
        redistribute_operator_state([], 2, 0)
    with pytest.raises(InvalidRescaleError, match="at least 1"):
        map_subtasks(ChannelMapper.FULL, 0, 1)


def test_channel_state_stays_at_equal_parallelism():
    """Each subtask keeps its own, except for a FULL gate whose upstream vertex changed."""
    own, changed = Gate(ChannelMapper.RANGE, 3), Gate(ChannelMapper.FULL, 2)
    assert (((0,), (1,), (2,)),) == redistribute_inputs(3, 3, [own])
    assert ((0, 1, 2),) * 3 == redistribute_inputs(3, 3, [own, changed])[1]
    assert ((0,), (1,)) == redistribute_outputs(2, 2, ChannelMapper.ROUND_ROBIN)
