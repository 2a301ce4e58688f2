"""Exhaustive exploration: the small world holds to its end, planted bugs are found, and branches are independent."""

from copy import deepcopy

import pytest

from checkpointing.messages import SavepointKind
from spec import explore
from spec.bugs.plant import bugs, planted
from spec.explore import FAULTS, WORLDS
from spec.world.branching import branch, digest
from spec.world.whole_job import DrivenJob


@pytest.mark.parametrize(
    ("world", "states", "ends"),
    [
        ("zombie", 300, 20),
        *(
            pytest.param(*case, marks=pytest.mark.dear)
            for case in [
                ("small", 3_000, 50),
                ("savepoint", 2_000, 40),
                ("failing", 3_000, 100),
                ("rollback", 2_000, 100),
                ("reset", 1_500, 100),
            ]
        ),
    ],
)
def test_a_world_holds_to_its_end(world, states, ends):
    """Every order of its steps is tried: answers, a timer, a crash, and what the world is named after."""
    found = explore.explore(WORLDS[world])
    assert ([], True) == (found.violations, found.complete)
    assert found.states > states
    assert found.ended > ends
    assert world != "small" or found.in_flight == 2


@pytest.mark.parametrize(
    ("world", "path", "answer"),
    [
        ("savepoint", ("ask plain 1",), "SavepointTaken"),
        ("savepoint", ("ask drain 1",), "SavepointTaken"),
        ("failing", ("overtake",), None),
        ("failing", ("fail 0 poll_fails",), None),
        ("zombie", ("haunt 0",), None),
        ("small", ("answer 0", "answer 0", "fire", "crash 0"), None),
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


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("world", "bug"),
    [
        ("small", "the last table is not published"),
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
