"""Timers of a user's function: each fires once, when the watermark has reached its time, in the order of time (N4)."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.identifiers import table_name
from jobs.operators.in_time.timers import TIMER_STATE, TimersError, with_timers
from jobs.operators.process import NamedOutputs, ProcessCalls, Processed
from jobs.operators.spec import arrow_schema
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATE = StructType([StructField("key", StringType()), StructField("last", LongType())])
OUTPUT = StructType([StructField("key", StringType()), StructField("due", LongType()), StructField("last", LongType())])


class Reminds:
    """Sets a timer for each row, and keeps the last value of a key. A value of 100 or more deletes the key's state."""

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


# ------------------------------------------------------------------
# Flink's cases of a timer service. A namespace is a part of the key, and each kind of time has its own operator.


FLINK = json.loads((Path(__file__).parents[2] / "vectors/time/timers.json").read_text())["cases"]


class Sets(Reminds):
    """Sets a timer for each row. When a timer is due, it sets others: at given times, or a given time later."""

    def __init__(self):
        super().__init__()
        self.again_at, self.again_ms = [], []

    def process(self, inputs, state):
        return Processed(state, nothing(), timers=inputs[0].select("key", "time"))

    def on_time(self, due, state):
        out = due.select("key", pl.col("time").dt.epoch("ms").alias("due"), pl.lit(None, pl.Int64).alias("last"))
        again = [due.with_columns(pl.lit(EPOCH + timedelta(milliseconds=at)).alias("time")) for at in self.again_at]
        again += [due.with_columns(pl.col("time") + timedelta(milliseconds=ms)) for ms in self.again_ms]
        return Processed(state, out, timers=pl.concat([due.clear(), *again]))


class Service:
    """The timers of one subtask, with a method for each word of the cases."""

    def __init__(self, key_groups, max_parallelism, keys):
        self.groups, self.current, self.saved = keys, None, {}
        self.of = {domain: OneOperator(Sets()) for domain in ("event", "processing")}
        self._begin()

    def _begin(self):
        self.fired, self.in_order, self.total, self.now = [], [], 0, {}

    def key(self, key):
        self.current = key

    def register(self, domain, namespace, at):
        self.of[domain].run([(f"{self.current}/{namespace}", 0, at)])

    def on_fire(self, domain, events):
        function = self.of[domain].function.function
        times = [at for kind, of, _, at in events if (kind, of) == ("register", domain)]
        assert len(times) == len(events)
        function.again_at = [at for at in times if isinstance(at, int)]
        function.again_ms = [int(at) for at in times if not isinstance(at, int)]

    def watermark(self, to, domain="event"):
        fired = self.of[domain].run([], due_ms=to)
        self.now[domain] = self.of[domain].function.at(0, to).fires_ms
        self.fired += [[domain, *name.split("/"), at] for name, at, _ in fired]
        self.in_order += [at for _, at, _ in fired]
        self.total += len(fired)

    def set_time(self, to):
        self.watermark(to, "processing")

    def snapshot(self, name):
        self.saved[name] = {domain: operator.state.frame() for domain, operator in self.of.items()}

    def restore(self, name, key_groups):
        """Begin with the state of these key groups, as a subtask does after a rescaling."""
        first, last = key_groups
        for domain, frame in self.saved[name].items():
            self.of[domain] = OneOperator(Sets())
            groups = pl.col("key").str.split("/").list.first().replace_strict(self.groups, return_dtype=pl.Int64)
            self.of[domain].state = KeyedRows.of(frame.filter(groups.is_between(first, last)))
        self._begin()

    def facts(self):
        known = set(self.groups.values())
        timers = {domain: self._timers(operator) for domain, operator in self.of.items()}
        counts = Counter(domain for domain, those in timers.items() for _ in those)
        counts.update(f"{domain}/{namespace}" for domain, those in timers.items() for _, namespace, _ in those)
        groups = {
            domain: {str(group): [each for each in those if self.groups[each[0]] == group] for group in known}
            for domain, those in timers.items()
        }
        return {
            "count": counts,
            "timers": timers,
            "by_group": groups,
            "watermark": self.now.get("event"),
            "processing_time": self.now.get("processing"),
            "fired_total": self.total,
            "fired": self.fired,
            "fired_in_order": self.in_order,
        }

    @staticmethod
    def _timers(operator):
        listed = operator.state.frame().select("key", "_timers").explode("_timers").drop_nulls()
        return [[*name.split("/"), at] for name, at in listed.rows()]


def applies(case):
    """Return whether a case is of a kind that Tidemark has. `docs/FLINK_MAP.md` has the reasons."""
    deletes = any(event[0] == "delete" for event in case["events"])
    alarms = any(name.startswith("physical") for entry in case["expect"] for name in entry)
    return case["unit"] == "service" and not deletes and not alarms


