"""Tests key groups and job graphs."""

import pytest

from checkpointing.graph import InvalidGraphError, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, InvalidNameError, TableName, VertexId, table_name
from checkpointing.key_groups import InvalidParallelismError, key_group_ranges, range_of


@pytest.mark.parametrize(("most", "parallelism"), [(0, 1), (1, 0), (2, 3), (32769, 1), (-1, -1)])
def test_numbers_out_of_bounds_are_refused_by_name(most, parallelism):
    """The error names the rule 1 <= parallelism <= max parallelism <= 32768."""
    sizes = {"parallelism": parallelism, "max_parallelism": most}
    for call in (
        lambda: key_group_ranges(**sizes),
        lambda: range_of(subtask=0, **sizes),
    ):
        with pytest.raises(InvalidParallelismError, match=f"parallelism {parallelism} with max.*<= 32768 must hold"):
            call()


def test_ranges_are_those_of_flink():
    """As Flink's KeyGroupRangeAssignment does, 128 key groups on 3 subtasks become 43, 43 and 42."""
    ranges = key_group_ranges(parallelism=3, max_parallelism=128)
    assert ["0..42", "43..85", "86..127"] == [str(own) for own in ranges]


# ------------------------------------------------------------------
# The job graph refuses parts that make no pipeline, and answers questions about its parts.


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


@pytest.mark.parametrize("text", ["orders", "bronze/orders/2024", "/orders", "bronze/", "Bronze/orders", "../orders"])
def test_a_table_name_has_a_schema_and_a_name(text):
    """Any other name is refused before it becomes a path. The message repeats the name."""
    with pytest.raises(InvalidNameError) as refused:
        table_name(text)
    assert repr(text) in str(refused.value)
