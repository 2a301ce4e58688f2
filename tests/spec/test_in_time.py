"""Rules about what a door does in time, and what it says, on histories that are right and on false ones."""

from dataclasses import replace

import pytest

from checkpointing.messages import CompactFiles, MicroBatchFailed, NotifyAborted, SuitesJudged, WakeAt
from spec.at_doors import badly_driven
from spec.moves import Moves, drawn
from spec.pipeline import HOOKS
from spec.simulator import simulate

MOVES = Moves(hooks=True, rejects=True, declines=True, compacts=2)
SEEDS = range(41)


@pytest.fixture(scope="module")
def histories():
    """Return runs with hooks, suites that reject and small files."""
    return [simulate(seed, moves=MOVES).history for seed in SEEDS]


def _without(history, dropped):
    steps = {
        generation: [replace(step, effects=tuple(each for each in step.effects if not dropped(each))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _with_limits(history, by_ms):
    """Return the history as if each hook had another time limit."""
    hooks = tuple(replace(hook, timeout_ms=hook.timeout_ms + by_ms) for hook in HOOKS)
    steps = {}
    for generation, (begun, *others) in history.steps.items():
        graph = begun.told.setup.graph
        graph = replace(graph, hooks=tuple(hook for hook in hooks if hook.name in {own.name for own in graph.hooks}))
        steps[generation] = [replace(begun, told=replace(begun.told, setup=replace(begun.told.setup, graph=graph)))]
        steps[generation] += others
    return replace(history, steps=steps)


def _woken(history, late_ms):
    """Return the history as if each door had asked to be woken so much later."""
    steps = {
        generation: [replace(step, effects=tuple(_later(each, late_ms) for each in step.effects)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _later(effect, late_ms):
    return WakeAt(effect.at_ms + late_ms) if isinstance(effect, WakeAt) else effect


def _retold(history, change):
    steps = {
        generation: [replace(step, told=change(step.told)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _otherwise(told):
    """Return a fact with other words."""
    if isinstance(told, SuitesJudged) and not told.passed:
        return replace(told, message="something else")
    return replace(told, error="something else") if isinstance(told, MicroBatchFailed) else told


@pytest.mark.parametrize(
    ("name", "falsify", "found"),
    [
        ("hooks-in-time", lambda history: _with_limits(history, -100), "still"),
        ("hooks-in-time", lambda history: _with_limits(history, 10_000), "no hook is late"),
        (
            "wakes-in-time",
            lambda history: _without(history, lambda effect: isinstance(effect, WakeAt)),
            "wakes at None",
        ),
        ("at-rest", lambda history: _woken(history, 5), "time alone sets"),
        ("compacts-again", lambda history: _without(history, lambda each: isinstance(each, CompactFiles)), "due are"),
        ("said-why", lambda history: _retold(history, _otherwise), "people hear"),
    ],
)
def test_what_comes_late_or_is_told_otherwise_is_found(histories, name, falsify, found):
    """The histories are right. As false ones, some of them break the rule."""
    assert [] == [what for history in histories for what in badly_driven(history, name)]
    wrong = [what for history in histories for what in badly_driven(falsify(history), name)]
    assert any(found in what for what in wrong), wrong[:3]


def test_the_histories_have_failures(histories):
    """Otherwise nobody would hear why."""
    steps = [step for history in histories for taken in history.steps.values() for step in taken]
    assert sum(isinstance(each, NotifyAborted) for step in steps for each in step.effects) > len(SEEDS)


def test_a_later_failure_is_not_the_reason_why_a_tick_ends():
    """In this run, the second failed checkpoint in a row ends the tick. A task that dies later is not the reason."""
    assert () == simulate(205199, moves=drawn(205199)).violations
