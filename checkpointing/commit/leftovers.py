"""Which staged files certainly nothing references.

A file of vertex v and micro-batch m in generation g is a leftover if and only if g is older than the
present claim, no savepoint refers to it, and either g is newer than the generation of the newest
checkpoint, or it is that generation and m came after v's last micro-batch in that row. Whatever that
checkpoint (or a row before it) can name lies outside that rule; a plain savepoint may have come after
it, and names what it pins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import Generation
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord, Row


@dataclass(frozen=True, slots=True)
class Referenced:
    """What the rows of `checkpoints` refer to, as far as it matters here: the newest cut, and pinned files."""

    newest: CheckpointRecord | None = None
    pinned: frozenset[str] = field(default=frozenset())


def referenced(rows: Iterable[Row]) -> Referenced:
    """Return what these rows, all that are there, refer to."""
    known = tuple(rows)
    savepoints = (row for row in known if isinstance(row, CheckpointRecord) and row.is_savepoint)
    pinned: frozenset[str] = frozenset().union(*(files_of(row) for row in savepoints))
    return Referenced(newest_checkpoint(known), pinned)


def is_unreferenced(
    path: str, name: StagedName, generation: Generation, *, current: Generation, by: Referenced
) -> bool:
    """Return whether the staged file at `path`, of that name and generation, is certainly referenced by nothing."""
    return path not in by.pinned and is_leftover(name, generation, current=current, newest=by.newest)


def is_leftover(
    name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
) -> bool:
    """Return whether no checkpoint can name a staged file of that generation; of savepoints this says nothing."""
    if generation >= current:
        return False
    if newest is None or generation > newest.generation:
        return True
    if generation < newest.generation:
        return False
    counter = next((vertex.micro_batch for vertex in newest.vertices if vertex.vertex == name.vertex), None)
    return counter is not None and name.micro_batch > counter
