"""Redistribution of channel state, the records in flight at an unaligned barrier (Flink: `SubtaskStateMapper`)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from checkpointing.key_groups import KEY_GROUPS_MAX, KeyGroupRange, key_group_ranges
from checkpointing.rescale.operator_state import InvalidRescaleError

OldSubtasks = tuple[int, ...]
"""The old subtasks whose state one new subtask reads."""


class ChannelMapper(Enum):
    """How the state of old subtasks is handed to new ones; which one depends on how records are routed."""

    ROUND_ROBIN = "ROUND_ROBIN"
    """New i gets old i, i+new, i+2*new: any subtask may process the records."""
    RANGE = "RANGE"
    """Every old subtask whose key range overlaps: an old one that is cut goes to several, which filter by key."""
    FULL = "FULL"
    """Every new one gets every old one."""
    FIRST = "FIRST"
    """New 0 gets everything: the records go to one subtask only."""


@dataclass(frozen=True, slots=True)
class Gate:
    """An input gate of a vertex: its mapper and the new parallelism of the vertex that feeds it."""

    mapper: ChannelMapper
    upstream_parallelism: int


def map_subtasks(mapper: ChannelMapper, old: int, new: int) -> tuple[OldSubtasks, ...]:
    """Return the old subtasks of each new one; raise InvalidRescaleError for a parallelism below one."""
    if old < 1 or new < 1:
        raise InvalidRescaleError(f"from parallelism {old} to {new}: both must be at least 1")
    match mapper:
        case ChannelMapper.ROUND_ROBIN:
            return tuple(tuple(range(subtask, old, new)) for subtask in range(new))
        case ChannelMapper.RANGE:
            before = key_group_ranges(parallelism=old, max_parallelism=KEY_GROUPS_MAX)
            after = key_group_ranges(parallelism=new, max_parallelism=KEY_GROUPS_MAX)
            return tuple(_overlapping(own, before) for own in after)
        case ChannelMapper.FULL:
            return tuple(tuple(range(old)) for _ in range(new))
        case ChannelMapper.FIRST:
            return (tuple(range(old)), *(() for _ in range(new - 1)))
        case _:
            assert_never(mapper)


def redistribute_inputs(old: int, new: int, gates: Sequence[Gate]) -> tuple[tuple[OldSubtasks, ...], ...]:
    """Return, for each gate, whose input channel state each new subtask reads.

    At unchanged parallelism each keeps its own, unless a gate is FULL and the parallelism of any upstream
    is another than this vertex had: then every gate is mapped (Flink: `reDistributeInputChannelStates`).
    """
    any_full = any(gate.mapper is ChannelMapper.FULL for gate in gates)
    any_upstream_changed = any(gate.upstream_parallelism != old for gate in gates)
    if old == new and not (any_full and any_upstream_changed):
        return tuple(_own(old) for _ in gates)
    return tuple(map_subtasks(gate.mapper, old, new) for gate in gates)


def redistribute_outputs(old: int, new: int, mapper: ChannelMapper) -> tuple[OldSubtasks, ...]:
    """Return whose output state each new subtask reads: its own at unchanged parallelism."""
    return _own(old) if old == new else map_subtasks(mapper, old, new)


def ambiguous(mapping: Sequence[OldSubtasks]) -> tuple[int, ...]:
    """Return the old subtasks that go to more than one new one: their records must be filtered by key."""
    readers = Counter(old for olds in mapping for old in olds)
    return tuple(sorted(old for old, count in readers.items() if count > 1))


def _own(parallelism: int) -> tuple[OldSubtasks, ...]:
    return tuple((subtask,) for subtask in range(parallelism))


def _overlapping(own: KeyGroupRange, old_ranges: Sequence[KeyGroupRange]) -> OldSubtasks:
    return tuple(old for old, old_range in enumerate(old_ranges) if own.intersection(old_range) is not None)
