"""Says which changes travel: those that a keyed vertex takes, directly or through unions.

A vertex puts out changes only if somebody takes them. So a union takes the changes of its streams only if somebody
takes its own.
"""

from collections.abc import Iterator, Mapping, Sequence

from checkpointing.identifiers import VertexId
from jobs.pipeline.vertices import Declared, StagedVertex, TakesChanges

Changelogs = Mapping[VertexId, tuple[VertexId, ...]]
"""The vertices whose changes each vertex takes."""


def changelogs(vertices: Sequence[Declared]) -> Changelogs:
    """Return the vertices whose changes each of these takes. `vertices` are in topological order."""
    found: dict[VertexId, tuple[VertexId, ...]] = {}
    for vertex in reversed(vertices):
        wanted = isinstance(vertex, TakesChanges) or any(vertex.id in taken for taken in found.values())
        found[vertex.id] = vertex.changes_of if wanted and isinstance(vertex, TakesChanges | StagedVertex) else ()
    return found


def keyed_changelogs(name: VertexId, vertices: Mapping[VertexId, Declared], taken: Changelogs) -> tuple[VertexId, ...]:
    """Return the keyed vertices whose changes reach a keyed one, directly or through unions. Each is named once."""
    if isinstance(vertices[name], StagedVertex):
        return ()
    return tuple(dict.fromkeys(_behind(name, vertices, taken)))


def _behind(name: VertexId, vertices: Mapping[VertexId, Declared], taken: Changelogs) -> Iterator[VertexId]:
    for upstream in taken[name]:
        if isinstance(vertices[upstream], StagedVertex):
            yield from _behind(upstream, vertices, taken)
        else:
            yield upstream
