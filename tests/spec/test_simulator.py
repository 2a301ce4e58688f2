"""Simulates the real job door and the real recovery with many seeds, and proves that each invariant can fail."""

import subprocess
import sys
from collections import Counter
from dataclasses import fields
from itertools import product

import pytest

from checkpointing.gate import GatePolicy
from checkpointing.job import restoring
from checkpointing.messages import SavepointKind, TickOutcome
from spec import faults, simulate
from spec.history import (
    SavepointAnswered,
    SavepointAsked,
    TickOver,
)
from spec.met import RARE, met_by
from spec.moves import NO_MOVES, Moves, drawn
from spec.simulator import Simulation
from spec.simulator import simulate as run

SEEDS = 800
SHARES = 6
RARE_SEEDS = range(3_900, 4_300)
FOUND_BUGS = {
    11: "in-flight segments that were complete before their snapshot was requested got lost: a deadlock",
    88: "a restore at a lower parallelism met in-flight segments of a channel that is no more",
    64: "after three restores at other parallelisms an old state file came behind a newer one",
    83: "a timer that was due, but had to wait for credit, hid all later timers",
    22: "with a short interval an idle tick always had one more empty checkpoint pending, and never ended",
    44: "a tick ended caught up although its last unaligned checkpoint held rows in flight",
    47: "of two checkpoints that were aborted newest first, only the newest was told",
}


@pytest.mark.matrix
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant(share):
    """Whatever crashes, races or gets lost, and whatever is asked of a tick, no invariant breaks.

    The last tick catches up.
    """
    outcomes = ((seed, run(seed)) for seed in range(share, SEEDS, SHARES))
    assert {} == {seed: outcome.violations for seed, outcome in outcomes if outcome.violations}


def test_the_seeds_meet_every_kind_of_savepoint_and_every_answer():
    """Each kind of request is made, fulfilled and refused."""
    met = set()
    for seed in range(20):
        events = run(seed, moves=Moves(savepoints_max=5)).history.events
        kinds = {(asked.generation, asked.request): asked.kind for asked in events if isinstance(asked, SavepointAsked)}
        answers = (answer for answer in events if isinstance(answer, SavepointAnswered))
        met |= {(kinds[answer.generation, answer.request], answer.checkpoint is not None) for answer in answers}
    assert set(product(SavepointKind, (True, False))) == met


@pytest.mark.parametrize("seed", FOUND_BUGS, ids=str)
def test_a_bug_that_was_found_stays_repaired(seed):
    """FOUND_BUGS lists the seeds that once found a bug, with the bug. They draw other runs today, and pass."""
    assert () == run(seed, moves=NO_MOVES).violations


def test_the_seeds_meet_every_policy_and_every_fault():
    """Each policy, each fault and each way in which a tick can end occurs in the drawn scenarios."""
    scenarios = [Simulation(seed).scenario for seed in range(SEEDS)]
    assert set(GatePolicy) == {scenario.policy for scenario in scenarios}
    met = {
        name for scenario in scenarios for name in faults.Faults.__dataclass_fields__ if getattr(scenario.faults, name)
    }
    assert set(faults.Faults.__dataclass_fields__) == met
    ends = {
        event.end.outcome
        for seed in (*range(20), 23, 41)
        for event in run(seed).history.events
        if isinstance(event, TickOver)
    }
    assert set(TickOutcome) == ends


def test_each_move_is_in_many_seeds_and_missing_in_many():
    """A seed draws which moves its world has besides ticks. Each move is drawn often, and left out often."""
    worlds = [drawn(seed) for seed in range(SEEDS)]
    for move in (each.name for each in fields(Moves) if each.name not in ("long", "counts")):  # judged below
        having = sum(getattr(world, move) != getattr(NO_MOVES, move) for world in worlds)
        assert SEEDS / 10 < having < SEEDS * 9 / 10, move


def test_some_runs_are_long_and_all_of_them_if_somebody_asks():
    """Only a long run can have a split of more than five rows, and seven of eight long runs have one."""

    def long_ones(seeds, **forced):
        scenarios = (Simulation(seed, moves=drawn(seed, **forced)).scenario for seed in seeds)
        return sum(max(scenario.rows.values()) > 5 for scenario in scenarios)

    assert SEEDS / 33 < long_ones(range(SEEDS)) < SEEDS / 20
    assert 75 < long_ones(range(100), long=True)


def test_each_rare_event_occurs_in_one_of_a_hundred_seeds():
    """A rule about an event that never occurs finds nothing, so each rare event must occur often enough."""
    counted = [met_by(seed) for seed in RARE_SEEDS]
    assert all(number > 0 for each in counted for number in each.values())
    met = Counter(name for each in counted for name in each)
    rarer = {"a reader finds that its cut has gone": 200}  # it stays for two checkpoints at least
    assert {} == {name: met[name] for name in RARE if met[name] < len(RARE_SEEDS) / rarer.get(name, 100)}


def test_a_seed_decides_the_whole_run():
    """The same seed gives the same transcript in another process with other hashes."""
    program = "from spec.simulate import transcript; print(*transcript(49), sep='\\n')"
    stories = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": hashes}, capture_output=True, text=True, check=True
        ).stdout
        for hashes in ("1", "2")
    }
    assert 1 == len(stories)
    assert len(stories.pop().splitlines()) > 100


def test_the_command_says_how_many_passed(capsys):
    """`python -m spec.simulate` ends with the count."""
    assert 0 == simulate.main(["--seeds", "0:3"])
    assert "3 passed, 0 failed" == capsys.readouterr().out.splitlines()[-1]


def test_the_command_tells_the_story_of_a_failing_seed(capsys, monkeypatch):
    """The command names the invariant and prints the transcript. The exit code is 1."""
    monkeypatch.setattr(restoring, "_overlaps", lambda keyed, own: False)
    assert 1 == simulate.main(["--seeds", "10"])
    said = capsys.readouterr().out
    assert "-is-exact" in said
    assert "RowCommitted" not in said
    assert "AppendRow" in said
    assert "0 passed, 1 failed" == said.splitlines()[-1]


# ------------------------------------------------------------------ each invariant can fail: a history is falsified
