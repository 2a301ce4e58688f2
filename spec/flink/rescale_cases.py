"""Runs Flink's rescale cases: ranges of key groups, and keyed state at another parallelism."""

from collections.abc import Callable, Mapping
from typing import Any

from checkpointing.key_groups import key_group_ranges

Value = Any
Given = Mapping[str, Value]

_SETS = frozenset({"unchanged"})


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the rescale cases."""
    return {"key_groups", "keyed_state"} <= set(legend.get("kinds", ()))


def run_case(_legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return the differences."""
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
    """Return the value with lists instead of tuples, as in JSON."""
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


_KINDS: dict[str, Callable[[Given], dict[str, Value]]] = {
    "key_groups": _key_groups,
    "keyed_state": _keyed_state,
}
