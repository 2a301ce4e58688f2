"""The invariants of what an entry counts: the rows of its epoch, failed checkpoints, and its times (E6)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord
from spec.history import CheckpointEnded, CheckpointTriggered, DoorStarted, History, RowCommitted, SegmentSent
from spec.rollback import at_rest

Split = tuple[str, str]

Rows = tuple[int, int]
"""How many rows, and how many of them a source has estimated."""
NONE: Rows = (0, 0)


@dataclass(slots=True)
class _Tick:
    """What a generation's sources have sent, and how its checkpoints ended."""

    generation: Generation
    sent: dict[Split, Rows] = field(default_factory=dict)
    until: dict[tuple[Split, str | None], Rows] = field(default_factory=dict)
    """Rows of a split that were sent up to a position."""
    failed: int = 0
    failed_before: dict[CheckpointId, int] = field(default_factory=dict)
    """How many had failed when a checkpoint was triggered."""
    rows: dict[CheckpointId, Rows] = field(default_factory=dict)
    """Rows that were sent in this tick before an entry's barrier. For the restored entry there are none."""

    def send(self, piece: SourceSlice) -> None:
        """Note a slice."""
        split = (str(piece.source), str(piece.split))
        rows, estimated = self.sent.get(split, NONE)
        self.sent[split] = (rows + piece.rows, estimated + piece.rows * piece.rows_estimated)
        self.until[split, piece.end] = self.sent[split]

    def rows_before(self, record: CheckpointRecord) -> Rows:
        """Return how many rows all splits had sent at the barrier. A split that has not moved has sent none."""
        sent = [
            self.until.get(((str(vertex.vertex), split), subtask.position), NONE)
            for vertex in record.vertices
            for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        ]
        return sum(rows for rows, _ in sent), sum(estimated for _, estimated in sent)


def miscounted(history: History) -> Iterator[str]:
    """Yield every entry of a tick that counts other rows than its sources sent since its parent's barrier.

    Also yield every entry that counts fewer failed checkpoints than there were at its trigger, or that was committed
    before it was acknowledged. A fenced generation is not judged.
    """
    newest: _Tick | None = None
    ticks: dict[Generation, _Tick] = {}
    for event in history.events:
        tick = ticks.get(getattr(event, "generation", Generation(0)))
        match event:
            case DoorStarted(generation, _, restored):
                newest = ticks[generation] = _Tick(generation)
                newest.rows[restored.checkpoint if restored else NO_CHECKPOINT] = NONE
            case SegmentSent(segment=SourceSlice() as piece) if tick is not None:
                tick.send(piece)
            case CheckpointTriggered(_, checkpoint) if tick is not None:
                tick.failed_before[checkpoint] = tick.failed
            case CheckpointEnded(_, _, reason) if tick is not None:
                tick.failed += reason is not None
            case RowCommitted(record) if newest and record.generation == newest.generation and not at_rest(record):
                yield from (f"entry {record.checkpoint} {what}" for what in _wrong(record, newest))
            case _:
                pass


def _wrong(record: CheckpointRecord, tick: _Tick) -> Iterator[str]:
    said, counts = record.statistics, record.statistics.counts
    tick.rows[record.checkpoint] = tick.rows_before(record)
    before, now = tick.rows.get(record.parent, NONE), tick.rows[record.checkpoint]
    due = (now[0] - before[0], now[1] - before[1])
    if tick.sent and record.parent in tick.rows and (said.rows, said.rows_estimated) != due:
        told = f"{said.rows} rows, {said.rows_estimated} of them estimated"
        yield f"says {told}, its sources sent {due[0]} and {due[1]} since the barrier of {record.parent}"
    failed = tick.failed_before.get(record.checkpoint, 0)
    if counts is not None and counts.failed < failed:
        yield f"counts {counts.failed} failed checkpoints, there were {failed} when it was triggered"
    acknowledged_ms = max((vertex.acknowledged_ms for vertex in said.vertices), default=0)
    if said.committed_ms < acknowledged_ms:
        yield f"was committed at {said.committed_ms}, and acknowledged at {acknowledged_ms}"
