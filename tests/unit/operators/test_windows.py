"""Windows of event time, tested by Flink's cases and by random rows against a batch computation (N2, N3)."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.identifiers import table_name
from checkpointing.state_meaning import as_written
from jobs.operators.aggregate import KeyedAggregates
from jobs.operators.changes import with_kind
from jobs.operators.in_time.measured_times import MicroBatchId, TimeColumn, TimedScan, take_measured
from jobs.operators.in_time.windows import (
    END,
    LATE,
    LATE_BY,
    START,
    LateRowError,
    LateRows,
    NoTimeError,
    PeriodicWindows,
    SessionWindows,
    WindowedAggregates,
    late_rows,
    windowed_output,
    windowed_state,
)
from jobs.operators.process import NamedOutputs, ProcessCalls
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import count, named_aggregates, sum_of
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.windows import cumulative, hopping, session, tumbling
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP
from jobs.storage.parquet import ScanError

CASES = json.loads((Path(__file__).parents[2] / "vectors/time/windows.json").read_text())["cases"]
ROWS = StructType(
    [StructField("key", StringType()), StructField("value", LongType()), StructField("at", TimestampType())]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms):
    return EPOCH + timedelta(milliseconds=ms)


def ms_of(time):
    return (time - EPOCH) // timedelta(milliseconds=1)


class OneOperator:
    """The operator of one subtask, with its state between micro-batches. Its results are (kind, row)."""

    def __init__(self, windows, *, lateness_ms=0, updating=False):
        keys = ("key", START, END)
        aggregates = named_aggregates("test", keys, ROWS, {"total": sum_of("value"), "rows": count()})
        self.function = WindowedAggregates(
            windows=windows,
            aggregates=KeyedAggregates(keys, aggregates),
            late=LateRows(("key", "value", "at"), TimeColumn("at", TimestampType()), fails=False),
            lateness_ms=lateness_ms,
            updating=updating,
        )
        state = arrow_schema(StructType([ROWS["key"], *windowed_state(self.function, ROWS).fields]))
        self.state_schema = state
        nothing = empty_frame(pa.schema([pa.field(KEY_GROUP, pa.int32()), *state]))
        self.state = KeyedRows.of(nothing)
        self.watermark = BEFORE_TIME

    def _calls(self, due_ms):
        output = arrow_schema(windowed_output(self.function, ROWS))
        late = {LATE: arrow_schema(late_rows(self.function.late.columns, ROWS))}
        return ProcessCalls(
            operator="test",
            function=self.function.at(self.watermark, END_OF_TIME if due_ms is None else due_ms),
            keys=("key",),
            state_keys=("key", START, END),
            state_schema=self.state_schema,
            output_schema=with_kind(output) if self.function.takes_back else output,
            outputs=NamedOutputs(table_name("test/late"), late),
            checked=None,
            ends=False,
            fires_ms=due_ms,
        )

    def run(self, rows, due_ms=None):
        frame = pl.DataFrame(
            {
                KEY_GROUP: pl.Series([0] * len(rows), dtype=pl.Int32),
                "key": pl.Series([key for key, _, _ in rows], dtype=pl.String),
                "value": pl.Series([value for _, value, _ in rows], dtype=pl.Int64),
                "at": pl.Series(
                    [at if at is None else moment(at) for _, _, at in rows], dtype=pl.Datetime("us", "UTC")
                ),
            }
        )
        called = self._calls(due_ms).run(self.state, [frame], frame.clear(), None)
        self.state = called.state()
        assert not self.state.frame().select("key", START, END).is_duplicated().any()
        found = [self._result(row) for each in called.results for row in each.output.iter_rows(named=True)]
        late = [row for each in called.results for row in each.outputs[LATE].iter_rows(named=True)]
        return found, [(row["key"], row["value"], ms_of(row["at"]), row["late_by_ms"]) for row in late]

    def _result(self, row):
        kind = row.get("_change_kind", "+I")
        return kind, (row["key"], row["total"], row["rows"], ms_of(row[START]), ms_of(row[END]))

    def barrier(self, watermark):
        """Fire what is due before a barrier with this watermark."""
        found, late = self.run([], due_ms=watermark) if not self.state.frame().is_empty() else ([], [])
        self.watermark = max(self.watermark, watermark)
        return found, late

    @property
    def least_due(self):
        return self.state.least(self.function.due)


def windows_of(given, zone="UTC"):
    """Return Tidemark's windows for those of a Flink case, or None if Tidemark has no such windows."""
    match given:
        case {"type": "tumbling" | "tumble", "size": size} if "stagger" not in given:
            return PeriodicWindows(size, size, given.get("offset", 0), zone)
        case {"type": "sliding" | "hop", "size": size, "slide": slide}:
            return PeriodicWindows(size, slide, given.get("offset", 0), zone)
        case {"type": "cumulate", "size": size, "step": step}:
            return PeriodicWindows(size, step, 0, zone, cumulative=True)
        case {"type": "session", "gap": gap}:
            return SessionWindows(gap)
        case _:
            return None


