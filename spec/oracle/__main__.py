"""Compares Tidemark with Flink's own classes on random input: `python -m spec.oracle [COMPONENT ...] --seeds 0:2000`.

Each line names a component, the number of its cases, and in how many of them the two answered differently. `--keep
FOLDER` writes those cases there, as files for `python -m spec.flink.vectors`. Exits with 1 if there is any difference.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from spec.flink.vectors import Outcome, load, run_cases
from spec.oracle.flink import FlinkError, answers

_GATE: Final = "org.apache.flink.streaming.runtime.io.checkpointing.GateOracle"
_COMPONENT: Final = "org.apache.flink.runtime.checkpoint.ComponentOracle"
_VECTORS: Final = Path(__file__).parents[2] / "tests" / "vectors"

Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Component:
    """One component: the program that asks Flink, and the file of vectors whose legend its cases follow."""

    name: str
    program: str
    vectors: str

    @property
    def legend(self) -> Mapping[str, Any]:
        """Return the legend, which explains the words of the cases."""
        legend, _ = load(str(_VECTORS / self.vectors))
        return legend

    def judge(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """Run the cases on Tidemark's own code.

        A failed outcome shows where Tidemark answers differently from Flink.
        """
        return run_cases(self.legend, cases, self.name)


_GATES: Final = (
    ("aligned_blocking", "further_aligned.json"),
    ("at_least_once", "further_tracker.json"),
    ("unaligned", "further_unaligned.json"),
    ("alternating", "further_unaligned.json"),
)
_OTHERS: Final = (
    ("decider", "further_coordinator.json"),
    ("failure_manager", "further_coordinator.json"),
    ("subsume", "further_registry.json"),
    ("registry", "further_registry.json"),
    ("key_groups", "further_rescale.json"),
    ("keyed_state", "further_rescale.json"),
)
COMPONENTS: Final[Mapping[str, Component]] = MappingProxyType(
    {name: Component(name, _GATE, vectors) for name, vectors in _GATES}
    | {name: Component(name, _COMPONENT, vectors) for name, vectors in _OTHERS}
)


def ask(components: Iterable[Component], seeds: range) -> dict[str, list[Case]]:
    """Return random cases with Flink's answers for each component. Raise FlinkError if Flink cannot be asked."""
    cases: dict[str, list[Case]] = {component.name: [] for component in components}
    for program in (_GATE, _COMPONENT):
        names = [name for name in cases if COMPONENTS[name].program == program]
        for case in answers(program, names, seeds) if names else ():
            cases[case.get("kind") or case["mode"]].append(case)
    return cases


_SHOWN = 3


def main(arguments: list[str] | None = None) -> int:
    """Carry out the command line. Return 0 if Tidemark answers as Flink does, else 1."""
    parser = ArgumentParser(prog="python -m spec.oracle", description=__doc__)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=f"{', '.join(COMPONENTS)}; all by default")
    parser.add_argument("--seeds", type=_seeds, default=range(2000), metavar="FIRST:END", help="0:2000 by default")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the cases that differ as files of vectors")
    given = parser.parse_args(arguments)
    unknown = next((name for name in given.components if name not in COMPONENTS), None)
    if unknown is not None:
        parser.error(f"there is no component {unknown!r}: the components are {', '.join(COMPONENTS)}")
    try:
        asked = ask([COMPONENTS[name] for name in given.components or COMPONENTS], given.seeds)
        return 1 if sum(_compare(COMPONENTS[name], cases, given.keep) for name, cases in asked.items()) else 0
    except FlinkError as error:
        _say(f"tidemark: {error}")
        return 1


def _compare(component: Component, cases: list[Case], keep: Path | None) -> int:
    differing = [
        (case, outcome) for case, outcome in zip(cases, component.judge(cases), strict=True) if not outcome.passed
    ]
    _say(f"{component.name}: {len(cases)} cases, {len(differing)} answered differently")
    for _, outcome in differing[:_SHOWN]:
        _say(f"  {outcome.name}: {'; '.join(outcome.problems)}")
    if keep is not None and differing:
        keep.mkdir(parents=True, exist_ok=True)
        kept = {"legend": component.legend, "cases": [case for case, _ in differing]}
        (keep / f"{component.name}.json").write_text(json.dumps(kept), encoding="utf-8")
    return len(differing)


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
