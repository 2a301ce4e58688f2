"""The package `tidemark`: its names, what they stand for, and the cost of importing it."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tidemark

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "tidemark" / "__init__.py"
HEAVY = {"pyspark", "pyarrow", "polars", "deltalake", "pydantic", "great_expectations", "numpy", "pandas", "dagster"}


def loaded_after(program):
    told = f"import sys; {program}; print(*sorted({{name.partition('.')[0] for name in sys.modules}} & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", tidemark.__all__)
def test_each_public_name_exists_and_is_documented(name):
    """A public class or function has a docstring; a constant is a plain value."""
    found = getattr(tidemark, name)
    assert isinstance(found, str) or found.__doc__


def test_type_checkers_and_programs_see_the_same_objects():
    typed = {
        alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("checkpointing", "jobs")
        for alias in node.names
    }
    assert sorted(typed) == sorted(tidemark.__all__) == dir(tidemark)
    assert [] == [name for name, found in typed.items() if getattr(tidemark, name) is not found]


def test_importing_the_package_is_cheap_and_reading_by_cut_needs_no_pyspark():
    """PySpark takes half a second. Only a program that writes a pipeline pays for it."""
    assert set() == loaded_after("import tidemark")
    assert "pyspark" not in loaded_after("from tidemark import Cuts")
    assert "pyspark" in loaded_after("from tidemark import Pipeline")


def test_an_unknown_name_is_an_ordinary_import_error():
    """A misspelt name fails where it is imported."""
    with pytest.raises(ImportError, match="Pipelines"):
        exec("from tidemark import Pipelines", {})  # noqa: S102 - the statement that a user would write
    assert not hasattr(tidemark, "_nothing")


def test_a_star_import_brings_only_the_public_names():
    names = {}
    exec("from tidemark import *", names)  # noqa: S102 - the statement that a user would write
    assert set(tidemark.__all__) == set(names) - {"__builtins__"}


def test_type_checkers_see_the_types():
    """Each package has `py.typed`. Without it, mypy takes every name for Any."""
    packages = ("checkpointing", "jobs", "orchestration", "spec", "tidemark")
    assert [] == [package for package in packages if not (ROOT / package / "py.typed").exists()]
