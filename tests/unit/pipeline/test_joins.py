"""Joins are planned with the kinds of their inputs, and steps that cannot take a row back are refused by name."""

import pytest
from pyspark.sql.types import LongType

from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from tidemark import Pipeline, SequenceSource, count, join


def streams():
    """Return a pipeline with a changelog (key, n) and an append-only stream (key, value)."""
    pipeline = Pipeline("example")
    counted = pipeline.source("left", SequenceSource({"a": 10})).key_by("key").aggregate("counted", n=count())
    rows = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    return pipeline, counted, rows


def test_only_the_side_that_is_a_changelog_is_read_with_kinds():
    """The other side is append-only, and its rows have no kind."""
    pipeline, counted, rows = streams()
    join(counted.key_by("key"), rows.key_by("key"), "joined").key_by("n").aggregate("sizes", rows=count())
    planned = plan(pipeline)
    joined = planned.vertices["joined"]
    assert [reads.takes_changes for reads in joined.inputs] == [True, False]
    assert [each.schema.names for each in joined.spec.inputs] == [["key", "n", "_change_kind"], ["key", "value"]]
    assert joined.spec.emits_changes
    assert planned.graph.vertex("joined").changes_of == ("counted",)
    assert planned.graph.vertex("sizes").changes_of == ("joined",)


def test_an_inner_join_of_append_only_streams_is_append_only():
    """It takes no row back, so any step may follow, and a table may hold its rows."""
    pipeline, _, rows = streams()
    other = rows.select("key").key_by("key")
    join(rows.key_by("key"), other, "joined").table("silver/joined").key_by("key").aggregate("n", rows=count())
    planned = plan(pipeline)
    assert not planned.vertices["joined"].spec.emits_changes
    assert planned.graph.vertex("n").changes_of == ()


def test_a_semi_join_has_the_left_columns_and_an_anti_join_takes_rows_back():
    """Both sides may have the same columns. A left row that has found a match keeps it if no row is taken back."""
    pipeline, _, rows = streams()
    one, other = rows.key_by("key"), rows.key_by("key")
    join(one, other, "known", how="semi").table("silver/known")
    with pytest.raises(InvalidPipelineError, match="join 'unknown' takes rows back"):
        join(one, other, "unknown", how="anti").table("silver/unknown")
    planned = plan(pipeline)
    assert planned.vertices["known"].spec.output.names == ["key", "value"]
    assert not planned.vertices["known"].spec.emits_changes


@pytest.mark.parametrize(
    ("follow", "said"),
    [
        (lambda joined: joined.table("silver/joined"), "join 'joined' takes rows back"),
        (lambda joined: joined.upsert("gold/joined"), "join 'joined' takes rows back"),
        (lambda joined: joined.table("silver/joined", id="kept"), "those of join 'joined'"),
        (lambda joined: joined.union(joined, id="both").table("silver/both"), "a stream of this union takes rows back"),
    ],
)
def test_a_step_that_cannot_take_a_row_back_is_refused(follow, said):
    """An outer join of append-only streams takes the row with nulls back."""
    _, _, rows = streams()
    joined = join(rows.key_by("key"), rows.select("key").key_by("key"), "joined", how="left")
    with pytest.raises(InvalidPipelineError, match=said):
        follow(joined)


def test_joins_that_cannot_be_are_refused():
    """An unknown type, and a column that both sides have."""
    _, _, rows = streams()
    keyed = rows.key_by("key")
    with pytest.raises(InvalidPipelineError, match="choose one of inner, left, right, full, semi, anti"):
        join(keyed, keyed, "joined", how="outer")
    with pytest.raises(InvalidPipelineError, match=r"columns \['value'\] are on both sides"):
        join(keyed, keyed, "joined")


def test_a_column_that_counts_kept_rows_is_refused_by_name():
    """The state keeps each row with a column `_times`. A user's column of that name failed in the middle of a tick."""
    _, _, rows = streams()
    named = rows.with_column("_times", "value", LongType()).key_by("key")
    with pytest.raises(InvalidPipelineError, match="'_times' and '_times' have one name; rename one"):
        join(named, rows.select("key").key_by("key"), "joined")
