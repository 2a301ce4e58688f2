"""Runs the barrier cases (aligned, tracker, unaligned) on the real `InputGate`.

A case's events become facts, and the effects become the trace. Then what the legend's `matching` demands is compared:
the mandatory items in order, the set of blocked channels at every delivery, the sets in flight, and everything that
Flink's own test asserts.
"""

from collections.abc import Mapping
from typing import Any

from spec.barrier_cases.compare import check_facts, compare_asserted, compare_traces
from spec.barrier_cases.run import POLICIES, BarrierRun, Case
from spec.case_form import named_step


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend's modes are gate policies."""
    return bool(legend.get("modes")) and set(legend["modes"]) <= set(POLICIES)


def run_case(_legend: Mapping[str, Any], case: Case) -> list[str]:
    """Run one case. Return what does not match."""
    run = BarrierRun(case)
    checks = case["asserted"].get("checks", ())
    problems: list[str] = []
    for index, event in enumerate(case["events"]):
        with named_step(index, event[0]):
            run.do(index, event)
        for check in (check for check in checks if check["after_event"] == index):
            problems += [f"step {index}: {problem}" for problem in check_facts(run, check)]
    return [*compare_traces(run, case), *problems, *compare_asserted(run, case)]
