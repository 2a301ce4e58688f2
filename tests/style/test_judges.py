"""Judges share no code with what they judge: an error of the product must not be theirs too."""

import ast
import importlib
import inspect

import spec
from spec.rules import invariants

PACKAGE = spec.__name__
NAMING = {"checkpointing.metadata.paths.table_of_state", "checkpointing.metadata.paths.table_of_broadcast"}
"""They give a folder its name, and decide nothing."""


def imported(module):
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {(node.module, alias.name) for node in froms for alias in node.names}


def judges():
    """Return the modules of all invariants, and those of the specification that these use."""
    found, waiting = {}, [invariants]
    while waiting:
        module = waiting.pop()
        found[module.__name__] = module
        for package, name in imported(module):
            home = f"{package}.{name}" if package == PACKAGE else package
            if home.startswith(f"{PACKAGE}.") and home not in found:
                waiting.append(importlib.import_module(home))
    return found.values()


def functions(module):
    for package, name in sorted(imported(module)):
        if not package.startswith("checkpointing") or f"{package}.{name}" in NAMING:
            continue
        if inspect.isfunction(getattr(importlib.import_module(package), name, None)):
            yield f"{module.__name__}: {package}.{name}"


def test_judges_call_no_function_of_the_product():
    """They know its entries, files and messages. What follows from them, they work out for themselves."""
    assert [] == [name for module in judges() for name in functions(module)]


def test_the_rule_is_not_blind():
    """The simulated stores do call the product, and are no judges."""
    world = importlib.import_module("spec.world.stores")
    assert "spec.world.stores: checkpointing.commit.fencing.newest_checkpoint" in set(functions(world))
    assert world not in judges()
