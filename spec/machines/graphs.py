"""Tests job graphs. A false graph is refused, and a true graph answers what follows from its vertices and edges."""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.graph import Hook, InvalidGraphError, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import ChannelId, EdgeId, HookName, SubtaskId, TableName, VertexId
from spec.machines.judging import expect

GRAPHS: Final = "graphs-hold"
"""A graph has unique names, edges that point forward, and one writer for each table. Its answers follow from its
parts."""
_NAMES: Final = "abcd"
_vertices = st.lists(
    st.tuples(
        st.sampled_from(_NAMES),
        st.sampled_from([*VertexKind]),
        st.integers(1, 3),
        st.lists(st.sampled_from(["s/x", "s/y", "s/z"]), max_size=2),
    ),
    min_size=1,
    max_size=4,
)
_edges = st.lists(
    st.tuples(st.sampled_from(_NAMES), st.sampled_from(_NAMES), st.integers(0, 1)), max_size=3, unique=True
)


class GraphsMachine(RuleBasedStateMachine):
    """Draws one graph after the other. Keeps nothing in between."""

    runs_short = True

    @rule(vertices=_vertices, edges=_edges, hooks=st.lists(st.sampled_from("hi"), max_size=2))
    def make(
        self,
        vertices: list[tuple[str, VertexKind, int, list[str]]],
        edges: list[tuple[str, str, int]],
        hooks: list[str],
    ) -> None:
        """Make a graph of these parts."""
        made = tuple(
            Vertex(VertexId(name), kind, subtasks, tuple(Table(TableName(each), TableMode.APPEND) for each in tables))
            for name, kind, subtasks, tables in vertices
        )
        between = tuple(EdgeId(VertexId(one), VertexId(other), number) for one, other, number in edges)
        try:
            graph = JobGraph(made, between, tuple(Hook(HookName(name), 1) for name in hooks))
        except InvalidGraphError as error:
            expect(not _is_graph(vertices, edges, hooks), GRAPHS, f"{vertices}, {edges}, {hooks} are refused: {error}")
            return
        expect(_is_graph(vertices, edges, hooks), GRAPHS, f"{vertices}, {edges}, {hooks} are taken for a graph")
        _judge(graph)

    @rule(
        parallelism=st.lists(st.integers(1, 3), min_size=4, max_size=4),
        there=st.lists(st.booleans(), min_size=6, max_size=6),
        kind=st.sampled_from([*VertexKind]),
    )
    def make_forward(self, parallelism: list[int], there: list[bool], kind: VertexKind) -> None:
        """Make a graph whose edges all point forward."""
        names = [VertexId(name) for name in _NAMES]
        pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
        edges = [EdgeId(one, other, 0) for (one, other), is_there in zip(pairs, there, strict=True) if is_there]
        vertices = (Vertex(name, kind, subtasks) for name, subtasks in zip(names, parallelism, strict=True))
        _judge(JobGraph(tuple(vertices), tuple(edges)))

    @rule(split=st.sampled_from(["x1", "y1", "z"]), parts=st.sampled_from([(), ("x", "y", "z")]), bounded=st.booleans())
    def read_in_parts(self, split: str, parts: tuple[str, ...], *, bounded: bool) -> None:
        """Every part of a source but the last has an end, and the last one if the source is bounded."""
        source = Vertex(VertexId("a"), VertexKind.SOURCE, 1, bounded=bounded, parts=parts)
        part = "xyz".index(split[0]) if parts else 0
        ends = bounded or (bool(parts) and split[0] != "z")
        right = (source.part(split), source.ends(split)) == (part, ends)
        expect(right, GRAPHS, f"{split} of {parts}, bounded {bounded}: {source.part(split)}, {source.ends(split)}")


def _is_graph(
    vertices: list[tuple[str, VertexKind, int, list[str]]], edges: list[tuple[str, str, int]], hooks: list[str]
) -> bool:
    names = [name for name, *_ in vertices]
    tables = [table for *_, own in vertices for table in own]
    forward = all(one in names and other in names[names.index(one) + 1 :] for one, other, _ in edges)
    unique = all(len(set(each)) == len(each) for each in (names, tables, hooks))
    return unique and forward


def _judge(graph: JobGraph) -> None:
    """Raise unless the graph answers what follows from its vertices and edges."""
    subtasks: list[SubtaskId] = []
    sources = [vertex for vertex in graph.vertices if vertex.kind is VertexKind.SOURCE]
    operators = [vertex for vertex in graph.vertices if vertex.kind is not VertexKind.SOURCE]
    for vertex in graph.vertices:
        expect(graph.vertex(vertex.id) is vertex, GRAPHS, f"{vertex.id} is {graph.vertex(vertex.id)}")
        own = [SubtaskId(vertex.id, index) for index in range(vertex.parallelism)]
        subtasks += own
        into = [edge for edge in graph.edges if edge.downstream == vertex.id]
        expect([*graph.upstream(vertex.id)] == into, GRAPHS, f"{into} lead to {vertex.id}")
        channels = {ChannelId(edge, index) for edge in into for index in range(graph.vertex(edge.upstream).parallelism)}
        found = graph.channels_into(vertex.id)
        expect({*found} == channels and len(found) == len(channels), GRAPHS, f"{found} lead into {vertex.id}")
    expect([*graph.subtasks()] == subtasks, GRAPHS, f"the subtasks are {[*graph.subtasks()]}")
    right = [*graph.sources()] == sources and [*graph.operators()] == operators
    expect(right, GRAPHS, f"the sources are {graph.sources()}, the operators {graph.operators()}")
    tables = [table for vertex in graph.vertices for table in vertex.tables]
    expect([*graph.tables()] == tables, GRAPHS, f"the tables are {graph.tables()}")
