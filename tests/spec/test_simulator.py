"""Simulates the real job door and the real recovery with many seeds, and counts what the seeds meet."""

import subprocess
import sys
from collections import Counter
from dataclasses import fields
from itertools import product

import pytest

from checkpointing.gate import GatePolicy
from checkpointing.job import restoring
from checkpointing.messages import SavepointKind, TickOutcome
from checkpointing.metadata.record import RowKind
from spec import scale, simulate
from spec.bugs.plant import bugs, planted
from spec.history import (
    CutsSeen,
    CutWritten,
    JobClaimed,
    PowerLost,
    RowCommitted,
    SavepointAnswered,
    SavepointAsked,
    TickOver,
)
from spec.rare import RARE, met_by
from spec.reference.contents import in_flight, positions
from spec.reference.pipeline import RENAMED_VALUE, CutReached, is_renamed
from spec.rules.rollbacks import Line
from spec.simulate import main, run_seed
from spec.world import faults
from spec.world.draw import FORCED, NO_MOVES, Mishaps, Moves, crowd, drawn
from spec.world.simulator import Simulation
from spec.world.simulator import simulate as run

SEEDS = 800
SHARES = 6
RARE_SEEDS = range(3_900, 4_300)
OFTEN = Mishaps(power_cuts_max=1, losses_max=2)
WORLDS = {
    "as drawn": (SEEDS, {}),
    "power cuts and lost log entries": (240, {"savepoints_max": 2, "rollbacks_max": 1, "mishaps": OFTEN}),
    "columns that change": (60, {"savepoints_max": 3, "rollbacks_max": 2, "releases": True}),
    "resets": (120, {"savepoints_max": 3, "rollbacks_max": 1, "resets_max": 2}),
    "rollbacks": (60, {"savepoints_max": 3, "rollbacks_max": 2}),
    "broadcast state": (60, {"broadcasts": True}),
    "held cuts": (60, {"holds": True}),
    "erasures": (60, {"savepoints_max": 2, "rollbacks_max": 1, "clean_ups_max": 2, "forgets_max": 2}),
}


@pytest.mark.matrix
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant(world, share):
    """This holds whatever crashes, races or gets lost, and whatever users ask of a tick. The last tick catches up."""
    seeds, forced = WORLDS[world]
    outcomes = ((seed, run(seed, moves=drawn(seed, **forced))) for seed in range(share, seeds, SHARES))
    assert {} == {seed: outcome.violations for seed, outcome in outcomes if outcome.violations}


