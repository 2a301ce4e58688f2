"""The task of top rows: what the task writes when rows come that are not among the first rows."""

from itertools import pairwise

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFileKind
from jobs.operators.keyed_task import InputLayout
from jobs.operators.newest import NewestRows, TruncatedError
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_output, top_state
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from jobs.state.backend import CompactionPolicy
from tests.unit.operators.test_end_of_input import Bench
from tidemark import Pipeline, SequenceSource, count, deduplicate, join, top

ROWS = StructType().add("k", StringType()).add("n", LongType())


@pytest.fixture
def least(tmp_path):
    """Return a bench of a vertex that keeps the row with the least number of each key in an upsert table."""
    function = TopRows(("k",), ("n",), (Order("n", descending=False),), 1, None, changelog=False)
    state, output = (arrow_schema(each) for each in (top_state(ROWS, ["k"]), top_output(ROWS, ["k"], None)))
    rows = (InputLayout(schema=arrow_schema(ROWS), keys=("k",)),)
    policy = CompactionPolicy(ratio=100.0)
    bench = Bench(str(tmp_path), function, rows, state, output, TableMode.UPSERT, policy=policy)
    bench.run([("a", 5), ("b", 5)])
    return bench


def test_rows_that_are_not_among_the_first_write_nothing(least):
    """Neither state nor table gets a file. Most rows of a long stream are not among the first rows."""
    assert [("a", 5), ("b", 5)] == least.read(file.file for file in least.table_files)
    report = least.run([("a", 6), ("b", 7), ("b", 5)])
    assert ((), ()) == (report.state, report.ranges)


def test_only_keys_whose_first_row_changes_are_written(least):
    report = least.run([("a", 6), ("b", 4), ("c", 9)])
    (delta,) = report.state
    assert KeyedFileKind.DELTA is delta.kind
    assert ["b", "c"] == sorted(pq.read_table(f"{least.root}/{delta.file.path}").column("k").to_pylist())
    assert [("a", 5), ("b", 4), ("c", 9)] == least.read(file.file for file in least.table_files)


# ------------------------------------------------------------------
# The newest row of each key, in any micro-batches, is the result of all changes applied one by one.


CHANGES = {
    "_kind": pl.String,
    "id": pl.Int64,
    "a": pl.Int64,
    "b": pl.String,
    "_lsn": pl.Int64,
    "_position": pl.Int64,
    "_unchanged": pl.List(pl.String),
}
STATE = {name: CHANGES[name] for name in ("id", "a", "b", "_lsn", "_position", "_unchanged")} | {
    "_is_deleted": pl.Boolean
}
NEWEST = NewestRows(("id",), ("a", "b"), ignores_truncates=False)


@st.composite
def changes(draw):
    """Return changes that a server can send, in any batches. The server updates or deletes only existing rows."""
    rows, there = [], set()
    for position in range(draw(st.integers(1, 25))):
        key = draw(st.integers(1, 3))
        kinds = ["update_after", "delete"] if key in there else ["insert"]
        kind = draw(st.sampled_from(kinds))
        unsent = kind == "update_after" and draw(st.booleans())
        (there.discard if kind == "delete" else there.add)(key)
        a, b = (
            (None, None)
            if kind == "delete"
            else (draw(st.integers(0, 9)), None if unsent else draw(st.sampled_from("xyz")))
        )
        rows.append((kind, key, a, b, position, position, ["b"] if unsent else None))
    return rows, draw(st.lists(st.integers(1, len(rows)), max_size=4))


def one_by_one(rows):
    """Return the newest rows, computed change by change."""
    state = {}
    for kind, key, a, b, lsn, position, unsent in rows:
        kept = state[key][1] if unsent else b
        state[key] = (a, kept, lsn, position, None, kind == "delete")
    return {(key, *values) for key, values in state.items()}


@given(changes())
def test_micro_batches_do_not_change_the_newest_rows(drawn):
    """Values that were not sent come from the same batch or from the state. Deleted keys are marked."""
    rows, cuts = drawn
    state = pl.DataFrame(schema=STATE)
    bounds = [0, *sorted(set(cuts)), len(rows)]
    for first, end in pairwise(bounds):
        batch = pl.DataFrame(rows[first:end], schema=CHANGES, orient="row").sample(fraction=1, shuffle=True, seed=1)
        touched = batch.select("id").unique()
        done = NEWEST.process([batch], state.join(touched, on="id", how="semi"))
        state = pl.concat([state.join(touched, on="id", how="anti"), done.state.select(list(STATE))])
    assert one_by_one(rows) == set(state.iter_rows())


def test_a_row_read_twice_does_not_replace_a_newer_one():
    """With at-least-once checkpoints, rows may come twice."""
    older = pl.DataFrame([("insert", 1, 1, "x", 5, 3, None)], schema=CHANGES, orient="row")
    newer = pl.DataFrame([(1, 2, "y", 6, 4, None, False)], schema=STATE, orient="row")
    assert newer.equals(NEWEST.process([older], newer).state)


def test_an_unknown_value_stays_marked_as_unknown():
    """The key has changed, or the changes began without a snapshot. The row lists the column until a value comes."""
    update = pl.DataFrame([("update_after", 1, 1, None, 5, 3, ["b"])], schema=CHANGES, orient="row")
    state = NEWEST.process([update], pl.DataFrame(schema=STATE)).state
    assert [["b"]] == state["_unchanged"].to_list()
    again = update.with_columns(_position=pl.lit(4, pl.Int64))
    assert [["b"]] == NEWEST.process([again], state).state["_unchanged"].to_list()


