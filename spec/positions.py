"""The invariant of the positions that a completion tells: users may delete input up to them (F2)."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpointing.channel_items import SourceSlice
from checkpointing.metadata.record import CheckpointRecord
from spec.history import CheckpointEnded, History, RowCommitted

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId

Split = tuple[str, str]
"""(source, split)."""
Slices = set[tuple[str, str]]
"""The slices of a split that are in flight: (start, end)."""


def wrongly_positioned(history: History) -> Iterator[str]:
    """Yield every told position that contradicts its entry, and every position that should have been told.

    A slice in flight is only described: its rows are in no table, no state and no file. So the told position lies
    before it. Only a source can compare its positions. But each slice begins where the one before ends, and the slices
    in flight lead from the told position to the entry's.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                entries[record.checkpoint] = record
            case CheckpointEnded(_, checkpoint, None, told) if checkpoint in entries:
                yield from (f"completion {checkpoint}: {what}" for what in _wrong(entries[checkpoint], told))
            case _:
                pass


def _wrong(entry: CheckpointRecord, told: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
    times = Counter((source, split) for source, split, _ in told)
    yield from (f"{split} is told {count} times" for split, count in times.items() if count > 1)
    said = {(source, split): position for source, split, position in told}
    reached = {
        (str(vertex.vertex), split): subtask.position
        for vertex in entry.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
    }
    yield from (f"{split} is no split of the entry" for split in said if split not in reached)
    flying = _flying(entry)
    for split, end in reached.items():
        slices = flying.get(split, set())
        position = said.get(split)
        if position is not None and not _leads(position, slices, end):
            yield f"{split} is told as {position}; the entry says {end}, in flight are {sorted(slices)}"
        starts = {end, *(start for start, _ in slices)}
        if position is None and any(start is not None and _leads(start, slices, end) for start in starts):
            yield f"{split} is not told; the entry says {end}, in flight are {sorted(slices)}"


def _flying(entry: CheckpointRecord) -> dict[Split, Slices]:
    found: dict[Split, Slices] = {}
    for vertex in entry.vertices:
        for subtask in vertex.subtasks:
            for held in subtask.in_flight:
                for segment in held.segments:
                    if isinstance(segment, SourceSlice):
                        split = (str(held.channel.edge.upstream), str(segment.split))
                        found.setdefault(split, set()).add((segment.start, segment.end))
    return found


def _leads(position: str, slices: Slices, end: str | None) -> bool:
    """Return whether the slices, one after the other, lead from the position to the end, with none left over."""
    at, left = position, set(slices)
    while left:
        begin_here = [piece for piece in left if piece[0] == at]
        if len(begin_here) != 1:
            return False
        left.remove(begin_here[0])
        at = begin_here[0][1]
    return at == end
