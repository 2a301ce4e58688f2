"""The error that a machine raises when a door breaks a rule, with the rule's id."""

import sys


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
    """Return whether a rule has just failed. Hypothesis then still calls `teardown`, which has nothing more to find."""
    return sys.exc_info()[0] is not None
