"""A union has the rows of all its streams. Streams of other columns are refused by name."""

import pytest
from pyspark.sql.types import LongType, StringType

from checkpointing.graph import VertexKind
from jobs.pipeline import InvalidPipelineError, Pipeline, count, sum_of
from jobs.planner import plan
from jobs.sources.sequence import SequenceSource


def two(pipeline=None):
    """Return two streams of the same columns."""
    pipeline = pipeline or Pipeline("example")
    return tuple(pipeline.source(name, SequenceSource({"a": 10})) for name in ("left", "right"))


def test_a_union_is_one_vertex_with_an_edge_from_each_stream():
    """The table right after it belongs to the same vertex."""
    pipeline = Pipeline("example")
    left, right = two(pipeline)
    left.union(right, id="both").table("bronze/both").key_by("key").aggregate("by_key", n=count()).upsert("gold/n")
    graph = plan(pipeline).graph
    both = graph.vertex("both")
    assert both.kind is VertexKind.STATELESS
    assert ["bronze/both"] == [table.name for table in both.tables]
    assert ["left", "right"] == [edge.upstream for edge in graph.upstream("both")]


def test_a_union_of_updates_carries_updates():
    """It cannot be aggregated again, whichever of the streams has the updates."""
    pipeline = Pipeline("example")
    left, right = two(pipeline)
    counted = left.key_by("key").aggregate("per_key", n=count())
    rows = right.with_column("n", "1", LongType()).select("key", "n")
    for place, both in enumerate((counted.union(rows, id="one"), rows.union(counted, id="other"))):
        with pytest.raises(InvalidPipelineError, match="its rows are updates of the aggregate 'per_key'"):
            both.key_by("key").aggregate(f"again_{place}", total=sum_of("n"))


REFUSED = {
    "another type": (
        lambda left, right: left.union(right.with_column("value", "value", StringType()), id="both"),
        "vertex both: column 'value' is bigint in left and string in right; give both streams the same columns",
    ),
    "a column less": (
        lambda left, right: left.union(right.drop("value"), id="both"),
        "vertex both: column 'value' is bigint in left and missing in right",
    ),
    "a column more": (
        lambda left, right: left.drop("value").union(right, id="both"),
        "vertex both: column 'value' is missing in left and bigint in right",
    ),
    "alone": (lambda left, _: left.union(id="both"), "vertex both: a union needs another stream"),
    "two pipelines": (
        lambda left, _: left.union(two()[1], id="both"),
        "vertex both: the streams belong to two pipelines",
    ),
}


@pytest.mark.parametrize(("write", "said"), REFUSED.values(), ids=list(REFUSED))
def test_a_union_of_other_columns_is_refused(write, said):
    """One sentence names the vertex, the column and both streams."""
    with pytest.raises(InvalidPipelineError, match=said):
        write(*two())
