"""Lists the judges that hunt planted bugs: the simulator with some moves, machines, and property tests.

A judge gives no reasons and keeps nothing. Its `broken(seed)` returns the ids of the rules that the seed broke.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from typing import Any, Final

from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from spec.machines import judging
from spec.machines.attempts import AttemptsMachine, LostAnswersMachine, PauseMachine
from spec.machines.clean_up import CleanupMachine, KeepingMachine
from spec.machines.commit import CommitMachine
from spec.machines.coordinator import CoordinatorMachine
from spec.machines.gate import GATE_MACHINES
from spec.machines.judging import BrokenRuleError
from spec.machines.repair import RepairMachine
from spec.world.draw import Mishaps, Moves
from spec.world.simulator import simulate

EXAMPLES: Final = 40
STEPS: Final = 40
"""The steps of each run of a machine. With this number, a seed takes a second or less."""


@dataclass(frozen=True, slots=True)
class Judge:
    """One way to find a bug. It tries the seeds below `seeds_max`."""

    broken: Callable[[int], frozenset[str]]
    seeds_max: int


_SIMULATOR: Final[Mapping[str, Mapping[str, Any]]] = {
    "simulator": {},
    "simulator with savepoints": {"savepoints_max": 5},
    "simulator with rollbacks": {"savepoints_max": 5, "rollbacks_max": 2},
    "simulator with resets": {"savepoints_max": 5, "rollbacks_max": 1, "resets_max": 2},
    "simulator with erasures": {
        "savepoints_max": 2,
        "rollbacks_max": 1,
        "savepoints_at_rest_max": 2,
        "clean_ups_max": 2,
        "readers_max": 8,
        "forgets_max": 2,
    },
    "simulator with releases": {"rollbacks_max": 2, "releases": True},
    "simulator with clean-ups": {
        "savepoints_max": 3,
        "rollbacks_max": 1,
        "savepoints_at_rest_max": 2,
        "clean_ups_max": 2,
    },
    "simulator with compactions": {
        "savepoints_max": 3,
        "rollbacks_max": 1,
        "clean_ups_max": 2,
        "declines": True,
        "compacts": 2,
    },
    "simulator with broadcast state": {"broadcasts": True, "rollbacks_max": 2, "savepoints_max": 2},
    "simulator with overwrite tables": {
        "savepoints_max": 3,
        "rollbacks_max": 1,
        "clean_ups_max": 2,
        "overwrites": True,
    },
    "simulator with overwrite tables and releases": {"releases": True, "overwrites": True},
    "simulator with suites that count rows": {"savepoints_max": 2, "counts": True},
    "simulator with other splits and vertices": {
        "savepoints_max": 2,
        "rollbacks_max": 1,
        "splits": True,
        "vertices": True,
    },
    "simulator with hooks": {"savepoints_max": 2, "rollbacks_max": 1, "resets_max": 1, "hooks": True},
    "simulator with transactions": {"savepoints_max": 2, "transaction_rows": 5},
    "simulator with declines": {"declines": True},
    "simulator with splits that cannot be read": {"polls_fail": True},
    "simulator with cuts of another job": {
        "savepoints_max": 3,
        "rollbacks_max": 1,
        "splits": True,
        "declines": True,
        "cuts": True,
    },
    "simulator with sources that end": {"savepoints_max": 2, "rollbacks_max": 1, "resets_max": 1, "sources_end": 2},
    "simulator with a source that is read in parts": {
        "savepoints_max": 2,
        "rollbacks_max": 1,
        "splits": True,
        "parts": True,
    },
    "simulator with mishaps": {
        "savepoints_max": 1,
        "rollbacks_max": 1,
        "mishaps": Mishaps(power_cuts_max=1, losses_max=2),
    },
    "simulator with manifests": {"savepoints_max": 2, "rollbacks_max": 1, "clean_ups_max": 2, "manifests": True},
    "simulator with older formats": {"savepoints_max": 2, "rollbacks_max": 1, "older_formats": True},
    "simulator with leases": {"leases": True, "rests": True, "clocks_jump": True},
    "simulator with held cuts": {
        "savepoints_max": 1,
        "rollbacks_max": 1,
        "resets_max": 1,
        "clean_ups_max": 1,
        "holds": True,
    },
    "simulator with outside sinks": {"savepoints_max": 1, "rollbacks_max": 1, "stores_fail": True, "outside": True},
    "simulator with outside sinks that vote": {
        "rollbacks_max": 1,
        "stores_fail": True,
        "declines": True,
        "holds": True,
        "outside": True,
        "votes": True,
    },
    "simulator with event times": {
        "savepoints_max": 2,
        "rollbacks_max": 1,
        "splits": True,
        "declines": True,
        "times": True,
        "closes": True,
    },
    "simulator with event times and unaligned barriers": {"times": True, "backs_up": True, "dries_up": True},
    "simulator with imports": {
        "savepoints_max": 3,
        "rollbacks_max": 1,
        "savepoints_at_rest_max": 2,
        "clean_ups_max": 2,
        "imports": True,
    },
}
"""The moves of the simulator's judges."""

