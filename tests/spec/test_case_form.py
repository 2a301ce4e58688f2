"""The judge of the vectors reports a badly written case with its file, case and step, and never passes it."""

import json
from pathlib import Path

import pytest

from spec.flink import vectors

FILES = Path(__file__).parents[1] / "vectors"


def _case(file, **changes):
    legend, cases = vectors.load(str(FILES / f"{file}.json"))
    return legend, {**cases[0], "name": "bad", **changes}


def _reported(tmp_path, capsys, legend, case):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"legend": legend, "cases": [case]}))
    assert 1 == vectors.main([str(path)])
    line, total = capsys.readouterr().out.splitlines()
    assert "0 passed, 1 failed" == total
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        ("aligned", {"events": [["buffer", 0, 0], ["bufer", 0, 0]]}, "step 1: unknown word 'bufer'"),
        ("aligned", {"events": [["barrier", 0]]}, "step 0: barrier takes 2 to 2 arguments, here are 1"),
        ("aligned", {"events": [["buffer", 9, 0]]}, "step 0: buffer: channel 9 of 1 channels"),
        ("aligned", {"events": [7]}, "step 0: must be [word, argument ...]"),
        ("aligned", {"events": [["barrier", 0, "one"]]}, "step 0 barrier: raised TypeError"),
        ("aligned", {"mode": "sideways"}, "unknown mode 'sideways'"),
        ("aligned", {"asserted": {"guessed": 1}}, "asserted: unknown fact 'guessed'"),
        ("tracker", {"channels": None}, "channels must be a number"),
        ("coordinator", {"steps": [["trigge", "c"]], "expect": []}, "step 0: unknown word 'trigge'"),
        ("coordinator", {"expect": [{"after": 99, "pending": []}]}, "'after' must be the index of one of"),
        ("coordinator", {"expect": [{"after": 0, "pendin": []}]}, "step 0: unknown fact 'pendin'"),
        ("coordinator", {"given": {"unit": "oracle"}}, "given: unknown unit 'oracle'"),
        ("coordinator", {"steps": [["decline", "t", 1, "WHY"]], "expect": []}, "step 0 decline: raised KeyError"),
        ("registry", {"steps": [["add", 1, "chekpoint"]], "expect": []}, "step 0 add: raised KeyError"),
        ("rescale", {"kind": "guess"}, "unknown kind 'guess'"),
        ("rescale", {"given": {}}, "raised KeyError: 'max_parallelism'"),
    ],
)
def test_a_badly_written_case_fails_and_says_where(tmp_path, capsys, file, changes, told):
    """One line names the file, the case and the step. There is no traceback, and the exit code is 1."""
    line = _reported(tmp_path, capsys, *_case(file, **changes))
    assert line.startswith("FAILED bad: ")
    assert told in line


@pytest.mark.parametrize("case", [3, {"channels": 1}])
def test_a_case_without_a_name_is_told_by_its_number(tmp_path, capsys, case):
    """The case's place in the file replaces the missing name."""
    legend, _ = _case("aligned")
    assert _reported(tmp_path, capsys, legend, case).startswith("FAILED case 0 of ")


@pytest.mark.parametrize("text", ['{"legend": {', "[1]", '{"legend": {}, "cases": {}}', '{"cases": []}', ""])
def test_a_file_that_cannot_be_read_is_one_failure(tmp_path, capsys, text):
    """The message names the unreadable file. The judge still runs the other files."""
    bad, good = tmp_path / "bad.json", FILES / "tracker.json"
    bad.write_text(text)
    assert 1 == vectors.main([str(bad), str(good), str(tmp_path / "missing.json")])
    *lines, total = capsys.readouterr().out.splitlines()
    assert "14 passed, 2 failed" == total
    assert [True, True] == [line.startswith(f"FAILED {tmp_path}") and "no file of vectors" in line for line in lines]


@pytest.mark.parametrize("changed", [{"modes": 3}, {"modes": ["aligned_blocking"], "events": {"barrier": {}}}])
def test_a_legend_that_cannot_be_used_fails_its_cases(tmp_path, capsys, changed):
    """A legend that describes nothing causes no traceback."""
    legend, case = _case("aligned", events=[["barrier", 0, 1]])
    assert _reported(tmp_path, capsys, {**legend, **changed}, case).startswith("FAILED bad: ")


def test_every_case_of_the_project_is_well_formed():
    """The check of the form accepts all files of the project."""
    for path in sorted(FILES.glob("*.json")):
        legend, cases = vectors.load(str(path))
        assert [] == [problem for case in cases for problem in vectors.problems_of_form(legend, case)]
