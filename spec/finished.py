"""The invariant of jobs that have finished: nothing follows, until somebody moves a source or goes back (B4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpointing.graph import JobGraph
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.entries_say import ended_at, ended_before, says_finished
from spec.history import (
    CutsCorrected,
    CutWritten,
    DoorStarted,
    History,
    JobClaimed,
    JobReleased,
    RowCommitted,
    TableChanged,
)
from spec.mishap_events import ListsWereStale, TableRestored
from spec.pacing import positions_of
from spec.rest_events import FoundFinished

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, Generation


def wrongly_gone_on(history: History) -> Iterator[str]:
    """Yield every split that went on behind its end, and everything that a tick did with a job that has finished."""
    rows: dict[CheckpointId, CheckpointRecord] = {}
    over: CheckpointRecord | None = None
    """The finished entry, once its cut is recorded and its job is released."""
    newest: CheckpointRecord | None = None
    recorded: set[CheckpointId] = set()
    began: dict[Generation, CheckpointRecord] = {}
    graphs: dict[Generation, JobGraph] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                parent, graph = rows.get(record.parent), graphs.get(record.generation)
                yield from _follows(record, parent, graph) if parent is not None else ()
                rows[record.checkpoint] = record
                newest, over = (record, None) if record.commits else (newest, over)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case JobReleased():
                is_over = newest is not None and says_finished(newest) and newest.checkpoint in recorded
                over = newest if is_over else None
            case JobClaimed(claim) if over is not None:
                began[claim.generation] = over
                over = None
            case TableRestored():
                over = None  # it had lost log entries, so somebody had to claim the job
            case ListsWereStale():
                over = None  # a tick has to claim a job if it does not see the last cut
            case CutsCorrected() | TableChanged():
                began.clear()  # the same, and they are published again
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                known = {each.vertex for each in restored.vertices} if restored is not None else set()
                is_over = restored is not None and generation in began
                if is_over and all(source.bounded and source.id in known for source in graph.sources()):
                    yield f"generation {generation} began a job that {began[generation].checkpoint} had finished"
            case FoundFinished():
                yield from _found(event)
            case _:
                pass


def _follows(record: CheckpointRecord, parent: CheckpointRecord, graph: JobGraph | None) -> Iterator[str]:
    """Yield what went on behind its end. If a source has no end any more in this pipeline, its splits may go on."""
    if record.kind in (RowKind.RESET, RowKind.ROLLBACK):
        return
    ended = ended_at(parent) & (ended_before(graph, parent) if graph is not None else ended_at(parent))
    before, now = positions_of(parent), positions_of(record)
    for split in ended & now.keys():
        if split not in ended_at(record) or now[split] != before[split]:
            yield f"{split[1]} had ended at {before[split]}, and entry {record.checkpoint} has it at {now[split]}"


def _found(event: FoundFinished) -> Iterator[str]:
    newest = event.newest
    if newest is None or not says_finished(newest):
        yield f"a tick found the job finished, its newest entry is {newest and newest.checkpoint}"
    elif newest.checkpoint not in event.recorded:
        yield f"a tick found the job finished, and cut {newest.checkpoint} is not recorded"
    if event.behind:
        yield f"a tick found the job finished, and {sorted(event.behind)} have lost log entries"
