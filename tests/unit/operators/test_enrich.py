"""Enriching emits every left row once, as soon as its right row is known, whichever comes first."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from jobs.operators.enrich import EnrichFunction, enrich_schema, enrich_state_schema

LEFT = {"k": pl.String, "id": pl.Int64}
RIGHT = {"rk": pl.String, "temp": pl.Float64}
GAINED = pl.Struct({"temp": pl.Float64})
STATE = {"k": pl.String, "right": GAINED, "waiting": pl.List(pl.Struct(LEFT))}
FUNCTION = EnrichFunction(("k",), ("rk",), ("temp",))
KEY = st.sampled_from([None, "a", "b", "c"])
TEMPERATURE = st.none() | st.sampled_from([1.0, 2.0])


def run(batches):
    """Run micro-batches of (left keys, right rows). Return the output rows of each, and the last state."""
    state, outputs, number = pl.DataFrame(schema=STATE), [], 0
    for left_keys, right_rows in batches:
        left = pl.DataFrame([(key, number + i) for i, key in enumerate(left_keys)], schema=LEFT, orient="row")
        number += len(left_keys)
        right = pl.DataFrame(right_rows, schema=RIGHT, orient="row")
        touched = pl.concat([left.select("k"), right.select(k="rk")]).unique()
        done = FUNCTION.process([left, right], state.join(touched, on="k", how="semi", nulls_equal=True))
        kept = state.join(touched, on="k", how="anti", nulls_equal=True)
        state = pl.concat([kept, done.state.cast(STATE)])
        outputs.append(sorted(done.output.select("k", "id", "temp").rows(), key=lambda row: row[1]))
    return outputs, state


def model(batches):
    """Compute the same with dicts and lists."""
    known, waiting, outputs, number = {}, [], [], 0
    for left_keys, right_rows in batches:
        for key, temp in sorted(right_rows, key=lambda row: (row[1] is not None, row[1] or 0)):
            known.setdefault(key, temp)
        known.pop(None, None)
        waiting += [(key, number + i) for i, key in enumerate(left_keys)]
        number += len(left_keys)
        outputs.append(sorted(((key, i, known[key]) for key, i in waiting if key in known), key=lambda row: row[1]))
        waiting = [(key, i) for key, i in waiting if key not in known]
    return outputs, known, waiting


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(KEY, max_size=5), st.lists(st.tuples(KEY, TEMPERATURE), max_size=4)), max_size=6))
def test_enriching_equals_a_loop_over_rows(batches):
    """Outputs of each micro-batch, known rows and waiting rows equal the naive ones, with null keys."""
    outputs, known, waiting = model(batches)
    got, state = run(batches)
    assert outputs == got
    rows = state.rows(named=True)
    assert known == {row["k"]: row["right"]["temp"] for row in rows if row["right"] is not None}
    assert sorted(waiting, key=lambda row: row[1]) == sorted(
        ((row["k"], left["id"]) for row in rows for left in row["waiting"] or []), key=lambda row: row[1]
    )
    assert len(rows) == len({row["k"] for row in rows})


LATEST = EnrichFunction(("k",), ("rk",), ("temp",), latest_by="at")
TIMED = {"rk": pl.String, "at": pl.Int64, "temp": pl.Float64}
TIMED_STATE = STATE | {"right": pl.Struct({"temp": pl.Float64, "at": pl.Int64})}
RIGHT_ROW = st.tuples(KEY, st.none() | st.integers(0, 3), TEMPERATURE)


def order(row):
    """Return the value by which right rows of one key are compared. Null is the least."""
    _, at, temp = row
    return (at is not None, at or 0, temp is not None, temp or 0)


def latest(batches):
    """Run micro-batches of (left keys, right rows). Return the output rows of each."""
    state, outputs = pl.DataFrame(schema=TIMED_STATE), []
    for number, (left_keys, right_rows) in enumerate(batches):
        left = pl.DataFrame([(key, number) for key in left_keys], schema=LEFT, orient="row")
        right = pl.DataFrame(right_rows, schema=TIMED, orient="row")
        touched = pl.concat([left.select("k"), right.select(k="rk")]).unique()
        done = LATEST.process([left, right], state.join(touched, on="k", how="semi", nulls_equal=True))
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.state.cast(TIMED_STATE)])
        outputs.append(done.output)
    return outputs, state


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(KEY, max_size=3), st.lists(RIGHT_ROW, max_size=4)), max_size=6))
def test_the_latest_right_row_is_the_greatest_so_far(batches):
    """It is compared by the named column, then by the others, with null least, in any micro-batches.

    An emitted left row has the row that was latest then, and only the requested columns of it.
    """
    outputs, state = latest(batches)
    seen = {}
    for (left_keys, right_rows), output in zip(batches, outputs, strict=True):
        for row in right_rows:
            if row[0] is not None:
                seen[row[0]] = max(row, seen.get(row[0], row), key=order)
        assert ["k", "id", "temp"] == output.columns
        new = [row for row in output.rows() if row[0] in left_keys]
        assert all(temp == seen[key][2] for key, _, temp in new)
    known = {row["k"]: row["right"] for row in state.rows(named=True) if row["right"] is not None}
    assert {key: {"temp": temp, "at": at} for key, at, temp in seen.values()} == known


def test_a_late_older_right_row_does_not_replace_a_newer_one():
    """Without `latest_by`, the first row of a key would stay. With it, the greatest row of a key stays."""
    outputs, _ = latest([([], [("a", 2, 5.0)]), ([], [("a", 1, 9.0)]), (["a"], [("a", 3, 7.0)]), (["a"], [])])
    assert [[], [], [7.0], [7.0]] == [output["temp"].to_list() for output in outputs]


def test_a_waiting_row_gets_the_first_right_row_or_nulls_at_the_end():
    """A left row is emitted once. At the end of the input, its requested columns are null."""
    outputs, state = latest([(["a", "b"], []), ([], [("a", 1, 5.0)]), ([], [("a", 2, 6.0)])])
    assert [[], [("a", 0, 5.0)], []] == [output.rows() for output in outputs]
    ended = LATEST.end_of_input(state)
    assert [("b", 0, None)] == ended.output.select("k", "id", "temp").rows()
    assert ["k", "id", "temp"] == ended.output.columns
    assert [("a", {"temp": 6.0, "at": 2})] == ended.state.select("k", "right").rows()


def test_a_right_row_of_nulls_counts_as_known():
    """A key whose right row has a null column is enriched with null, and does not wait."""
    outputs, _ = run([([], [("a", None)]), (["a"], [])])
    assert [("a", 0, None)] == outputs[1]


def test_the_first_right_row_of_a_key_wins():
    """A later right row changes nothing. Of several in one micro-batch, the smallest one is taken, with nulls first."""
    outputs, _ = run([([], [("a", 2.0), ("a", 1.0)]), (["a"], [("a", 0.0)])])
    assert [("a", 0, 1.0)] == outputs[1]


def test_a_null_key_waits_for_ever():
    outputs, state = run([([None], [(None, 1.0)])])
    assert [[]] == outputs
    assert [{"k": None, "right": None, "waiting": [{"k": None, "id": 0}]}] == state.rows(named=True)


def test_schemas_hold_the_gained_columns_and_the_waiting_rows():
    """The state is the key, the right row and a list of left rows.

    The output is the left row with the gained columns.
    """
    left = StructType([StructField("k", StringType()), StructField("id", LongType())])
    right = StructType([StructField("rk", StringType()), StructField("temp", DoubleType())])
    temp = StructType([StructField("temp", DoubleType())])
    expected = [StructField("k", StringType()), StructField("right", temp), StructField("waiting", ArrayType(left))]
    assert StructType(expected) == enrich_state_schema(["k"], left, right, ["temp"])
    assert ["k", "id", "temp"] == enrich_schema(left, right, ["temp"]).names
    timed = right.add("at", LongType())
    kept = enrich_state_schema(["k"], left, timed, ["temp"], "at")["right"].dataType
    assert ["temp", "at"] == kept.names
    assert ["temp"] == enrich_state_schema(["k"], left, timed, ["temp"], "temp")["right"].dataType.names


def test_a_left_column_may_be_called_as_the_state_calls_the_right_row():
    """The state keeps the right row under a name that no user's column can have."""
    left = pl.DataFrame({"k": ["a", "b"], "right": [1, 2]})
    state = pl.DataFrame(
        schema={
            "k": pl.String,
            "right": pl.Struct({"temp": pl.Int64}),
            "waiting": pl.List(pl.Struct({"k": pl.String, "right": pl.Int64})),
        }
    )
    first = FUNCTION.process([left, pl.DataFrame({"rk": ["a"], "temp": [7]})], state)
    assert [("a", 1, 7)] == first.output.rows()
    waiting = first.state.filter(pl.col("k") == "b")
    second = FUNCTION.process([left.clear(), pl.DataFrame({"rk": ["b"], "temp": [8]})], waiting)
    assert [("b", 2, 8)] == second.output.rows()
