"""Draws slips from the core's own source, plants them one by one, and judges whether they are found."""

import ast
import importlib
import importlib.util
import json
import random
import re
import subprocess
import sys
from importlib import import_module
from multiprocessing.pool import ThreadPool as Pool

import pytest

from spec.bugs import plant
from spec.sharpness import __main__ as command
from spec.sharpness import reach as reaching
from spec.sharpness.__main__ import report, sharp_enough, worth_trying
from spec.sharpness.differing import Probes, is_harmless, probes
from spec.sharpness.judges import UNIT_TESTS, Found, Result, Trial, judged, reach, trials, unit_tests
from spec.sharpness.reach import Kept, Reach
from spec.sharpness.slips import Slip, all_slips, equivalent, lines_of, planted, slips

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
EDGES = """
def below(a, b):
    return a < b


def kept(rows):
    return [x for x in rows if x]
"""
LOOK = """
import sys
from spec.sharpness.slips import all_slips
from spec.sharpness.judges import Trial, judged, trials
slip = next(slip for slip in all_slips() if slip.key.startswith(sys.argv[1]))
files = [trial for trial in trials() if trial.name == "further_unaligned.json"]
seeds = [trial for trial in trials(range(12)) if trial.judge == "simulator"]
print(*map(str, judged(slip, [*files, *seeds, Trial("other", "broken", lambda: 1 / 0)], 100).trials), sep="; ")
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
    return all_slips()


def test_each_operator_finds_its_places(tmp_path):
    """A small module has every construct at least once. Texts for people have no slips."""
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
    """A sample of the slips is planted. Each slip changes its function's code, but only while it is planted."""
    assert len(drawn) > 4_000
    for slip in random.Random(7).sample(drawn, 80):  # noqa: S311 - a sample
        module = import_module(slip.module)
        function = plant.function_of(module, slip.function)
        code = function.__code__
        with plant.changed_code(module, planted(module, slip)):
            assert code != function.__code__, str(slip)
        assert code is function.__code__


def test_a_field_is_confused_only_with_one_of_its_class_and_type(drawn):
    """The slip reads another field of the same type. A type checker would find a field of another type."""
    confused = [slip for slip in drawn if slip.operator == "other field"]
    assert len(confused) > 100
    assert all(slip.before.rpartition(".")[2] != slip.after.rpartition(".")[2] for slip in confused)


@pytest.mark.parametrize(
    ("place", "finder"),
    [
        ("checkpointing.gate.aligner:Aligner._block negation", r"vectors, \S+; simulator, seed \d+; other, broken"),
    ],
)
def test_all_finders_of_a_slip_are_noted(drawn, place, finder):
    """A trial that raises an error finds the slip too.

    Only the first seed is recorded. Each trial has its own process.
    """
    assert any(slip.key.startswith(place) for slip in drawn)
    looked = subprocess.run([sys.executable, "-c", LOOK, place], check=True, capture_output=True, text=True)
    assert re.fullmatch(finder, looked.stdout.strip())


def test_only_trials_that_run_a_line_of_the_slip_are_tried(drawn):
    """A trial that does not run the slip's lines cannot find it.

    If a condition has several lines, running one is enough.
    """
    seed, gates = [trial for trial in trials(range(1)) if trial.judge in ("simulator", "machines")][:2]
    ran, by_gates = reach(seed), reach(gates)
    met, unmet = _slip(drawn, "checkpointing.job.door:JobDoor.step"), _slip(drawn, "checkpointing.percentiles")
    assert _meets(ran, met)
    assert not _meets(by_gates, met)
    assert not _meets(ran, unmet)


def test_a_slip_in_the_head_of_a_statement_is_not_in_its_body(drawn):
    """A trial that only evaluates a condition runs a slip in the condition, but no slip in the body."""
    head = _slip(drawn, "checkpointing.coordinator.completed:subsume negation")
    assert head.after.startswith("if not ")
    assert {head.line} == lines_of(head)[1]


