"""Falsified histories for the rules about compactions."""

from dataclasses import replace

from checkpointing.graph import TableMode
from spec.compaction_events import CompactionTold
from spec.history import DoorStarted, RowCommitted, TableChanged


def take_out_a_file_unasked(events):
    """The last publication of an append table takes out a file that the table had before, and nobody asked for."""
    changes = [event for event in events if isinstance(event, TableChanged)]
    appended = [event for event in changes if event.publication.mode is TableMode.APPEND and len(event.active) > 1]
    last = appended[-1]
    added = {file.path for file in last.publication.adds}
    return [replace(event, active=event.active & added) if event is last else event for event in events]


def tell_of_files_that_nobody_commits(events):
    """The generation with the most checkpoints was told of compacted files when it began."""
    rows = [event.record.generation for event in events if isinstance(event, RowCommitted)]
    most = max(rows, key=rows.count)
    begun = next(at for at, event in enumerate(events) if isinstance(event, DoorStarted) and event.generation == most)
    return [*events[: begun + 1], CompactionTold(most, frozenset({"a"})), *events[begun + 1 :]]


FALSIFIED_COMPACTIONS = {
    "compaction-keeps-rows": take_out_a_file_unasked,
    "compaction-is-committed": tell_of_files_that_nobody_commits,
}
