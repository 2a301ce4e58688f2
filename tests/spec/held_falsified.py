"""Falsifies a history with held cuts, one of which is rejected. Their invariants must find it."""

from dataclasses import replace

from checkpointing.metadata.record import RowKind
from spec.history import FilesDiscarded, RowCommitted, SavepointDisposed, TableChanged
from spec.named_files import named_files
from spec.rest_events import CameToRest, EntryAtRest


def _place(events, kind, holds=lambda event: True):
    """Return the last place of an event of that kind."""
    return max(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _file_of_the_rejected(events):
    """Return a file that only the rejected cut names."""
    rejected = events[_place(events, SavepointDisposed)].checkpoint
    rows = [event.record for event in events if isinstance(event, RowCommitted)]
    others = frozenset().union(*(named_files(row) for row in rows if row.checkpoint != rejected))
    return min(next(named_files(row) for row in rows if row.checkpoint == rejected) - others)


def show_a_file_of_a_rejected_cut(events):
    """Return the history with a table that shows a file of the cut that was rejected."""
    place = _place(events, TableChanged)
    event = events[place]
    return [
        *events[:place],
        replace(event, active=event.active | {_file_of_the_rejected(events)}),
        *events[place + 1 :],
    ]


def delete_a_file_of_a_held_cut(events):
    """Return the history with a cut, one of whose files is deleted while it waits."""
    place = _place(events, RowCommitted, lambda event: event.record.kind is RowKind.HELD)
    earlier = frozenset().union(*(named_files(e.record) for e in events[:place] if isinstance(e, RowCommitted)))
    lost = min(named_files(events[place].record) - earlier)
    return [*events[: place + 1], FilesDiscarded((lost,), ()), *events[place + 1 :]]


def leave_a_file_of_a_rejected_cut(events):
    """Return the history with a file of the rejected cut that is there at the end."""
    place = _place(events, CameToRest)
    rest, file = events[place], _file_of_the_rejected(events)
    left = replace(rest, files=rest.files | {file}, shown=rest.shown | {file})
    return [*events[:place], left, *events[place + 1 :]]


def end_an_approval_before_it_has_published(events):
    """Return the history with an approval that ends when its entry is in, before it is published."""
    place = _place(events, EntryAtRest)
    appended = _place(events, RowCommitted, lambda event: event.record.checkpoint == events[place].record.checkpoint)
    return [*events[: appended + 1], events[place], *events[appended + 1 : place], *events[place + 1 :]]


FALSIFIED_HELD = {
    "held-is-invisible": show_a_file_of_a_rejected_cut,
    "held-is-kept": delete_a_file_of_a_held_cut,
    "rejected-leaves-nothing": leave_a_file_of_a_rejected_cut,
}