def test_a_run_continues_after_one_that_stopped(tmp_path, capsys, monkeypatch):
    """Results are written one by one. A slip with a result is not judged again, and the report counts all slips."""
    monkeypatch.setattr(command, "trials", lambda: _seeds(range(10, 14)))
    monkeypatch.setattr(command, "unit_tests", tuple)
    results = tmp_path / "results.ndjson"
    asked = ["--sample", "2", "--only", "gate.aligner:Aligner._block", "--processes", "1", "--results", str(results)]
    command.main([*asked, "--portion", "1"])
    first = results.read_text(encoding="utf-8")
    assert "[1 of 2] simulator, seed" in capsys.readouterr().err
    assert 0 == command.main(asked)
    told = capsys.readouterr()
    assert "[2 of 2] simulator, seed" in told.err
    assert "[1 of 2]" not in told.err
    assert "| `all` | 2 | 2 |" in told.out
    assert results.read_text(encoding="utf-8").startswith(first)
    assert 0 == command.main([*asked, "--portion", "0"])
    assert not capsys.readouterr().err


def test_unit_tests_that_fail_anyway_are_left_out(capsys, monkeypatch):
    """Such tests would find every slip. If a judge of the spec fails on the unchanged core, the run ends."""
    broken = Trial(UNIT_TESTS, "broken", lambda: True)
    with Pool(1) as pool:
        monkeypatch.setattr(pool, "imap", map)
        assert not list(command._reached(pool, [broken], Kept(None)))
        assert "unit tests, broken" in capsys.readouterr().err
        with pytest.raises(AssertionError, match="simulator, seed 1 finds the core wrong"):
            list(command._reached(pool, [Trial("simulator", "seed 1", lambda: True)], Kept(None)))


def _seeds(seeds):
    return tuple(trial for trial in trials(seeds) if trial.judge == "simulator")


def _slip(drawn, place):
    return next(slip for slip in drawn if slip.key.startswith(place))


def _meets(ran, slip):
    file, lines = lines_of(slip)
    return bool(lines & ran.lines.get(file, frozenset()))


def test_every_equivalent_slip_exists_and_has_a_reason(drawn):
    """The list has no slip whose code no longer exists."""
    assert set(equivalent()) <= {name for slip in drawn for name in (slip.key, slip.identity)}
    assert all(equivalent().values())


def test_the_report_counts_by_package_and_by_finder():
    """The judges are not sharp enough if the spec finds below 90 % of the slips it runs, or all find below 98 %."""
    slip = Slip("checkpointing.gate.aligner", "Aligner._block", 1, "negation", 7, "a", "not a")
    other = Slip("checkpointing.gate.aligner", "Aligner._block", 2, "negation", 8, "b", "not b")
    third = Slip("checkpointing.gate.aligner", "Aligner._block", 3, "negation", 9, "c", "not c")
    found, survived = Result(("unit tests, gate/a.py", "simulator, seed 1")), Result((), applies=False)
    by_one = Result(("unit tests, gate/b.py",), stopped=True)
    lines = list(report({slip: found, other: survived, third: by_one}))
    assert "| `checkpointing.gate` | 3 | 2 | 2 | 0 | 0 | 1 | 0 | 1 | 50% | 67% |" in lines
    assert "| all unit tests | 2 | 1 |" in lines
    assert "| all simulator | 1 | 0 |" in lines
    assert "| unit tests, gate/a.py | 1 | 0 |" in lines
    assert "| unit tests, gate/b.py | 1 | 1 |" in lines
    assert f"stopped at the bound: {third}" in lines
    assert f"not by the spec: {third} (unit tests, gate/b.py)" in lines
    assert f"survived: {other}" == lines[-1]
    assert not sharp_enough({slip: found, other: survived})
    assert sharp_enough({slip: found})
    assert not sharp_enough({slip: by_one})
    assert sharp_enough({slip: Result(("unit tests, gate/b.py",), applies=False)})


def test_no_trial_begins_after_the_bound(drawn):
    """The result says that trials are missing."""
    found = judged(drawn[0], [Trial("machines", "any", lambda: True)], 0)
    assert Found((), stopped=True) == found
    assert Result.of(found, applies=True).stopped


def test_the_lines_that_trials_reach_are_kept_until_the_code_changes(tmp_path, monkeypatch):
    """The lines are stored beside the results. A trial that fails on the unchanged core is stored as such."""
    results = tmp_path / "results.ndjson"
    kept = Kept.of(results)
    kept.add("seed 1", Reach({"checkpointing/graph.py": frozenset({3, 1})}, 0.5))
    kept.add("broken", None)
    again = Kept.of(results)
    assert Reach({"checkpointing/graph.py": frozenset({1, 3})}, 0.5) == again["seed 1"]
    assert "broken" in again
    assert again["broken"] is None
    monkeypatch.setattr(reaching, "_code", lambda: "other")
    assert "seed 1" not in Kept.of(results)


