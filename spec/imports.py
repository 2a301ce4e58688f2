"""The invariant of imports: the new entry is the other warehouse's entry, under numbers that nobody has used (G1)."""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.identifiers import NO_CHECKPOINT
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import History, RowCommitted
from spec.rest_events import ImportBegun


def wrongly_imported(history: History) -> Iterator[str]:
    """Yield every import whose numbers the other warehouse has used, and every entry that says something new.

    The entry is an ordinary checkpoint without a parent. It has the positions, state, rows in flight, columns, renames
    and hooks' states of the original. No outside sink gets anything of it. What its tables show is judged as for any
    other cut.
    """
    begun: dict[int, ImportBegun] = {}
    for event in history.without_flow:
        match event:
            case ImportBegun(generation):
                begun[generation] = event
                if generation <= event.last_generation:
                    yield f"an import has generation {generation}, and its origin reached {event.last_generation}"
            case RowCommitted(record) if record.generation in begun:
                origin = begun[record.generation]
                if record.checkpoint <= origin.last_id:
                    yield f"an import has id {record.checkpoint}, and its origin reached {origin.last_id}"
                yield from _other_than(record, origin.line[-1])
            case _:
                pass


def _other_than(record: CheckpointRecord, original: CheckpointRecord) -> Iterator[str]:
    told = f"the import of {original.checkpoint} as {record.checkpoint}"
    if record.kind is not RowKind.CHECKPOINT or record.parent != NO_CHECKPOINT:
        yield f"{told} is a {record.kind.value} after {record.parent}"
    if record.pinned or record.abandoned or record.outside:
        yield f"{told} is pinned, abandoned or for outside sinks"
    if _content(record) != _content(original):
        yield f"{told} has other content"


def _content(record: CheckpointRecord) -> tuple[object, ...]:
    """Return what a restore reads. Staged files belong to the tables."""
    vertices = {
        was.vertex: (was.splits, was.meanings, tuple(replace(each, staged=()) for each in was.subtasks))
        for was in record.vertices
    }
    return vertices, record.hooks, record.columns, record.renames, record.max_parallelism
