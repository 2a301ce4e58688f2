"""Each planted bug breaks the rule that it names. The core without bugs stays unchanged."""

from dataclasses import replace

import pytest

from checkpointing.commit import recovery
from checkpointing.job import renaming
from checkpointing.tick import door
from spec.bugs import __main__ as command
from spec.bugs.__main__ import Hunt, hunt, refitted
from spec.bugs.judges import JUDGES
from spec.bugs.plant import BugDoesNotFitError, bugs, files, planted
from spec.rules.invariants import INVARIANTS

HISTORIC = (6404, 6640, 10354, 12858, 13256, 18252, 21351, 22494, 22596, 23471)
HISTORIC += (24611, 25191, 25395, 26394, 26985, 27148, 32347, 32496, 32828)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] if bug.slow else []) for name, bug in bugs().items()]
)
def test_a_planted_bug_is_found(name):
    """The bug's judge reports the rule that the bug names, with one of its first seeds."""
    done = hunt(bugs()[name])
    assert done.seed is not None, str(done)


@pytest.mark.parametrize("name", [name for name in JUDGES if name.startswith("simulator")])
def test_a_judge_finds_nothing_wrong_with_the_core(name):
    """Otherwise a judge's findings would prove nothing. The machines' own tests check this for the machines."""
    assert not any(JUDGES[name].broken(seed) for seed in range(min(4, JUDGES[name].seeds_max)))


def test_every_rule_has_a_bug():
    """A rule that finds no bug may be unable to find one. Every judge has a bug to find."""
    assert set(INVARIANTS) <= {bug.rule for bug in bugs().values()}
    assert set(JUDGES) == {bug.judge for bug in bugs().values() if not bug.judge.endswith(".py")}


def test_every_historic_bug_is_planted():
    """Each bug that Flink once had is listed with its number."""
    assert {f"FLINK-{number}" for number in HISTORIC} == {flink for bug in bugs().values() for flink in bug.flink}


def _breaks_off(bug):
    with planted(bug):
        assert len(renaming._STATES) == 1
        raise KeyError


def test_after_a_bug_the_core_is_as_before():
    """Code and tables are restored, even after an error. While the bug is planted, each importer sees it."""
    function, code, states = recovery.publications, recovery.publications.__code__, renaming._STATES
    with planted(bugs()["the last table is not published"]):
        assert door.publications is recovery.publications is function
        assert function.__code__ is not code
    with pytest.raises(KeyError):
        _breaks_off(bugs()["broadcast state stays in its old folder"])
    assert function.__code__ is code
    assert renaming._STATES is states


def test_the_table_of_rules_is_up_to_date():
    """`python -m spec.bugs --table` writes the table."""
    assert command.table() == command.README.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    return nothing_of_the_kind\n", "", "no longer has these lines"),
        ("\n", "", "has [0-9]+ times these lines"),
        ("    rows: tuple[Row, ...]\n", "    rows: tuple[Row, ...] = ()\n", "is no function and no table"),
        (
            "def publications(record: CheckpointRecord)",
            "def publications(record: CheckpointRecord = 1)",
            "is no function",
        ),
        (
            "def publications(record: CheckpointRecord)",
            "def publications(record: CheckpointRecord",
            "would be no Python",
        ),
    ],
)
def test_a_bug_that_no_longer_fits_is_named(old, new, why):
    """A bug that no longer fits the core raises an error. So does one that changes a field or a parameter."""
    bug = replace(bugs()["the last table is not published"], changes=((old, new),))
    with pytest.raises(BugDoesNotFitError, match=f"(?s)'the last table is not published' .*{why}"), planted(bug):
        pass


def test_a_bug_finds_its_lines_after_a_move(monkeypatch, tmp_path):
    """`--refit` writes the path of the module that has the bug's lines now."""
    text = next(file for file in files() if file.name == "tick.toml").read_text(encoding="utf-8")
    moved = tmp_path / "tick.toml"
    moved.write_text(text.replace('"checkpointing/tick/door.py"', '"checkpointing/tick/gone.py"'), encoding="utf-8")
    gone = {
        name: replace(bug, file="checkpointing/tick/gone.py")
        for name, bug in bugs().items()
        if bug.file == "checkpointing/tick/door.py"
    }
    monkeypatch.setattr(command, "files", lambda: [moved])
    monkeypatch.setattr(command, "bugs", lambda: gone)
    assert len(gone) == len(list(refitted()))
    assert moved.read_text(encoding="utf-8") == text


def test_the_command_names_seed_and_rule(capsys):
    """The command prints one line for each bug, and counts them."""
    assert 0 == command.main(["--only", "the last table is not published", "--processes", "1"])
    out = capsys.readouterr().out
    assert "the last table is not published: published-completely, seed 0 of the simulator" in out
    assert "1 found, 0 lost" == out.splitlines()[-1]


def test_the_command_counts_lost_bugs(capsys, monkeypatch):
    """A bug that its judge does not find is named, and the exit code is 1."""
    lost = Hunt("the last table is not published", None, frozenset({"fifo"}), 0)
    monkeypatch.setattr(command, "hunt", lambda bug: lost)
    assert 1 == command.main(["--only", "the last table is not published", "--processes", "1"])
    out = capsys.readouterr().out
    assert "LOST, broken is ['fifo'], by the simulator" in out
    assert "0 found, 1 lost" == out.splitlines()[-1]