@pytest.mark.parametrize("case", [case for case in FLINK if applies(case)], ids=lambda case: case["name"])
def test_flinks_case(case):
    service, expected = Service(**case["given"]), {entry["after"]: entry for entry in case["expect"]}
    for place, (kind, *said) in enumerate(case["events"]):
        getattr(service, kind)(*said)
        if place not in expected:
            continue
        facts = service.facts()
        for name, want in expected[place].items():
            match name:
                case "after":
                    continue
                case "count":
                    assert want == {each: facts[name][each] for each in want}
                case "timers":
                    assert {each: sorted(those) for each, those in want.items()} == {
                        each: sorted(facts[name][each]) for each in want
                    }
                case "by_group":
                    for domain, groups in want.items():
                        found = {group: sorted(those) for group, those in facts[name][domain].items() if those}
                        assert {group: sorted(those) for group, those in groups.items()} == found
                case "fired":
                    assert sorted(want) == sorted(facts[name])
                case _:
                    assert want == facts[name], name
        if "fired" in expected[place]:
            service.fired = []
        if "fired_in_order" in expected[place]:
            service.in_order = []


# ------------------------------------------------------------------
# Flink's cases of operators with one kind of timers, whose functions do not read the watermark. Each event is an epoch.


WORDS = StructType([StructField("key", StringType()), StructField("value", StringType())])
KEEPS = StructType([StructField("key", StringType()), StructField("kept", StringType())])


class Operated:
    """The functions of the cases, for one or two inputs.

    A timer that Flink deletes still fires here, and finds no state.
    """

    def __init__(self, given):
        self.kind, _, clock = given["function"].partition("_")
        self.by_clock, self.prefix = clock == "processing", given.get("prefix", ["", ""])

    def process(self, inputs, state):
        shown, timers, after = [words().clear()], [], state
        for number, frame in enumerate(inputs):
            rows = frame
            if self.by_clock:
                rows = rows.with_columns(time=pl.col("_clock").dt.offset_by("5ms"))
            if self.kind == "fixed":
                rows = rows.with_columns(time=pl.lit(EPOCH + timedelta(milliseconds=5 + number)))
                shown.append(rows.select("key", pl.format(f"INPUT{number + 1}:{{}}", "value").alias("value")))
            elif self.kind == "timer":
                shown.append(rows.select("key", "value"))
            else:
                new = rows.join(state, on="key", how="anti")
                shown.append(new.select("key", pl.format(self.prefix[number] + "{}", "value").alias("value")))
                after = pl.concat(
                    [after.join(rows, on="key", how="anti"), new.select("key", pl.col("value").alias("kept"))]
                )
                rows = new
            timers.append(rows.select("key", "time"))
        return Processed(after, pl.concat(shown), timers=pl.concat(timers))

    def on_time(self, due, state):
        if self.kind == "stateful":
            shown = due.join(state, on="key").select("key", pl.format("STATE:{}", "kept").alias("value"))
        elif self.by_clock or self.kind == "timer":
            shown = due.select("key", pl.lit("1777").alias("value"))
        else:
            shown = due.select("key", pl.format("{}:1777", "key").alias("value"))
        return Processed(state, shown)


def words(*rows):
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")


class Runs:
    """One subtask with the function of a case."""

    def __init__(self, given):
        self.inputs, self.clock, self.marks = given["inputs"], 0, [0] * given["inputs"]
        self.function = with_timers(Operated(given), ("key",), by_clock=given["function"].endswith("processing"))
        self.schema = arrow_schema(StructType([*KEEPS.fields, *TIMER_STATE.fields]))
        self.state, self.out = KeyedRows.of(empty_frame(pa.schema([pa.field(KEY_GROUP, pa.int32()), *self.schema]))), []

    def element(self, number, value, _):
        self._run([words(*([(str(value), str(value))] if number == each else [])) for each in range(self.inputs)])

    def watermark(self, number, to):
        self.marks[number] = to
        self._run([words()] * self.inputs, due_ms=min(self.marks))

    def set_time(self, to):
        self.clock = to
        self._run([words()] * self.inputs, due_ms=to)

    def _run(self, frames, due_ms=None):
        frames = [frame.with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP)) for frame in frames]
        calls = ProcessCalls(
            operator="test",
            function=self.function.at(self.clock - 1, 0 if due_ms is None else due_ms),
            keys=("key",),
            state_keys=("key",),
            state_schema=self.schema,
            output_schema=arrow_schema(WORDS),
            outputs=NamedOutputs(table_name("test/late"), {}),
            checked=None,
            ends=False,
            fires_ms=due_ms,
        )
        called = calls.run(self.state, frames, pl.concat(frames).select(KEY_GROUP, "key").unique(), None)
        self.state = called.state()
        self.out += [value for each in called.results for value in each.output["value"]]


def is_operated(case):
    """Return whether a case tests an operator that Tidemark has (docs/FLINK_MAP.md)."""
    functions = ("fixed_event", "fixed_processing", "stateful_processing", "timer_processing")
    return case["unit"] == "operator" and case["given"]["function"] in functions


@pytest.mark.parametrize("case", [case for case in FLINK if is_operated(case)], ids=lambda case: case["name"])
def test_operators_of_one_input_and_of_two_have_flinks_timers(case):
    operator, expected = Runs(case["given"]), {entry["after"]: entry["out"] for entry in case["expect"]}
    for place, (kind, *said) in enumerate(case["events"]):
        getattr(operator, kind)(*said)
        if place in expected:
            assert [str(value) for kind, value, *_ in expected[place] if kind == "element"] == operator.out
