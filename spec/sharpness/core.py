"""Finds the core's modules and their slips, and plants a slip: it replaces the code of one loaded function."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

import checkpointing
from spec.sharpness.slips import Slip, lines, planted, slips

ROOT: Final = Path(*checkpointing.__path__).parent


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return all modules of the core, ordered by name."""
    names = sorted(found.name for found in pkgutil.walk_packages(checkpointing.__path__, "checkpointing."))
    return tuple(importlib.import_module(name) for name in names)


def all_slips() -> tuple[Slip, ...]:
    """Return every slip that can be planted."""
    return tuple(slip for module in modules() for slip in slips(module))


def lines_of(slip: Slip) -> tuple[str, frozenset[int]]:
    """Return the slip's file, and lines of which Python runs at least one whenever it runs what the slip changes.

    The file is a path from the root of the project.
    """
    module = importlib.import_module(slip.module)
    return str(Path(str(module.__file__)).relative_to(ROOT)), lines(module, slip)


def plant(slip: Slip) -> None:
    """Give the slip's function the changed code for the rest of this process."""
    function, code = changed(slip)
    function.__code__ = code


def changed(slip: Slip) -> tuple[FunctionType, CodeType]:
    """Return the slip's function, and its code with the slip."""
    module = importlib.import_module(slip.module)
    made = compile(planted(module, slip), module.__file__ or slip.module, "exec")
    function = function_of(module, slip.function)
    return function, code_in(made, function)


def code_in(made: CodeType, function: FunctionType) -> CodeType:
    """Return the code of this function in a module that was compiled anew."""
    return next(code for code in _codes(made) if code.co_qualname == function.__code__.co_qualname)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def function_of(module: ModuleType, name: str) -> FunctionType:
    """Return the function of this qualified name. Raise TypeError if its code cannot be replaced."""
    owner: object = module
    *owners, last = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, last)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", getattr(found, "func", found))
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{module.__name__}.{name} is no function whose code can be replaced")
    return found
