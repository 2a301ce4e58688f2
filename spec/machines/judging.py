"""What a machine raises when a door breaks a rule: the rule's id, and how."""

import sys


class BrokenRuleError(AssertionError):
    """A door broke an invariant, named by its id."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def expect(holds: bool, invariant: str, what: object = "") -> None:  # noqa: FBT001 - reads as an assertion
    """Raise BrokenRuleError unless it holds."""
    if not holds:
        raise BrokenRuleError(invariant, str(what))


def is_unwinding() -> bool:
    """Return whether a rule has just failed: Hypothesis tears a machine down all the same, there is no more to find."""
    return sys.exc_info()[0] is not None