LISTS = {"stores_fail": True, "lists_lag": True, "leases": True}
STORIES = {
    "a tick's release ends an older claim of its own": (497, drawn(497, restarts=True, **LISTS)),
    "another program compacts between a rollback's entry and its publication": (
        531,
        Moves(savepoints_max=3, rollbacks_max=1, resets_max=2),
    ),
    "another tick claims the job before a tick's door begins": (609, Moves(savepoints_max=3, rollbacks_max=2)),
    "two failed checkpoints end a tick, and a task dies later": (205199, drawn(205199)),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_breaks_no_invariant(story):
    """Each of these runs once broke an invariant."""
    seed, moves = STORIES[story]
    assert () == run(seed, moves=moves).violations


def test_the_seeds_meet_every_kind_of_savepoint_and_every_answer():
    """Each kind of request is made, fulfilled and refused."""
    met = set()
    for seed in range(20):
        events = run(seed, moves=Moves(savepoints_max=5)).history.events
        kinds = {(asked.generation, asked.request): asked.kind for asked in events if isinstance(asked, SavepointAsked)}
        answers = (answer for answer in events if isinstance(answer, SavepointAnswered))
        met |= {(kinds[answer.generation, answer.request], answer.checkpoint is not None) for answer in answers}
    assert set(product(SavepointKind, (True, False))) == met


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
    """Only long runs can have a split of more than five rows, and seven of eight long runs have such a split."""

    def long_ones(seeds, **forced):
        scenarios = (Simulation(seed, moves=drawn(seed, **forced)).scenario for seed in seeds)
        return sum(max(scenario.rows.values()) > 5 for scenario in scenarios)

    assert SEEDS / 33 < long_ones(range(SEEDS)) < SEEDS / 20
    assert 75 < long_ones(range(100), long=True)


def test_each_rare_event_occurs_in_one_of_a_hundred_seeds():
    """A rule about an event that never occurs can find nothing, so each rare event must occur often enough."""
    counted = [met_by(seed) for seed in RARE_SEEDS]
    assert all(number > 0 for each in counted for number in each.values())
    met = Counter(name for each in counted for name in each)
    rarer = {"a reader finds that its cut has gone": 200, "lost entries are published again": 200}
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


# ------------------------------------------------------------------
# Simulates jobs that read the cuts of another job. At each entry, such a job stands at one cut (A10).


CUT_SEEDS = range(12)


def test_jobs_stand_at_one_cut_of_their_upstream_job():
    """This holds under all faults, with savepoints, rollbacks and changing splits. The jobs really reach cuts."""
    reached = 0
    for seed in CUT_SEEDS:
        moves = Moves(savepoints_max=3, rollbacks_max=1, splits=True, declines=True, cuts=True)
        outcome = run(seed, moves=moves)
        assert () == outcome.violations, seed
        reached += sum(isinstance(event, CutReached) for event in outcome.history.events)
    assert reached > len(CUT_SEEDS)


def test_the_seeds_meet_power_cuts_and_lost_log_entries():
    """Some starts find lost log entries, and publish them again or ask for a backup."""
    told: Counter[str] = Counter()

    def narrate(line):
        told.update(word for word in ("POWER CUT", "lost its newest") if word in line)

    events = set()
    for seed in range(120):
        events |= {type(event) for event in run(seed, narrate, moves=drawn(seed, mishaps=OFTEN)).history.events}
        if min(told["POWER CUT"], told["lost its newest"]) > 5:
            break
    assert min(told["POWER CUT"], told["lost its newest"]) > 5
    assert {CutsSeen, PowerLost} <= events


def test_the_seeds_meet_every_change_of_tables_and_columns():
    """Releases and rollbacks rename tables and columns both ways, take old names again, and add and drop columns."""
    due = {
        (how, now) for how in ("table on", "table back", "again", "column on", "column back") for now in (False, True)
    }
    due |= {("on", "more"), ("on", "fewer"), ("back", "fewer")}
    met = set()
    for seed in range(2_000):
        if due <= met:
            break
        shown, names, before = {}, set(), None
        for event in run(seed, moves=Moves(rollbacks_max=2, releases=True)).history.events:
            if isinstance(event, RowCommitted):
                how = "back" if event.record.kind is RowKind.ROLLBACK else "on"
                columns = {each.table: {column.name for column in each.columns} for each in event.record.columns}
                for table, has in columns.items():
                    met |= {(how, "more")} if has - shown.get(table, has) else set()
                    met |= {(how, "fewer")} if shown.get(table, has) - has else set()
                shown |= columns
                if event.record.commits:
                    table, column = is_renamed(event.record), any(RENAMED_VALUE in has for has in columns.values())
                    if before is not None and table != before[0]:
                        met |= {(f"table {how}", table), ("again" if table in names else "first", table)}
                    if before is not None and column != before[1]:
                        met.add((f"column {how}", column))
                    names.add(table)
                    before = table, column
    assert set() == due - met


RESET_SEEDS = (*range(43), 64, 77)
"""With the present draw, seed 64 resets a source with rows in flight, and seed 77 resets one after a rollback."""


def test_the_seeds_meet_every_kind_of_reset():
    """Resets go back and forth, from cuts with rows in flight, from rollbacks, stops and resets.

    Some die after their entry.
    """
    met = set()
    for seed in RESET_SEEDS:
        events = run(seed, moves=Moves(savepoints_max=3, rollbacks_max=1, resets_max=2)).history.events
        rows = {event.record.checkpoint: event.record for event in events if isinstance(event, RowCommitted)}
        for place, event in enumerate(events):
            if isinstance(event, RowCommitted) and event.record.kind is RowKind.RESET:
                met |= set(kinds(rows[event.record.parent], event.record))
                later = next((each for each in events[place:] if isinstance(each, JobClaimed | CutWritten)), None)
                met |= {"died"} if isinstance(later, JobClaimed) else set()
    assert {RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.RESET, "stop", "back", "forth", "died", "in flight"} == met


def kinds(parent, row):
    before, after = positions(parent), positions(row)
    yield parent.kind
    yield from ("stop",) * parent.pinned
    yield from ("in flight",) * any(in_flight(parent))
    yield from ("back" if after[split] < before[split] else "forth" for split in after if after[split] != before[split])


def test_the_seeds_meet_every_kind_of_rollback():
    """Rollbacks restore checkpoints, rollbacks and savepoints.

    A rollback leaves savepoints behind that stay, and a later rollback restores one of them.
    """
    met, due = set(), {RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.SAVEPOINT, "left", "again", "gone"}
    for seed in range(2_000):
        if due <= met:
            break
        events = run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=2)).history.events
        line = Line()
        for commit in (event for event in events if isinstance(event, RowCommitted)):
            turn = line.turn(commit.record)
            if turn is not None:
                met |= {line.there[commit.record.parent].kind, *(("left",) if turn.abandoned else ())}
                met |= {*(("again",) if turn.adopted else ()), *(("gone",) if turn.dropped else ())}
            line.take(commit.record, commit.kept)
    assert due <= met


