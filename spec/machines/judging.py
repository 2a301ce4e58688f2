"""The error that a machine raises when a door breaks a rule, with the rule's id."""

import sys
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants


class BrokenRuleError(AssertionError):
    """A door broke an invariant. The message has its id."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def expect(holds: bool, invariant: str, what: object = "") -> None:  # noqa: FBT001 - reads as an assertion
    """Raise BrokenRuleError if the condition does not hold."""
    if not holds:
        raise BrokenRuleError(invariant, str(what))


def is_unwinding() -> bool:
    """Return whether a rule has just failed. Hypothesis still calls `teardown` then, which need not judge any more."""
    return sys.exc_info()[0] is not None


# ------------------------------------------------------------------
# How hard Hypothesis searches: the profiles dev (seconds), ci and nightly. They are registered only here.
#
# `dev` and `ci` try the same examples in every run. So a red run is caused by a change, and is red again when repeated.
# For this, Hypothesis must not use numbers and texts that it finds in the loaded modules, since these depend on the
# tests that ran before. `nightly` tries random examples. Its findings are kept in `.hypothesis`, and are tried first in
# the next run. `spec.rules` does not import this module, because it judges without a test library.


ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = ("dev", "ci", "nightly")


def register() -> None:
    """Register the profiles. A slow, shared computer is no failure, and neither is an example that became too large."""
    setattr(HypothesisProvider, "_local_constants", Constants())  # noqa: B010 - no setting says it; a property till now
    common = settings(
        deadline=None,
        print_blob=True,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    repeated = settings(common, derandomize=True, database=None)
    settings.register_profile("dev", repeated, max_examples=50, stateful_step_count=30)
    settings.register_profile("ci", repeated, max_examples=200, stateful_step_count=50)
    settings.register_profile(
        "nightly",
        common,
        derandomize=False,  # set explicitly, since a second registration would begin from the loaded profile
        database=DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples"),
        max_examples=2_000,
        stateful_step_count=200,
    )


def hunting() -> settings:
    """Return the ci profile for the hunt of a planted bug: the same examples each time, and one finding is enough."""
    return settings(
        settings.get_profile("ci"),
        database=None,
        derandomize=True,
        print_blob=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )


def fitting(machine: type, chosen: settings) -> settings:
    """Return the settings for a machine. A machine with `runs_long` gets half as many runs, each twice as long.

    A gate needs some ninety steps before a replay interrupts a replay that has interrupted another one. A machine with
    `runs_short` does much in each step, and gets a fifth of the runs.
    """
    if getattr(machine, "runs_short", False):
        return settings(chosen, max_examples=max(1, chosen.max_examples // 5))
    if not getattr(machine, "runs_long", False):
        return chosen
    most, steps = max(1, chosen.max_examples // 2), 2 * chosen.stateful_step_count
    return settings(chosen, max_examples=most, stateful_step_count=steps)
