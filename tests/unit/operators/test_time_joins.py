"""Joins in time, tested by Flink's cases, and for rows that are not late by the same batch query (N6)."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.identifiers import table_name
from jobs.operators.in_time import joins
from jobs.operators.in_time.joins import (
    DELETES,
    AsOfJoin,
    IntervalJoin,
    JoinedSides,
    JoinSide,
    WindowJoin,
    as_of_state,
    joined_rows,
    kept_rows_state,
    late_join_rows,
)
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.windows import LATE, NoTimeError, PeriodicWindows
from jobs.operators.join import JoinType
from jobs.operators.process import NamedOutputs, ProcessCalls
from jobs.operators.spec import arrow_schema
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP

CASES = json.loads((Path(__file__).parents[2] / "vectors/time/joins.json").read_text())["cases"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=1)


def _time(ms):
    return None if ms is None else EPOCH + ms * STEP


def _ms(time):
    return None if time is None else (time - EPOCH) // STEP


def _rows(*columns):
    kinds = {"k": StringType(), "at": TimestampType(), "v": StringType(), "n": LongType(), DELETES: BooleanType()}
    return StructType([StructField(name, kinds[name.removeprefix("r_")]) for name in columns])


LEFT, RIGHT = _rows("k", "at", "v"), _rows("k", "r_at", "r_v")
AT, R_AT = TimeColumn("at", TimestampType()), TimeColumn("r_at", TimestampType())
SIDES = JoinSide(("k",), ("at", "v"), AT), JoinSide(("k",), ("r_at", "r_v"), R_AT)


class Vertex:
    """A join at work: micro-batches of rows, and barriers with watermarks."""

    def __init__(self, function, left=LEFT, right=RIGHT):
        sides = function.sides
        self.function, self.inputs, self.watermark = function, (left, right), BEFORE_TIME
        own = (
            as_of_state(sides, left, right)
            if isinstance(function, AsOfJoin)
            else kept_rows_state(function, left, right)
        )
        self.schema = StructType([*(left[key] for key in sides.keys), *own])
        self.output = joined_rows(function, left, right)
        self.state_keys = (*sides.keys, *getattr(function, "rows_by", ()))
        late = {LATE: arrow_schema(late_join_rows(sides, left, right))}
        self.outputs = NamedOutputs(table_name("channels/join"), late)
        nothing = empty_frame(arrow_schema(self.schema)).with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP))
        self.state = KeyedRows.of(nothing.select(KEY_GROUP, *self.schema.names))
        self.out, self.late, self.after = [], [], []

    def run(self, left, right, fires_ms=None):
        keys = self.function.sides.keys
        frames = [
            pl.DataFrame(
                [list(row) for row in rows], schema=pl.Schema(empty_frame(arrow_schema(kind)).schema), orient="row"
            )
            for rows, kind in zip((left, right), self.inputs, strict=True)
        ]
        frames = [frame.select(pl.lit(0, pl.Int32).alias(KEY_GROUP), pl.all()) for frame in frames]
        touched = pl.concat([frame.select(KEY_GROUP, *keys) for frame in frames]).unique()
        calls = ProcessCalls(
            operator="join",
            function=self.function.at(self.watermark, END_OF_TIME if fires_ms is None else fires_ms),
            keys=keys,
            state_keys=self.state_keys,
            state_schema=arrow_schema(self.schema),
            output_schema=arrow_schema(self.output),
            outputs=self.outputs,
            checked=None,
            ends=False,
            fires_ms=fires_ms,
        )
        called = calls.run(self.state, frames, touched, None)
        self.state = called.state()
        assert not self.held.select(self.state_keys).is_duplicated().any()
        for result in called.results:
            self.out += result.output.rows()
            self.after += [(row, self.watermark) for row in result.output.iter_rows(named=True)]
            self.late += result.outputs[LATE].rows() if LATE in result.outputs else []

    def pass_barrier(self, watermark_ms):
        if watermark_ms > self.watermark:
            self.run([], [], fires_ms=watermark_ms)
            self.watermark = watermark_ms

    @property
    def held(self):
        return self.state.frame()

    def taken(self):
        out, self.out = self.out, []
        return out


# ------------------------------------------------------------------
# Flink's cases. docs/FLINK_MAP.md says why some do not apply.


def _left_out(case):
    """Return why a case does not apply."""
    given = case["given"]
    if given.get("domain") == "processing":
        return "by processing time"
    if case["kind"] == "temporal_join" and any(event[:3] == ["element", 1, "+U"] for event in case["events"]):
        return "the left rows are updates"
    if case["kind"] == "sql_interval_join" and _has_late_rows(case):
        return "late rows go to a table of their own"
    return None


def _has_late_rows(case):
    marks = {1: BEFORE_TIME, 2: BEFORE_TIME}
    for kind, number, *rest in case["events"]:
        if kind == "watermark":
            marks[number] = rest[0]
        elif kind == "element" and rest[1][case["given"]["time_column"]] <= min(marks.values()):
            return True
    return False


def _vertex_of(case):
    given, how = case["given"], JoinType(case["given"].get("type", "inner"))
    sides = JoinedSides(*SIDES, how)
    match case["kind"]:
        case "interval_join":
            lower, upper = (
                given["lower"] + (not given["lower_inclusive"]),
                given["upper"] - (not given["upper_inclusive"]),
            )
            return Vertex(IntervalJoin(sides, lower, upper))
        case "sql_interval_join":
            return Vertex(IntervalJoin(sides, -given["upper"], -given["lower"]))
        case "temporal_join":
            right = JoinSide(("k",), ("r_at", "r_v"), R_AT, (DELETES,))
            return Vertex(AsOfJoin(JoinedSides(SIDES[0], right, how)), right=_rows("k", "r_at", "r_v", DELETES))
        case "window_join":
            return Vertex(WindowJoin(sides, PeriodicWindows(1, 1, 0, "UTC")))


def _row_of(case, number, kind, row, ts):
    given, text = case["given"], json.dumps(row)
    match case["kind"]:
        case "interval_join":
            return row[0], _time(ts), text
        case "sql_interval_join":
            return row[given["key"]], _time(row[given["time_column"]]), text
        case "temporal_join":
            own = (row[given["key"]], _time(row[given["time_column"]]), text)
            return own if number == 1 else (*own, kind == "-D")
        case "window_join":
            end = row[given["window_end"]] - given.get("zone_offset_ms", 0)
            return row[given["key"]], _time(end - 1), text


def _shown(vertex, rows, width):
    """Return the rows as Flink shows them: left, then right, with the later of the two times."""
    names = vertex.output.names
    for row in rows:
        named = dict(zip(names, row, strict=True))
        sides = [named[name] for name in ("v", "r_v") if name in named]
        beside = [each for side in sides for each in (json.loads(side) if side else [None] * width)]
        times = [_ms(named[name]) for name in ("at", "r_at") if named.get(name)]
        yield "+I", beside, max(times)


@pytest.mark.parametrize("case", [case for case in CASES if not _left_out(case)], ids=lambda case: case["name"])
def test_flinks_cases(case):
    vertex, marks, out = _vertex_of(case), {1: BEFORE_TIME, 2: BEFORE_TIME}, [[]]
    expected = {entry["after"]: entry for entry in case["expect"]}
    width = next(len(event[3]) for event in case["events"] if event[0] == "element")
    for place, (kind, *event) in enumerate(case["events"]):
        if kind == "watermark":
            marks[event[0]] = event[1]
            rises = min(marks.values()) > vertex.watermark
            vertex.pass_barrier(min(marks.values()))
            out[-1] += _shown(vertex, vertex.taken(), width)
            out += [[]] if rises else []
        else:
            number, of, row, ts = event
            if case["kind"] == "temporal_join" and of == "-U":
                continue
            new = [_row_of(case, number, of, row, ts)]
            if "error" in expected.get(place, {}):
                with pytest.raises(NoTimeError):
                    vertex.run(*((new, []) if number == 1 else ([], new)))
                continue
            vertex.run(*((new, []) if number == 1 else ([], new)))
            out[-1] += _shown(vertex, vertex.taken(), width)
        _require(case, expected.get(place, {}), vertex, out)
        if "out" in expected.get(place, {}) or "records" in expected.get(place, {}):
            out = [[]]


def _require(case, entry, vertex, out):
    if "records" in entry:
        said = [(json.dumps(row), ts[0] if ts else None) for _, row, *ts in entry["records"]]
        found = [(json.dumps(row), ts) for part in out for _, row, ts in part]
        assert Counter(said) == Counter(found)
    if "out" in entry:
        parts = [[]]
        for what, row, *_ in entry["out"]:
            parts[-1] += [] if what == "watermark" else [json.dumps(row)]
            parts += [[]] if what == "watermark" else []
        assert [Counter(part) for part in parts] == [Counter(json.dumps(row) for _, row, _ in part) for part in out]
    if entry.get("state_empty") or entry.get("flink_entries") == 0:
        assert vertex.held.is_empty() or case["kind"] == "temporal_join"
    for number, name in enumerate(("left_buffer", "right_buffer")):
        if name in entry:
            kept = vertex.held.filter(pl.col("_side") == number)["_at_us"].to_list()
            assert sorted(entry[name]) == sorted(at // 1_000 for at in kept)
    for name in ("late_left", "late_right"):
        if name in entry:
            late = [dict(zip(vertex.outputs.schemas[LATE].names, row, strict=True)) for row in vertex.late]
            texts = [row["v"] or row["r_v"] for row in late if f"late_{row['late_side']}" == name]
            assert Counter(texts) == Counter(json.dumps(row) for _, row, _ in entry[name])


# ------------------------------------------------------------------
# Rows that are not late give the answer of a batch query, however they are cut into micro-batches.


DB = duckdb.connect()
DELAY_MS = 1
TIMES = st.integers(0, 9)
KEYS = st.sampled_from(["a", "a", "a", "b", None])
INPUTS = st.lists(st.tuples(st.integers(0, 1), KEYS, TIMES), min_size=8, max_size=24)


@st.composite
def _runs(draw):
    """Return rows of both sides in an order in which no row is late, and where a micro-batch or epoch begins."""
    rows = sorted(draw(INPUTS), key=lambda row: row[2] + draw(st.integers(0, DELAY_MS)))
    numbered = [(side, key, time, str(number)) for number, (side, key, time) in enumerate(rows)]
    return numbered, [draw(st.sampled_from(["same", "micro-batch", "barrier"])) for _ in numbered]


def _carry_out(vertex, numbered, cuts, row_of):
    """Run the rows with barriers and an end. The watermarks of the barriers make no row late."""
    batch, greatest = ([], []), BEFORE_TIME
    for (side, key, time, value), cut in zip(numbered, cuts, strict=True):
        if cut != "same":
            vertex.run(*batch)
            batch = ([], [])
        if cut == "barrier" and greatest > BEFORE_TIME:
            vertex.pass_barrier(greatest - DELAY_MS - 1)
        batch[side].append(row_of(key, time, value))
        greatest = max(greatest, time)
    vertex.run(*batch)
    vertex.pass_barrier(END_OF_TIME)
    assert not vertex.late
    return vertex.out


def _answer(query, numbered, width):
    """Return DuckDB's answer over all rows, which are in the tables `l` and `r`."""
    for name, side in (("l", 0), ("r", 1)):
        DB.execute(f"CREATE OR REPLACE TABLE {name} (k VARCHAR, t BIGINT, v VARCHAR)")
        rows = [(key, time, value) for of, key, time, value in numbered if of == side]
        if rows:
            DB.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
    found = DB.execute(query).fetchall()
    assert all(len(row) == width for row in found)
    return Counter(found)


