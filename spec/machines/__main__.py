"""Runs every machine: `python -m spec.machines --profile nightly`. Ends with the number of steps and their speed.

The nightly profile runs most machines 2,000 times, with up to 200 steps a run. A run takes some 130 to 170 steps, so
four such machines take more than a million. `judging.fitting` gives some machines other numbers.

The profiles dev and ci try the same examples in every run. To search further, use a seed: `--seed 7 --processes 2`.
"""

import sys
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spec.machines.extra import must_have_hypothesis

must_have_hypothesis()

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from spec.machines import judging
from spec.machines.attempts import AttemptsMachine, LostAnswersMachine, PauseMachine
from spec.machines.clean_up import CleanupMachine, KeepingMachine
from spec.machines.commit import CommitMachine
from spec.machines.coordinator import CoordinatorMachine
from spec.machines.gate import GATE_MACHINES
from spec.machines.job import JOB_MACHINES, RESETTING_MACHINES, HookedJobMachine
from spec.machines.repair import RepairMachine

MACHINES: tuple[type[RuleBasedStateMachine], ...] = (
    *GATE_MACHINES.values(),
    CoordinatorMachine,
    CommitMachine,
    CleanupMachine,
    KeepingMachine,
    AttemptsMachine,
    LostAnswersMachine,
    PauseMachine,
    RepairMachine,
    *JOB_MACHINES.values(),
    HookedJobMachine,
    *RESETTING_MACHINES,
)


@dataclass(slots=True)
class Tally:
    """How many steps a machine took, in how many seconds, and the broken rule with the shortest steps that break it."""

    steps: int = 0
    seconds: float = 0.0
    broken: str = ""


def counted(machine: type[RuleBasedStateMachine], tally: Tally) -> type[RuleBasedStateMachine]:
    """Return the machine with its steps counted. A step is one check of the invariants."""

    def check_invariants(self: RuleBasedStateMachine, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        tally.steps += 1
        machine.check_invariants(self, *arguments, **options)

    return type(machine.__name__, (machine,), {"check_invariants": check_invariants})


def run(name: str, profile: str, seeded: int | None) -> Tally:
    """Run one machine. With a seed, it tries the examples of this seed instead of the fixed ones."""
    judging.register()
    machine = next(each for each in MACHINES if each.__name__ == name)
    tally, began = Tally(), perf_counter()
    chosen = judging.fitting(machine, settings.get_profile(profile))
    watched = counted(machine, tally)
    if seeded is not None:
        chosen, watched = settings(chosen, derandomize=False, database=None), seed(seeded)(watched)
    try:
        run_state_machine_as_test(watched, settings=chosen)
    except Exception as error:  # noqa: BLE001 - a finding ends its own machine only
        notes = "\n".join(getattr(error, "__notes__", ()))
        tally.broken = f"{name}: {type(error).__name__}: {error}\n{notes}\n"
    tally.seconds = perf_counter() - began
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Run the machines that the command line names. Return 0 if none broke a rule."""
    names = [machine.__name__ for machine in MACHINES]
    parser = ArgumentParser(prog="python -m spec.machines", description=__doc__)
    parser.add_argument("--profile", choices=judging.NAMES, default="ci")
    parser.add_argument("--only", choices=names)
    parser.add_argument("--seed", type=int, help="try the examples of this seed; they are the same in every run")
    parser.add_argument("--processes", type=int, default=1, help="how many machines run at a time")
    options = parser.parse_args(arguments)
    chosen = [options.only] if options.only else names
    failed = 0
    with ProcessPoolExecutor(options.processes) as pool:
        runs = {pool.submit(run, name, options.profile, options.seed): name for name in chosen}
        for place, done in enumerate(as_completed(runs), start=1):
            tally = done.result()
            failed += bool(tally.broken)
            sys.stdout.write(
                f"{tally.broken}{place} of {len(chosen)} {runs[done]}: {tally.steps} steps, "
                f"{int(tally.steps / tally.seconds)} a second, {tally.seconds:.1f} s\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - failed} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
