"""Runs Flink's rescale cases: ranges of key groups, and operator state that is spread over other subtasks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from checkpointing.key_groups import key_group_ranges
from checkpointing.operator_state import (
    DistributionMode,
    OperatorStatePart,
    redistribute_operator_state,
)

Value = Any
Given = Mapping[str, Value]
Parts = tuple[OperatorStatePart, ...]

_SETS = frozenset({"unchanged"})


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the rescale cases."""
    return {"key_groups", "operator_state"} <= set(legend.get("kinds", ()))


def run_case(_legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return what does not match."""
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
    return {
        "ranges": [[owned.first, owned.last] for owned in ranges],
        "sizes": [len(owned) for owned in ranges],
    }


def _keyed_state(given: Given) -> dict[str, Value]:
    most, old, new = given["max_parallelism"], given["old_parallelism"], given["new_parallelism"]
    before = key_group_ranges(parallelism=old, max_parallelism=most)
    gets = [
        [[at, [part.first, part.last]] for at, was in enumerate(before) if (part := own.intersection(was)) is not None]
        for own in key_group_ranges(parallelism=new, max_parallelism=most)
    ]
    return {"new_subtask_gets": gets}


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


_KINDS: dict[str, Callable[[Given], dict[str, Value]]] = {
    "key_groups": _key_groups,
    "keyed_state": _keyed_state,
    "operator_state": _operator_state,
}
