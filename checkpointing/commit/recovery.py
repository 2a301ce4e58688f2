"""Decides how a tick recovers, from observed facts. Every tick begins with it (G1).

A tick observes the entries of `checkpoints`, the recorded cuts and the holder of the job. This module decides what to
do. Then the tick claims a generation, rolls an unpublished entry forward, discards what older generations left, and
restores. If the tick crashes in between, the next tick takes the same steps.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.columns import columns_then
from checkpointing.commit.columns import columns_of
from checkpointing.commit.fencing import HolderObserved, MayClaim, Refused, decide_claim, newest_checkpoint
from checkpointing.graph import TableMode, Vertex
from checkpointing.identifiers import CheckpointId, VertexId, split_id
from checkpointing.messages import NotifyComplete, Publication
from checkpointing.metadata.record import CheckpointRecord, RenameKind, Row, RowKind, TableRecord

_NOWHERE: Final = ""
"""Stands for no position. No real position is this text, because a source writes its positions as JSON."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a starting tick observes. `version` is the version of `checkpoints` at which `rows` were read."""

    version: int
    rows: tuple[Row, ...]
    cuts: frozenset[CheckpointId]
    holder: HolderObserved
    now_ms: int
    damaged: bool = False
    """True if damaged entries were skipped, so that it is not known which files they name."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the tick does after its claim, in this order."""

    claim: MayClaim
    roll_forward: CheckpointRecord | None
    restore: CheckpointRecord | None


def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
    """Return the plan, or who holds the job.

    At most one checkpoint is committed and not published, because checkpoint n+1 waits for cut n. It is the newest
    checkpoint. An entry whose cut is recorded is published already.
    """
    decision = decide_claim(seen.rows, seen.holder, seen.now_ms, take_over=take_over)
    if isinstance(decision, Refused):
        return decision
    return RecoveryPlan(decision, unpublished(seen.rows, seen.cuts), newest_checkpoint(seen.rows))


def unpublished(rows: Iterable[Row], cuts: Container[CheckpointId]) -> CheckpointRecord | None:
    """Return the committed entry whose cut is not recorded, or None if every cut is recorded."""
    newest = newest_checkpoint(tuple(rows))
    return newest if newest is not None and newest.checkpoint not in cuts else None


def has_finished(restore: CheckpointRecord | None, sources: Iterable[Vertex]) -> bool:
    """Return whether a pipeline with these sources has no row left to read after the cut (B4).

    A source that is new, that is not bounded any more, or that has a new part has rows left. A finished source does not
    look for new splits.
    """
    if restore is None or not restore.finished:
        return False
    splits = {vertex.vertex: vertex.splits for vertex in restore.vertices}
    return all(source.bounded and _knows_parts(source, splits) for source in sources)


def _knows_parts(source: Vertex, splits: Mapping[VertexId, tuple[str, ...]]) -> bool:
    """Return whether a cut has the source, and a split of each of its parts."""
    was = splits.get(source.id) or splits.get(source.renamed_from or source.id, ())
    return bool(was) and all(any(split.startswith(part) for split in was) for part in source.parts)


def completion(record: CheckpointRecord) -> NotifyComplete:
    """Return the notification for a published entry: its id, and up to which position it has all rows of each split.

    Normally this is the position at the barrier. If the entry holds slices in flight, it is a position before these
    slices, because only the source still has their rows, and a user can delete what lies before the position. A split
    without such a position is left out. After a recovery the restored entry's notification is repeated, since nobody
    knows whether it was sent before (F1).
    """
    slices = _slices_in_flight(record)
    positions = (
        (vertex.vertex, split_id(split), _before(subtask.position, slices.get((vertex.vertex, split), {})))
        for vertex in record.vertices
        if vertex.splits
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    )
    told = tuple((source, split, position) for source, split, position in positions if position is not None)
    return NotifyComplete(record.checkpoint, told)


def _slices_in_flight(record: CheckpointRecord) -> dict[tuple[VertexId, str], dict[str, str]]:
    """Return for each split a dict from the end to the start of each of its slices in flight.

    Several vertices can have the same slice.
    """
    found: dict[tuple[VertexId, str], dict[str, str]] = {}
    held = (held for vertex in record.vertices for subtask in vertex.subtasks for held in subtask.in_flight)
    for segment in (segment for each in held for segment in each.segments):
        if isinstance(segment, SourceSlice):
            starts = found.setdefault((segment.source, segment.split), {})
            known = starts.setdefault(segment.end, segment.start)
            starts[segment.end] = segment.start if known == segment.start else _NOWHERE
    return found


def _before(position: str | None, starts: dict[str, str]) -> str | None:
    """Return the position before the first slice, if the slices lead without a gap from there to `position`.

    After a reset there may be a gap. Only the source can compare positions, so nobody knows then which slice is the
    first.
    """
    left = dict(starts)
    while position in left:
        position = left.pop(position)
    return None if left or position == _NOWHERE else position


def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
    """Return what publishing a committed entry means, for each table."""
    return tuple(publication_of(record, table) for table in record.tables)


def publication_of(record: CheckpointRecord, table: TableRecord) -> Publication:
    """Return what publishing an entry means for one of its tables."""
    columns = columns_of(record).get(table.table, ())
    former = {one.now: one.was for one in record.renames if one.kind is RenameKind.COLUMN}
    now_called = tuple(columns_then([column.name for column in columns], table.leaving, former).items())
    return Publication(
        table=table.table,
        mode=table.mode,
        adds=table.adds,
        files=table.files,
        removes=table.removes,
        compactions=table.compactions,
        columns=columns,
        leaving=table.leaving,
        renamed=table.renamed if table.mode is TableMode.APPEND else now_called,
        in_order=table.in_order,
        generation=record.generation,
        erases=record.kind is RowKind.FORGET,
        erased=tuple(each for each in record.erased if each.table == table.table),
        rolls_back=record.kind is RowKind.ROLLBACK,
    )
