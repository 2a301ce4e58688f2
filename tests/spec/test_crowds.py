"""Tests that a crowd forces the same moves on a seed each time, and that the core breaks no rule with them."""

from dataclasses import fields

import pytest

from spec.crowds import FORCED, crowd
from spec.moves import Moves
from spec.simulate import main, run_seed

SEEDS = range(300)


def test_a_crowd_may_force_every_move():
    """`FORCED` must have a move that is added later, too."""
    assert FORCED.keys() == {each.name for each in fields(Moves)} - {"counts"}
    assert FORCED.keys() == {name for seed in SEEDS for name in crowd(seed)}


def test_a_crowd_forces_two_to_twelve_moves():
    """Each seed forces the same ones again."""
    assert {2, 3, 4, 5, 6, 8, 12} == {len(crowd(seed)) for seed in SEEDS}
    assert [crowd(seed) for seed in SEEDS] == [crowd(seed) for seed in SEEDS]


@pytest.mark.parametrize("seed", range(3_100_000, 3_100_020))
def test_the_core_breaks_no_rule_in_a_crowd(seed):
    """All moves of a crowd strike together."""
    assert () == run_seed(seed, crowded=True)[1]


def test_the_command_runs_a_crowd(capsys):
    """The transcript names the moves. `--no-restarts` on the command line overrides the crowd."""
    seed = next(seed for seed in SEEDS if {"restarts", "votes"} <= crowd(seed).keys())
    assert 0 == main(["--seeds", f"{seed}", "--crowd", "--no-restarts", "--transcript"])
    told = capsys.readouterr().out
    assert "restarts=False" in told
    assert "votes=True" in told
    assert "1 passed, 0 failed" in told