# ------------------------------------------------------------------
# Tests that a crowd forces the same moves on a seed each time, and that the core breaks no rule with them.


CROWD_SEEDS = range(300)


def test_a_crowd_may_force_every_move():
    """`FORCED` must also list moves that are added later."""
    assert FORCED.keys() == {each.name for each in fields(Moves)} - {"counts"}
    assert FORCED.keys() == {name for seed in CROWD_SEEDS for name in crowd(seed)}


def test_a_crowd_forces_two_to_twelve_moves():
    """Each seed forces the same moves in every run."""
    assert {2, 3, 4, 5, 6, 8, 12} == {len(crowd(seed)) for seed in CROWD_SEEDS}
    assert [crowd(seed) for seed in CROWD_SEEDS] == [crowd(seed) for seed in CROWD_SEEDS]


@pytest.mark.parametrize("seed", range(3_100_000, 3_100_020))
def test_the_core_breaks_no_rule_in_a_crowd(seed):
    """All moves of a crowd strike together."""
    assert () == run_seed(seed, crowded=True)[1]


def test_the_command_runs_a_crowd(capsys):
    """The transcript names the moves. `--no-restarts` on the command line overrides the crowd."""
    seed = next(seed for seed in CROWD_SEEDS if {"restarts", "votes"} <= crowd(seed).keys())
    assert 0 == main(["--seeds", f"{seed}", "--crowd", "--no-restarts", "--transcript"])
    told = capsys.readouterr().out
    assert "restarts=False" in told
    assert "votes=True" in told
    assert "1 passed, 0 failed" in told


# ------------------------------------------------------------------
# In a chain of many vertices and a long run of a small job, the door keeps every invariant that needs no contents.


@pytest.mark.parametrize(("vertices", "subtasks", "checkpoints"), [(20, 20, 2), (3, 4, 60)])
def test_a_large_job_keeps_every_invariant(vertices, subtasks, checkpoints):
    """The run takes as many checkpoints as its limit allows, with the answers in any order."""
    job = scale.LargeJob(vertices, subtasks, checkpoints, seed=1)
    job.run()
    assert [] == job.verdict.problems
    assert checkpoints == job.verdict.checkpoints


def test_a_bug_in_a_large_job_is_found(capsys):
    """The invariants judge the run as they judge a trace."""
    with planted(bugs()["the last table is not published"]):
        assert 1 == scale.main(["--vertices", "3", "--subtasks", "2", "--checkpoints", "2"])
    assert "published-completely" in capsys.readouterr().out
    assert 0 == scale.main(["--vertices", "3", "--subtasks", "2", "--checkpoints", "2"])
