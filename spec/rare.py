"""Counts the rare events of simulated runs. If one of them no longer occurs, a test fails.

It watches the steps of all gates during a run. The other events are in the history, or the world counts them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import AbortCheckpoint, GateEffect, GateFact, Ignored, InputGate
from checkpointing.graph import TableMode
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import (
    CheckpointEnded,
    CutsCorrected,
    Event,
    ImportBegun,
    JudgementBroke,
    PowerLost,
    RowCommitted,
    SavepointAnswered,
    SavepointDisposed,
    TableChanged,
    TablesLookedAt,
)
from spec.reference.contents import says_finished
from spec.reference.pipeline import PARTS
from spec.world.draw import Moves, drawn
from spec.world.simulator import Outcome, Simulation, judged
from spec.world.stores import (
    LATE,
    NOTHING_FOUND,
    RAN_OUT,
    STALE,
    STALE_FOR_CLEAN_UPS,
    STALE_FOR_READERS,
    Harm,
)
from spec.world.tick_door import TAKEN

if TYPE_CHECKING:
    from checkpointing.identifiers import TableName

_BY_GATES: Final = {
    Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED: "a gate aborts over its limit",
    Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: "a gate aborts at a cancel marker",
}
_OBSOLETE: Final = "a gate drops an obsolete barrier or cancel marker"
_ENDED: Final = {
    Reason.CHECKPOINT_EXPIRED: "a checkpoint expires",
    Reason.CHECKPOINT_SUBSUMED: "a newer checkpoint completes first",
    Reason.TABLE_CHANGED: "a table's problem declines a checkpoint",
    Reason.QUALITY: "a suite rejects a checkpoint",
}
_KINDS: Final = {
    RowKind.ROLLBACK: "a job is rolled back",
    RowKind.RESET: "a source is reset",
    RowKind.FORGET: "rows are erased",
    RowKind.SAVEPOINT: "a plain savepoint is taken",
    RowKind.HELD: "a cut is held",
}
IMPORTED: Final = "a job begins with another warehouse's entry"
IN_FLIGHT: Final = "an entry holds rows in flight"
EMPTIED: Final = "a table is emptied"
FINISHED: Final = "a job is finished"
SOME_ENDED: Final = "a source has ended, another one goes on"
PART_ENDED: Final = "a part of a source has ended, and the next one is read"
WHOLE: Final = "an append table loses files and gets others in one publication"
COMPACTED: Final = "small files are compacted"
LEFT_OUT: Final = "a compaction is left out"
OVERWRITTEN: Final = "files of an overwrite table give way to a newer version"
_EVENTS: Final[Mapping[type[Event], str]] = {
    JudgementBroke: "a suite cannot be judged",
    SavepointDisposed: "a savepoint is disposed of",
    ImportBegun: IMPORTED,
    PowerLost: "a power cut strikes",
    CutsCorrected: "lost entries are published again",
}
RARE: Final = (
    *_BY_GATES.values(),
    _OBSOLETE,
    *_ENDED.values(),
    *_KINDS.values(),
    IN_FLIGHT,
    EMPTIED,
    WHOLE,
    COMPACTED,
    LEFT_OUT,
    OVERWRITTEN,
    FINISHED,
    SOME_ENDED,
    PART_ENDED,
    *(f"the holder of before: {name}" for name in TAKEN),
    RAN_OUT,
    NOTHING_FOUND,
    *(harm.value for harm in Harm),
    LATE,
    STALE,
    STALE_FOR_CLEAN_UPS,
    STALE_FOR_READERS,
    *_EVENTS.values(),
    "tables cannot be looked at",
    "a savepoint of a stop is taken",
    "a savepoint is refused",
)
"""Events that occur in at least one of a hundred seeds. A test counts them in 400 seeds.

