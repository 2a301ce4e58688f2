"""Key groups and the ranges of subtasks (Flink: `KeyGroupRangeAssignment`), D3."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """The key groups `first`..`last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        """Return `first..last`."""
        return f"{self.first}..{self.last}"


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the range of a subtask (Flink: `computeKeyGroupRangeForOperatorIndex`)."""
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group (Flink: `computeOperatorIndexForKeyGroup`)."""
    return key_group * parallelism // max_parallelism
