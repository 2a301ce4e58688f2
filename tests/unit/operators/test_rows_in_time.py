"""First rows of a key within a time, and aggregates over earlier rows, equal the answer of a batch query (N6, N7)."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.identifiers import VertexId, table_name
from jobs.operators.changes import ADDING, with_kind
from jobs.operators.in_time.windows import LATE, LateRowError, NoTimeError
from jobs.operators.process import NamedOutputs, ProcessCalls, takes_rows_back
from jobs.operators.spec import arrow_schema
from jobs.pipeline import InvalidPipelineError, Pipeline, avg_of, collect_list, count, max_of, sum_of
from jobs.pipeline.planning import plan
from jobs.pipeline.rows_in_time import distinct, over
from jobs.pipeline.top import deduplicate, top
from jobs.pipeline.windows import session, tumbling
from jobs.sources.files.file_source import FileSource
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP
from spec.machines.judging import expect

ROWS = (
    StructType().add("key", DoubleType()).add("value", LongType()).add("name", StringType()).add("at", TimestampType())
)
LATE_ROWS = StructType([*ROWS.fields, StructField("late_by_ms", LongType())])
DECIDED = "rows-are-decided-at-barriers"
"""The output of an epoch depends on its rows, and not on its micro-batches or the order of the rows."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(EPOCH.timestamp() * 1000)


def spec_of(make):
    """Return the specification of the vertex that `make` adds to keyed rows."""
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", FileSource("/nowhere", ROWS)).event_time("at", delay="0s")
    rows = rows.drop("_split", "_position")
    made = make(rows.key_by("key"))
    write = made.upsert if made.declarations.updates_of(made.as_input()) else made.table
    write("silver/out")
    return plan(pipeline).vertices[VertexId("op")].spec


class OneOperator:
    """The operator of one subtask, with its state between micro-batches."""

    def __init__(self, spec):
        self.spec, self.watermark, self.outputs, self.late = spec, BEFORE_TIME, [], []
        self.state_schema = arrow_schema(spec.state)
        self.state = KeyedRows.of(empty_frame(pa.schema([pa.field(KEY_GROUP, pa.int32()), *self.state_schema])))

    def run(self, rows, due_ms=None):
        frame = pl.DataFrame(
            [(0, *row[:3], row[3] if row[3] is None else EPOCH + timedelta(milliseconds=row[3])) for row in rows],
            schema={KEY_GROUP: pl.Int32, **empty_frame(arrow_schema(ROWS)).schema},
            orient="row",
        )
        frame, output = frame.select(KEY_GROUP, *self.spec.inputs[0].schema.names), arrow_schema(self.spec.output)
        calls = ProcessCalls(
            operator="op",
            function=self.spec.function.at(self.watermark, END_OF_TIME if due_ms is None else due_ms),
            keys=("key",),
            state_keys=self.spec.state_keys,
            state_schema=self.state_schema,
            output_schema=with_kind(output) if takes_rows_back(self.spec.function) else output,
            outputs=NamedOutputs(table_name("t/t"), {LATE: arrow_schema(LATE_ROWS)}),
            checked=None,
            ends=False,
            fires_ms=due_ms,
        )
        called = calls.run(self.state, [frame], frame.select(KEY_GROUP, "key").unique(), None)
        self.state = called.state()
        assert not self.state.frame().select(self.spec.state_keys).is_duplicated().any()
        self.outputs += [row for each in called.results for row in each.output.rows()]
        self.late += [row for each in called.results for row in each.outputs[LATE].rows()]

    def barrier(self, watermark):
        ms = watermark if watermark in (BEFORE_TIME, END_OF_TIME) else START_MS + watermark
        least = self.state.least(self.spec.function.due)
        if least is not None and least <= ms:
            self.run([], due_ms=ms)
        if ms != END_OF_TIME:
            self.watermark = max(self.watermark, ms)


TIMES = st.integers(0, 40)
ROW = st.tuples(
    st.sampled_from([1.0, float("nan"), None]), st.integers(0, 3) | st.none(), st.sampled_from(["a", "b", None]), TIMES
)
EPOCHS = st.lists(st.lists(st.lists(ROW, max_size=6), max_size=3), max_size=5)


