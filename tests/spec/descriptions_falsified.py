"""Falsifies a history: its first entry does not say what its state columns mean."""

from dataclasses import replace

from spec.history import RowCommitted


def describe_no_state(events):
    """Return the events, with the first committed entry stripped of its meanings."""
    place = next(number for number, event in enumerate(events) if isinstance(event, RowCommitted))
    record = events[place].record
    bare = tuple(vertex.model_copy(update={"meanings": ()}) for vertex in record.vertices)
    row = replace(events[place], record=record.model_copy(update={"vertices": bare}))
    return [*events[:place], row, *events[place + 1 :]]
