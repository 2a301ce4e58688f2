"""The invariants of power cuts and of lost log entries."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpointing.graph import TableMode
from spec.history import CutsDropped, CutWritten, History
from spec.mishap_events import CutsSeen, NamedTooEarly, PowerLost
from spec.pipeline import first_table, graph

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, TableName


def taken_by_power_cuts(history: History) -> Iterator[str]:
    """Yield every recorded version and every file of an entry that a power cut took."""
    for event in history.without_flow:
        if isinstance(event, PowerLost):
            yield from (f"file {path} had gone, and a row names it" for path in event.files)
            for checkpoint, table, version in event.versions:
                yield f"{table} lost version {version}, which the cut of {checkpoint} names"


def named_too_early(history: History) -> Iterator[str]:
    """Yield every file that an entry names and that nobody had made durable before the entry was appended.

    A power cut need not strike for that. So each seed judges each entry.
    """
    for event in history.of(NamedTooEarly):
        yield f"row {event.checkpoint} names {event.paths[0]}, which is not durable"


def changed_cuts(history: History) -> Iterator[str]:
    """Yield every table that shows something else at a recorded cut than when the cut was recorded."""
    recorded: dict[CheckpointId, dict[TableName, frozenset[str]]] = {}
    appended = {table.name for table in graph(1, audited=True).tables() if table.mode is TableMode.APPEND}
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint, _, active):
                recorded.setdefault(checkpoint, dict(active))
            case CutsSeen(generation, cuts):
                for checkpoint, active in cuts:
                    for table, files in active:
                        was = recorded[checkpoint].get(table, files)
                        if files != was and (first_table(table) not in appended or not _same_rows(history, files, was)):
                            yield f"when generation {generation} begins, cut {checkpoint} shows other rows of {table}"
            case _:
                pass


def dropped_cuts(history: History) -> Iterator[str]:
    """Yield every dropped cut that an entry needs: its own, or that of the entry from which it continues."""
    for event in history.without_flow:
        if isinstance(event, CutsDropped):
            yield from (f"the cut of {checkpoint} was dropped, and an entry needs it" for checkpoint in event.needed)


def _same_rows(history: History, files: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two sets of files hold the same rows. A neighbour may have merged files that are single again."""
    return history.multiset(files) == history.multiset(others)
