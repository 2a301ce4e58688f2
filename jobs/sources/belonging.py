"""Tells a source which job reads it, and under which id."""

from typing import Protocol, runtime_checkable

from checkpointing.identifiers import JobName, VertexId
from jobs.sources.port import Source, every_layer


@runtime_checkable
class KnowsItsJob(Protocol):
    """Optional for a source that tells another system the name of its job."""

    def belongs_to(self, job: JobName, source: VertexId) -> None:
        """Take the names. A pipeline calls this when the source is declared."""
        ...


def introduce(source: Source, job: JobName, name: VertexId) -> None:
    """Tell a source, and the sources inside it, their job and their id, if they want to know."""
    for layer in every_layer(source):
        if isinstance(layer, KnowsItsJob):
            layer.belongs_to(job, name)
