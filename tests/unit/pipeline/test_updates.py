"""The output of an aggregate is updates. A pipeline that would add them up is refused at that line (M1)."""

from dataclasses import dataclass

import pytest
from pyspark.sql.types import LongType, StructType

from jobs.pipeline import InvalidPipelineError, Pipeline, count, max_of, sum_of
from jobs.planner import plan
from jobs.quality.expectation import Expectation
from jobs.sources.sequence import SequenceSource

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})
OUTPUT = StructType().add("key", LongType()).add("n", LongType())
STATE = StructType().add("last", LongType())


@dataclass
class Differences:
    """A keyed function that nobody calls here."""

    def process(self, inputs, state):
        """Fail."""
        raise AssertionError("planning calls no function")


def numbers():
    """Return a source of split, n, key, value."""
    return Pipeline("example").source("numbers", SequenceSource({"a": 10}))


def per_key():
    """Return the updates of a count by key and split."""
    return numbers().key_by("key", "split").aggregate("per_key", n=count(), top=max_of("value"))


def again(rows):
    """Aggregate the rows by split."""
    return rows.key_by("split").aggregate("per_split", total=sum_of("n"))


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param(per_key, id="directly"),
        pytest.param(lambda: per_key().upsert("gold/per_key"), id="after its upsert table"),
        pytest.param(lambda: per_key().table("silver/per_key"), id="after its append table"),
        pytest.param(lambda: per_key().select("split", "n"), id="select"),
        pytest.param(lambda: per_key().drop("top"), id="drop"),
        pytest.param(lambda: per_key().with_column("n", "n * 2", LongType()), id="with_column"),
        pytest.param(lambda: per_key().transform(lambda rows: rows.filter("n > 1")), id="transform"),
        pytest.param(lambda: per_key().drop("top").table("silver/n", id="kept"), id="a table of its own vertex"),
        pytest.param(lambda: per_key().check_rows(NOT_NULL, quarantine="q/n", id="checked"), id="check_rows"),
    ],
)
def test_an_aggregate_of_updates_is_refused_when_it_is_written(updates):
    """Each update would count, and their number depends on the micro-batches."""
    with pytest.raises(InvalidPipelineError) as refused:
        again(updates())
    said = str(refused.value)
    assert said.startswith("vertex per_split: its rows are updates of the aggregate 'per_key'")
    assert "Aggregate the rows that go into 'per_key' by (split) instead" in said
    assert "process function" in said


def enriched(left, right):
    """Return left rows enriched with the top of the right ones."""
    return left.key_by("key").connect(right.key_by("key")).enrich("enriched", "top")


def test_enriched_updates_are_updates():
    """More columns do not make an update append-only."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10})).key_by("key", "split").aggregate("per_key", n=count())
    right = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    both = left.key_by("key").connect(right.key_by("key")).enrich("enriched", "value")
    with pytest.raises(InvalidPipelineError, match="updates of the aggregate 'per_key'"):
        again(both)


def test_enriched_rows_are_append_only():
    """Each left row is emitted once, so it may be counted."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10}))
    right = pipeline.source("right", SequenceSource({"a": 10})).with_column("top", "value", LongType())
    again(enriched(left, right.select("key", "top"))).upsert("gold/per_split")
    assert "per_split" in plan_of(pipeline)


def plan_of(pipeline):
    """Return the ids of the vertices that the pipeline is planned as."""
    return [vertex.id for vertex in plan(pipeline).graph.vertices]


def test_the_first_update_of_an_aggregate_enriches_nothing():
    """The first update is a partial result of the first micro-batch's rows. The latest update may enrich."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10})).key_by("key")
    sums = pipeline.source("right", SequenceSource({"a": 10})).key_by("key").aggregate("per_key", rows=count())
    both = left.connect(sums.key_by("key"))
    with pytest.raises(
        InvalidPipelineError, match=r"vertex enriched: its right rows are updates .*'per_key'.*latest_by"
    ):
        both.enrich("enriched", "rows")
    again(both.enrich("enriched", "rows", latest_by="rows").with_column("n", "rows", LongType())).upsert("gold/sums")
    assert "per_split" in plan_of(pipeline)


def test_a_process_function_may_read_updates_and_its_output_may_be_counted():
    """It knows the earlier row from its state, so it can emit differences. Tidemark cannot check that."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10})).key_by("key").aggregate("per_key", n=count())
    differences = rows.key_by("key").process("differences", Differences(), state=STATE, output=OUTPUT)
    differences.key_by("n").aggregate("per_n", rows=count()).upsert("gold/per_n")
    assert "per_n" in plan_of(pipeline)


def test_two_aggregates_of_the_same_rows_are_allowed():
    """The message names this way out. Both aggregates read the rows themselves."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10})).table("bronze/numbers", id="bronze")
    rows.key_by("key", "split").aggregate("per_key", n=count()).upsert("gold/per_key")
    rows.key_by("split").aggregate("per_split", n=count()).upsert("gold/per_split")
    assert {"per_key", "per_split"} <= set(plan_of(pipeline))
