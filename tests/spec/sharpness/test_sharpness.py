"""Slips are drawn from the core's own source, planted one by one, and found or not."""

import importlib.util
import random
import subprocess
import sys

import pytest

from spec.sharpness.__main__ import report, sharp_enough
from spec.sharpness.core import all_slips, changed
from spec.sharpness.equivalent import EQUIVALENT
from spec.sharpness.slips import Slip, slips

SOURCE = '''
class Counter:
    def note(self, rows: int) -> bool:
        """Docstrings have no slips."""
        self.rows = rows + 1
        if rows < 10 and not self.full:
            print("noted")
        return max(rows, 2) in [row for row in (1, 2) if row]

    def __str__(self) -> str:
        return str(self.rows + 1)


def both(a, b):
    if a is None:
        raise ValueError("messages have no slips", 1)
    return (both(a, b), True)
'''
LOOK = """
import sys
from functools import partial
from spec.sharpness.core import all_slips
from spec.sharpness.judges import judged, simulator
slip = next(slip for slip in all_slips() if slip.key.startswith(sys.argv[1]))
print(judged(slip, {"simulator": partial(simulator, seeds=range(15))}))
"""
OPERATORS = {
    "comparison flipped",
    "negation",
    "negation dropped",
    "and for or",
    "filter dropped",
    "off by one",
    "other truth",
    "other sign",
    "other choice",
    "dropped call",
    "dropped assignment",
    "swapped arguments",
    "empty for full",
}


@pytest.fixture(scope="module")
def drawn():
    """Return every slip of the core."""
    return all_slips()


def test_each_operator_finds_its_places(tmp_path):
    """A small module has every construct once or more; texts for people have no slips."""
    file = tmp_path / "small.py"
    file.write_text(SOURCE, encoding="utf-8")
    specification = importlib.util.spec_from_file_location("small", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    found = list(slips(module))
    assert OPERATORS == {slip.operator for slip in found}
    assert {"Counter.note", "both"} == {slip.function for slip in found}
    told = {slip.key for slip in found}
    assert "small:Counter.note comparison flipped: rows < 10 -> rows <= 10" in told
    assert "small:Counter.note other choice: max(rows, 2) -> min(rows, 2)" in told
    assert "small:both swapped arguments: both(a, b) -> both(b, a)" in told


def test_the_core_has_thousands_of_slips_and_each_has_code_of_its_own(drawn):
    """A sample of them is compiled: the code differs from the function's."""
    assert len(drawn) > 4_000
    for slip in random.Random(7).sample(drawn, 80):  # noqa: S311 - a sample
        function, code = changed(slip)
        assert code != function.__code__, str(slip)


def test_a_field_is_only_confused_with_one_of_the_same_class_and_type(drawn):
    """So that the slip is one that no type checker finds."""
    confused = [slip for slip in drawn if slip.operator == "other field"]
    assert len(confused) > 100
    assert all(slip.before.rpartition(".")[2] != slip.after.rpartition(".")[2] for slip in confused)


@pytest.mark.parametrize(
    ("place", "finder"),
    [
        ("checkpointing.gate.aligner:Aligner._block negation", "simulator"),
        ("checkpointing.rescale.operator_state:_split", ""),
    ],
)
def test_a_slip_that_matters_is_found_and_one_that_nothing_uses_is_not(drawn, place, finder):
    """The simulator looks in a process of its own, so this one stays as it is."""
    assert any(slip.key.startswith(place) for slip in drawn)
    looked = subprocess.run([sys.executable, "-c", LOOK, place], check=True, capture_output=True, text=True)
    assert finder == looked.stdout.strip()


def test_every_equivalent_slip_exists_and_has_a_reason(drawn):
    """The list does not outlive the code that it speaks of."""
    assert set(EQUIVALENT) <= {slip.key for slip in drawn}
    assert all(EQUIVALENT.values())


def test_the_report_counts_by_package_and_names_survivors():
    """Below 85 % by the spec, or 95 % by all, the spec is not sharp enough."""
    slip = Slip("checkpointing.gate.aligner", "Aligner._block", 1, "negation", 7, "a", "not a")
    other = Slip("checkpointing.gate.aligner", "Aligner._block", 2, "negation", 8, "b", "not b")
    lines = list(report({slip: "simulator", other: ""}))
    assert "| `checkpointing.gate` | 2 | 1 | 0 | 0 | 0 | 1 | 50% |" in lines
    assert f"survived: {other}" == lines[-1]
    assert not sharp_enough({slip: "simulator", other: ""})
    assert sharp_enough({slip: "simulator"})
    assert not sharp_enough({slip: "unit tests"})
