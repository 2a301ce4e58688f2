"""The invariant that a subtask has only files of its own key groups (D2).

A restore at another parallelism cuts the ranges anew. A subtask that also gets files of other ranges computes the right
rows, but it reads all state, and keeps files alive that it does not need.
"""

from collections.abc import Iterator

from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.history import History, RowCommitted


def foreign_files(history: History) -> Iterator[str]:
    """Yield every file of state, or of an upsert table, that an entry gives to a subtask without one of its keys."""
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            yield from _foreign(event.record, history.max_parallelism)


def _foreign(record: CheckpointRecord, max_parallelism: int) -> Iterator[str]:
    for vertex in record.vertices:
        for index, subtask in enumerate(vertex.subtasks):
            files = [*subtask.state, *(keyed for entry in subtask.ranges for keyed in entry.files)]
            own = set(_key_groups(vertex, index, max_parallelism)) if files else set()
            for keyed in files:
                if own.isdisjoint(range(keyed.first_key_group, keyed.last_key_group + 1)):
                    groups = f"{keyed.first_key_group} to {keyed.last_key_group}"
                    yield (
                        f"entry {record.checkpoint}: subtask {index} of {vertex.vertex} has {keyed.file.path}, which "
                        f"holds key groups {groups}"
                    )


def _key_groups(vertex: VertexRecord, index: int, max_parallelism: int) -> Iterator[int]:
    """Yield the key groups that this subtask owns (Flink: `computeOperatorIndexForKeyGroup`)."""
    parallelism = len(vertex.subtasks)
    return (group for group in range(max_parallelism) if group * parallelism // max_parallelism == index)