def in_epochs(spec, epochs, *, sideways=False, closes=lambda ms: ms):
    """Run epochs, each of several micro-batches. Return what was emitted, and the rows that were not late.

    A row is late once the watermark has reached the time at which it `closes`.
    """
    operator, counted, reached = OneOperator(spec), [], -1
    for epoch in epochs:
        backwards = [row for batch in epoch for row in batch][::-1]
        batches = [backwards] if sideways else epoch
        for batch in batches:
            operator.run(batch)
            counted += [row for row in batch if closes(row[3]) > reached]
        reached = max([reached, *(row[3] - 5 for batch in epoch for row in batch)])
        operator.barrier(reached)
    operator.barrier(END_OF_TIME)
    late = [row for epoch in epochs for batch in epoch for row in batch]
    assert len(operator.late) == len(late) - len(counted)
    return operator.outputs, counted


def shown(rows):
    return Counter(str(row) for row in _plain(rows))


def at(ms):
    return EPOCH + timedelta(milliseconds=ms)


def in_order(row):
    """Return the sort key of a row: its time, then its other columns, null first."""
    return row[3], row[1] is not None, row[1] or 0, row[2] is not None, row[2] or ""


def firsts(epochs, within):
    """Return the first rows, computed row by row, one epoch after the other."""
    reached, known, found = -1, [], []
    for epoch in epochs:
        rows = [row for batch in epoch for row in batch if row[3] > reached]
        for row in sorted(
            rows, key=lambda row: (row[3], row[1] is not None, row[1] or 0, row[2] is not None, row[2] or "")
        ):
            same = str(row[0])
            apart = all(key != same or abs(row[3] - time) >= within for key, time in known)
            if apart:
                known.append((same, row[3]))
                found.append((*row[:3], at(row[3])))
        reached = max([reached, *(row[3] - 5 for batch in epoch for row in batch)])
    return found


@settings(deadline=None, max_examples=80)
@given(EPOCHS, st.sampled_from(["3ms", "10ms", "1s"]))
def test_the_first_row_of_a_key_is_put_out_once_within_a_time(epochs, within):
    """It depends on what is in which epoch, and not on micro-batches or the order of rows in them."""
    spec = spec_of(lambda rows: distinct(rows, "op", within=within, late="late/rows"))
    ms = {"3ms": 3, "10ms": 10, "1s": 1000}[within]
    found, _ = in_epochs(spec, epochs)
    expect(shown(found) == shown(firsts(epochs, ms)), DECIDED)
    expect(shown(found) == shown(in_epochs(spec, epochs, sideways=True)[0]), DECIDED)


def test_a_key_is_forgotten_when_the_watermark_has_passed_its_time(tmp_path):
    """The state keeps only the time. A drain forgets no key, since a later tick may go on."""
    operator = OneOperator(spec_of(lambda rows: distinct(rows, "op", within="10ms")))
    operator.run([(1.0, 7, "a", 100)])
    operator.barrier(99)
    assert operator.state.frame().select("key", "value", "name").rows() == [(1.0, None, None)]
    operator.barrier(END_OF_TIME)
    operator.barrier(109)
    assert len(operator.state.frame()) == 1
    operator.barrier(110)
    assert operator.state.frame().is_empty()
    assert operator.state.least("_due_ms") is None
    with pytest.raises(NoTimeError, match="1 rows have no time in column at"):
        operator.run([(1.0, 7, "a", None)])
    with pytest.raises(LateRowError, match=r"at=2026-01-01 00:00:00\.11"):
        operator.run([(1.0, 7, "a", 110)])


OVER = {"n": count(), "total": sum_of("value"), "most": max_of("value"), "mean": avg_of("value")}


@settings(deadline=None, max_examples=60)
@given(EPOCHS, st.sampled_from([1, 2, 5, "3ms", "20ms"]))
def test_aggregates_over_rows_before_are_those_of_sql(epochs, back):
    """DuckDB computes them over all rows that were not late."""
    bound = {"last": back} if isinstance(back, int) else {"within": back}
    spec = spec_of(lambda rows: over(rows, "op", late="late/rows", **bound, **OVER))
    found, counted = in_epochs(spec, epochs)
    expect(shown(found) == shown(in_epochs(spec, epochs, sideways=True)[0]), DECIDED)
    rows = pl.DataFrame(
        [(*row[:3], at(row[3])) for row in counted], schema=empty_frame(arrow_schema(ROWS)).schema, orient="row"
    )
    rows_before = f"value NULLS FIRST, name NULLS FIRST ROWS BETWEEN {back - 1 if 'last' in bound else 0} PRECEDING"
    in_time = f"RANGE BETWEEN INTERVAL '{str(back)[:-2]} milliseconds' PRECEDING"
    frame = f'ORDER BY "at"{", " + rows_before if "last" in bound else " " + in_time} AND CURRENT ROW'
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone='UTC'")
        engine.register("counted", rows)
        wanted = engine.execute(
            'SELECT key, value, name, "at", count(*) OVER w, cast(sum(value) OVER w AS bigint), max(value) OVER w, '
            f"avg(value) OVER w FROM counted WINDOW w AS (PARTITION BY key {frame})"
        ).fetchall()
    expect(shown(found) == shown(wanted), DECIDED)


