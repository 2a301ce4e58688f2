"""The version of a table's code: another one for other code, the same one in every process and at every setting."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import LongType

from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.sources.hybrid import SequenceSource
from orchestration.code_versions import code_version

ROOT = Path(__file__).resolve().parents[2]
ADDED = 1
PROGRAM = """
from tests.orchestration.test_code_versions import built, versions
print(versions(built()))
"""


def doubled(rows):
    """Return the rows as they are, but for a constant of this module and a function of it."""
    return rows.filter(f"value > {ADDED}") if helped(2) else rows


def helped(value):
    """Return something that a test replaces."""
    return value * 2


def halved(value):
    """Return something else."""
    return value / 2


def built(expression="value * 2", *, total="value", bounds=(0, 9), parallelism=2, step: Callable = doubled) -> Pipeline:
    """Return a pipeline of one stateless and one keyed vertex."""
    made = Pipeline("versions", parallelism=parallelism)
    rows = made.source("numbers", SequenceSource({"a": 3}, keys=2)).transform(step)
    rows = rows.with_column("more", expression, LongType())
    low, high = bounds
    bounded = Expectation("expect_column_values_to_be_between", {"column": "n", "min_value": low, "max_value": high})
    rows = rows.table("bronze/numbers", id="bronze").check_rows(bounded, quarantine="quarantine/numbers")
    rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of(total)).upsert("gold/by_key")
    return made


def versions(made: Pipeline) -> dict[str, str]:
    """Return the code version of each vertex."""
    planned = plan(made, parallelism=made.parallelism)
    return {str(vertex.id): code_version(planned, vertex) for vertex in planned.graph.operators()}


def changed(**other) -> set[str]:
    """Return the vertices whose version another definition changes."""
    before, after = versions(built()), versions(built(**other))
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("other", "vertices"),
    [
        ({}, set()),
        ({"parallelism": 5}, set()),
        ({"expression": "value * 3"}, {"bronze"}),
        ({"step": lambda rows: rows.filter("value > 7")}, {"bronze"}),
        ({"total": "n"}, {"by_key"}),
    ],
)
def test_the_version_changes_with_what_the_vertex_computes(other, vertices):
    """An expression, a function or an aggregate makes another version of its vertex; parallelism makes none."""
    assert vertices == changed(**other)


def test_a_row_rule_is_code_of_all_that_meet_its_rows():
    """Who reads the good rows computes something else under another rule."""
    assert {"bronze", "by_key"} == changed(bounds=(0, 8))


def test_a_constant_and_a_helper_of_the_users_module_are_code(monkeypatch):
    """What a step names in its own package counts as if it stood in the step."""
    before = versions(built())
    monkeypatch.setattr(sys.modules[__name__], "ADDED", 2)
    assert before["bronze"] != versions(built())["bronze"]
    monkeypatch.undo()
    assert before == versions(built())
    monkeypatch.setattr(sys.modules[__name__], "helped", halved)
    assert before["bronze"] != versions(built())["bronze"]


def test_every_process_finds_the_same_version():
    """Neither the seed of hashes nor the addresses of objects come into a version."""
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert 1 == len(seen)
