"""Enriching: whichever side comes first, every left row goes out once, as soon as its right row is known."""

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
    """Run micro-batches of (left keys, right rows); return the output rows of each and the last state."""
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
    """Do the same with dicts and lists."""
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
def test_enriching_does_what_a_loop_over_rows_would(batches):
    """Outputs of each micro-batch, what is known and who waits equal the naive ones, null keys included."""
    outputs, known, waiting = model(batches)
    got, state = run(batches)
    assert outputs == got
    rows = state.rows(named=True)
    assert known == {row["k"]: row["right"]["temp"] for row in rows if row["right"] is not None}
    assert sorted(waiting, key=lambda row: row[1]) == sorted(
        ((row["k"], left["id"]) for row in rows for left in row["waiting"] or []), key=lambda row: row[1]
    )
    assert len(rows) == len({row["k"] for row in rows})


def test_a_right_row_of_nulls_is_known():
    """A key whose right row has a null column is enriched with null; it does not wait."""
    outputs, _ = run([([], [("a", None)]), (["a"], [])])
    assert [("a", 0, None)] == outputs[1]


def test_the_first_right_row_of_a_key_wins():
    """A later right row changes nothing; among several in one micro-batch the smallest counts, nulls first."""
    outputs, _ = run([([], [("a", 2.0), ("a", 1.0)]), (["a"], [("a", 0.0)])])
    assert [("a", 0, 1.0)] == outputs[1]


def test_a_null_key_waits_for_ever():
    """A null matches nothing, not even a null."""
    outputs, state = run([([None], [(None, 1.0)])])
    assert [[]] == outputs
    assert [{"k": None, "right": None, "waiting": [{"k": None, "id": 0}]}] == state.rows(named=True)


def test_schemas_hold_the_gained_columns_and_the_waiting_rows():
    """The state is key, right row and list of left rows; the output the left row and what it gained."""
    left = StructType([StructField("k", StringType()), StructField("id", LongType())])
    right = StructType([StructField("rk", StringType()), StructField("temp", DoubleType())])
    temp = StructType([StructField("temp", DoubleType())])
    expected = [StructField("k", StringType()), StructField("right", temp), StructField("waiting", ArrayType(left))]
    assert StructType(expected) == enrich_state_schema(["k"], left, right, ["temp"])
    assert ["k", "id", "temp"] == enrich_schema(left, right, ["temp"]).names