def _plain(rows):
    return [tuple(each.timestamp() if isinstance(each, datetime) else each for each in row) for row in rows]


def test_rows_before_leave_the_state_when_nobody_looks_back_to_them():
    """So the state holds only the rows to which the next row may look back."""
    few = OneOperator(spec_of(lambda rows: over(rows, "op", last=3, names=collect_list("name"))))
    for number in range(50):
        few.run([(1.0, 1, str(number), number)])
        few.barrier(number)
    assert [len(row) for row in few.state.frame()["_rows_before"]] == [2]
    assert few.outputs[-1][-1] == ["47", "48", "49"]
    brief = OneOperator(spec_of(lambda rows: over(rows, "op", within="5ms", n=count())))
    brief.run([(1.0, 1, "a", 10)])
    brief.barrier(10)
    assert len(brief.state.frame()) == 1
    brief.barrier(15)
    assert brief.state.frame().is_empty()


def tops(epochs, n, within):
    """Return the first rows of each key by value, as a table shows them when keys are forgotten."""
    reached, held, table = -1, {}, Counter()
    for epoch in epochs:
        for row in (row for batch in epoch for row in batch if row[3] > reached):
            held.setdefault(str(row[0]), []).append(row)
        reached = max([reached, *(row[3] - 5 for batch in epoch for row in batch)])
        for key, rows in list(held.items()):
            first = sorted(
                rows, key=lambda row: (row[1] is not None, row[1] or 0, row[2] is not None, row[2] or "", row[3])
            )
            table = Counter({each: times for each, times in table.items() if each[0] != (key, "open")})
            table.update(((key, "open"), *row[1:3], at(row[3]), nth) for nth, row in enumerate(first[:n], 1))
            if max(row[3] for row in rows) + within <= reached:
                del held[key]
                table = Counter(
                    {((key, reached), *each[1:]) if each[0] == (key, "open") else each: 1 for each in table}
                )
    return Counter((name[0], *rest) for name, *rest in table)


@settings(deadline=None, max_examples=40)
@given(EPOCHS, st.sampled_from([3, 10, 1000]), st.integers(1, 3))
def test_top_rows_are_forgotten_when_their_key_has_rested(epochs, within, n):
    """What is put out and taken back adds up to the first rows of each key, which begins anew after its rest."""
    spec = spec_of(
        lambda rows: top(rows, "op", n=n, order_by="value", row_number="nth", within=f"{within}ms", late="late/rows")
    )
    for sideways in (False, True):
        found = Counter()
        for *row, kind in in_epochs(spec, epochs, sideways=sideways)[0]:
            found[str(row[0]), *row[1:]] += 1 if kind in ADDING else -1
        expect(Counter({row: times for row, times in found.items() if times}) == tops(epochs, n, within), DECIDED)


def test_a_key_of_top_rows_leaves_with_its_last_row_and_not_with_its_first_one():
    """A row that is not among the first ones renews its key, but a late row does not. A drain forgets no key."""
    operator = OneOperator(
        spec_of(lambda rows: deduplicate(rows, "op", order_by="at", within="10ms", late="late/rows"))
    )
    operator.run([(1.0, 7, "a", 100)])
    operator.run([(1.0, 8, "b", 105)])
    operator.barrier(END_OF_TIME)
    operator.barrier(114)
    operator.run([(1.0, 9, "c", 114)])
    assert [row[:3] for row in operator.late] == [(1.0, 9, "c")]
    assert [len(rows) for rows in operator.state.frame()["_top_rows"]] == [1]
    operator.barrier(115)
    assert operator.state.frame().is_empty()
    assert operator.state.least("_due_ms") is None
    assert [(row[1], row[-1]) for row in operator.outputs] == [(7, "+I")]


