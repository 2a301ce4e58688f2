"""Plants bugs in how key groups and non-keyed state are spread over subtasks, and in the checks of a graph."""

from collections.abc import Sequence

from checkpointing import key_groups
from checkpointing.graph import JobGraph, Vertex
from checkpointing.identifiers import ChannelId, VertexId
from checkpointing.key_groups import KeyGroupRange
from checkpointing.rescale import operator_state
from checkpointing.rescale.operator_state import OperatorStatePart
from spec.mutants.judges import GRAPHS, SPREADING
from spec.mutants.planting import Patch, mutant


@mutant("spread-over-subtasks", SPREADING)
def the_last_key_group_of_each_range_is_the_first_of_the_next(patch: Patch) -> None:
    def overlapping(*, subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        last = ((subtask + 1) * max_parallelism) // parallelism
        first = -(-subtask * max_parallelism // parallelism)
        return KeyGroupRange(first=first, last=min(last, max_parallelism - 1))

    patch.put(key_groups, "range_of", overlapping)


@mutant("spread-over-subtasks", SPREADING)
def ranges_that_touch_have_nothing_in_common(patch: Patch) -> None:
    def intersection(self: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange | None:
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first=first, last=last) if first < last else None

    patch.put(KeyGroupRange, "intersection", intersection)


@mutant("spread-over-subtasks", SPREADING)
def every_state_is_dealt_from_the_first_subtask_on(patch: Patch) -> None:
    real = operator_state._split

    def split(parts: list[OperatorStatePart], new: list[list[OperatorStatePart]]) -> None:
        for name in dict.fromkeys(part.name for part in parts):
            real([part for part in parts if part.name == name], new)

    patch.put(operator_state, "_split", split)


@mutant("spread-over-subtasks", SPREADING)
def a_new_subtask_gets_the_first_copy_of_a_broadcast_state(patch: Patch) -> None:
    real = operator_state._by_name

    def by_name(parts: Sequence[OperatorStatePart]) -> dict[str, list[OperatorStatePart]]:
        found = real(parts)
        copies = operator_state.DistributionMode.BROADCAST
        return {name: own[:1] if own[0].mode is copies else own for name, own in found.items()}

    patch.put(operator_state, "_by_name", by_name)


@mutant("graphs-hold", GRAPHS)
def an_edge_may_lead_back_to_its_vertex(patch: Patch) -> None:
    real = JobGraph.__post_init__

    def post_init(self: JobGraph) -> None:
        real(replace_edges(self))

    def replace_edges(graph: JobGraph) -> JobGraph:
        bare = object.__new__(JobGraph)
        edges = tuple(edge for edge in graph.edges if edge.upstream != edge.downstream)
        for name, value in (("vertices", graph.vertices), ("edges", edges), ("hooks", graph.hooks)):
            object.__setattr__(bare, name, value)
        return bare

    patch.put(JobGraph, "__post_init__", post_init)


@mutant("graphs-hold", GRAPHS)
def a_vertex_has_the_channels_of_its_first_edge(patch: Patch) -> None:
    real = JobGraph.channels_into

    def channels_into(self: JobGraph, name: VertexId) -> tuple[ChannelId, ...]:
        first = self.upstream(name)[:1]
        return tuple(channel for channel in real(self, name) if channel.edge in first)

    patch.put(JobGraph, "channels_into", channels_into)


@mutant("graphs-hold", GRAPHS)
def the_last_part_of_a_source_has_an_end(patch: Patch) -> None:
    patch.put(Vertex, "ends", lambda self, _: self.bounded or bool(self.parts))
