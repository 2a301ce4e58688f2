"""Each bug that is seeded in the core breaks the invariant that it names. The core without bugs stays unchanged."""

import inspect
import sys

import pytest

from checkpointing.commit import recovery
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.tick import recovering
from spec.invariants import INVARIANTS
from spec.mutants import __main__ as command
from spec.mutants import hunting, planting
from spec.mutants.hunting import hunt
from spec.mutants.judges import SIMULATOR
from spec.mutants.known_seeds import KNOWN_SEEDS
from spec.mutants.planting import Mutant, NothingToPatchError, Patch, planted
from spec.mutants.registry import MUTANTS

HISTORIC = (6404, 6640, 10354, 12858, 13256, 18252, 21351, 22494, 22596, 23471)
HISTORIC += (24611, 25191, 25395, 26394, 26985, 27148, 32347)


@pytest.mark.matrix
@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_in_the_core_is_found(name):
    """A seeded bug breaks the invariant that it names. With the same seed, the untouched core passes."""
    found = hunt(name)
    assert found.passed, str(found)


def test_every_invariant_has_a_mutant():
    """A rule that finds no bug may be unable to find one."""
    assert set(INVARIANTS) <= {bug.breaks for bug in MUTANTS.values()}


def test_every_historic_bug_is_seeded():
    """Each bug that Flink once had is here with its number."""
    assert {f"FLINK-{number}" for number in HISTORIC} == {flink for bug in MUTANTS.values() for flink in bug.flink}


def test_no_mutant_is_lost():
    """Names are sentences, and no two mutants share one. Every known seed belongs to a mutant."""
    rooms = {module for name, module in sys.modules.items() if name.startswith("spec.mutants.")}
    planted_in = sum(inspect.getsource(room).count("\n@mutant(") for room in rooms)
    assert planted_in == len(MUTANTS)
    assert set(KNOWN_SEEDS) <= set(MUTANTS)


def test_after_a_mutant_the_core_is_as_before():
    """Everything that was replaced is put back, in every module that had it, even after an error."""
    step, real = TwoPhaseCommit.step, recovery.publications
    with planted(MUTANTS["the last table is not published"]):
        assert recovering.publications is recovery.publications
        assert recovering.publications is not real
    with pytest.raises(KeyError), planted(MUTANTS["a failed publication is taken for a success"]):
        raise KeyError(TwoPhaseCommit.step is step)
    assert TwoPhaseCommit.step is step
    assert (real, real) == (recovery.publications, recovering.publications)


def test_a_mutant_of_removed_code_is_named():
    """If the core has changed, a mutant that no longer fits does not pass silently."""
    with pytest.raises(NothingToPatchError, match="TwoPhaseCommit has no stap of its own"):
        Patch().put(TwoPhaseCommit, "stap", None)
    with pytest.raises(NothingToPatchError, match="recovery has no publication of its own"):
        Patch().function(recovery, "publication", None)


def test_the_command_counts_survivors(capsys, monkeypatch):
    """A mutant that changes nothing survives. The command names it and counts it as failed, and the exit code is 1."""
    harmless = Mutant("nothing goes wrong", "fifo", lambda patch: None, SIMULATOR, ())
    monkeypatch.setattr(hunting, "MUTANTS", {**MUTANTS, harmless.name: harmless})
    monkeypatch.setattr(command, "MUTANTS", {**MUTANTS, harmless.name: harmless})
    assert 1 == command.main(["--only", harmless.name, "--seeds", "2", "--processes", "1"])
    out = capsys.readouterr().out
    assert "SURVIVED the simulator" in out
    assert "0 passed, 1 failed" == out.splitlines()[-1]


def test_the_command_names_seed_and_invariant(capsys):
    """The command prints one line for each mutant. `--find` prints the content of known_seeds."""
    assert 0 == command.main(["--only", "an entry names no parent", "--processes", "1"])
    out = capsys.readouterr().out
    assert "found   an entry names no parent: parent-line, seed" in out
    assert "1 passed, 0 failed" == out.splitlines()[-1]
    assert 0 == command.main(["--only", "an_entry_names_no_parent", "--processes", "1", "--find"])
    assert '    "an entry names no parent": ' in capsys.readouterr().out


def test_a_finding_that_the_untouched_core_shows_too_does_not_count(monkeypatch):
    """A seed that fails without the bug proves nothing."""
    broken = planting.Judge("broken", lambda seed: frozenset({"fifo"}), 1)
    bug = Mutant("nothing goes wrong", "fifo", lambda patch: None, broken, ())
    monkeypatch.setattr(hunting, "MUTANTS", {bug.name: bug})
    found = hunt(bug.name)
    assert not found.passed
    assert hunting.HEALTHY_FAILS in str(found)
