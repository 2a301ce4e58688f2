"""A case's tasks, vertices and edges as the coordinator's topology."""

from collections.abc import Iterator, Mapping

from checkpointing.coordinator.plan import EdgePattern, PlannedEdge, PlannedVertex, Topology
from spec.coordinator_cases.unit import Value

_PATTERNS = {"all": EdgePattern.ALL_TO_ALL, "pointwise": EdgePattern.POINTWISE}
_MAX_PARALLELISM = 128


def topology_of(given: Mapping[str, Value], max_parallelisms: Mapping[str, int] | None = None) -> Topology:
    """Return the topology; `max_parallelisms` override those of `given`."""
    changed = max_parallelisms or {}
    vertices = tuple(_vertices(given, changed))
    return Topology(vertices, tuple(_edges(given, tuple(vertex.name for vertex in vertices))))


def _vertices(given: Mapping[str, Value], changed: Mapping[str, int]) -> Iterator[PlannedVertex]:
    for task in given.get("tasks", ()):
        yield PlannedVertex(task, (task,), changed.get(task, _MAX_PARALLELISM), task in changed)
    for name, vertex in given.get("vertices", {}).items():
        chosen = changed.get(name, vertex.get("max"))
        tasks = tuple(f"{name}/{index}" for index in range(vertex["parallelism"]))
        yield PlannedVertex(name, tasks, chosen or _MAX_PARALLELISM, chosen is not None)


def _edges(given: Mapping[str, Value], names: tuple[str, ...]) -> Iterator[PlannedEdge]:
    for upstream, downstream, pattern in given.get("edges", ()):
        yield PlannedEdge(upstream, downstream, _PATTERNS[pattern])
    sources = given.get("sources")
    if sources is None or "edges" in given:
        return
    for name in names:
        if name not in sources:
            yield from (PlannedEdge(source, name) for source in sources)
