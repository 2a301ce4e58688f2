"""The invariants of how ticks end, and of what listeners are told."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from checkpointing.graph import Vertex
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.cut_contents import in_flight, positions
from spec.entries_say import ended_of
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    CutWritten,
    DoorStarted,
    History,
    JobClaimed,
    RowCommitted,
    SavepointAnswered,
    TickOver,
)
from spec.pipeline import first_id

if TYPE_CHECKING:
    from checkpointing.failures import CheckpointFailureReason


_ALL_READ = (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED)


def badly_ended(history: History) -> Iterator[str]:
    """Yield every checkpoint that ended twice, or that did not end in a tick that caught up."""
    triggered: dict[Generation, list[CheckpointId]] = {}
    ended: Counter[tuple[Generation, CheckpointId]] = Counter()
    rows = (event.record for event in history.of(RowCommitted))
    saved = {record.checkpoint for record in rows if record.kind is RowKind.SAVEPOINT}
    for event in history.without_flow:
        match event:
            case CheckpointTriggered(generation, checkpoint):
                triggered.setdefault(generation, []).append(checkpoint)
            case SavepointAnswered(generation, _, checkpoint) if checkpoint is not None:
                ended[generation, checkpoint] += checkpoint in saved
            case CheckpointEnded(generation, checkpoint):
                ended[generation, checkpoint] += 1
                if ended[generation, checkpoint] > 1:
                    yield f"checkpoint {checkpoint} of generation {generation} ended twice"
            case TickOver(generation, end) if end.outcome in _ALL_READ:
                for checkpoint in triggered.get(generation, ()):
                    if not ended[generation, checkpoint]:
                        yield f"checkpoint {checkpoint} of generation {generation} never ended"
            case _:
                pass


def left_unsettled(history: History) -> Iterator[str]:
    """Yield every checkpoint that a tick committed and did not publish, although it ended without a failure."""
    waiting: dict[CheckpointId, Generation] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _) if record.commits:
                waiting[record.checkpoint] = record.generation
            case CutWritten(checkpoint):
                waiting.pop(checkpoint, None)
            case TickOver(generation, end) if end.outcome is not TickOutcome.FAILED:
                for checkpoint in (known for known, by in waiting.items() if by == generation):
                    yield f"generation {generation} ended as {end.outcome.value}, cut {checkpoint} is not recorded"
            case _:
                pass


def falsely_told(history: History) -> Iterator[str]:
    """Yield every completion that was told too early, and every entry of a checkpoint that was told as aborted."""
    recorded, committed = set[CheckpointId](), set[CheckpointId]()
    aborted: dict[CheckpointId, CheckpointFailureReason] = {}
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case RowCommitted(record, _):
                committed.add(record.checkpoint)
                if record.checkpoint in aborted:
                    yield f"checkpoint {record.checkpoint} was committed after it was aborted"
            case CheckpointEnded(_, checkpoint, None) if checkpoint not in recorded:
                yield f"checkpoint {checkpoint} was told complete, its cut is not recorded"
            case CheckpointEnded(_, checkpoint, reason) if reason is not None:
                aborted[checkpoint] = reason
                if checkpoint in committed:
                    yield f"checkpoint {checkpoint} was told aborted, but it is committed"
            case _:
                pass


def wrongly_fenced(history: History) -> Iterator[str]:
    """Yield every claim, door and commit of a generation whose turn it is not."""
    newest, started = Generation(0), set[Generation]()
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            if event.generation in started:
                yield f"two doors were started as generation {event.generation}"
            started.add(event.generation)
        elif isinstance(event, JobClaimed):
            if event.claim.generation < newest:
                yield f"generation {event.claim.generation} claimed after generation {newest}"
            newest = max(newest, event.claim.generation)
        elif isinstance(event, RowCommitted) and event.record.generation != newest:
            yield f"generation {event.record.generation} committed {event.record.checkpoint}, {newest} holds the job"


def left_uncommitted(history: History) -> Iterator[str]:
    """Yield what a tick that caught up left unread, or in flight. A split that has ended is read up to its end.

    A zombie is not judged once another process has an entry of its own, because that one may have gone back, or moved a
    source.
    """
    sources: dict[Generation, tuple[Vertex, ...]] = {}
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            sources[event.generation] = event.graph.sources()
        if not isinstance(event, TickOver) or event.end.outcome not in _ALL_READ:
            continue
        if event.newest and event.newest.generation > event.generation:
            continue
        read = positions(event.newest) if event.newest and event.readable else {}
        done = _ended(event.newest, sources.get(event.generation, ())) if event.newest else set()
        behind = [split for split, rows in event.readable if split not in done and read.get(split, 0) < rows]
        if behind:
            yield f"split {behind[0]} stands at {read.get(behind[0], 0)} of {dict(event.readable)[behind[0]]}"
        if event.newest and any(in_flight(event.newest)):
            yield f"checkpoint {event.newest.checkpoint} holds rows in flight that no table shows"


def _ended(newest: CheckpointRecord, sources: Iterable[Vertex]) -> set[SplitId]:
    """Return which splits of these sources have ended. A part that has ended does not read what it finds later."""
    return {
        split
        for vertex in newest.vertices
        for source in sources
        if first_id(source.id) == first_id(vertex.vertex)
        for begin in source.parts or ("",)
        for split in ended_of(source, begin, vertex)
    }
