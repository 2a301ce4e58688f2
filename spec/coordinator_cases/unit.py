"""What every unit of the coordinator vectors offers: do a step, tell a fact."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Value = Any
"""JSON as the case files hold it."""


class StepError(Exception):
    """A step raised to its caller; `kind` is the legend's word for it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class UnknownWordError(Exception):
    """A case uses a word that its unit does not know: the runner is older than the file."""

    def __init__(self, word: str) -> None:
        super().__init__(f"this unit does not know the word {word!r}")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a case: its word, its arguments and its options."""

    word: str
    args: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: list[Value], legend: Mapping[str, Value]) -> "Step":
        """Parse a step: the last element is the options if all its keys are options of that word."""
        word, *args = raw
        known = {*legend["steps"][word]["opts"], "run"}
        if args and isinstance(args[-1], dict) and args[-1].keys() <= known:
            return cls(word, tuple(args[:-1]), args[-1])
        return cls(word, tuple(args))

    def argument(self, index: int, default: Value = None) -> Value:
        """Return an argument, or the default if it was left out."""
        return self.args[index] if index < len(self.args) else default


class Unit(Protocol):
    """A component under test with its environment."""

    def do(self, step: Step) -> None:
        """Do a step; raise StepError if it raises to its caller."""

    def fact(self, name: str, expected: Value) -> Value:
        """Return what holds now for the fact of that name, in the form in which cases write it."""


UnitFactory = Callable[[Mapping[str, Value]], Unit]