@settings(deadline=None, max_examples=80)
@given(EPOCHS, st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_the_first_rows_until_a_time_are_those_of_sql(epochs, n, ties, in_windows):
    """DuckDB finds them over all rows that were not late: in each window, or of those that name the same time."""

    def make(rows):
        by = rows.window(tumbling("10ms")) if in_windows else rows
        how = {} if in_windows else {"until": "at"}
        return top(by, "op", n=n, order_by="value desc", ties=ties, place="place", late="late/rows", **how)

    closes = (lambda ms: ms - ms % 10 + 9) if in_windows else (lambda ms: ms)
    spec = spec_of(make)
    found, counted = in_epochs(spec, epochs, closes=closes)
    expect(shown(found) == shown(in_epochs(spec, epochs, sideways=True, closes=closes)[0]), DECIDED)
    rows = pl.DataFrame(
        [(*row[:3], at(row[3])) for row in counted], schema=empty_frame(arrow_schema(ROWS)).schema, orient="row"
    )
    window = 'time_bucket(INTERVAL 10 MILLISECOND, "at")' if in_windows else '"at"'
    bounds = f"{window}, {window} + INTERVAL 10 MILLISECOND, " if in_windows else '"at", '
    columns = f"key, {bounds}value, name" + (', "at"' if in_windows else "")
    order = "value DESC NULLS LAST"
    rest = 'name NULLS FIRST, "at"'
    first = f"rank() OVER (w ORDER BY {order})" if ties else f"row_number() OVER (w ORDER BY {order}, {rest})"
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone='UTC'")
        engine.register("counted", rows)
        wanted = engine.execute(
            f"SELECT {columns}, rank() OVER (w ORDER BY {order}) FROM counted "
            f"WINDOW w AS (PARTITION BY key, {window}) QUALIFY {first} <= {n}"
        ).fetchall()
    expect(shown(found) == shown(wanted), DECIDED)


def test_what_has_closed_is_put_out_once_and_leaves_the_state():
    """A row with another end than the other rows of its key waits for its own end."""
    operator = OneOperator(spec_of(lambda rows: top(rows, "op", n=1, order_by="value", until="at", late="late/rows")))
    operator.run([(1.0, 7, "a", 10), (1.0, 5, "b", 10), (1.0, 9, "c", 20)])
    operator.barrier(9)
    assert not operator.outputs
    operator.barrier(10)
    assert [row[2:4] for row in operator.outputs] == [(5, "b")]
    assert len(operator.state.frame()) == 1
    operator.run([(1.0, 1, "d", 10)])
    assert [row[2] for row in operator.late] == ["d"]
    operator.barrier(END_OF_TIME)
    assert operator.state.frame().is_empty()
    window = OneOperator(
        spec_of(lambda rows: top(rows.window(tumbling("10ms")), "op", n=1, order_by="value", late="l/l"))
    )
    window.run([(1.0, 7, "a", 3), (1.0, 5, "b", 9)])
    window.barrier(8)
    assert not window.outputs
    window.barrier(9)
    assert [row[3:5] for row in window.outputs] == [(5, "b")]


def without_times(rows):
    return distinct(replace(rows, stream=rows.stream.drop("at")), "op", within="1s")


def top_of_sums(rows):
    sums = rows.aggregate("sums", n=count())
    return top(sums.key_by("n"), "op", n=1, order_by="key", within="1d")


def test_what_has_no_meaning_is_refused_by_name():
    for match, make in (
        ("vertex op: say how far a row looks back", lambda rows: over(rows, "op", n=count())),
        ("vertex op: last is 0", lambda rows: over(rows, "op", last=0, n=count())),
        ("vertex op: within is 0s", lambda rows: distinct(rows, "op", within="0s")),
        (
            "vertex op: the rows of rows have no event times",
            without_times,
        ),
        ("vertex op: within is 0s", lambda rows: deduplicate(rows, "op", order_by="at", within="0s")),
        ("vertex op: within= and ttl= both", lambda rows: top(rows, "op", n=1, order_by="at", within="1d", ttl="1d")),
        ("vertex op: rows are late only with within=", lambda rows: top(rows, "op", n=1, order_by="at", late="l/l")),
        ("top 'op' takes rows back", lambda rows: top(rows, "op", n=2, order_by="at", within="1d")),
        ("vertex op: its rows are changes of 'sums'", top_of_sums),
        ("vertex op: say where late rows go", lambda rows: top(rows, "op", n=1, order_by="value", until="at")),
        ("column name has type string", lambda rows: top(rows, "op", n=1, order_by="at", until="name", late="l/l")),
        (
            "vertex op: first rows need windows at fixed times",
            lambda rows: top(rows.window(session("1s")), "op", n=1, order_by="value", late="l/l"),
        ),
        ("vertex op: rows are late only with within=", lambda rows: top(rows, "op", n=1, order_by="value", late="l/l")),
    ):
        with pytest.raises(InvalidPipelineError, match=match):
            spec_of(make)
