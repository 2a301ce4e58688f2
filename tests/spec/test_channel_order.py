"""Judges the order of channels and the fence of generations by messages alone, so it can judge real traces too."""

from dataclasses import replace

from checkpointing.channel_items import SourceSlice
from spec.channel_order import disordered
from spec.history import DoorStarted, SegmentsRun
from spec.invariants import violations
from spec.simulator import simulate

SEED = 49


def test_a_healthy_run_is_in_order():
    """No channel changes its order when rows are restored, rescaled, overtaken or held back."""
    assert [] == [what for seed in range(40) for what in disordered(simulate(seed).history)]


def test_two_segments_in_the_wrong_order_are_found():
    """A micro-batch gets its segments newest first. This breaks `fifo` and nothing else, because no file shows it."""
    history, place = next(
        (history, place)
        for history in (simulate(seed).history for seed in range(1, 40))  # in seed 0 the micro-batch is tried again
        for place, event in enumerate(history.events)
        if isinstance(event, SegmentsRun) and meets_one_split_twice(event)
    )
    event = history.events[place]
    (entry,) = event.inputs
    turned = replace(event, inputs=(replace(entry, segments=tuple(reversed(entry.segments))),))
    events = [*history.events[:place], turned, *history.events[place + 1 :]]
    assert {"fifo"} == {violation.invariant for violation in violations(replace(history, events=events))}


def test_a_second_door_of_one_generation_is_found():
    """The files of two coordinators of one generation could not be told apart, so a generation has one coordinator."""
    history = simulate(SEED).history
    place = next(place for place, event in enumerate(history.events) if isinstance(event, DoorStarted))
    twice = [*history.events[: place + 1], *history.events[place:]]
    found = violations(replace(history, events=twice))
    assert {"one-generation"} == {violation.invariant for violation in found}


def meets_one_split_twice(event):
    """Return True if a micro-batch ran over two slices of one split."""
    splits = [part.split for entry in event.inputs for part in entry.segments if isinstance(part, SourceSlice)]
    return len(set(splits)) < len(splits)
