"""Redistributes channel state: the records in flight at an unaligned barrier (Flink: `SubtaskStateMapper`)."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, assert_never

from checkpointing.key_groups import KEY_GROUPS_MAX, KeyGroupRange, key_group_ranges
from checkpointing.operator_state import (
    DistributionMode,
    InvalidRescaleError,
    OperatorStatePart,
    redistribute_operator_state,
)
from spec.flink.key_groups import default_max_parallelism, key_group_of_hash, redistribute_keyed, subtask_of

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


# ------------------------------------------------------------------
# Runs the rescale cases: computes a case's results with the core's functions, and compares every key of `expect`.
#
# The case that states a property is run as a seeded random test with as many draws as it asks for.


Value = Any
Given = Mapping[str, Value]
Parts = tuple[OperatorStatePart, ...]

SEED = 128
_SETS = frozenset({"ambiguous_old_inputs", "unchanged"})
_SETS_PER_SUBTASK = frozenset({"input_state_of_new", "output_state_of_new", "old_subtasks_of_new"})
_BROADCAST_OFFSETS = 4


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the rescale cases."""
    return {"key_groups", "keyed_state", "operator_state", "channel_state"} <= set(legend.get("kinds", ()))


def run_case(_legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return what does not match."""
    if case["kind"] == "operator_state_property":
        return list(_check_property(case["given"], case["expect"]))
    try:
        got = _KINDS[case["kind"]](case["given"])
    except ValueError:
        got = {"error": "IllegalArgument"}
    except RuntimeError:
        got = {"error": "IllegalState"}
    return [
        f"step 0 {name}: expected {expected}, got {got.get(name)}"
        for name, expected in case["expect"].items()
        if name not in got or not _holds(name, expected, got[name])
    ]


def _holds(name: str, expected: Value, got: Value) -> bool:
    if name in _SETS:
        return set(expected) == set(got)
    if name in _SETS_PER_SUBTASK:
        return [set(olds) for olds in expected] == [set(olds) for olds in got]
    if name == "operator_index_of_key_group":
        return all(got[int(group)] == subtask for group, subtask in expected.items())
    return bool(expected == _listed(got))


def _listed(value: Value) -> Value:
    """Return the value with lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, (list, tuple)) else value


# ---------------------------------------------------------------------- key groups


def _key_groups(given: Given) -> dict[str, Value]:
    most, parallelism = given["max_parallelism"], given["parallelism"]
    ranges = key_group_ranges(parallelism=parallelism, max_parallelism=most)
    owners = {
        group: subtask_of(key_group=group, parallelism=parallelism, max_parallelism=most) for group in range(most)
    }
    return {
        "ranges": [[owned.first, owned.last] for owned in ranges],
        "sizes": [len(owned) for owned in ranges],
        "operator_index_of_key_group": owners,
    }


def _default_max_parallelism(given: Given) -> dict[str, Value]:
    return {
        "max_parallelisms": [default_max_parallelism(parallelism=parallelism) for parallelism in given["parallelisms"]]
    }


def _key_hash(given: Given) -> dict[str, Value]:
    return {
        "key_groups": [
            key_group_of_hash(key_hash=hash_, max_parallelism=given["max_parallelism"]) for hash_ in given["key_hashes"]
        ]
    }


def _keyed_state(given: Given) -> dict[str, Value]:
    new = redistribute_keyed(
        max_parallelism=given["max_parallelism"],
        old_parallelism=given["old_parallelism"],
        new_parallelism=given["new_parallelism"],
        configured_max_parallelism=given.get("new_max_parallelism"),
    )
    return {
        "new_subtask_gets": [
            [[part.old_subtask, [part.key_groups.first, part.key_groups.last]] for part in parts] for parts in new
        ]
    }


# ---------------------------------------------------------------------- operator state


def _operator_state(given: Given) -> dict[str, Value]:
    parts = tuple(_parts(given["states"]))
    old = given["old_parallelism"]
    results = {new: redistribute_operator_state(parts, old, new) for new in given["new_parallelisms"]}
    names = [state["name"] for state in given["states"]]
    broadcast = [state["name"] for state in given["states"] if state["mode"] == "BROADCAST"]
    return {
        "handle_count": _per_state(results, names, lambda held: sum(len(parts) for parts in held)),
        "offsets_per_holder": _per_state(results, names, _offsets_per_holder),
        "unchanged": [new for new, result in results.items() if _is_unchanged(parts, old, result)],
        "broadcast_source": {str(new): _sources(result, broadcast) for new, result in results.items()},
        "new_subtasks": _per_state(
            results, names, lambda held: [[[part.old_subtask, part.offsets] for part in parts] for parts in held]
        ),
        "loads": {str(new): [_load(got) for got in result] for new, result in results.items()},
    }


def _parts(states: Iterable[Given]) -> Iterator[OperatorStatePart]:
    for state in states:
        for old_subtask, offsets in sorted(state["offsets"].items(), key=lambda item: int(item[0])):
            yield OperatorStatePart(state["name"], DistributionMode(state["mode"]), int(old_subtask), tuple(offsets))


def _per_state(
    results: Mapping[int, tuple[Parts, ...]], names: Iterable[str], measure: Callable[[list[Parts]], Value]
) -> dict[str, Value]:
    return {
        str(new): {name: measure([tuple(p for p in got if p.name == name) for got in result]) for name in names}
        for new, result in results.items()
    }


