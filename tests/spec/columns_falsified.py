"""Falsifies what histories say about columns. The invariants of columns must find it."""

from dataclasses import replace

from spec.history import CutWritten, DoorStarted
from spec.pipeline import graph


def show_a_column_less(events):
    """Return the history without columns at its first cut."""
    cut = next(event for event in events if isinstance(event, CutWritten) and event.columns)
    return _swapped(events, cut, replace(cut, columns=tuple((table, frozenset()) for table, _ in cut.columns)))


def declare_a_column_more(events):
    """Return the history with another first tick: its pipeline declares more columns than its entries have."""
    door = next(event for event in events if isinstance(event, DoorStarted) and event.restored is None)
    return _swapped(events, door, replace(door, graph=graph(1, release=1)))


def _swapped(events, one, other):
    return [other if event is one else event for event in events]