def test_a_truncate_is_an_error_unless_it_is_ignored():
    """A truncate names no key, so the table would be wrong."""
    truncate = pl.DataFrame([("truncate", None, None, None, 5, 3, None)], schema=CHANGES, orient="row")
    with pytest.raises(TruncatedError, match='truncates="ignore"'):
        NEWEST.process([truncate], pl.DataFrame(schema=STATE))
    ignoring = NewestRows(("id",), ("a", "b"), ignores_truncates=True)
    assert ignoring.process([truncate], pl.DataFrame(schema=STATE)).state.is_empty()


# ------------------------------------------------------------------
# Top rows are planned by the kind of their input. Impossible declarations are refused with an error that names the
# mistake.


def streams():
    pipeline = Pipeline("example")
    counted = pipeline.source("left", SequenceSource({"a": 10})).key_by("key").aggregate("counted", n=count())
    rows = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    return pipeline, counted, rows


def test_only_a_changelog_is_read_with_kinds_and_kept_whole():
    """For an append-only stream, the state holds only the first rows. The recorded meaning of the state shows this."""
    pipeline, counted, rows = streams()
    top(counted.key_by("n"), "most", n=3, order_by=["key desc"], row_number="nth").upsert("gold/most")
    deduplicate(rows.key_by("key"), "latest", order_by="value", keep="last").upsert("gold/latest")
    planned = plan(pipeline)
    most, latest = planned.vertices["most"], planned.vertices["latest"]
    assert [most.inputs[0].takes_changes, latest.inputs[0].takes_changes] == [True, False]
    assert [most.spec.function.changelog, latest.spec.function.changelog] == [True, False]
    assert [planned.graph.vertex(name).changes_of for name in ("most", "latest")] == [("counted",), ()]
    assert [str(each.spec.meanings[0]) for each in (most, latest)] == [
        "first_3_of_all_rows(key desc bigint)",
        "first_1_of_new_rows(value desc bigint)",
    ]


def test_the_table_keys_tell_first_rows_apart():
    pipeline, counted, rows = streams()
    top(counted.key_by("n"), "most", n=3, order_by="key", row_number="nth").upsert("gold/most")
    deduplicate(rows.key_by("key"), "latest", order_by="value").upsert("gold/latest")
    planned = plan(pipeline)
    assert planned.vertices["most"].spec.table.keys == ("n", "nth")
    assert planned.vertices["most"].spec.output.simpleString() == "struct<n:bigint,key:bigint,nth:int>"
    assert planned.vertices["latest"].spec.table.keys == ("key",)


def test_aggregates_joins_and_top_take_the_changes_of_first_rows():
    pipeline, counted, rows = streams()
    first = top(rows.key_by("key"), "first", n=2, order_by="value")
    first.key_by("key").aggregate("sizes", rows=count()).upsert("gold/sizes")
    join(first.key_by("key"), counted.key_by("key"), "both").key_by("n").aggregate("n_both", rows=count())
    top(first.key_by("value"), "again", n=1, order_by="key").upsert("gold/again")
    planned = plan(pipeline)
    assert planned.vertices["first"].spec.emits_changes
    taken = {name: planned.graph.vertex(name).changes_of for name in ("sizes", "both", "again")}
    assert taken == {"sizes": ("first",), "both": ("first", "counted"), "again": ("first",)}


@pytest.mark.parametrize(
    ("n", "follow", "said"),
    [
        (2, lambda first: first.upsert("gold/first"), "no column of its 2 rows of a key is known to be unique"),
        (2, lambda first: first.table("gold/first"), 'Number them, as in row_number="nth"'),
        (2, lambda first: first.table("gold/first", id="kept"), "those of top 'first', which takes rows back"),
        (1, lambda first: first.table("gold/first", id="kept"), "write the stream of 'first' with upsert"),
        (1, lambda first: first.table("gold/first"), "top 'first' takes rows back, which an append table cannot do"),
        (1, lambda first: first.upsert("gold/first", keys=["key", "value"]), r"leave out keys=\['key', 'value'\]"),
    ],
)
def test_a_step_that_cannot_take_a_row_back_is_refused(n, follow, said):
    """Even if rows are only added, a first row may be taken back: a later row may precede it in the order."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match=said):
        follow(top(rows.key_by("key"), "first", n=n, order_by="value"))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"n": 0}, "n is 0; write a whole number of rows"),
        ({"n": None}, "n is None; write"),
        ({"n": "3"}, "n is '3'; write"),
        ({"order_by": []}, "order_by names no column"),
        ({"order_by": "nothing desc"}, "there is no column 'nothing'"),
        ({"order_by": "key"}, "order_by names 'key', a key"),
        ({"row_number": "value"}, "columns 'value' and 'value' have one name"),
        ({"row_number": "_top_rows"}, "columns '_top_rows' and '_top_rows' have one name"),
    ],
)
def test_top_rows_that_cannot_be_are_refused(told, said):
    """The message names the vertex and what does not fit."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match=f"vertex first: {said}"):
        top(rows.key_by("key"), "first", **{"n": 2, "order_by": "value", **told})


def test_an_unknown_word_is_refused_and_case_of_a_direction_does_not_count():
    """`DESC` means `desc`. A column is found only by its exact name."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match='keep is \'newest\'; write "first" or "last"'):
        deduplicate(rows.key_by("key"), "first", order_by="value", keep="newest")
    vertex = top(rows.key_by("key"), "first", n=1, order_by="value DESC")
    assert [str(by) for by in vertex.declarations.vertex("first").function.order] == ["value desc"]


def test_updates_that_lost_their_kind_are_refused():
    """A vertex between the aggregate and the top rows emits only new rows."""
    _, counted, _ = streams()
    passed = counted.table("silver/passed", id="passed")
    with pytest.raises(InvalidPipelineError, match="vertex first: its rows are updates of the aggregate 'counted'"):
        top(passed.key_by("key"), "first", n=1, order_by="n")
