"""Redistributes channel state: the records in flight at an unaligned barrier (Flink: `SubtaskStateMapper`)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from checkpointing.key_groups import KEY_GROUPS_MAX, KeyGroupRange, key_group_ranges
from checkpointing.operator_state import InvalidRescaleError

OldSubtasks = tuple[int, ...]
"""The old subtasks whose state one new subtask reads."""


class ChannelMapper(Enum):
    """Says which old subtasks' state each new subtask gets. The choice follows from how records are routed."""

    ROUND_ROBIN = "ROUND_ROBIN"
    """New subtask i gets the old subtasks i, i+new, i+2*new and so on. Any subtask may process the records."""
    RANGE = "RANGE"
    """A new subtask gets each old one whose key range overlaps its own.

    Several may read one old one and filter by key.
    """
    FULL = "FULL"
    """Every new subtask gets every old one."""
    FIRST = "FIRST"
    """New subtask 0 gets everything, because the records go to one subtask only."""


@dataclass(frozen=True, slots=True)
class Gate:
    """An input gate of a vertex: its mapper, and the new parallelism of the vertex before it."""

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
    """Return, for each gate, the old subtasks whose input channel state each new subtask reads.

    At unchanged parallelism each subtask keeps its own state, with one exception. If a gate is FULL and the parallelism
    of any upstream vertex differs from the old parallelism of this vertex, every gate is mapped (Flink:
    `reDistributeInputChannelStates`).
    """
    any_full = any(gate.mapper is ChannelMapper.FULL for gate in gates)
    any_upstream_changed = any(gate.upstream_parallelism != old for gate in gates)
    if old == new and not (any_full and any_upstream_changed):
        return tuple(_own(old) for _ in gates)
    return tuple(map_subtasks(gate.mapper, old, new) for gate in gates)


def redistribute_outputs(old: int, new: int, mapper: ChannelMapper) -> tuple[OldSubtasks, ...]:
    """Return the old subtasks whose output state each new one reads: its own state at unchanged parallelism."""
    return _own(old) if old == new else map_subtasks(mapper, old, new)


def ambiguous(mapping: Sequence[OldSubtasks]) -> tuple[int, ...]:
    """Return the old subtasks that several new ones read. The readers must filter the records by key."""
    readers = Counter(old for olds in mapping for old in olds)
    return tuple(sorted(old for old, count in readers.items() if count > 1))


def _own(parallelism: int) -> tuple[OldSubtasks, ...]:
    return tuple((subtask,) for subtask in range(parallelism))


def _overlapping(own: KeyGroupRange, old_ranges: Sequence[KeyGroupRange]) -> OldSubtasks:
    return tuple(old for old, old_range in enumerate(old_ranges) if own.intersection(old_range) is not None)
