"""Decides which staged files are certainly unreferenced.

A staged file belongs to a vertex v, a micro-batch m and a generation g. It is a leftover if g is older than the current
claim, no savepoint refers to the file, and one of two conditions holds:

- g is newer than the generation of the newest checkpoint.
- g is that generation, and m came after v's last micro-batch in that checkpoint.

No file that this checkpoint or an older one names meets these conditions. A plain savepoint may be newer, so the files
that it names are excluded.
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
    """What the entries of `checkpoints` refer to, as far as it matters here: the newest cut, and pinned files."""

    newest: CheckpointRecord | None = None
    pinned: frozenset[str] = field(default=frozenset())


def referenced(rows: Iterable[Row]) -> Referenced:
    """Return what these entries refer to. `rows` must be all existing ones."""
    known = tuple(rows)
    savepoints = (row for row in known if isinstance(row, CheckpointRecord) and row.is_savepoint)
    pinned: frozenset[str] = frozenset().union(*(files_of(row) for row in savepoints))
    return Referenced(newest_checkpoint(known), pinned)


def oldest_with_leftovers(by: Referenced) -> Generation:
    """Return the oldest generation of which `is_leftover` may be true."""
    return by.newest.generation if by.newest is not None else Generation(1)


def is_unreferenced(
    path: str, name: StagedName, generation: Generation, *, current: Generation, by: Referenced
) -> bool:
    """Return whether the staged file at `path` is certainly unreferenced."""
    return path not in by.pinned and is_leftover(name, generation, current=current, newest=by.newest)


def is_leftover(
    name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
) -> bool:
    """Return whether no checkpoint can name this staged file of that generation. A savepoint still may."""
    if generation >= current:
        return False
    if newest is None or generation > newest.generation:
        return True
    if generation < newest.generation:
        return False
    counter = next((vertex.micro_batch for vertex in newest.vertices if vertex.vertex == name.vertex), None)
    return counter is not None and name.micro_batch > counter
