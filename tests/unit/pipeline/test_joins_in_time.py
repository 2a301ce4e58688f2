"""Joins in time as a user declares them: what is refused, and the streams that they make (N6)."""

from dataclasses import replace

import pytest
from pyspark.sql.types import LongType, StringType, TimestampNTZType, TimestampType

from checkpointing.state_meaning import meaning_changes
from jobs.pipeline.planning import plan
from tidemark import InvalidPipelineError, Pipeline, SequenceSource, as_of, count, join, session, tumbling

HOUR = ("-5m", "1h")


def house(kind=TimestampType):
    """Return a pipeline with clicks and payments by user."""
    pipeline = Pipeline("house")

    def rows(name, **renamed):
        stream = pipeline.source(name, SequenceSource(splits={"a": (1, "ab")}))
        stream = stream.with_column("user", "key", StringType()).with_column("at", "null", kind())
        return stream.select("user", "at").event_time("at", delay="10m").rename(renamed)

    return pipeline, rows("clicks"), rows("payments", at="paid_at")


def refused(declare, match):
    _, clicks, payments = house()
    with pytest.raises(InvalidPipelineError, match=match):
        declare(clicks, payments)


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda one, two: join(one.key_by("user"), two.key_by("user"), "j", within=HOUR), 'late="late/j"'),
        (lambda one, two: join(one.key_by("user"), two.key_by("user"), "j", late="late/j"), "leave late out"),
        (
            lambda one, two: join(one.key_by("user"), two.key_by("user"), "j", within=("1h", "-5m"), late="late/j"),
            "begins after its end",
        ),
        (
            lambda one, two: join(one.key_by("user"), two.key_by("user"), "j", within=("5", "1h"), late="late/j"),
            "write a duration",
        ),
        (
            lambda one, two: join(one.key_by("user"), one.key_by("user"), "j", within=HOUR, late="late/j"),
            "rename",
        ),
        (
            lambda one, two: join(
                one.drop("at").with_column("n", "1", LongType()).key_by("user"),
                two.key_by("user"),
                "j",
                within=HOUR,
                late="late/j",
            ),
            "no event times any more",
        ),
        (
            lambda one, two: join(
                one.with_column("_at_us", "1", LongType()).key_by("user"),
                two.key_by("user"),
                "j",
                within=HOUR,
                late="l/j",
            ),
            "have one name",
        ),
        (
            lambda one, two: join(one.key_by("at"), two.key_by("paid_at"), "j", within=HOUR, late="late/j"),
            "is a key",
        ),
        (
            lambda one, two: join(
                one.key_by("user").window(tumbling("1h")), two.key_by("user"), "j", how="semi", late="late/j"
            ),
            "only one of its streams has windows",
        ),
        (
            lambda one, two: join(
                one.key_by("user").window(tumbling("1h")), two.key_by("user").window(tumbling("2h")), "j", late="late/j"
            ),
            "different windows",
        ),
        (
            lambda one, two: join(
                one.key_by("user").window(tumbling("1h", by="clock")),
                two.key_by("user").window(tumbling("1h", by="clock")),
                "j",
                late="late/j",
            ),
            "by the clock",
        ),
        (
            lambda one, two: join(
                one.key_by("user").window(session("1h")), two.key_by("user").window(session("1h")), "j", late="late/j"
            ),
            "sessions have no end",
        ),
        (
            lambda one, two: join(one.key_by("user"), two.key_by("user"), "j", within=HOUR, late="late/j", ttl="1d"),
            "leave ttl out",
        ),
        (
            lambda one, two: as_of(one.key_by("user"), two.key_by("user"), "j", how="full", late="late/j"),
            "inner or left",
        ),
    ],
)
def test_what_cannot_be_joined_in_time_is_refused_where_it_is_declared(declare, match):
    refused(declare, match)


def test_windows_and_other_joins_follow_a_join_by_window_and_as_of():
    pipeline, clicks, payments = house()
    hours = tumbling("1h")
    both = join(clicks.key_by("user").window(hours), payments.key_by("user").window(hours), "both", late="late/both")
    both.rename({"window_start": "s", "window_end": "e"}).key_by("user").window(hours).aggregate(
        "hourly", late="fail", rows=count()
    ).table("gold/hourly")
    valid = as_of(clicks.key_by("user"), payments.key_by("user"), "valid", deletes="user = 'b'", late="fail")
    assert ["user", "at", "paid_at"] == valid.schema.names
    valid.drop("paid_at").key_by("user").window(hours).aggregate("daily", late="fail", rows=count()).table("gold/daily")
    paid = join(clicks.key_by("user"), payments.key_by("user"), "paid", how="anti", within=HOUR, late="late/paid")
    paid.table("gold/unpaid")
    assert "at" == paid.time.name
    late = paid.rename({"at": "clicked"}).key_by("user").window(hours).aggregate("unpaid", late="fail", rows=count())
    late.table("gold/unpaid_hourly")
    planned = plan(pipeline)
    told = {each.column: each for each in planned.vertices["paid"].spec.meanings}["_due_ms"]
    assert ("anti_join_in_time", "within -300000 3600000") == (told.function, told.arguments[0].column), "others refuse"
    assert 3_600_000 == planned.graph.rows_wait_ms("paid")
    assert 0 == planned.graph.rows_wait_ms("unpaid"), "what waits above is in the watermark that it gets"
    assert {"late/both", "late/paid"} == {name for name in planned.table_schemas if name.startswith("late/")}
    assert ["user", "at", "paid_at", "late_side", "late_by_ms"] == planned.table_schemas["late/both"].names


def test_state_of_another_time_range_is_refused_with_the_ways_out():
    """The state lacks rows that the wider range needs. No user has named its column, so a new name is no way out."""

    def state(within):
        pipeline, clicks, payments = house()
        join(clicks.key_by("user"), payments.key_by("user"), "paid", within=within, late="late/paid").table("gold/paid")
        return plan(pipeline).vertices["paid"].spec.meanings

    was = state(HOUR)
    assert () == meaning_changes("state of 'paid'", was, state(HOUR), {each.column for each in was})
    (change,) = meaning_changes("state of 'paid'", was, state(("-5m", "2h")), {each.column for each in was})
    for said in ("state of 'paid'", 'keep inner, within=("-5m", "1h"), or give', "another id", "'tidemark reset'"):
        assert said in str(change)
    assert "another name" not in str(change)


def test_streams_of_two_pipelines_are_not_joined():
    _, clicks, _ = house()
    _, _, other = house(TimestampNTZType)
    with pytest.raises(InvalidPipelineError, match="two pipelines"):
        join(clicks.key_by("user"), other.key_by("user"), "j", within=HOUR, late="fail")


def test_windows_of_other_types_of_time_are_not_joined():
    _, clicks, payments = house()
    naive = payments.with_column("n", "user", StringType())
    hours = tumbling("1h")
    naive = replace(naive, time=replace(naive.time, kind=TimestampNTZType()))
    with pytest.raises(InvalidPipelineError, match="of the same type"):
        join(clicks.key_by("user").window(hours), naive.key_by("user").window(hours), "j", late="fail")
