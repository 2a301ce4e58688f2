"""The rules that every run must fulfil. Each rule sees what happened in a run, and not how the product decided it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from spec.history import History

INVARIANTS: dict[str, "Callable[[History], Iterator[str]]"] = {}
"""Maps ids to the rules that take a history and yield what breaks them. `spec.rules.invariants` loads them all."""
DOOR_JUDGES: dict[str, type] = {}
"""Maps ids to the rules that follow the steps of each door. They are subclasses of `spec.rules.watching.DoorJudge`."""

R = TypeVar("R")


def rule(name: str) -> Callable[[R], R]:
    """Register a function, or a judge of doors, under the rule's id. The docstring states the rule."""

    def register(judge: R) -> R:
        if isinstance(judge, type):
            DOOR_JUDGES[name] = judge
        else:
            INVARIANTS[name] = judge  # type: ignore[assignment]
        return judge

    return register
