"""Timers of a user's function: each is given once, when the watermark has reached it, in the order of time (N4)."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.identifiers import table_name
from jobs.operators.process import NamedOutputs, ProcessCalls, Processed
from jobs.operators.spec import arrow_schema
from jobs.operators.timers import TIMER_STATE, TimersError, with_timers
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATE = StructType([StructField("key", StringType()), StructField("last", LongType())])
OUTPUT = StructType([StructField("key", StringType()), StructField("due", LongType()), StructField("last", LongType())])


class Reminds:
    """Sets a timer for each row, and keeps the last value of a key. A value of 100 or more is a key that forgets."""

    def __init__(self, again_ms=None):
        self.again = again_ms

    def process(self, inputs, state):
        (rows,) = inputs
        now = rows.group_by("key").agg(pl.col("value").max().alias("last"))
        new = pl.concat([state, now]).group_by("key").agg(pl.col("last").max()).filter(pl.col("last") < 100)
        return Processed(new, nothing(), timers=rows.select("key", "time"))

    def on_time(self, due, state):
        assert due["time"].is_sorted()
        found = due.join(state, on="key", how="left").select("key", pl.col("time").dt.epoch("ms").alias("due"), "last")
        if self.again is None:
            return Processed(state, found)
        late = due.with_columns(pl.col("time") + timedelta(milliseconds=self.again))
        return Processed(state, found, timers=late)


def nothing():
    return empty_frame(arrow_schema(OUTPUT))


class OneOperator:
    def __init__(self, function):
        self.function = with_timers(function, ("key",))
        self.schema = arrow_schema(StructType([*STATE.fields, *TIMER_STATE.fields]))
        self.state = KeyedRows.of(empty_frame(pa.schema([pa.field(KEY_GROUP, pa.int32()), *self.schema])))

    def run(self, rows, due_ms=None):
        frame = pl.DataFrame(
            [(0, key, value, EPOCH + timedelta(milliseconds=at)) for key, value, at in rows],
            schema={KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64, "time": pl.Datetime("us", "UTC")},
            orient="row",
        )
        calls = ProcessCalls(
            operator="test",
            function=self.function.at(0, 0 if due_ms is None else due_ms),
            keys=("key",),
            state_keys=("key",),
            state_schema=self.schema,
            output_schema=arrow_schema(OUTPUT),
            outputs=NamedOutputs(table_name("test/late"), {}),
            checked=None,
            ends=False,
            fires_ms=due_ms,
        )
        called = calls.run(self.state, [frame], frame.select(KEY_GROUP, "key").unique(), None)
        self.state = called.state()
        return [row for each in called.results for row in each.output.rows()]


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 5, 100]), st.integers(0, 60)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(ROWS, st.integers(0, 70)), max_size=5))
def test_each_timer_is_given_once_when_its_time_has_come(steps):
    operator, timers, last, watermark = OneOperator(Reminds()), set(), {}, 0
    for rows, to in steps:
        operator.run(rows)
        for key in {key for key, _, _ in rows}:
            last[key] = max([last.get(key, 0), *(value for other, value, _ in rows if other == key)])
            last = {name: value for name, value in last.items() if value < 100}
        timers |= {(key, at) for key, _, at in rows}
        watermark = max(watermark, to)
        fired = operator.run([], due_ms=watermark)
        due = {(key, at) for key, at in timers if at <= watermark}
        assert Counter((key, at, last.get(key)) for key, at in due) == Counter(fired)
        timers -= due
        assert min((at for _, at in timers), default=None) == operator.state.least("_due_ms")
        held = {row["key"]: row["last"] for row in operator.state.frame().iter_rows(named=True) if row["_holds"]}
        assert last == held
    assert {key for key, _ in timers} | set(last) == set(operator.state.frame()["key"])


def test_a_timer_that_a_firing_sets_is_given_at_once_if_it_is_due():
    operator = OneOperator(Reminds(again_ms=10))
    operator.run([("a", 1, 5)])
    assert [5, 15, 25] == [due for _, due, _ in operator.run([], due_ms=30)]
    assert 35 == operator.state.least("_due_ms")


def test_a_timer_that_is_always_due_is_an_error():
    operator = OneOperator(Reminds(again_ms=0))
    operator.run([("a", 1, 5)])
    with pytest.raises(TimersError, match="set the next one later"):
        operator.run([], due_ms=30)


def test_timers_of_other_columns_are_an_error():
    class Wrong(Reminds):
        def process(self, inputs, state):
            return Processed(state, nothing(), timers=inputs[0].select("key", "value"))

    with pytest.raises(TimersError, match=r"return the keys \['key'\] and 'time'"):
        OneOperator(Wrong()).run([("a", 1, 5)])


def test_a_time_inside_a_millisecond_is_due_after_it():
    class Precise(Reminds):
        def process(self, inputs, state):
            timers = inputs[0].select("key", pl.col("time") + timedelta(microseconds=1))
            return Processed(state, nothing(), timers=timers)

    operator = OneOperator(Precise())
    operator.run([("a", 1, 5)])
    assert 6 == operator.state.least("_due_ms")