def _offsets_per_holder(held: list[Parts]) -> Value:
    """Return the number of offsets of the holders if all have the same, or else the list of numbers."""
    numbers = {_load(parts) for parts in held if parts}
    return numbers.pop() if len(numbers) == 1 else sorted(numbers)


def _is_unchanged(parts: Parts, old: int, result: tuple[Parts, ...]) -> bool:
    before = [frozenset(p for p in parts if p.old_subtask == subtask) for subtask in range(old)]
    return before == [frozenset(got) for got in result]


def _sources(result: tuple[Parts, ...], broadcast: list[str]) -> Value:
    """Return the old subtask whose copy each new one got, if it is the same for every BROADCAST state."""
    sources = [{part.old_subtask for part in got if part.name in broadcast} for got in result]
    return [source.pop() if len(source) == 1 else sorted(source) for source in sources]


def _load(parts: Parts) -> int:
    return sum(len(part.offsets) for part in parts)


# ---------------------------------------------------------------------- the property


def _check_property(given: Given, expect: Given) -> Iterator[str]:
    draw = random.Random(SEED)  # noqa: S311 - a test's draw
    for run in range(given["runs"]):
        old, new = draw.randint(*given["old_parallelism"]), draw.randint(*given["new_parallelism"])
        parts = tuple(_drawn_parts(given, draw, old))
        result = redistribute_operator_state(parts, old, new)
        problems = [*_check_copies(parts, result, expect["copies"], old), *_check_loads(result, expect, old)]
        if problems:
            yield f"step {run} {old} -> {new}: {problems[0]}"
            return


def _drawn_parts(given: Given, draw: random.Random, old: int) -> Iterator[OperatorStatePart]:
    named = draw.randint(*given["named_states"])
    for subtask in range(old):
        for number in range(named):
            union = draw.random() < given["union_share"]
            count = draw.randint(*given["offsets_per_state_and_old_subtask"])
            mode = DistributionMode.UNION if union else DistributionMode.SPLIT
            yield OperatorStatePart(f"state-{number}", mode, subtask, tuple(range(count)))
        if named % 2 == 1:
            yield OperatorStatePart("broadcast", DistributionMode.BROADCAST, subtask, tuple(range(_BROADCAST_OFFSETS)))


def _check_copies(parts: Parts, result: tuple[Parts, ...], copies: Given, old: int) -> Iterator[str]:
    found = Counter(
        (p.mode.value, p.name, p.old_subtask, offset) for got in result for p in got for offset in p.offsets
    )
    wanted = {
        (p.mode.value, p.name, p.old_subtask, offset): count
        for p in parts
        if (count := _copies_of(copies[p.mode.value], old, len(result), p.old_subtask)) > 0
        for offset in p.offsets
    }
    if wanted != found:
        yield f"copies: expected {wanted}, got {found}"


@cache
def _copies_of(rule: str, old: int, new: int, subtask: int) -> int:
    names = {"old": old, "new": new, "i": subtask, "__builtins__": {}}
    return int(eval(rule, names))  # noqa: S307 - the legend says that the rule is a Python expression


def _check_loads(result: tuple[Parts, ...], expect: Given, old: int) -> Iterator[str]:
    bound = expect["load_difference_max"]["equal" if old == len(result) else "rescaled"]
    loads = [_load(got) for got in result]
    if bound is not None and max(loads) - min(loads) > bound:
        yield f"load_difference_max: expected {bound}, got {loads}"


# ---------------------------------------------------------------------- channel state


def _channel_state(given: Given) -> dict[str, Value]:
    old, new = given["old"], given["new"]
    (inputs,) = redistribute_inputs(old, new, [Gate(ChannelMapper(given["input_mapper"]), new)])
    outputs = redistribute_outputs(old, new, ChannelMapper(given["output_mapper"]))
    return {
        "input_state_of_new": inputs,
        "output_state_of_new": outputs,
        "ambiguous_old_inputs": ambiguous(inputs),
    }


def _channel_state_gates(given: Given) -> dict[str, Value]:
    gates = [Gate(ChannelMapper(gate["mapper"]), gate["upstream_new"]) for gate in given["gates"]]
    handles = [gate["handles_per_old_subtask"] for gate in given["gates"]]
    mappings = redistribute_inputs(given["old"], given["new"], gates)
    counts = [
        sum(len(mapping[subtask]) * held for mapping, held in zip(mappings, handles, strict=True))
        for subtask in range(given["new"])
    ]
    return {"input_handle_count_of_new": counts}


def _channel_mapper(given: Given) -> dict[str, Value]:
    return {"old_subtasks_of_new": map_subtasks(ChannelMapper(given["mapper"]), given["old"], given["new"])}


_KINDS: dict[str, Callable[[Given], dict[str, Value]]] = {
    "key_groups": _key_groups,
    "default_max_parallelism": _default_max_parallelism,
    "key_hash": _key_hash,
    "keyed_state": _keyed_state,
    "operator_state": _operator_state,
    "channel_state": _channel_state,
    "channel_state_gates": _channel_state_gates,
    "channel_mapper": _channel_mapper,
}
