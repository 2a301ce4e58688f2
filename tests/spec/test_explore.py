"""Exhaustive exploration: the small world holds to its end, planted bugs are found, and branches are independent."""

from copy import deepcopy

import pytest

from checkpointing.commit import recovery
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.gate.channels import Channels
from checkpointing.job.polling import SourceReaders
from checkpointing.messages import SavepointKind
from spec import explore
from spec.bugs.plant import bugs, planted
from spec.explore import FAULTS, WORLDS
from spec.machines import commit
from spec.world.branching import branch, digest
from spec.world.whole_job import DrivenJob


@pytest.mark.dear
def test_the_small_world_holds_to_its_end():
    """It tries every order of answers, a timer and a crash. Each path ends caught up.

    At times two checkpoints are in flight.
    """
    found = explore.explore(WORLDS["small"])
    assert [] == found.violations
    assert found.complete
    assert found.in_flight == 2
    assert found.states > 3_000
    assert found.ended > 50


def test_a_zombie_changes_nothing():
    """A tick dies at any moment. What it last asked of the stores then happens at once, later or never."""
    found = explore.explore(WORLDS["zombie"])
    assert [] == found.violations
    assert found.complete
    assert found.states > 300
    assert found.ended > 20


@pytest.mark.dear
@pytest.mark.parametrize(("world", "states", "ends"), [("savepoint", 2_000, 40), ("failing", 3_000, 100)])
def test_savepoints_and_failing_effects_hold_to_the_end(world, states, ends):
    """A savepoint of any kind comes at any moment, and so does its disposal.

    One effect fails in any way, one tick is overtaken.
    """
    found = explore.explore(WORLDS[world])
    assert [] == found.violations
    assert found.complete
    assert found.states > states
    assert found.ended > ends


@pytest.mark.dear
@pytest.mark.parametrize(
    ("world", "states", "transitions", "ends"), [("rollback", 2_000, 4_000, 100), ("reset", 1_500, 4_000, 100)]
)
def test_going_back_and_moving_a_source_hold_to_the_end(world, states, transitions, ends):
    """The tick ends or dies at any moment after a checkpoint.

    The rollback or reset that follows may die at any effect.
    """
    found = explore.explore(WORLDS[world])
    assert [] == found.violations
    assert found.complete
    assert found.states > states
    assert found.transitions > transitions
    assert found.ended > ends


@pytest.mark.parametrize(
    ("world", "path", "answer"),
    [
        ("savepoint", ("ask plain 1",), "SavepointTaken"),
        ("savepoint", ("ask drain 1",), "SavepointTaken"),
        ("failing", ("overtake",), None),
        ("failing", ("fail 0 poll_fails",), None),
        ("zombie", ("haunt 0",), None),
        ("reset", ("reset orders 0 all 0",), None),
        ("reset", ("reset orders 2 3 0",), None),
        ("rollback", (*("answer 0",) * 8, "rollback 1 5 1"), None),
    ],
)
def test_each_step_has_a_name_that_does_it(world, path, answer):
    """A path in words is carried out, and from its end the job catches up."""
    driven = explore.replay(WORLDS[world], path)
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    assert driven.end is not None
    assert ([] if answer is None else [answer]) == [type(each).__name__ for each in driven.answers]


def test_a_step_that_there_is_not_is_named():
    """A misspelt path fails. It is not taken for a path that leads nowhere."""
    with pytest.raises(ValueError, match="there is no step 'dance 3'"):
        explore.replay(WORLDS["small"], ("dance 3",))


def test_every_effect_that_may_fail_in_the_simulator_may_fail_here():
    """Each fault that the simulator plants in one effect is a step here. Suites judge nothing in these worlds."""
    of_an_effect = {"micro_batch_fails", "poll_fails", "table_problem", "publish_fails", "reply_lost", "write_lost"}
    of_an_effect |= {"check_fails", "micro_batch_not_staged"}
    assert of_an_effect == {fault for faults in FAULTS.values() for fault in faults}
    assert {"plain", "suspend", "drain"} == {kind.value for kind in SavepointKind}