def test_the_trial_that_found_most_slips_per_second_comes_first(drawn):
    """Unit tests and vectors come before the spec, and each trial has a bound that fits its time."""
    slip = _slip(drawn, "checkpointing.job.door:JobDoor.step")
    file, lines = lines_of(slip)
    seconds = {"simulator, a": 1, "machines, b": 8, "simulator, c": 2, "vectors, d": 0.1, "unit tests, e": 30}
    tried = [Trial(*name.split(", "), finds=lambda: False) for name in seconds]
    reached = {trial: Reach({file: lines}, seconds[str(trial)]) for trial in tried}
    first = worth_trying(slip, reached, {"machines, b": 40, "vectors, d": 900})
    assert ["e", "d", "a", "c", "b"] == [trial.name for trial in first]
    assert [120, 3, 4, 8, 32] == [trial.bound_s for trial in first]
    by_side = worth_trying(slip, reached, {"machines, b": 40, "vectors, d": 900}, first=True)
    assert ["d", "e", "b", "a", "c"] == [trial.name for trial in by_side]


def test_one_finder_of_the_tests_and_one_of_the_spec_are_enough_if_asked_so(drawn):
    """Trials with a name in capitals find the slip."""
    names = {"A": "unit tests", "B": "vectors", "c": "properties", "D": "machines"}
    tried = [Trial(judge, name, name.isupper) for name, judge in names.items()]
    assert ["A", "D"] == [trial.name for trial in judged(drawn[0], tried, 100, first=True).trials]
    assert ["A", "B", "D"] == [trial.name for trial in judged(drawn[0], tried, 100).trials]


def test_a_trial_is_worth_trying_only_if_the_slip_makes_a_difference_to_it(drawn):
    """A trial is left out if it runs the lines but the changed expression always has the original value there."""
    slip = next(slip for slip in drawn if slip.identity in probes().slips)
    seen, unseen = (Trial("simulator", name, lambda: False) for name in ("seen", "unseen"))
    running = {seen: Reach({}, 1, frozenset({slip.identity})), unseen: Reach({}, 1)}
    assert (seen.within(1),) == worth_trying(slip, running, {})


def test_a_probe_notes_where_the_slip_makes_a_difference(tmp_path, monkeypatch):
    """The function's own result stays the same, and the slip is recorded exactly at the edge."""
    (tmp_path / "edges.py").write_text(EDGES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    edges = importlib.import_module("edges")
    found = {slip.key.partition(" ")[2]: slip.identity for slip in slips(edges)}
    below, kept = (
        found["comparison flipped: a < b -> a <= b"],
        found["filter dropped:  for x in rows if x ->  for x in rows"],
    )
    made = Probes(slips(edges))
    with made.planted() as noted:
        assert edges.below(1, 2)
        assert below not in noted
        assert not edges.below(2, 2)
        assert below in noted
        assert [1] == edges.kept([1])
        assert kept not in noted
        assert [1] == edges.kept([0, 1])
        assert kept in noted
    noted.clear()
    edges.below(2, 2)
    assert not noted


@pytest.mark.parametrize(("expression", "harmless"), [("a.b <= c[1]", True), ("len(a) < 2", True), ("a.pop()", False)])
def test_only_expressions_that_change_nothing_are_evaluated_twice(expression, harmless):
    """A method that may change something is not called a second time."""
    assert harmless == is_harmless(ast.parse(expression, mode="eval").body)


def test_slips_that_escaped_the_spec_can_be_judged_again(tmp_path, capsys, monkeypatch):
    """After a new rule, `--again` judges only the slips that the spec proper ran and missed."""
    monkeypatch.setattr(command, "trials", lambda: _seeds(range(10, 14)))
    monkeypatch.setattr(command, "unit_tests", tuple)
    results = tmp_path / "results.ndjson"
    asked = ["--sample", "2", "--only", "gate.aligner:Aligner._block", "--processes", "1", "--results", str(results)]
    command.main(asked)
    told = results.read_text(encoding="utf-8").splitlines()
    missed = json.loads(told[0]) | {"found": ["unit tests, one module"]}
    results.write_text("\n".join([json.dumps(missed), *told[1:]]) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert 0 == command.main([*asked, "--again"])
    assert 1 == capsys.readouterr().err.count("simulator, seed")


def test_only_unit_tests_of_the_core_are_tried():
    """Tests of the command line or of Spark's programs cannot find a slip, and some of them take minutes."""
    names = {trial.name for trial in unit_tests()}
    assert "task/test_subtask_properties.py" in names
    assert "init/test_project.py" not in names
