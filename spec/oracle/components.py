"""Lists what is compared with Flink: each component, the program that asks Flink, and the form of its cases."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from spec.flink.vectors import Outcome, load, run_cases
from spec.oracle.flink import answers

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
        """Return what the words of the cases mean."""
        legend, _ = load(str(_VECTORS / self.vectors))
        return legend

    def judge(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """Give the cases to Tidemark's own code.

        A failed outcome says where Tidemark answers differently from Flink.
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
    ("default_max_parallelism", "further_rescale.json"),
    ("key_hash", "further_rescale.json"),
    ("keyed_state", "further_rescale.json"),
    ("operator_state", "further_rescale.json"),
    ("channel_mapper", "further_rescale.json"),
)
COMPONENTS: Final[Mapping[str, Component]] = MappingProxyType(
    {name: Component(name, _GATE, vectors) for name, vectors in _GATES}
    | {name: Component(name, _COMPONENT, vectors) for name, vectors in _OTHERS}
)


def ask(components: Iterable[Component], seeds: range) -> dict[str, list[Case]]:
    """Return random cases with Flink's answers, by component. Raise FlinkError if Flink cannot be asked."""
    cases: dict[str, list[Case]] = {component.name: [] for component in components}
    for program in (_GATE, _COMPONENT):
        names = [name for name in cases if COMPONENTS[name].program == program]
        for case in answers(program, names, seeds) if names else ():
            cases[case.get("kind") or case["mode"]].append(case)
    return cases
