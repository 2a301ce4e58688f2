"""A union has the rows of all its streams. Streams of other columns are refused by name."""

import pytest
from pyspark.sql.types import LongType, StringType

from checkpointing.graph import VertexKind
from jobs.pipeline import InvalidPipelineError, Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource


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


def counts_and_rows(pipeline):
    """Return a changelog and an append-only stream of the same columns (key, n)."""
    left, right = two(pipeline)
    counted = left.key_by("key").aggregate("per_key", n=count())
    return counted, right.with_column("n", "1", LongType()).select("key", "n")


@pytest.mark.parametrize("first", [True, False], ids=["changelog first", "changelog last"])
def test_a_union_passes_changes_on_if_somebody_takes_them(first):
    """The keyed vertices on both sides of it begin together. Both put out changes, and so does a union of the union."""
    pipeline = Pipeline("example")
    counted, rows = counts_and_rows(pipeline)
    both = counted.union(rows, id="both") if first else rows.union(counted, id="both")
    both.union(rows, id="all").key_by("n").aggregate("sizes", keys=count()).upsert("gold/sizes")
    planned = plan(pipeline)
    assert all(planned.vertices[name].spec.emits_changes for name in ("per_key", "both", "all"))
    assert [reads.takes_changes for reads in planned.vertices["both"].inputs] == [first, not first]
    assert planned.graph.vertex("sizes").changes_of == ("per_key",)
    assert planned.graph.vertex("all").changes_of == ()


def test_a_union_whose_changes_nobody_takes_has_new_rows_only():
    """Its table holds each update of the aggregate as a row, as the aggregate's own append table would."""
    pipeline = Pipeline("example")
    counted, rows = counts_and_rows(pipeline)
    counted.union(rows, id="both").table("silver/both")
    planned = plan(pipeline)
    assert not any(planned.vertices[name].spec.emits_changes for name in ("per_key", "both"))
    assert not any(reads.takes_changes for reads in planned.vertices["both"].inputs)


def test_a_union_of_a_changelog_with_updates_that_lost_their_kind_is_refused():
    """Somebody who takes its changes would count the second stream's updates as rows."""
    counted, _ = counts_and_rows(Pipeline("example"))
    kept = counted.table("silver/kept", id="kept")
    with pytest.raises(InvalidPipelineError, match="vertex both: its rows are updates of the aggregate 'per_key'"):
        counted.union(kept, id="both")
    lost = kept.union(kept, id="lost")
    with pytest.raises(InvalidPipelineError, match="vertex again: its rows are updates of the aggregate 'per_key'"):
        lost.key_by("key").aggregate("again", total=sum_of("n"))


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