ASSIGNED = [case for case in CASES if case["kind"] == "assign" and windows_of(case["given"]["assigner"]) is not None]


@pytest.mark.parametrize("case", ASSIGNED, ids=lambda case: case["name"])
def test_a_row_belongs_to_flinks_windows(case):
    windows = windows_of(case["given"]["assigner"])
    for call in case["calls"]:
        operator = OneOperator(windows)
        operator.run([("k", 1, call["ts"])])
        held = operator.state.frame().select(START, END).iter_rows()
        assert sorted(call["windows"]) == sorted([ms_of(start), ms_of(end)] for start, end in held)


def test_a_window_begins_where_flinks_does():
    (case,) = [case for case in CASES if case["kind"] == "window_start"]
    for ts, offset, size, start in case["calls"]:
        operator = OneOperator(PeriodicWindows(size, size, offset, "UTC"))
        operator.run([("k", 1, ts)])
        assert [start] == [ms_of(each) for each in operator.state.frame()[START]]


MERGED = [case for case in CASES if case["kind"] == "merge"]


@pytest.mark.parametrize("case", MERGED, ids=lambda case: case["name"])
def test_sessions_merge_as_flinks_do(case):
    """In these cases each window is the session of one row. The gap is the length of the window."""
    (gap,) = {end - start for start, end in case["windows"]}
    operator = OneOperator(SessionWindows(gap))
    operator.run([("k", 1, start) for start, _ in case["windows"]])
    alone = [window for window in case["windows"] if not any(window in merge["from"] for merge in case["merges"])]
    held = operator.state.frame().select(START, END).iter_rows()
    assert sorted([*alone, *(merge["into"] for merge in case["merges"])]) == sorted(
        [ms_of(start), ms_of(end)] for start, end in held
    )


def _runs(case):
    """Return whether Tidemark can run the case. docs/FLINK_MAP.md has the reasons for the other kinds."""
    about = case.get("given", {})
    if case["kind"] == "sql_window":
        return "retractions" not in about
    return (
        case["kind"] == "window_operator"
        and about["trigger"] in ({"type": "event_time"}, {"type": "processing_time"})
        and about["function"] in ("sum", "sum_range")
        and windows_of(about["assigner"]) is not None
    )


@pytest.mark.parametrize("case", [case for case in CASES if _runs(case)], ids=lambda case: case["name"])
def test_windows_are_put_out_as_flinks_operators_do(case):
    """Each row is a micro-batch, and each watermark a barrier."""
    about = case["given"]
    windows = about.get("assigner") or about["window"]
    zone = "Asia/Shanghai" if about.get("zone_offset_ms") == 28_800_000 else "UTC"
    operator = OneOperator(windows_of(windows, zone), lateness_ms=about.get("allowed_lateness", 0))
    operator.function = replace(operator.function, by_clock=windows.get("domain") == "processing")
    out, late = [], []
    expected = {entry["after"]: entry for entry in case["expect"]}
    for place, (kind, *args) in enumerate(case["events"]):
        if kind == "element":
            _, _, row, ts = args
            at = None if operator.function.by_clock else ts
            found, said = operator.run([(row[0] if about.get("key", 0) is not None else "all", row[1], at)])
        elif kind == "watermark":
            found, said = operator.barrier({"MAX": END_OF_TIME}.get(args[1], args[1]))
        elif kind == "time":  # this millisecond is not over
            found, said = operator.barrier(args[0] - 1)
        else:
            found, said = [], []
        out += [_flinks(row, about) for row_kind, row in found if row_kind in ("+I", "+U")]
        late += [[key, value] for key, value, _, _ in said]
        for word, shown in (("out", out), ("records", out)):
            if word in expected.get(place, {}):
                wanted = [entry[1] for entry in expected[place][word] if entry[0] != "watermark"]
                assert sorted(map(str, wanted)) == sorted(map(str, shown))
                out = []
        if "late" in expected.get(place, {}):
            assert sorted(row for _, row, *_ in expected[place]["late"]) == sorted(late)
            late = []
        if expected.get(place, {}).get("flink_entries") == 0:
            assert operator.state.frame().is_empty()


