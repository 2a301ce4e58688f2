"""Defines a mutant: a patch of the core's behaviour that is in force while a context manager is open."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import checkpointing
import spec
from spec.mutants.judges import SIMULATOR, Judge

_BENT = (f"{checkpointing.__name__}.", f"{spec.__name__}.")
"""Prefixes of the modules in which a mutant replaces names."""


class NothingToPatchError(LookupError):
    """The core no longer has what a mutant replaces. The mutant must be repaired."""

    def __init__(self, owner: type | ModuleType, name: str) -> None:
        super().__init__(f"{owner.__name__} has no {name} of its own: the core has changed, repair the mutant")


class Patch:
    """Replaces methods, properties, functions and tables of the core, and restores them."""

    def __init__(self) -> None:
        """Begin with nothing replaced."""
        self._before: list[tuple[type | ModuleType, str, object]] = []

    def put(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Replace an attribute of a class, or of the single module that uses it.

        Raise NothingToPatchError if it is missing.
        """
        if name not in vars(owner):
            raise NothingToPatchError(owner, name)
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def function(self, home: ModuleType, name: str, value: object) -> None:
        """Replace a function in every module that imported it. Raise NothingToPatchError if it is missing.

        No judge may have imported it.
        """
        if name not in vars(home):
            raise NothingToPatchError(home, name)
        real = vars(home)[name]
        for module in list(sys.modules.values()):
            if not getattr(module, "__name__", "").startswith(_BENT):
                continue
            for alias in [alias for alias, known in vars(module).items() if known is real]:
                self.put(module, alias, value)

    def undo(self) -> None:
        """Restore everything, in reverse order."""
        while self._before:
            owner, name, value = self._before.pop()
            setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One seeded bug. `breaks` is the invariant that must find it.

    `flink` names the issues in which Flink had the bug.
    """

    name: str
    breaks: str
    plant: Callable[[Patch], None]
    judge: Judge
    flink: tuple[str, ...]


def mutant(
    breaks: str, judge: Judge = SIMULATOR, flink: tuple[str, ...] = ()
) -> Callable[[Callable[[Patch], None]], Mutant]:
    """Make a mutant of the function that plants it. The function's name says what goes wrong."""

    def made(plant: Callable[[Patch], None]) -> Mutant:
        return Mutant(plant.__name__.replace("_", " "), breaks, plant, judge, flink)

    return made


@contextmanager
def planted(bug: Mutant) -> Iterator[None]:
    """Plant a bug. At the end the core is as before, whatever happens meanwhile."""
    patch = Patch()
    try:
        bug.plant(patch)
        yield
    finally:
        patch.undo()
