"""The job graph refuses what is no pipeline, and answers questions about its parts."""

import pytest

from checkpointing.graph import InvalidGraphError, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import ChannelId, EdgeId, InvalidNameError, TableName, VertexId, table_name

SOURCE = Vertex(VertexId("orders"), VertexKind.SOURCE, 2, splits=("a", "b"))
BRONZE = Vertex(VertexId("bronze"), VertexKind.STATELESS, 1, (Table(TableName("bronze/orders"), TableMode.APPEND),))
GOLD = Vertex(VertexId("gold"), VertexKind.KEYED, 1, (Table(TableName("bronze/orders"), TableMode.APPEND),))
IN = EdgeId(SOURCE.id, BRONZE.id)


@pytest.mark.parametrize(
    ("vertices", "edges", "named"),
    [
        ((SOURCE, SOURCE), (), "duplicate vertex id among ['orders', 'orders']"),
        ((SOURCE,), (IN,), "edge orders->bronze:0 names a vertex that is not in the graph"),
        ((BRONZE,), (IN,), "edge orders->bronze:0 names a vertex that is not in the graph"),
        ((BRONZE, SOURCE), (IN,), "edge orders->bronze:0 does not point forward"),
        ((SOURCE, BRONZE), (EdgeId(BRONZE.id, BRONZE.id),), "edge bronze->bronze:0 does not point forward"),
        ((SOURCE, BRONZE, GOLD), (IN,), "table bronze/orders has two writers; give each vertex a table of its own"),
    ],
)
def test_a_graph_that_is_no_pipeline_is_refused_by_name(vertices, edges, named):
    """Ids are unique, edges join existing vertices and point forward, and a table has one writer."""
    with pytest.raises(InvalidGraphError) as refused:
        JobGraph(vertices, edges)
    assert named == str(refused.value)


def test_a_graph_knows_which_vertex_sends_to_which():
    """There is one channel for each upstream subtask. An unknown vertex raises KeyError."""
    graph = JobGraph((SOURCE, BRONZE), (IN,))
    assert (ChannelId(IN, 0), ChannelId(IN, 1)) == graph.channels_into(BRONZE.id)
    assert () == graph.channels_into(SOURCE.id)
    assert (IN,) == graph.upstream(BRONZE.id)
    assert () == graph.upstream(SOURCE.id)
    with pytest.raises(KeyError, match="gold"):
        graph.vertex(GOLD.id)


@pytest.mark.parametrize("text", ["orders", "bronze/orders/2024", "/orders", "bronze/", "Bronze/orders", "../orders"])
def test_a_table_name_has_a_schema_and_a_name(text):
    """Any other name never becomes a path, and the message repeats it."""
    with pytest.raises(InvalidNameError) as refused:
        table_name(text)
    assert repr(text) in str(refused.value)
