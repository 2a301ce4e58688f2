"""Which staged files certainly nothing references (design 3.7).

A file of vertex v and micro-batch m in generation g is a leftover if and only if g is older than the
present claim, and either g is newer than the newest committed row's generation, or it is that
generation and m came after v's last micro-batch in that row. Whatever a row (or a row before it) can
name lies outside that rule.
"""

from checkpointing.identifiers import Generation
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord


def is_leftover(
    name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
) -> bool:
    """Return whether a staged file of that generation is certainly referenced by nothing."""
    if generation >= current:
        return False
    if newest is None or generation > newest.generation:
        return True
    if generation < newest.generation:
        return False
    counter = next((vertex.micro_batch for vertex in newest.vertices if vertex.vertex == name.vertex), None)
    return counter is not None and name.micro_batch > counter
