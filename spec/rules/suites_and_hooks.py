"""The invariants of suites: which verdicts a commit needs, and when a judgement is cancelled (J3, B2)."""

from collections.abc import Iterator

from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    DoorStarted,
    Event,
    History,
    HookAsked,
    HookReady,
    HookRestoring,
    HookTold,
    JudgementBegun,
    JudgementBroke,
    JudgementCancelled,
    JudgementTold,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
    TickOver,
    coordinator_of,
)
from spec.rules import rule

_Judged = dict[VertexId, JudgementTold | JudgementBroke | JudgementCancelled | None]
"""The first judgement of each vertex for one checkpoint, with its result. None means that it is in progress."""


@rule("judgements")
def wrongly_judged(history: History) -> Iterator[str]:
    """Yield every entry that a suite has not accepted, and every judgement that an abort did not cancel."""
    judged: dict[tuple[Generation, CheckpointId], _Judged] = {}
    aborted: dict[Generation, set[CheckpointId]] = {}
    ended: set[tuple[Generation, CheckpointId]] = set()
    for event in history.without_flow:
        match event:
            case JudgementBegun(generation, vertex, checkpoint):
                if (generation, checkpoint) in ended:
                    yield f"{vertex} was judged for checkpoint {checkpoint}, which had ended"
                judged.setdefault((generation, checkpoint), {})[vertex] = None
            case (
                JudgementTold(generation, vertex, checkpoint)
                | JudgementBroke(generation, vertex, checkpoint)
                | JudgementCancelled(generation, vertex, checkpoint)
            ):
                known = judged.get((generation, checkpoint), {})
                if isinstance(event, JudgementCancelled) and (vertex not in known or known[vertex] is not None):
                    yield f"the judgement of {vertex} for {checkpoint} was cancelled, and none was under way"
                if known.get(vertex) is None:
                    known[vertex] = event
            case CheckpointEnded(generation, checkpoint, reason) if reason is not None:
                aborted.setdefault(generation, set()).add(checkpoint)
                ended.add((generation, checkpoint))
            case CheckpointTriggered(generation) | TickOver(generation):
                for checkpoint in aborted.pop(generation, ()):
                    yield from _under_way(checkpoint, judged.get((generation, checkpoint), {}))
            case RowCommitted(record, _):
                yield from _accepted(record, judged.get((record.generation, record.checkpoint), {}))
            case _:
                pass


def _under_way(checkpoint: CheckpointId, known: _Judged) -> Iterator[str]:
    for vertex in (vertex for vertex, what in known.items() if what is None):
        yield f"checkpoint {checkpoint} has ended, and the judgement of {vertex} was not cancelled"


def _accepted(record: CheckpointRecord, known: _Judged) -> Iterator[str]:
    for vertex, what in known.items():
        if not isinstance(what, JudgementTold) or not what.passed:
            yield f"entry {record.checkpoint} is in, although the suites of {vertex} did not accept it: {what}"
    reports = sorted(what.report for what in known.values() if isinstance(what, JudgementTold))
    if known and reports != sorted(record.statistics.verdicts):
        yield f"entry {record.checkpoint} holds the verdicts {record.statistics.verdicts}, those told are {reports}"


# ------------------------------------------------------------------
# The invariants of master hooks (A8) and source coordinators (A7).
#
# A hook lives outside the job, and a coordinator in a source. So the job can only promise when and with what it calls
# them, and what it stores of their answers.


@rule("hooks-restored")
def hooks_restored(history: History) -> Iterator[str]:
    """Yield every hook not restored exactly once, to its tick's entry, before the tick read a row or asked a hook."""
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


@rule("hook-states")
def hook_states(history: History) -> Iterator[str]:
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
                if record.kind in (RowKind.ROLLBACK, RowKind.RESET, RowKind.FORGET):
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
