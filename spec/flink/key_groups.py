"""Computes what only Flink's cases ask about key groups: owners, groups of hashes, defaults, and rescaling plans.

In the product, Spark computes a key's group and subtask, and a restore cuts ranges (`checkpointing.key_groups`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpointing.key_groups import KEY_GROUPS_MAX, InvalidParallelismError, KeyGroupRange, key_group_ranges

LOWEST_DEFAULT = 128
_WORD = 0xFFFF_FFFF


class MaxParallelismChangedError(RuntimeError):
    """A restore has another number of key groups than its checkpoint. The message names both, and the way out."""

    def __init__(self, *, stored: int, configured: int) -> None:
        super().__init__(
            f"the checkpoint was taken with max parallelism {stored}, but the job is configured with {configured}: "
            f"keys would be in other key groups; set max_parallelism back to {stored}"
        )


def subtask_of(*, key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group (Flink: `computeOperatorIndexForKeyGroup`).

    Raise InvalidParallelismError outside the bounds.
    """
    if not 1 <= parallelism <= max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism=parallelism, max_parallelism=max_parallelism)
    return key_group * parallelism // max_parallelism


def default_max_parallelism(*, parallelism: int) -> int:
    """Return the number of key groups of a job that sets none: a power of two, with room to grow."""
    if not 1 <= parallelism <= KEY_GROUPS_MAX:
        raise InvalidParallelismError(parallelism=parallelism, max_parallelism=KEY_GROUPS_MAX)
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), LOWEST_DEFAULT), KEY_GROUPS_MAX)


def key_group_of_hash(*, key_hash: int, max_parallelism: int) -> int:
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
    """Return |word| as a signed number. The minimum has no such number and counts as 0."""
    if word < 1 << 31:
        return word
    return 0 if word == 1 << 31 else (1 << 32) - word


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPart:
    """The key groups that a new subtask reads from an old one's state."""

    old_subtask: int
    key_groups: KeyGroupRange


def redistribute_keyed(
    *,
    max_parallelism: int,
    old_parallelism: int,
    new_parallelism: int,
    configured_max_parallelism: int | None = None,
) -> tuple[tuple[KeyedPart, ...], ...]:
    """Return what each new subtask reads: the parts of the old ranges that lie in its own range, in the old order.

    `configured_max_parallelism` is the number that a user set for the restored job. If it is None, the stored number
    stays. Raise MaxParallelismChangedError if it differs from the stored number, and InvalidParallelismError outside
    the bounds.
    """
    if configured_max_parallelism is not None and configured_max_parallelism != max_parallelism:
        raise MaxParallelismChangedError(stored=max_parallelism, configured=configured_max_parallelism)
    old = key_group_ranges(parallelism=old_parallelism, max_parallelism=max_parallelism)
    new = key_group_ranges(parallelism=new_parallelism, max_parallelism=max_parallelism)
    return tuple(tuple(_parts(new_range, old)) for new_range in new)


def _parts(new_range: KeyGroupRange, old_ranges: Sequence[KeyGroupRange]) -> Iterator[KeyedPart]:
    for old_subtask, old_range in enumerate(old_ranges):
        common = new_range.intersection(old_range)
        if common is not None:
            yield KeyedPart(old_subtask=old_subtask, key_groups=common)
