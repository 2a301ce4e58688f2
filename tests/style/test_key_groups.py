"""Key groups are spoken of in one module, and their numbers are given by name."""

import ast
import inspect

from checkpointing import key_groups as core
from tests.style.test_style import module, nodes, sources


def named_here(home):
    """Return the functions and classes that a module defines for others."""
    return {
        name: found
        for name, found in vars(home).items()
        if not name.startswith("_") and getattr(found, "__module__", None) == home.__name__
    }


def test_every_number_is_given_by_its_name():
    """A parallelism and a max parallelism are both integers: in the wrong order they would be taken without a word."""
    numbers = [
        f"{name}({parameter.name})"
        for name, found in named_here(core).items()
        for parameter in inspect.signature(found).parameters.values()
        if parameter.annotation in (int, "int") and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert [] == numbers


def test_what_is_said_of_key_groups_is_said_in_one_module():
    """No other module has a function or a class of that name."""
    names = {*named_here(core)}
    again = [
        f"{module(path)}.{node.name}"
        for path in sources("checkpointing", "jobs", "orchestration", "tidemark", "spec")
        if module(path) != core.__name__
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    ]
    assert [] == again