def test_a_branch_is_a_deep_copy():
    """A branch and a deep copy go on in the same way, and the original stays unchanged."""
    driven = DrivenJob(WORLDS["medium"].job())
    driven.start()
    for _ in range(12):
        before = digest([driven.door])
        copies = [branch(driven), deepcopy(driven)]
        for copy in copies:
            copy.answer(0)
        assert digest([copies[0].door]) == digest([copies[1].door])
        assert digest([copies[0].world]) == digest([copies[1].world])
        assert before == digest([driven.door])
        driven.answer(len(driven.outstanding) - 1)


def test_a_path_can_be_told_again():
    """The path to a finding leads to it again, step by step."""
    driven = explore.replay(WORLDS["small"], ("answer 0", "answer 0", "fire", "crash 0"))
    assert 2 == driven.generation
    assert driven.end is None


def never_roll_forward(monkeypatch):
    from dataclasses import replace

    from checkpointing.tick import door

    real = recovery.decide_recovery
    monkeypatch.setattr(
        door,
        "decide_recovery",
        lambda seen, take_over: replace(real(seen, take_over=take_over), roll_forward=None),
    )


def resume_nobody(monkeypatch):
    monkeypatch.setattr(Channels, "resume", lambda self, name: None)


def end_without_a_commit(monkeypatch):
    monkeypatch.setattr(SourceReaders, "all_idle", property(lambda self: True))
    monkeypatch.setattr(SourceReaders, "polling", property(lambda self: False))


def publish_before_the_row_is_in(monkeypatch):
    real = TwoPhaseCommit._finalise

    def finalise(self, draft):
        effects = real(self, draft)
        early = recovery.publications(self._record)
        return (*(commit.PublishTable(draft.checkpoint, each) for each in early), *effects)

    monkeypatch.setattr(TwoPhaseCommit, "_finalise", finalise)


BUGS = {
    "a committed row is not rolled forward": (never_roll_forward, {"doors-hold", "published-in-order", "no-deadlock"}),
    "a channel is never read on": (resume_nobody, {"no-deadlock", "caught-up-is-committed", "not-too-late"}),
    "a tick ends too early": (end_without_a_commit, {"caught-up-is-committed", "triggers-end"}),
    "tables are published before the entry is appended": (
        publish_before_the_row_is_in,
        {"visible-after-commit", "doors-hold"},
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_met_in_the_small_world(bug, monkeypatch):
    """The exploration finds a planted bug, and names the path to it."""
    plant, expected = BUGS[bug]
    plant(monkeypatch)
    found = explore.explore(WORLDS["small"])
    assert expected & {broken.invariant for broken, _ in found.violations}
    assert found.violations[0][1]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("world", "bug"),
    [
        ("savepoint", "a checkpoint builds on the savepoint before it"),
        ("zombie", "a claim takes the generation of the one before"),
        ("failing", "other files are published than the entry names"),
        ("rollback", "a tick begins from the target of a rollback"),
        ("rollback", "a rollback has the nonce of its target"),
        ("reset", "a reset publishes the newest entry once more"),
        ("reset", "a reset takes the id of the entry that it moves"),
    ],
)
def test_a_bug_is_met_in_a_world_of_its_kind(world, bug):
    """On some path within the world, a planted bug breaks the rule that it names."""
    with planted(bugs()[bug]):
        found = explore.explore(WORLDS[world])
    assert bugs()[bug].rule in {broken.invariant for broken, _ in found.violations}


def test_the_command_ends_with_the_counts(capsys):
    """`python -m spec.explore` prints the numbers of states and transitions, and whether these were all."""
    assert 0 == explore.main(["--world", "unaligned", "--states", "40"])
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("unaligned: 40 states, ")
    assert said.endswith("not explored to the end")
