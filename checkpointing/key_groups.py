"""Key groups: the unit in which keyed state moves between subtasks (D3; Flink: `KeyGroupRangeAssignment`).

The number of key groups (max parallelism) is fixed for a job's life. Subtask i of p owns the range [ceil(i*max/p),
floor(((i+1)*max-1)/p)]. So a restore at another parallelism only divides the key groups into other ranges.

All code about key groups is here. Its functions take numbers by keyword, because a parallelism and a max parallelism
have the same type. Spark's tasks import this module, so it imports nothing.
"""

from dataclasses import dataclass
from typing import Final

KEY_GROUPS_MAX: Final = 32768
"""Flink: `KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM`."""


class InvalidParallelismError(ValueError):
    """A parallelism or a number of key groups is out of bounds. The message names both and the rule."""

    def __init__(self, *, parallelism: int, max_parallelism: int) -> None:
        super().__init__(
            f"parallelism {parallelism} with max parallelism {max_parallelism}: "
            f"1 <= parallelism <= max parallelism <= {KEY_GROUPS_MAX} must hold"
        )


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class KeyGroupRange:
    """The key groups first..last, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        """Return how many key groups there are."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        """Return `first..last`."""
        return f"{self.first}..{self.last}"

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange | None":
        """Return the common key groups, or None if there are none."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first=first, last=last) if first <= last else None


def range_of(*, subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the range of a subtask (Flink: `computeKeyGroupRangeForOperatorIndex`).

    Raise InvalidParallelismError if a number is out of bounds.
    """
    if not 1 <= parallelism <= max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism=parallelism, max_parallelism=max_parallelism)
    return KeyGroupRange(
        first=-(-subtask * max_parallelism // parallelism), last=((subtask + 1) * max_parallelism - 1) // parallelism
    )


def key_group_ranges(*, parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Return the range of each subtask. Raise InvalidParallelismError if a number is out of bounds."""
    if not 1 <= parallelism <= max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism=parallelism, max_parallelism=max_parallelism)
    return tuple(
        range_of(subtask=subtask, parallelism=parallelism, max_parallelism=max_parallelism)
        for subtask in range(parallelism)
    )
