"""Draws the scenario of a seed: its faults, and how the moves of the run change them."""

from dataclasses import replace
from random import Random

from spec.faults import (
    Scenario,
    backed_up,
    compacting,
    declining,
    draw,
    ending,
    hooked,
    limited,
    of_cuts,
    paced,
    strict,
    unreadable,
)
from spec.moves import Moves


def scenario_of(seed: int, moves: Moves, random: Random, shapes: Random) -> Scenario:
    """Return the scenario of a run with these moves. Both generators of random numbers are drawn from."""
    scenario = paced(
        ending(draw(random, long=moves.long), moves.sources_end, parted=moves.parts), moves.pause_ms, moves.orders_max
    )
    voters = Random(f"voters of {seed}").choice([2, 3, 3, 3]) if moves.votes else 0  # noqa: S311 - must be repeatable
    scenario = replace(scenario, outside=moves.outside, voters=voters)
    scenario = replace(scenario, broadcasts=moves.broadcasts, overwrites=moves.overwrites)
    scenario = replace(scenario, counts=moves.counts)
    scenario = limited(scenario, shapes) if moves.limits else scenario
    scenario = hooked(scenario, seed) if moves.hooks else scenario
    scenario = declining(scenario, seed) if moves.declines else scenario
    scenario = strict(scenario, rejects=moves.rejects, held_bytes_max=moves.held_bytes_max)
    scenario = backed_up(scenario, seed) if moves.backs_up else scenario
    scenario = unreadable(scenario, seed) if moves.polls_fail else scenario
    scenario = compacting(scenario, moves.compacts) if moves.compacts else scenario
    return of_cuts(scenario, seed) if moves.cuts else scenario
