"""Falsifies what a history says about names. The invariant of names must find it."""

from dataclasses import replace

from spec.history import RowCommitted


def tell_no_rename(events):
    """Return the history with a first entry that does not list the old names that its pipeline declares."""
    row = next(event for event in events if isinstance(event, RowCommitted))
    told = replace(row, record=row.record.model_copy(update={"renames": ()}))
    return [told if event is row else event for event in events]
