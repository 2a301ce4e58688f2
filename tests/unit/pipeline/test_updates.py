"""The output of an aggregate is a changelog. A step that would count updates as rows is refused at that line (M1)."""

from dataclasses import dataclass

import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig, CheckpointingMode
from jobs.pipeline import InvalidPipelineError, Pipeline, count, max_of, sum_of
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.sources.hybrid import SequenceSource

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})
OUTPUT = StructType().add("key", LongType()).add("n", LongType())
STATE = StructType().add("last", LongType())


@dataclass
class Differences:
    """A keyed function that nobody calls here."""

    def process(self, inputs, state):
        """Fail."""
        raise AssertionError("planning calls no function")


def per_key(pipeline=None):
    """Return the updates of a count by key and split."""
    rows = (pipeline or Pipeline("example")).source("numbers", SequenceSource({"a": 10}))
    return rows.key_by("key", "split").aggregate("per_key", n=count(), top=max_of("value"))


def again(rows):
    """Aggregate the rows by split."""
    return rows.key_by("split").aggregate("per_split", total=sum_of("n"))


PASSES_CHANGES = {
    "directly": lambda rows: rows,
    "after its upsert table": lambda rows: rows.upsert("gold/per_key"),
    "after its append table": lambda rows: rows.table("silver/per_key"),
    "select": lambda rows: rows.select("split", "n"),
    "drop": lambda rows: rows.drop("top"),
    "with_column": lambda rows: rows.with_column("n", "n * 2", LongType()),
    "transform": lambda rows: rows.transform(lambda each: each.filter("n > 1")),
}


@pytest.mark.parametrize("updates", PASSES_CHANGES.values(), ids=list(PASSES_CHANGES))
def test_an_aggregate_of_updates_takes_back_what_they_replace(updates):
    """The planner knows that the stream is a changelog: one vertex puts out changes, and the other takes them."""
    pipeline = Pipeline("example")
    again(updates(per_key(pipeline))).upsert("gold/per_split")
    planned = plan(pipeline)
    assert planned.vertices["per_key"].spec.emits_changes
    (reads,) = planned.vertices["per_split"].inputs
    assert (reads.of_changes, reads.takes_changes) == (True, True)
    assert planned.vertices["per_split"].spec.inputs[0].schema.names == ["split", "n", "_change_kind"]
    assert [meaning.column for meaning in planned.graph.vertex("per_split").meanings] == ["total", "_rows"]
    assert planned.graph.vertex("per_split").changes_of == ("per_key",)


def test_without_a_reader_of_changes_nobody_puts_them_out():
    """A process function gets the new rows only."""
    pipeline = Pipeline("example")
    per_key(pipeline).key_by("key").process("differences", Differences(), state=STATE, output=OUTPUT)
    planned = plan(pipeline)
    assert not planned.vertices["per_key"].spec.emits_changes
    assert not planned.vertices["differences"].inputs[0].takes_changes


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param(lambda: per_key().drop("top").table("silver/n", id="kept"), id="a table of its own vertex"),
        pytest.param(lambda: per_key().check_rows(NOT_NULL, quarantine="q/n", id="kept"), id="check_rows"),
    ],
)
def test_updates_that_lost_their_kind_are_refused(updates):
    """A vertex between the two passes on new rows only. The message names it, and what to write instead."""
    with pytest.raises(InvalidPipelineError) as refused:
        again(updates())
    said = str(refused.value)
    assert said.startswith("vertex per_split: its rows are updates of the aggregate 'per_key', and vertex 'kept'")
    assert "Aggregate the stream of 'per_key' itself" in said


def test_columns_of_ours_are_refused():
    """The state has the number of rows in `_rows`, and changes have their kind in `_change_kind`."""
    rows = per_key()
    with pytest.raises(InvalidPipelineError, match="columns '_rows' and '_rows' have one name"):
        rows.key_by("split").aggregate("other", _rows=count())
    with pytest.raises(InvalidPipelineError, match="columns '_change_kind' and '_change_kind' have one name"):
        rows.with_column("_change_kind", "1", LongType()).key_by("split").aggregate("other", n=count())


DELETES = {
    "append table": lambda rows: rows.table("silver/n"),
    "append table of its own vertex": lambda rows: rows.table("silver/n", id="kept"),
    "check_rows": lambda rows: rows.check_rows(
        Expectation("expect_column_values_to_not_be_null", {"column": "total"}), quarantine="q/n", id="checked"
    ),
    "process": lambda rows: rows.key_by("split").process("p", Differences(), state=STATE, output=OUTPUT),
    "enrich": lambda rows: (
        rows.select("split").key_by("split").connect(rows.key_by("split")).enrich("e", "total", latest_by="total")
    ),
    "other keys": lambda rows: rows.upsert("gold/n", keys=["split", "total"]),
}


@pytest.mark.parametrize("step", DELETES.values(), ids=list(DELETES))
def test_a_step_that_takes_no_row_back_is_refused_by_name(step):
    """It would keep rows that were deleted. The message names the aggregate and the steps that could."""
    with pytest.raises(InvalidPipelineError, match=r"aggregate 'per_split'.* takes changes and so deletes rows"):
        step(again(per_key()))


OF_A_UNION = {
    "append table": lambda both: both.table("silver/n"),
    "append table of its own vertex": lambda both: both.table("silver/n", id="kept"),
    "check_rows": lambda both: both.check_rows(NOT_NULL, quarantine="q/n"),
    "upsert": lambda both: both.upsert("gold/n"),
    "process": lambda both: both.key_by("split").process("p", Differences(), state=STATE, output=OUTPUT),
}


@pytest.mark.parametrize("step", OF_A_UNION.values(), ids=list(OF_A_UNION))
def test_a_step_that_takes_no_row_back_is_refused_after_a_union_too(step):
    """A union passes on the rows that its streams take back."""
    rows = again(per_key()).with_column("n", "total", LongType())
    said = "a stream of this union takes rows back|union 'both', which .*this step cannot|only the direct output of a"
    with pytest.raises(InvalidPipelineError, match=said):
        step(rows.union(rows, id="both"))


def test_a_crash_may_not_take_a_row_back_twice():
    """At least once, the rows after a barrier may come again after a crash, and so may what they take back."""
    pipeline = Pipeline("example")
    again(per_key(pipeline)).upsert("gold/per_split")
    with pytest.raises(InvalidPipelineError, match=r"vertex per_split: it takes changes, and with mode at_least_once"):
        plan(pipeline, config=CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE))


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
