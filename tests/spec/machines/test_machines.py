"""Runs every machine against the real core, and tests the command that runs them all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from checkpointing.gate import UNLIMITED, GatePolicy
from checkpointing.messages import SavepointKind
from spec.bugs.plant import bugs
from spec.machines import __main__ as command
from spec.machines import coordinator_driver, gate_model, judging
from spec.machines.gate import GATE_MACHINES, TrackingGateMachine
from spec.machines.job import JOB_MACHINES, SPLITS


def is_large(machine):
    return machine in GATE_MACHINES.values() or "Job" in machine.__name__


MACHINES = [
    pytest.param(each, marks=[pytest.mark.matrix] if is_large(each) else [], id=each.__name__)
    for each in command.MACHINES
]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_core_keeps_every_rule_of_a_machine(machine):
    """The machine may do anything that its world allows, in any order."""
    run_state_machine_as_test(machine, settings=judging.fitting(machine, settings()))


def test_every_rule_of_a_machine_has_a_bug():
    """A rule of gate, commit or coordinator that finds no planted bug may be unable to find one."""
    folder = Path(judging.__file__).parent
    text = "".join(
        path.read_text() for name in ("gate", "commit", "coordinator") for path in folder.glob(f"{name}*.py")
    )
    rules = set(re.findall(r'(?:expect\([^"]*?|BrokenRuleError\(|_shows\([^"]*?)"([a-z-]+)"', text))
    rules |= {gate_model.TELLS, gate_model.ABORTS, gate_model.PENDING, coordinator_driver.TELLS}
    # A bug that breaks one of these two rules breaks `alignment` or `private` first, so no hunt ends with these.
    assert rules - {"released", "shared-needed"} <= {bug.rule for bug in bugs().values()}


def test_an_end_completes_a_barrier_that_its_channel_skipped():
    """A channel skips barrier 1 and ends. A tracker counts the end before it gets the barrier."""
    machine = TrackingGateMachine()
    machine.open(channels=3, limit=UNLIMITED, ends_count=True)
    for number, skip in ((2, 0), (1, 1), (0, 0)):
        machine._send_barrier(number, skip, None)
        machine.holds()
    machine.teardown()
    assert machine.model.channels[machine.channels[1]].ended


def test_a_start_that_rolls_a_dead_rollback_forward_keeps_the_cuts_of_entries():
    """A rollback dies after its entry. The next start records its cut, and drops no cut that is needed."""
    machine = JOB_MACHINES[GatePolicy.UNALIGNED]()
    machine.open(tolerable=100, slice_rows=2, retained=2, concurrent=1, timeout_ms=150)
    machine.answer(picks=[0])
    machine.fire(times=1)
    machine.answer_in_order(steps=40)
    driven = machine.driven
    (behind,) = driven.others()
    driven.crash()
    driven.roll_back(behind, effects_max=3)
    waiting = driven.world.checkpoints()[-1].checkpoint
    assert waiting not in driven.world.cuts
    driven.start()
    assert {behind, waiting} <= driven.world.cuts.keys()


def test_periodic_triggering_is_due_an_interval_after_a_stop_has_failed():
    """The savepoint of a drain expires although no time passes for the door. Before that, nothing was due."""
    machine = JOB_MACHINES[GatePolicy.ALIGNED_BLOCKING]()
    machine.open(retained=1, concurrent=2, slice_rows=2, timeout_ms=150, tolerable=0)
    machine.answer_in_order(steps=10)
    machine.answer(picks=[26, 13, 29, 1, 22, 27, 2])
    machine.fire(times=2)
    machine.start(parallelism=2, split=SPLITS[0])
    machine.fire(times=2)
    machine.answer(picks=[12, 14, 2, 26, 30, 28])
    machine.answer_in_order(steps=30)
    machine.ask(kind=SavepointKind.DRAIN)
    machine.crash(come_true=15, later=True, parallelism=1, really=True, split=SPLITS[2])
    machine.fire(times=5)
    machine.start(parallelism=1, split=SPLITS[2])
    machine.answer_in_order(steps=38)
    machine.ask(kind=SavepointKind.DRAIN)
    machine.fire(times=3)


# ---------------------------------------------------------------- the command and its profiles


def test_the_reference_and_the_invariants_need_no_test_library():
    """The modules that judge real runs load no Hypothesis."""
    program = (
        "import sys, spec.reference.pipeline, spec.rules.invariants, spec.traces; sys.exit('hypothesis' in sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_each_profile_searches_harder_and_only_the_nightly_one_at_random():
    """The nightly profile takes a million steps with all machines."""
    found = [settings.get_profile(name) for name in judging.NAMES]
    effort = [each.max_examples * each.stateful_step_count for each in found]
    assert sorted(effort) == effort
    assert [(True, None), (True, None)] == [(each.derandomize, each.database) for each in found[:2]]
    assert not found[2].derandomize
    assert effort[-1] * len(command.MACHINES) >= 1_000_000


DRAWS = """
from hypothesis import given, settings, strategies as st
from spec.machines import judging as profiles
profiles.register()
drawn = []
@settings(settings.get_profile("ci"))
@given(st.lists(st.integers()), st.text())
def draw(numbers, text):
    drawn.append((numbers, text))
draw()
print(ascii(drawn))
"""


def test_other_loaded_tests_do_not_change_the_examples():
    """Otherwise, a bug would be found in some runs only."""
    programs = (DRAWS, f"import spec.flink.vectors, spec.bugs.judges, jobs.settings\n{DRAWS}")
    one, other = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for program in programs
    )
    assert one == other != "[]\n"


def test_a_seed_has_its_own_examples(capsys):
    """This holds for any number of processes. The command prints each machine's steps, and how many machines passed."""
    steps = []
    for number, processes in (("7", "1"), ("7", "2"), ("8", "1")):
        options = ["--profile", "dev", "--only", "PauseMachine", "--seed", number, "--processes", processes]
        assert 0 == command.main(options)
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith("1 of 1 PauseMachine: ")
        assert "1 passed, 0 failed" == said[-1]
        steps.append(int(said[0].split()[4]))
    assert steps[0] == steps[1] != steps[2]
    assert steps[0] > 100


@pytest.mark.dear
def test_the_command_shows_the_broken_rule(capsys, monkeypatch):
    """The command prints the rule and the shortest sequence of steps that breaks it. The exit code is 1."""
    from spec.machines.commit import CommitWorld

    monkeypatch.setattr(CommitWorld, "record_cut", lambda self, checkpoint, versions, retained=(): None)
    assert 1 == command.main(["--profile", "dev", "--only", "CommitMachine"])
    said = capsys.readouterr().out
    assert "CommitMachine: BrokenRuleError: " in said
    assert "state = CommitMachine()" in said
    assert said.endswith("0 passed, 1 failed\n")
