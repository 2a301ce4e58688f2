"""Tests the command that runs all machines, their profiles, and which modules may import Hypothesis."""

import subprocess
import sys

import pytest
from hypothesis import settings

from spec import profiles
from spec.machines import __main__ as command


def test_the_reference_and_the_invariants_need_no_test_library():
    """The modules that judge real runs load no Hypothesis."""
    program = "import sys, spec.model, spec.invariants, spec.traces; sys.exit('hypothesis' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_there_are_three_profiles():
    """Each profile searches harder than the one before. Only the nightly one draws at random."""
    found = [settings.get_profile(name) for name in profiles.NAMES]
    effort = [each.max_examples * each.stateful_step_count for each in found]
    assert sorted(effort) == effort
    assert [True, True, False] == [each.derandomize for each in found]
    assert [True, True, False] == [each.database is None for each in found]
    assert effort[-1] * len(command.MACHINES) >= 1_000_000


DRAWS = """
import hashlib
from hypothesis import given, settings, strategies as st
from spec import profiles
profiles.register()
drawn = []
@settings(settings.get_profile("ci"))
@given(st.lists(st.integers()), st.text())
def draw(numbers, text):
    drawn.append((numbers, text))
draw()
print(hashlib.sha256(repr(drawn).encode()).hexdigest())
"""


def test_other_loaded_tests_do_not_change_the_examples():
    """Otherwise, a bug would be found on some days only."""
    programs = (DRAWS, f"import spec.vectors, spec.judges, jobs.settings\n{DRAWS}")
    printed = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for program in programs
    }
    assert 1 == len(printed)
    assert 65 == len(printed.pop())


def test_the_command_counts_steps(capsys):
    """`python -m spec.machines` prints the steps of each machine, and ends with the number that passed."""
    assert 0 == command.main(["--profile", "dev", "--only", "CommitMachine"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("1 of 1 CommitMachine: ")
    assert int(said[0].split()[4]) > 500
    assert "1 passed, 0 failed" == said[-1]


def test_a_seed_has_its_own_examples(capsys):
    """A seed has the same examples in every run, with any number of processes. Another seed has others."""
    steps = []
    for number, processes in (("7", "1"), ("7", "2"), ("8", "1")):
        options = ["--profile", "dev", "--only", "PauseMachine", "--seed", number, "--processes", processes]
        assert 0 == command.main(options)
        steps.append(capsys.readouterr().out.split()[4])
    assert steps[0] == steps[1]
    assert steps[0] != steps[2]


@pytest.mark.dear
def test_the_command_shows_the_broken_rule(capsys, monkeypatch):
    """It prints the rule and the shortest story that breaks it. The exit code is 1."""
    from spec.machines.commit_world import CommitWorld

    monkeypatch.setattr(CommitWorld, "record_cut", lambda self, checkpoint, versions, retained=(): None)
    assert 1 == command.main(["--profile", "dev", "--only", "CommitMachine"])
    said = capsys.readouterr().out
    assert "CommitMachine: BrokenRuleError: " in said
    assert "state = CommitMachine()" in said
    assert said.endswith("0 passed, 1 failed\n")