def _flinks(row, about):
    key, total, rows, *bounds = row
    start, end = (bound + about.get("zone_offset_ms", 0) for bound in bounds)
    if "window" in about:
        return [total, rows, start, end] if about.get("key", 0) is None else [key, total, rows, start, end]
    return [key, total] if about["function"] == "sum" else [key, total, start, end]


KINDS = {
    "tumbling": PeriodicWindows(20, 20, 0, "UTC"),
    "tumbling with an offset": PeriodicWindows(20, 20, 7, "UTC"),
    "hopping": PeriodicWindows(30, 10, 0, "UTC"),
    "hopping unevenly": PeriodicWindows(25, 10, 3, "UTC"),
    "cumulative": PeriodicWindows(40, 10, 0, "UTC", cumulative=True),
    "session": SessionWindows(9),
}
MICRO_BATCHES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 9), st.integers(-60, 160)), max_size=6)
EPOCHS = st.lists(st.lists(MICRO_BATCHES, max_size=3), min_size=1, max_size=5)


class BatchAnswer:
    """The windows of all rows, computed epoch by epoch and row by row, without micro-batches."""

    def __init__(self, windows, lateness):
        self.windows, self.lateness, self.watermark = windows, lateness, BEFORE_TIME
        self.found, self.late = {}, []

    def epoch(self, rows):
        taken = self._in_sessions(rows) if isinstance(self.windows, SessionWindows) else self._in_periods(rows)
        self.late += [(*row, self.watermark - row[2]) for row in rows if row not in taken]

    def _is_open(self, end):
        return end - 1 + self.lateness > self.watermark

    def _in_periods(self, rows):
        taken = []
        for key, value, at in rows:
            for start, end in self._periods(at):
                if self._is_open(end):
                    self.found.setdefault((key, start, end), []).append(value)
                    taken.append((key, value, at))
        return taken

    def _periods(self, at):
        size, step, offset = self.windows.size_ms, self.windows.step_ms, self.windows.offset_ms
        if self.windows.cumulative:
            start = at - (at - offset) % size
            return [(start, start + end) for end in range(step, size + 1, step) if start + end > at]
        return [(start, start + size) for start in range(at - size + 1, at + 1) if (start - offset) % step == 0]

    def _in_sessions(self, rows):
        open_ones = [
            (key, start, end, held, []) for (key, start, end), held in self.found.items() if self._is_open(end)
        ]
        spans = open_ones + [
            (key, at, at + self.windows.gap_ms, [value], [(key, value, at)]) for key, value, at in rows
        ]
        for key, start, end, *_ in open_ones:
            del self.found[key, start, end]
        taken = []
        while spans:
            key, start, end, values, of_rows = spans.pop()
            while touching := [each for each in spans if each[0] == key and each[1] <= end and start <= each[2]]:
                for each in touching:
                    spans.remove(each)
                    start, end = min(start, each[1]), max(end, each[2])
                    values, of_rows = values + each[3], of_rows + each[4]
            if self._is_open(end):
                self.found[key, start, end] = values
                taken += of_rows
        return taken

    def table(self):
        return sorted((key, sum(values), len(values), start, end) for (key, start, end), values in self.found.items())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(epochs=EPOCHS, lateness=st.sampled_from([0, 15]), updating=st.booleans(), delay=st.sampled_from([0, 10, 40]))
