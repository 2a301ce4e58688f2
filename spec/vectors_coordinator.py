"""Runs the coordinator cases on the real doors of `checkpointing.coordinator`.

Every case names a unit, and the unit's environment takes the steps. After each step, the facts that the case lists for
it are compared: maps by the listed keys, lists exactly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spec.case_form import named_step
from spec.coordinator_cases.environment import CoordinatorUnit
from spec.coordinator_cases.unit import Step, StepError, Unit, UnitFactory, Value
from spec.coordinator_cases.units import (
    DeciderUnit,
    FailureUnit,
    IdCounterUnit,
    PlanUnit,
    StatisticsUnit,
    StopHandlerUnit,
    StopManagerUnit,
)

_UNITS: dict[str, UnitFactory] = {
    "coordinator": CoordinatorUnit,
    "decider": DeciderUnit,
    "failure_manager": FailureUnit,
    "id_counter": IdCounterUnit,
    "stats": StatisticsUnit,
    "plan": PlanUnit,
    "stop_handler": StopHandlerUnit,
    "stop_manager": StopManagerUnit,
}
_COMPLETE = frozenset({"operator_states", "master_states"})
"""Facts whose listed items are complete maps themselves."""
_SETS = frozenset({"discarded", "not_discarded"})


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is of coordinator cases. It may have units that Tidemark lacks, as Flink's sink."""
    units = legend.get("words", {}).get("unit", ()) if isinstance(legend.get("words"), dict) else ()
    return "coordinator" in units


def run_case(legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return what does not hold."""
    name = case["given"].get("unit", "coordinator")
    if name not in _UNITS:
        return [f"Tidemark has no {name}: its units are {', '.join(_UNITS)}"]
    unit, problems = _UNITS[name](case["given"]), list[str]()
    for index, raw in enumerate(case["steps"]):
        with named_step(index, raw[0]):
            problems += [f"step {index} {raw[0]}: {problem}" for problem in _run_step(legend, case, unit, index)]
    return problems


def _run_step(legend: Mapping[str, Any], case: Mapping[str, Any], unit: Unit, index: int) -> Iterator[str]:
    error = _do(unit, Step.of(case["steps"][index], legend))
    entries = [entry for entry in case["expect"] if entry["after"] == index]
    if error is not None and not any("error" in entry for entry in entries):
        yield f"expected no error, got {error}"
    for entry in entries:
        yield from _compare(unit, entry, error)


def _do(unit: Unit, step: Step) -> str | None:
    try:
        unit.do(step)
    except StepError as error:
        return error.kind
    return None


def _compare(unit: Unit, entry: Mapping[str, Value], error: str | None) -> Iterator[str]:
    for name, expected in entry.items():
        if name == "after":
            continue
        got = error if name == "error" else unit.fact(name, expected)
        if not _holds(name, expected, got):
            yield f"{name}: expected {expected}, got {got}"


def _holds(name: str, expected: Value, got: Value) -> bool:
    match name:
        case "future":
            return all(_is_future(state, got.get(request)) for request, state in expected.items())
        case "failed_count":
            return bool(expected == got)
        case "plan":
            return bool(_as_sets(expected) == _as_sets(got))
        case _ if name in _COMPLETE:
            return all(got.get(key) == value for key, value in expected.items())
        case _ if name in _SETS:
            return sorted(expected) == sorted(got)
        case _:
            return _matches(expected, got)


def _is_future(expected: str, got: str | None) -> bool:
    return got is not None and (got == expected or (expected == "failed" and got.startswith("failed")))


def _as_sets(plan: Value) -> Value:
    if plan is None:
        return None
    return {
        part: {vertex: frozenset(subtasks) for vertex, subtasks in value.items()}
        if isinstance(value, dict)
        else frozenset(value)
        for part, value in plan.items()
    }


def _matches(expected: Value, got: Value) -> bool:
    if isinstance(expected, dict) and isinstance(got, dict):
        return all(key in got and _matches(value, got[key]) for key, value in expected.items())
    return bool(expected == got)
