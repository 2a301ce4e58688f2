"""Key groups and the ranges of subtasks."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.state.key_groups import KeyGroupRange, range_of, subtask_of

SIZES = st.integers(1, 300).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most)))


@given(SIZES)
def test_every_key_group_lies_in_the_range_of_the_subtask_that_owns_it(sizes):
    """Ranges tile the key groups, in order, and agree with the owner that the exchange computes."""
    parallelism, max_parallelism = sizes
    owners = []
    for subtask in range(parallelism):
        own = range_of(subtask, parallelism, max_parallelism)
        owners += [(group, subtask) for group in range(own.first, own.last + 1)]
    assert [(group, subtask_of(group, parallelism, max_parallelism)) for group in range(max_parallelism)] == owners


def test_ranges_are_those_of_flink():
    """Flink's KeyGroupRangeAssignment gives 128 key groups to 3 subtasks as 43, 43 and 42."""
    assert [KeyGroupRange(0, 42), KeyGroupRange(43, 85), KeyGroupRange(86, 127)] == [
        range_of(i, 3, 128) for i in range(3)
    ]
