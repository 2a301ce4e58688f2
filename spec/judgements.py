"""The invariants of suites: which verdict lets an entry in, and when nobody waits for a verdict any more (J3, B2)."""

from collections.abc import Iterator

from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.metadata.record import CheckpointRecord
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    History,
    RowCommitted,
    TickOver,
)
from spec.judgement_events import JudgementBegun, JudgementBroke, JudgementCancelled, JudgementTold

_Judged = dict[VertexId, JudgementTold | JudgementBroke | JudgementCancelled | None]
"""The judgements of one checkpoint by vertex, with the result of each first one. None: it is in progress."""


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