_MACHINES: Final[Mapping[str, type[RuleBasedStateMachine]]] = {
    **{f"gate machine, {policy.value}": machine for policy, machine in GATE_MACHINES.items()},
    "coordinator machine": CoordinatorMachine,
    "commit machine": CommitMachine,
    "clean-up machine": CleanupMachine,
    "machine of what a clean-up keeps": KeepingMachine,
    "machine of the pause after failures": PauseMachine,
    "machine of damaged tables": RepairMachine,
    "machine of a tick's attempts": AttemptsMachine,
    "machine of lost answers": LostAnswersMachine,
}


def _simulated(moves: Mapping[str, Any]) -> Callable[[int], frozenset[str]]:
    def broken(seed: int) -> frozenset[str]:
        return frozenset(violation.invariant for violation in simulate(seed, moves=Moves(**moves)).violations)

    return broken


def _by_machine(machine: type[RuleBasedStateMachine]) -> Callable[[int], frozenset[str]]:
    def broken(seed: int) -> frozenset[str]:
        judging.register()
        few = settings(judging.hunting(), derandomize=False, max_examples=EXAMPLES, stateful_step_count=STEPS)
        chosen = type(machine.__name__, (machine,), {})
        try:
            run_state_machine_as_test(seeded(seed)(chosen), settings=judging.fitting(machine, few))
        except BrokenRuleError as rule:
            return frozenset({rule.invariant})
        return frozenset()

    return broken


def by_tests(path: str) -> Judge:
    """Return the judge that runs a module's property tests. The path is relative to the root of the project."""
    return Judge(lambda seed: frozenset(_broken_by_tests(path, seed)), 4)


def _broken_by_tests(path: str, seed: int) -> Iterator[str]:
    """Yield the rules that the tests break. Each seed tries four times as many examples as the one before."""
    judging.register()
    settings.register_profile("hunting", judging.hunting(), max_examples=EXAMPLES * 4**seed)
    before = settings.get_current_profile_name()
    settings.load_profile("hunting")
    try:
        for test in _properties(path):
            try:
                test()
            except BrokenRuleError as rule:
                yield rule.invariant
            except Exception:  # noqa: BLE001, S112 - it notices the bug, and does not say by which rule
                continue
    finally:
        settings.load_profile(before)


def _properties(path: str) -> list[Callable[[], None]]:
    """Return the property tests of a module. The module is loaded anew, so that the tests have the present settings."""
    found = spec_from_file_location("property_tests", judging.ROOT / path)
    if found is None or found.loader is None:
        raise FileNotFoundError(path)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    tests = [each for name, each in vars(module).items() if name.startswith("test_")]
    return [each for each in tests if not signature(each).parameters]


JUDGES: Final[Mapping[str, Judge]] = {
    **{name: Judge(_simulated(moves), 200) for name, moves in _SIMULATOR.items()},
    **{name: Judge(_by_machine(machine), 10) for name, machine in _MACHINES.items()},
}
"""Maps the names that planted bugs use to the judges."""
