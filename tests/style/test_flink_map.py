"""The map from Flink's classes to ours is current: everything that it names exists, and no feature is left out."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
MAP = (ROOT / "docs" / "FLINK_MAP.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", MAP)
COUNTS = {"A": 11, "B": 4, "C": 7, "D": 6, "E": 6, "F": 4, "G": 5, "H": 1}
FEATURES = [f"{letter}{number}" for letter, last in COUNTS.items() for number in range(1, last + 1)]
TABLE = [[cell.strip() for cell in line.split("|")] for line in MAP.splitlines() if line.startswith("|")]
ROWS = {cells[3].split(" ")[0]: cells for cells in TABLE if len(cells) == 8}
PACKAGES = ("checkpointing/", "jobs/", "spec/", "orchestration/", "tests/")


@cache
def text(path):
    return (TESTS / path).read_text(encoding="utf-8")


@cache
def case_names(file):
    return {case["name"] for case in json.loads(text(f"vectors/{file}"))["cases"]}


def test_every_feature_has_its_row():
    """A1 to H1, each in one row with a file of ours and a test on the core."""
    assert FEATURES == [feature for feature in ROWS if re.fullmatch(r"[A-H]\d+", feature)]
    assert [] == [feature for feature in FEATURES if not re.search(r"\.py`", ROWS[feature][2])]
    assert [] == [feature for feature in FEATURES if "::test_" not in ROWS[feature][4]]


def test_every_file_that_is_named_exists():
    """Paths in the map are files of this project."""
    paths = [code for code in CODE if code.startswith(PACKAGES) and not set("*: ") & set(code)]
    assert [] == [path for path in paths if not (ROOT / path).exists()]


def test_every_test_that_is_named_exists():
    """`file::test` is a test function of that file."""
    named = [code.split("::") for code in CODE if "::" in code]
    assert [] == [
        f"{path}::{test}" for path, test in named if not (TESTS / path).exists() or f"def {test}(" not in text(path)
    ]


def _runs_spark(path, test):
    module = ast.parse(text(path))
    marks = [node.value for node in module.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == test)
    return any("mark.spark" in ast.unparse(mark) for mark in [*marks, *function.decorator_list])


def _is_pytestmark(node):
    return [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def test_the_last_column_names_tests_that_run_spark():
    """A test that replaces Spark by another engine stands in the column before."""
    named = [
        (row, code.split("::")) for row, cells in ROWS.items() for code in re.findall(r"`([^`]+::[^`]+)`", cells[6])
    ]
    assert len(named) > len(FEATURES) // 2
    assert [] == [f"{row}: {path}::{test}" for row, (path, test) in named if not _runs_spark(path, test)]


def test_every_case_that_is_named_exists():
    """`file.json#name` is a case of that file."""
    named = [code.partition("#") for code in CODE if ".json#" in code]
    assert [] == [f"{file}#{case}" for file, _, case in named if case not in case_names(file)]


@pytest.mark.parametrize("file", ["aligned", "tracker", "unaligned", "coordinator", "registry", "rescale"])
def test_the_numbers_of_cases_are_those_of_the_files(file):
    """The table of vectors has the right numbers of cases, given and further ones."""
    counted = tuple(len(case_names(f"{name}.json")) for name in (file, f"further_{file}"))
    assert f"| {file} | {counted[0]} | {counted[1]} |" in MAP