def _pair(names, row):
    named = dict(zip(names, row, strict=True))
    return tuple(named[name] for name in ("v", "r_v") if name in named)


def _columns(how):
    return "l.v" if how in ("semi", "anti") else "l.v, r.v"


@given(
    _runs(),
    st.sampled_from([each.value for each in JoinType]),
    st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(sorted),
)
def test_an_interval_join_has_the_rows_of_the_batch_query(run, how, bounds):
    vertex = Vertex(IntervalJoin(JoinedSides(*SIDES, JoinType(how)), *bounds))
    out = _carry_out(vertex, *run, lambda key, time, value: (key, _time(time), value))
    on = f"l.k = r.k AND r.t - l.t BETWEEN {bounds[0]} AND {bounds[1]}"
    wanted = _answer(f"SELECT {_columns(how)} FROM l {how} JOIN r ON {on}", run[0], 1 + (how not in ("semi", "anti")))
    assert wanted == Counter(_pair(vertex.output.names, row) for row in out)
    assert vertex.held.is_empty()
    if how != "full":
        time, wait_ms = "r_at" if how == "right" else "at", max(0, -bounds[0], bounds[1])
        assert all(_ms(row[time]) > passed - wait_ms for row, passed in vertex.after), "none is late downstream"


@given(_runs(), st.sampled_from([each.value for each in JoinType]), st.sampled_from([(4, 4), (4, 2), (5, 3)]))
def test_a_window_join_has_the_rows_of_the_batch_query(run, how, windows):
    size, step = windows
    vertex = Vertex(WindowJoin(JoinedSides(*SIDES, JoinType(how)), PeriodicWindows(size, step, 0, "UTC")))
    out = _carry_out(vertex, *run, lambda key, time, value: (key, _time(time), value))
    spread = (
        f"(SELECT *, unnest([t // {step} * {step} - i * {step} FOR i IN range({-(-size // step)})]) AS s FROM {{0}})"
    )
    left, right = (f"(FROM {spread.format(name)} WHERE s + {size} > t) AS {name}" for name in "lr")
    wanted = _answer(
        f"SELECT {_columns(how)} FROM {left} {how} JOIN {right} ON l.k = r.k AND l.s = r.s",
        run[0],
        1 + (how not in ("semi", "anti")),
    )
    assert wanted == Counter(_pair(vertex.output.names, row) for row in out)
    assert vertex.held.is_empty()


