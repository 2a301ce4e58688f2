"""The invariants of master hooks (A8) and source coordinators (A7).

A hook lives outside the job, and a coordinator in a source. So the job can only promise when it calls them, with what,
and what it keeps of the answer.
"""

from collections.abc import Iterator

from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import (
    CheckpointTriggered,
    DoorStarted,
    Event,
    History,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
)
from spec.hook_events import HookAsked, HookReady, HookRestoring, HookTold, coordinator_of


def badly_restored(history: History) -> Iterator[str]:
    """Yield every hook that was not restored once, to its tick's entry, before the tick read a row or asked a hook."""
    waiting: dict[Generation, dict[str, tuple[CheckpointId | None, str | None]]] = {}
    called: set[tuple[Generation, str]] = set()
    for event in history.events:
        match event:
            case DoorStarted(generation, graph, restored):
                waiting[generation] = _due(graph, restored)
            case HookRestoring(generation, hook, checkpoint, state):
                due = waiting.get(generation, {}).get(hook)
                if due != (checkpoint, state):
                    yield f"hook {hook} was restored to {state} of {checkpoint}, not to {due}"
                if (generation, hook) in called:
                    yield f"hook {hook} was restored twice in generation {generation}"
                called.add((generation, hook))
            case HookReady(generation, hook):
                waiting.get(generation, {}).pop(hook, None)
            case SegmentSent() | SegmentsRun() | CheckpointTriggered() | HookAsked() if waiting.get(event.generation):
                yield f"{_named(event)} came before hook {min(waiting[event.generation])} was restored"
            case _:
                pass


def wrongly_kept(history: History) -> Iterator[str]:
    """Yield every entry that does not hold exactly what each hook of its tick answered for it."""
    graphs: dict[Generation, JobGraph] = {}
    told: dict[tuple[Generation, CheckpointId], dict[str, str | None]] = {}
    rows: dict[CheckpointId, dict[str, str]] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                if restored is not None:
                    rows.setdefault(restored.checkpoint, _held(restored))
            case HookTold(generation, hook, checkpoint, state, good) if good:
                told.setdefault((generation, checkpoint), {}).setdefault(hook, state)
            case RowCommitted(record, _):
                rows[record.checkpoint] = _held(record)
                if record.kind in (RowKind.ROLLBACK, RowKind.RESET):
                    yield from _taken_over(record, rows)
                elif record.generation in graphs:
                    answers = told.get((record.generation, record.checkpoint), {})
                    yield from _answered(record, graphs[record.generation], answers)
            case _:
                pass


def _due(graph: JobGraph, restored: CheckpointRecord | None) -> dict[str, tuple[CheckpointId | None, str | None]]:
    if restored is None:
        return dict.fromkeys(_names(graph), (None, None))
    known = {coordinator_of(vertex.vertex) for vertex in restored.vertices} | {hook.name for hook in graph.hooks}
    held = _held(restored)
    return {name: (restored.checkpoint, held.get(name)) if name in known else (None, None) for name in _names(graph)}


def _names(graph: JobGraph) -> list[str]:
    sources = [coordinator_of(vertex.id) for vertex in graph.vertices if vertex.coordinated]
    return [*sources, *(hook.name for hook in graph.hooks)]


def _held(record: CheckpointRecord) -> dict[str, str]:
    own = {coordinator_of(each.vertex): each.coordinator for each in record.vertices if each.coordinator is not None}
    return own | {held.hook: held.state for held in record.hooks}


def _answered(record: CheckpointRecord, graph: JobGraph, answers: dict[str, str | None]) -> Iterator[str]:
    silent = [name for name in _names(graph) if name not in answers]
    if silent:
        yield f"row {record.checkpoint} was committed although {silent[0]} gave no answer"
    kept = {hook: state for hook, state in answers.items() if state is not None}
    if not silent and _held(record) != kept:
        yield f"row {record.checkpoint} holds {_held(record)} of its hooks, which answered {kept}"


def _taken_over(record: CheckpointRecord, rows: dict[CheckpointId, dict[str, str]]) -> Iterator[str]:
    """Yield every rollback or reset that does not hold its parent's hook states."""
    before = rows.get(record.parent)
    if before is not None and _held(record) != before:
        yield f"{record.kind.value} {record.checkpoint} holds {_held(record)} of the hooks, its parent {before}"


def _named(event: Event) -> str:
    return f"{type(event).__name__} of generation {getattr(event, 'generation', '?')}"