def test_windows_and_late_rows_depend_on_rows_and_barriers_alone(kind, epochs, lateness, updating, delay):
    """The table is that of the batch answer, whatever the micro-batches are."""
    operator = OneOperator(KINDS[kind], lateness_ms=lateness, updating=updating)
    answer, shown, late, greatest = BatchAnswer(KINDS[kind], lateness), Counter(), [], BEFORE_TIME
    for place, micro_batches in enumerate([*epochs, []]):
        answer.epoch([row for rows in micro_batches for row in rows])
        times = [at for rows in micro_batches for _, _, at in rows]
        greatest = max([greatest, *times])
        watermark = END_OF_TIME if place == len(epochs) else max(BEFORE_TIME, greatest - delay - 1)
        for step in [*(partial(operator.run, rows) for rows in micro_batches), partial(operator.barrier, watermark)]:
            changes, said = step()
            late += said
            for sign, row in changes:
                shown[row] += 1 if sign in ("+I", "+U") else -1
                assert updating or lateness or sign == "+I"
        assert set(shown.values()) <= {0, 1}
        answer.watermark = operator.watermark
    assert answer.table() == sorted(shown.elements())
    assert sorted(answer.late) == sorted(late)
    assert operator.state.frame().is_empty()


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-03-30", 24), ("2026-10-25", 25)])
def test_a_local_day_has_as_many_hours_as_summer_time_leaves_it(day, hours):
    operator = OneOperator(PeriodicWindows(86_400_000, 86_400_000, 0, "Europe/Berlin"))
    noon = datetime.fromisoformat(f"{day}T12:00:00+01:00")
    operator.run([("a", 1, ms_of(noon))])
    ((start, end),) = operator.state.frame().select(START, END).iter_rows()
    assert timedelta(hours=hours) == end - start
    assert f"{day}T00:00:00" == start.astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None).isoformat()


@pytest.mark.parametrize(
    "window",
    [
        tumbling("20m", tz="Europe/Berlin"),
        tumbling("1h", tz="Europe/Berlin"),
        hopping("1h", "20m", tz="Europe/Berlin"),
        cumulative("1h", "20m", tz="Europe/Berlin"),
        tumbling("15m", tz="Australia/Lord_Howe"),
        tumbling("1d", tz="America/Santiago"),
    ],
)
def test_a_row_lies_in_its_windows_when_a_local_time_comes_twice_or_never(window):
    """So a row that comes in order is never late.

    If a local time occurs twice, rows of both occurrences are in the same windows.
    """
    for night in ("2026-03-28T20:00", "2026-10-24T20:00", "2026-04-04T10:00", "2026-10-03T10:00", "2026-09-06T00:00"):
        operator, begin = OneOperator(window.windows), ms_of(datetime.fromisoformat(f"{night}:00+00:00"))
        times = range(begin, begin + 12 * 3_600_000, 300_000)
        operator.run([(str(at), 1, at) for at in times])
        held = [(int(key), *bounds) for key, *bounds in operator.state.frame().select("key", START, END).rows()]
        assert {*times} == {at for at, _, _ in held}
        assert all(start <= moment(at) < end for at, start, end in held), night
        zone = ZoneInfo(window.windows.zone)
        assert {0} == {each.astimezone(zone).minute % 5 for _, *bounds in held for each in bounds}


@pytest.mark.parametrize(
    ("window", "begins"),
    [
        (tumbling("1w", tz="Europe/Berlin"), [date(2026, 3, 23)]),
        (tumbling("2w"), [date(2026, 3, 16)]),
        (hopping("2w", "1w"), [date(2026, 3, 16), date(2026, 3, 23)]),
        (cumulative("1w", "1d", tz="Europe/Berlin"), [date(2026, 3, 23)]),
        (tumbling("1w", offset="1d"), [date(2026, 3, 24)]),
        (tumbling("7d"), [date(2026, 3, 26)]),
    ],
)
def test_weeks_begin_on_mondays_and_seven_days_count_from_1970(window, begins):
    """Spark's `window` and Flink's TUMBLE count seven days from 1970, too. 29 March 2026 is a Sunday."""
    operator = OneOperator(window.windows)
    operator.run([("a", 1, ms_of(datetime(2026, 3, 29, 12, tzinfo=UTC)))])
    starts = {moment(row[3]) for _, row in operator.barrier(END_OF_TIME)[0]}
    assert begins == sorted({each.astimezone(ZoneInfo(window.windows.zone)).date() for each in starts})