@given(_runs(), st.sampled_from(["inner", "left"]))
def test_an_as_of_join_has_the_rows_of_the_batch_query(run, how):
    """Of versions of the same time the last value counts."""
    vertex = Vertex(AsOfJoin(JoinedSides(*SIDES, JoinType(how))))
    out = _carry_out(vertex, *run, lambda key, time, value: (key, _time(time), value))
    versions = "(SELECT k, t, max(v) AS v FROM r GROUP BY ALL) AS r"
    asof = "" if how == "inner" else "LEFT"
    wanted = _answer(f"SELECT l.v, r.v FROM l ASOF {asof} JOIN {versions} ON l.k = r.k AND l.t >= r.t", run[0], 2)
    assert wanted == Counter(_pair(vertex.output.names, row) for row in out)
    assert vertex.held["_right"].list.len().max() in (None, 1), "one version of a key stays"
    assert not vertex.held["_left"].list.len().fill_null(0).sum()


PLACED = st.lists(st.tuples(st.none() | st.integers(0, 2), st.sampled_from([-(10**15), -7, -2, 0, 1, 3, 10**15])))


@given(PLACED, PLACED, st.none() | st.integers(-3, 0), st.integers(-2, 3), st.sampled_from([0, 2**62]))
def test_partners_are_all_rows_in_the_range(left, right, lower_ms, upper_ms, places_max):
    """Where keys and times have more places than numbers, only those with rows are numbered."""
    frames = [
        pl.DataFrame([(key, ms * 1_000) for key, ms in rows], schema={"k": pl.Int64, joins.AT: pl.Int64}, orient="row")
        for rows in (left, right)
    ]
    with patch.object(joins, "_PLACES_MAX", places_max):
        places, start, end, order = joins._ranges(*frames, ["k"], lower_ms, upper_ms)
    found = {(int(place), int(at)) for place, a, b in zip(places, start, end, strict=True) for at in order[a:b]}
    assert found == {
        (i, j)
        for i, (key, ms) in enumerate(left)
        for j, (other, at) in enumerate(right)
        if key == other and key is not None and (lower_ms is None or ms + lower_ms <= at) and at <= ms + upper_ms
    }
