"""Key groups: the unit in which keyed state moves between subtasks (D3; Flink: `KeyGroupRangeAssignment`).

The number of key groups (max parallelism) is fixed for a job's life. Subtask i of p owns the range
[ceil(i*max/p), floor(((i+1)*max-1)/p)], so a restore at another parallelism only cuts ranges anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checkpointing.config import KEY_GROUPS_MAX

LOWEST_DEFAULT = 128
_WORD = 0xFFFF_FFFF


class InvalidParallelismError(ValueError):
    """A parallelism or a number of key groups outside its bounds: names both and the rule."""

    def __init__(self, parallelism: int, max_parallelism: int) -> None:
        super().__init__(
            f"parallelism {parallelism} with max parallelism {max_parallelism}: "
            f"1 <= parallelism <= max parallelism <= {KEY_GROUPS_MAX} must hold"
        )


class MaxParallelismChangedError(RuntimeError):
    """A restore with another number of key groups than the checkpoint's: names both and the way out."""

    def __init__(self, stored: int, configured: int) -> None:
        super().__init__(
            f"the checkpoint was taken with max parallelism {stored}, the job is configured with {configured}: "
            f"keys would be in other key groups; set max_parallelism back to {stored}"
        )


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """Key groups first..last, both inclusive."""

    first: int
    last: int

    def __len__(self) -> int:
        """Return how many key groups there are."""
        return self.last - self.first + 1

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange | None":
        """Return the common key groups, None if there are none."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


def key_group_ranges(max_parallelism: int, parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Return the range of each subtask; raise InvalidParallelismError outside the bounds."""
    if not 1 <= parallelism <= max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism, max_parallelism)
    return tuple(
        KeyGroupRange(
            -(-index * max_parallelism // parallelism),
            ((index + 1) * max_parallelism - 1) // parallelism,
        )
        for index in range(parallelism)
    )


def subtask_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the subtask that owns a key group; raise InvalidParallelismError outside the bounds."""
    if not 1 <= parallelism <= max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism, max_parallelism)
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return the number of key groups for a job that sets none: room to grow, a power of two."""
    if not 1 <= parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism, KEY_GROUPS_MAX)
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), LOWEST_DEFAULT), KEY_GROUPS_MAX)


def key_group_of_hash(key_hash: int, max_parallelism: int) -> int:
    """Return Flink's key group of a signed 32-bit key hash (`MathUtils.murmurHash`)."""
    mixed = (key_hash * 0xCC9E_2D51) & _WORD
    mixed = (_rotated(mixed, 15) * 0x1B87_3593) & _WORD
    mixed = (_rotated(mixed, 13) * 5 + 0xE654_6B64) & _WORD
    mixed ^= 4
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EB_CA6B) & _WORD
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2_AE35) & _WORD
    mixed ^= mixed >> 16
    return _magnitude(mixed) % max_parallelism


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


def _magnitude(word: int) -> int:
    """Return |word| as a signed number; the minimum has none and counts as 0."""
    if word < 1 << 31:
        return word
    return 0 if word == 1 << 31 else (1 << 32) - word


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """The key groups that a new subtask reads from an old one's state."""

    old_subtask: int
    key_groups: KeyGroupRange


def redistribute_keyed(
    max_parallelism: int,
    old_parallelism: int,
    new_parallelism: int,
    *,
    configured_max_parallelism: int | None = None,
) -> tuple[tuple[KeyedPart, ...], ...]:
    """Return what each new subtask reads: the old ranges cut by its own, in order of the old subtasks.

    `configured_max_parallelism`: what a user set for the restored job (None: only derived, so the
    stored one stays); raises MaxParallelismChangedError if it is another, InvalidParallelismError
    outside the bounds.
    """
    if configured_max_parallelism is not None and configured_max_parallelism != max_parallelism:
        raise MaxParallelismChangedError(max_parallelism, configured_max_parallelism)
    old_ranges = key_group_ranges(max_parallelism, old_parallelism)
    return tuple(
        tuple(_parts(new_range, old_ranges)) for new_range in key_group_ranges(max_parallelism, new_parallelism)
    )


def _parts(new_range: KeyGroupRange, old_ranges: tuple[KeyGroupRange, ...]) -> Iterator[KeyedPart]:
    for old_subtask, old_range in enumerate(old_ranges):
        common = new_range.intersection(old_range)
        if common is not None:
            yield KeyedPart(old_subtask, common)