def test_a_row_without_a_time_is_an_error_with_a_way_out():
    with pytest.raises(NoTimeError, match=r"1 rows have no time in column at.*misfits="):
        OneOperator(KINDS["tumbling"]).run([("a", 1, None)])


def test_a_late_row_is_an_error_where_late_rows_fail():
    operator = OneOperator(KINDS["tumbling"])
    operator.function = replace(operator.function, late=replace(operator.function.late, fails=True))
    operator.barrier(100)
    with pytest.raises(LateRowError, match=r"1 rows are late.*at=1970.*95 ms behind"):
        operator.run([("a", 1, 5)])


def test_the_error_of_a_late_row_names_also_a_time_before_the_year_1():
    """Python's dates have no year 0, but other programs write such times."""
    row = pl.DataFrame({"at": pl.Series([-62_135_596_800_000_001]).cast(pl.Datetime("us", "UTC")), LATE_BY: [5]})
    assert "at=0000-12-31 23:59:59.999999" in str(LateRowError("at", row))


@pytest.mark.parametrize("kind", [TimestampType(), TimestampNTZType()])
def test_a_time_after_the_year_9999_is_measured_or_refused_by_name(kind):
    """Without a limit, a task measures such a time. Beyond a limit, the row is an error or a misfit."""
    at = pa.array([253_402_300_800_000_000]).cast(TimeColumn("at", kind).field.type)

    def measured(**said):
        time = TimeColumn("at", kind, **said)
        of = MicroBatchId("v", 1, 1)
        scan = TimedScan(scan=OneColumn(at), of=of, input=0, split="s", time=time, limit_ms=time.limit_ms(0))
        kept = [] if time.kept_in is None else [pa.field(time.kept_in, at.type)]
        (batch,) = scan.batches(pa.schema([time.field, *kept]))
        return batch.columns[-1].null_count, take_measured(of)

    assert (0, ((0, "s", 253_402_300_800_000),)) == measured()
    assert (1, ()) == measured(ahead_ms=5, kept_in="_event_time")
    with pytest.raises(ScanError, match=r"split s has a row with at=\+?10000-01-01 00:00:00.*more than 5 ms ahead"):
        measured(ahead_ms=5)


class OneColumn:
    """A scan of one batch with one column."""

    def __init__(self, column):
        self.column = column

    def batches(self, schema):
        yield pa.record_batch([self.column], schema=schema)


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (partial(tumbling, "0s"), "the size 0s must be more than 0"),
        (partial(hopping, "10m", every="20m"), "the size 10m must be more than 0, and every 20m at most as long"),
        (partial(hopping, "10m", every="5m", offset="5m"), "the offset 5m must be shorter than 5m"),
        (partial(hopping, "1d", every="1s"), "86400 windows"),
        (partial(cumulative, "1h", every="25m"), "a multiple of every=25m"),
        (partial(session, "0s"), "the gap 0s must be more than 0"),
        (partial(tumbling, "1d", tz="Europe/Atlantis"), "no time zone 'Europe/Atlantis'"),
        (partial(tumbling, "-1h"), "tumbling: size"),
        (partial(session, "1h", by="watch"), "write 'event time' or 'clock'"),
    ],
)
def test_windows_that_cannot_be_are_refused(window, says):
    with pytest.raises(InvalidPipelineError, match=says):
        window()


@pytest.mark.parametrize(
    ("window", "written"),
    [
        (session("90s"), 'session("90s")'),
        (tumbling("60m"), 'tumbling("1h")'),
        (tumbling("1w", tz="Europe/Berlin"), 'tumbling("7d", offset="4d", tz="Europe/Berlin")'),
        (hopping("10s", "1500ms", offset="100ms"), 'hopping("10s", every="1500ms", offset="100ms")'),
        (cumulative("1d", "1h"), 'cumulative("1d", every="1h")'),
    ],
)
def test_recorded_windows_are_shown_as_a_pipeline_writes_them(window, written):
    """So the message for a refused change of a window shows the old window as the pipeline should write it."""
    assert written == as_written(window.windows.meaning)
