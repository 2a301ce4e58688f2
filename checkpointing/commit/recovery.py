"""Recovery as a pure decision: observed facts -> what to do. Every tick begins with it (G1).

Observe the rows of `checkpoints`, which cuts are recorded and who holds the job; decide here; act:
claim a generation, roll the committed but unpublished row forward, discard what older generations
left, restore. A crash anywhere in between is met by the next tick's same steps.
"""

from dataclasses import dataclass
from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.columns import columns_then
from checkpointing.commit.columns import columns_of
from checkpointing.commit.fencing import HolderObserved, MayClaim, Refused, decide_claim, newest_checkpoint
from checkpointing.identifiers import CheckpointId, VertexId, split_id
from checkpointing.messages import NotifyComplete, Publication
from checkpointing.metadata.record import CheckpointRecord, RenameKind, Row, TableRecord

_NOWHERE: Final = ""
"""No position: a source writes its positions as JSON."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a starting tick sees: `version` is the one of `checkpoints` that `rows` were read at."""

    version: int
    rows: tuple[Row, ...]
    cuts: frozenset[CheckpointId]
    holder: HolderObserved
    now_ms: int
    damaged: bool = False
    """Entries that cannot be read were passed over: what those name is not known."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the tick does once its claim is in, in this order."""

    claim: MayClaim
    roll_forward: CheckpointRecord | None
    restore: CheckpointRecord | None


def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
    """Return the plan, or who holds the job.

    At most one checkpoint is committed but unpublished (n+1 waits for cut n), and it is the newest:
    a row whose cut is recorded needs nothing, publishing it again would change nothing either.
    """
    decision = decide_claim(seen.rows, seen.holder, seen.now_ms, take_over=take_over)
    if isinstance(decision, Refused):
        return decision
    newest = newest_checkpoint(seen.rows)
    unpublished = newest is not None and newest.checkpoint not in seen.cuts
    return RecoveryPlan(decision, newest if unpublished else None, newest)


def completion(record: CheckpointRecord) -> NotifyComplete:
    """Return what is told of a row once it is published: its id, and the position of each split up to which all is in.

    That is how far the split was read at the barrier, or a place before the slices that the row holds in flight: their
    rows are still the source's alone, and a user may delete what lies before a position that is told. A split without
    such a place is left out. Recovery tells it of the restored row again, since nobody knows whether that was told
    before (F1).
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
    """Return the slices in flight of each split, the start of each by its end; more than one vertex may lack it."""
    found: dict[tuple[VertexId, str], dict[str, str]] = {}
    held = (held for vertex in record.vertices for subtask in vertex.subtasks for held in subtask.in_flight)
    for segment in (segment for each in held for segment in each.segments):
        if isinstance(segment, SourceSlice):
            starts = found.setdefault((segment.source, segment.split), {})
            known = starts.setdefault(segment.end, segment.start)
            starts[segment.end] = segment.start if known == segment.start else _NOWHERE
    return found


def _before(position: str | None, starts: dict[str, str]) -> str | None:
    """Return the position before the first slice, if the slices lead from there to the position.

    Behind a reset they may not. Only the source can compare positions, so which one comes first is not known then.
    """
    left = dict(starts)
    while position in left:
        position = left.pop(position)
    return None if left or position == _NOWHERE else position


def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
    """Return what publishing a committed row means, table by table."""
    return tuple(publication_of(record, table) for table in record.tables)


def publication_of(record: CheckpointRecord, table: TableRecord) -> Publication:
    """Return what publishing means for one table of a row."""
    columns = columns_of(record).get(table.table, ())
    former = {one.now: one.was for one in record.renames if one.kind is RenameKind.COLUMN}
    return Publication(
        table=table.table,
        mode=table.mode,
        adds=table.adds,
        files=table.files,
        removes=table.removes,
        columns=columns,
        leaving=table.leaving,
        renamed=tuple(columns_then([column.name for column in columns], table.leaving, former).items()),
    )