`python -m spec.simulate` shows them by these names.
"""


@contextmanager
def _gates_watched() -> Iterator[Counter[str]]:
    """Count the answers of all gates inside the context."""
    met: Counter[str] = Counter()
    real = InputGate.step

    def step(self: InputGate, fact: GateFact) -> tuple[GateEffect, ...]:
        effects = real(self, fact)
        for effect in effects:
            if isinstance(effect, Ignored):
                met[_OBSOLETE] += 1
            elif isinstance(effect, AbortCheckpoint) and effect.reason in _BY_GATES:
                met[_BY_GATES[effect.reason]] += 1
        return effects

    InputGate.step = step  # type: ignore[method-assign]
    try:
        yield met
    finally:
        InputGate.step = real  # type: ignore[method-assign]


def met_by(seed: int, moves: Moves | None = None) -> Counter[str]:
    """Run one seed without judging it. Return how often each rare event occurred."""
    return _run(Simulation(seed, moves=drawn(seed) if moves is None else moves))


def judged_and_met(seed: int, moves: Moves | None = None) -> tuple[Outcome, Counter[str]]:
    """Run one seed. Return the judged outcome, and how often each rare event occurred.

    The world, its history and the codec of its entries refer to each other, so Python's garbage collector would have to
    find them. That took a twentieth of the time. The history and the codec are no longer needed. So they are removed
    from the world, and all three are freed at once.
    """
    run = Simulation(seed, moves=drawn(seed) if moves is None else moves)
    met = _run(run)
    outcome = judged(seed, run)
    del run.world.history, run.world.as_stored, run.world.as_read
    return outcome, met


def _run(run: Simulation) -> Counter[str]:
    with _gates_watched() as met:
        run.run()
    met.update({f"the holder of before: {name}" if name in TAKEN else name: n for name, n in run.world.met.items()})
    events = run.world.history.events
    met.update(told for event in events if (told := _told(event)) is not None)
    met.update(name for event in events if isinstance(event, RowCommitted) for name in _of_entry(event.record))
    met.update(_of_tables(events))
    if run.moves.parts:
        met[PART_ENDED] += sum(isinstance(event, RowCommitted) and _switched(event.record) for event in events)
    return +met  # without the events that were counted, and never occurred


def _switched(record: CheckpointRecord) -> bool:
    """Return whether an entry has rows of the second part of the orders."""
    return any(
        split.startswith(PARTS[1]) and subtask.position is not None
        for vertex in record.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
    )


def _told(event: Event) -> str | None:
    """Return the rare event that this one event of the history stands for, or None."""
    match event:
        case CheckpointEnded(reason=Reason() as reason):
            return _ENDED.get(reason)
        case TablesLookedAt(allow=None):
            return "tables cannot be looked at"
        case SavepointAnswered(checkpoint=None):
            return "a savepoint is refused"
        case _:
            return _EVENTS.get(type(event))


def _of_entry(record: CheckpointRecord) -> Iterator[str]:
    if record.kind in _KINDS:
        yield _KINDS[record.kind]
    if record.has_rows_in_flight:
        yield IN_FLIGHT
    if says_finished(record):
        yield FINISHED
    ends = [all(each.finished for each in vertex.subtasks) for vertex in record.vertices if vertex.splits]
    if any(ends) and not all(ends):
        yield SOME_ENDED
    if record.kind is RowKind.CHECKPOINT and record.pinned:
        yield "a savepoint of a stop is taken"


def _of_tables(events: Iterable[Event]) -> Iterator[str]:
    shown: dict[TableName, frozenset[str]] = {}
    for event in events:
        if isinstance(event, TableChanged):
            publication = event.publication
            if shown.get(publication.table) and not event.active:
                yield EMPTIED
            if publication.adds and publication.removes:
                yield WHOLE
            if publication.mode is TableMode.OVERWRITE and shown.get(publication.table, frozenset()) - event.active:
                yield OVERWRITTEN
            for each in publication.compactions:
                yield COMPACTED if each.into.path in event.active else LEFT_OUT
            shown[publication.table] = event.active
