"""Tables of changes: Spark's own cases, plans and refusals. Their model is in `test_applied_properties`."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DateType, LongType, StringType, StructField, StructType

from checkpointing.graph import TableMode
from checkpointing.state_meaning import meaning_changes
from jobs.operators.applied_changes import (
    DELETES,
    HISTORY,
    SEQUENCE,
    UNSENT,
    AppliedChanges,
    NoSequenceError,
    RefusedChangeError,
    uncovered,
)
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from jobs.sources.change_rows import HEAD
from jobs.sources.port import POSITION_COLUMN
from jobs.state.merge import KEY_GROUP
from spec.flink import vectors
from spec.flink.vectors import problems_of_form
from tests.unit.operators import auto_cdc_cases
from tidemark import Pipeline, SequenceSource, apply_changes, count, join

ROWS = {"k": pl.Int64, "a": pl.Int64, "b": pl.String, SEQUENCE: pl.Int64, DELETES: pl.Boolean}
CHANGE = pl.Struct({name: ROWS[name] for name in (SEQUENCE, DELETES, "a", "b")})
STATE = {"k": pl.Int64, HISTORY: pl.List(CHANGE)}


def function(*, history, ignored=(), tracked=None):
    return AppliedChanges(("k",), ("a", "b"), "at", history, ignored=ignored, tracked=tracked)


def batch(rows):
    return pl.DataFrame(rows, schema=ROWS, orient="row")


def test_a_change_without_a_place_is_refused_by_name():
    """Spark's AUTO CDC does not accept a null in the sequence either."""
    with pytest.raises(NoSequenceError, match="the change of k=1 has no value in at"):
        function(history=True).process([batch([(1, 1, "x", None, False)])], pl.DataFrame(schema=STATE))


@pytest.mark.parametrize("history", [False, True])
@given(st.permutations([(1, 1, "x", 1, False), (1, 1, "x", 3, True), (1, 2, "x", 3, False), (2, 5, "x", 7, True)]))
def test_the_new_row_of_an_update_counts_and_the_old_one_gives_way(history, rows):
    """An update's rows have one place. In whatever order they come, an old row whose key is gone deletes it."""
    apply, state = (
        AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True),
        pl.DataFrame(schema=STATE),
    )
    for row in rows:
        own = state.filter(k=row[0])
        done = apply.process([of_database([row])], own)
        state = pl.concat([state.filter(pl.col("k") != row[0]), done.state])
    shown = apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
    wanted = [(1, 1, "x", 1, 3, False), (1, 2, "x", 3, None, True)] if history else [(1, 2, "x")]
    assert wanted == sorted(shown.rows())


def of_database(rows, unsent=None):
    told = [(unsent or {}).get(row[3]) for row in rows]
    return batch(rows).with_columns(pl.Series(UNSENT, told, dtype=pl.List(pl.String)))


@pytest.mark.parametrize("before", [[], [(1, 1, "x", 1, False), (1, None, None, 2, True)]], ids=["none", "deleted"])
@pytest.mark.parametrize("history", [False, True])
def test_a_value_that_no_earlier_change_has_is_refused(history, before):
    """The error names the column and the key."""
    apply = AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True)
    rows = of_database([*before, (1, None, "y", 3, False)], {3: ["a"]})
    with pytest.raises(RefusedChangeError, match="in column a, and no earlier change of k=1 has it"):
        apply.process([rows], pl.DataFrame(schema=STATE))


def state_of(places, kind=pl.Int64):
    change = pl.Struct({SEQUENCE: kind, DELETES: pl.Boolean, "a": pl.Int64, "b": pl.String})
    rows = [(key, [{SEQUENCE: at, DELETES: gone, "a": 1, "b": "x"}]) for key, (at, gone) in places.items()]
    return pl.DataFrame(rows, schema={"k": pl.Int64, HISTORY: pl.List(change)}, orient="row")


@pytest.mark.parametrize(
    ("kind", "places", "distance"),
    [
        (pl.Int8, [-128, 0, 100], 101),
        (pl.Int64, [-(2**63), 2**63 - 101, 2**63 - 1], 101),
        (pl.Date, [date(1, 1, 1), date(2026, 1, 1), date(2026, 1, 31)], timedelta(days=30)),
        (pl.Datetime("us", "UTC"), [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 7, 14)], timedelta(days=7)),
    ],
)
@pytest.mark.parametrize("history", [False, True])
def test_deletions_are_forgotten_by_the_newest_change(kind, places, distance, history):
    """The order may have any type. A key whose newest change is no deletion stays, however old.

    A recent deletion stays, too.
    """
    first, second, newest = places
    state = state_of({1: (first, True), 2: (first, False), 3: (second, True), 4: (newest, True)}, kind)
    apply = AppliedChanges(("k",), ("a", "b"), "at", history, forget_deletes_after=distance)
    assert [2, 3, 4] == apply.remembered(state)["k"].to_list()
    assert apply.remembered(state.clear()).is_empty()
    assert state.equals(function(history=history).remembered(state))


def test_nothing_is_forgotten_before_the_first_date():
    """In this case, the limit would be a date before the year 1."""
    state = state_of({1: (date(1, 1, 1), True), 2: (date(1, 1, 5), True)}, pl.Date)
    apply = AppliedChanges(("k",), ("a", "b"), "at", False, forget_deletes_after=timedelta(days=30))
    assert state.equals(apply.remembered(state))


def test_changes_of_a_database_forget_deletions_at_once():
    state = state_of({1: (1, True), 2: (2, False)})
    assert [2] == AppliedChanges(("k",), ("a", "b"), "at", True, of_database=True).remembered(state)["k"].to_list()


# ------------------------------------------------------------------
# A truncate adds a deletion to a key's changes only if there is a row to delete.


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ("1+ 5-", "1+ 5-"),
        ("5-", ""),
        ("5- 7-", ""),
        ("5- 6+ 7-", "6+ 7-"),
        ("1+ 3- 5-", "1+ 3-"),
        ("1+ 3- 5- 7-", "1+ 3-"),
        ("1+ 5- 7-", "1+ 5-"),
        ("1+ 5- 6+ 7-", "1+ 5- 6+ 7-"),
        ("1+ 3- 4- 5- 9-", "1+ 3- 4- 9-"),
        ("1+ 2+ 5- 9+", "1+ 2+ 5- 9+"),
        ("3- 5- 6+", "3- 6+"),
    ],
)
def test_a_truncate_leaves_no_deletion_where_nothing_is(changes, left):
    """Truncates are at 5 and 7. Other keys with rows that stay make no difference."""
    rows = [(key, int(each[:-1]), each[-1] == "-") for key in ("a", "b") for each in changes.split()]
    rows = [("0", 9, False), *rows, ("c", 1, False)]
    ordered = pl.DataFrame(rows, schema={"k": pl.String, "at": pl.Int64, "deletes": pl.Boolean}, orient="row")
    found = uncovered(ordered, pl.DataFrame({"at": [5, 7]}), ["k"], "at", "deletes")
    for key in ("a", "b"):
        of_key = found.filter(pl.col("k") == key).select("at", "deletes").rows()
        assert left == " ".join(f"{at}{'-' if deletes else '+'}" for at, deletes in of_key)
    assert 2 == found.filter(pl.col("k").is_in(["0", "c"])).height


# ------------------------------------------------------------------
# The cases of Spark's own tests of AUTO CDC hold for the functions that the tasks call.


FILE = Path(__file__).parents[2] / "vectors" / "rows" / "auto_cdc.json"
LEGEND, CASES = vectors.load(str(FILE))
SUITES = {
    "AutoCdcScd1SinglePipelineSuite": 2,
    "Scd2BatchProcessorSuite": 3,
    "Scd2CoalesceIgnoredNullsSuite": 9,
    "Scd2ForeachBatchHandlerSuite": 19,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_tables_of_changes_are_those_of_spark(case):
    """After each micro-batch, the table has Spark's rows.

    In any order of the changes, it ends with Spark's last rows.
    """
    assert auto_cdc_cases.run_case(LEGEND, case) == []


def test_each_case_has_a_name_of_its_own_and_a_form():
    """There are as many cases of Spark's suites as the documentation says."""
    assert SUITES == Counter(case["name"].split("#")[0] for case in CASES)
    assert len(CASES) == len({case["name"] for case in CASES})
    assert [] == [problem for case in CASES for problem in problems_of_form(LEGEND, case)]


@pytest.mark.parametrize("kind", ["scd1", "scd2"])
def test_a_wrong_expectation_is_reported(kind):
    """The problems show the expected and the actual table, after the micro-batch and for another order."""
    case = next(case for case in CASES if case["kind"] == kind and len(case["events"]) > 1)
    wrong = [1, "nobody"] if kind == "scd1" else [1, "nobody", 7, None]
    last = len(case["events"]) - 1
    found = auto_cdc_cases.run_case(LEGEND, {**case, "expect": [{"after": last, "table": [wrong]}]})
    assert [f"after {last}: expected [{wrong}], got ", "in the order ["] == [
        found[0][: len(f"after {last}: expected [{wrong}], got ")],
        found[1][: len("in the order [")],
    ]


# ------------------------------------------------------------------
# A table of changes is planned with its keys. Rows that cannot make such a table are refused when the pipeline is
# built, and the error names what is wrong.


def sent_changes():
    pipeline = Pipeline("example")
    return pipeline, pipeline.source("numbers", SequenceSource({"a": 10})).select("key", "n", "value")


def applied(stream, **given):
    return apply_changes(stream, "applied", **{"keys": ["key"], "sequence_by": "n"} | given)


@pytest.mark.parametrize(("kind", "keys"), [(1, ("key",)), (2, ("key", "valid_from"))])
def test_the_rows_of_the_table_are_told_apart_by_its_keys(kind, keys):
    pipeline, rows = sent_changes()
    applied(rows, type=kind).upsert("silver/applied")
    table = plan(pipeline).graph.vertex("applied").tables[0]
    assert (TableMode.UPSERT, keys) == (table.mode, table.keys)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keys": []}, "name at least one column"),
        ({"keys": ["nobody"]}, "there is no column 'nobody'"),
        ({"sequence_by": "nobody"}, "there is no column 'nobody'"),
        ({"type": 3}, "type is 3; write 1 for the newest rows or 2 for all versions"),
        ({"columns": ["value"], "except_columns": ["n"]}, "name columns or except_columns, not both"),
        ({"columns": ["nobody"]}, "there is no column 'nobody'"),
        (
            {"ignore_null_updates": True, "ignore_null_updates_columns": ["value"]},
            "set one of ignore_null_updates, ignore_null_updates_columns and ignore_null_updates_except_columns",
        ),
        (
            {"ignore_null_updates_columns": ["key"]},
            "ignore_null_updates_columns names 'key'. Name columns of the table",
        ),
        ({"ignore_null_updates_except_columns": ["nobody"]}, "except_columns names 'nobody'.* no keys: n, value"),
        ({"track_history_columns": ["value"]}, "type 1 has no history. Set type=2, or leave track_history_columns out"),
        ({"type": 2, "track_history_columns": ["key"]}, "track_history_columns names 'key'. Name columns of the table"),
        (
            {"type": 2, "track_history_columns": ["n"], "track_history_except_columns": ["value"]},
            "name track_history_columns or track_history_except_columns, not both",
        ),
        ({"type": 2, "except_columns": ["n"], "track_history_except_columns": ["n"]}, "names 'n'.* no keys: value"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(given, says):
    """The message names what is wrong."""
    _, rows = sent_changes()
    with pytest.raises(InvalidPipelineError, match=says):
        applied(rows, **given)


@pytest.mark.parametrize(
    ("given", "ignored", "tracked"),
    [
        ({}, (), None),
        ({"ignore_null_updates": True}, ("n", "value"), None),
        ({"ignore_null_updates_columns": ["value"]}, ("value",), None),
        ({"ignore_null_updates_except_columns": ["value"]}, ("n",), None),
        ({"track_history_columns": ["value"]}, (), ("value",)),
        ({"track_history_except_columns": ["value"]}, (), ("n",)),
        ({"track_history_except_columns": ["n", "value"]}, (), ()),
    ],
)
def test_columns_are_named_or_all_others_are(given, ignored, tracked):
    """Keys are never among these columns. If all other columns are excepted, only a deletion ends a version."""
    pipeline, rows = sent_changes()
    applied(rows, type=2, **given).upsert("silver/applied")
    function = plan(pipeline).vertices["applied"].spec.function
    assert (ignored, tracked) == (function.ignored, function.tracked)


def test_other_columns_in_which_nulls_are_ignored_give_the_state_another_meaning():
    """So a restore refuses changed options. The table was written with the earlier options."""

    def meaning(**given):
        pipeline, rows = sent_changes()
        applied(rows, type=2, **given).upsert("silver/applied")
        return str(plan(pipeline).vertices["applied"].spec.meanings[0])

    several = [
        {},
        {"ignore_null_updates": True},
        {"ignore_null_updates_columns": ["n"]},
        {"ignore_null_updates_columns": ["value"]},
        {"track_history_columns": ["n"]},
        {"track_history_columns": ["value"]},
        {"ignore_null_updates_columns": ["n"], "track_history_columns": ["value"]},
        {"track_history_except_columns": ["n", "value"]},
    ]
    assert len(several) == len({meaning(**given) for given in several})
    assert "all_changes(n bigint, n bigint, value bigint)" == meaning()


def test_nulls_of_a_struct_and_of_a_database_cannot_be_ignored():
    """Fields of a struct may be null one by one. A null in a database's change is the row's value."""
    _, rows = sent_changes()
    told = rows.with_column("pair", "struct(n, value)", StructType([StructField("n", LongType())]))
    with pytest.raises(
        InvalidPipelineError, match=r"column 'pair' is a struct.*name 'pair' in ignore_null_updates_exc"
    ):
        applied(told, ignore_null_updates=True)
    with pytest.raises(InvalidPipelineError, match=r"is the row's value\. Leave ignore_null_updates out"):
        apply_changes(database_changes(), "applied", keys=["id"], ignore_null_updates=True)


def test_a_sequence_without_an_order_is_refused():
    """Some types have no order, such as booleans."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10}))
    told = rows.with_column("flag", "n > 1", BooleanType())
    with pytest.raises(InvalidPipelineError, match="sequence_by is 'flag', a boolean, of which none is the latest"):
        applied(told, sequence_by="flag")


def test_a_column_with_a_name_of_ours_is_refused():
    """The table adds a column `current`, so no column of the changes may have this name."""
    _, rows = sent_changes()
    with pytest.raises(InvalidPipelineError, match="current"):
        applied(rows.with_column("current", "1", LongType()), type=2)


def test_updates_of_an_aggregate_are_no_changes_of_a_source():
    """Updates of an aggregate already name the rows that they replace, and `upsert` writes them."""
    _, rows = sent_changes()
    counted = rows.key_by("key").aggregate("counted", n=count())
    with pytest.raises(InvalidPipelineError, match=r"its rows are updates of 'counted'.*with upsert"):
        applied(counted)


def test_an_append_table_cannot_hold_rows_that_go():
    _, rows = sent_changes()
    with pytest.raises(InvalidPipelineError, match=r"apply_changes 'applied' takes changes and so .*upsert"):
        applied(rows).table("silver/applied")


def test_a_step_that_cannot_take_a_row_back_is_refused():
    pipeline, rows = sent_changes()
    table = applied(rows)
    table.key_by("value").aggregate("sizes", rows=count()).upsert("gold/sizes")
    other = rows.select("key").key_by("key")
    join(table.key_by("key"), other, "joined").key_by("value").aggregate("n", of=count()).upsert("gold/n")
    graph = plan(pipeline).graph
    assert graph.vertex("sizes").changes_of == graph.vertex("joined").changes_of == ("applied",)
    with pytest.raises(InvalidPipelineError, match="its rows are those of apply_changes 'applied'"):
        table.table("silver/kept", id="kept")


def database_changes(*without):
    """Return the changes of a database's table, without some of their columns."""
    told = StructType([*HEAD.fields, StructField(POSITION_COLUMN, LongType()), StructField("id", LongType())])
    told = told.add("name", "string")
    rows = Pipeline("example").source("numbers", SequenceSource({"a": 10}))
    names = [name for name in told.names if name not in without]
    return rows.transform(lambda frame: frame, told).select(*names)


def test_changes_of_a_database_need_no_order_and_no_condition():
    """The table has only the columns of the server's table, and the columns that describe versions."""
    table = apply_changes(database_changes(), "applied", keys=["id"], type=2)
    assert ["id", "name", "valid_from", "valid_to", "current"] == table.schema.names


@pytest.mark.parametrize(
    ("without", "given", "says"),
    [
        (["_unchanged"], {}, "its rows do not say their order. Name the column that does"),
        (["_position"], {}, "its rows do not say their order. Name the column that does"),
        ([], {"apply_as_deletes": "_kind = 'delete'"}, "_kind says which changes delete"),
        ([], {"sequence_by": "_lsn"}, "which is the same for all changes of a transaction"),
        ([], {"sequence_by": "_committed_at"}, "which is the same for all changes of a transaction"),
    ],
)
def test_an_order_that_changes_of_a_database_lack_or_share_is_refused(without, given, says):
    """The message names the way out."""
    with pytest.raises(InvalidPipelineError, match=says):
        apply_changes(database_changes(*without), "applied", **{"keys": ["id"]} | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"forget_deletes_after": timedelta(days=1)}, "is datetime.timedelta.* a bigint. Write a whole number"),
        ({"forget_deletes_after": True}, "is True, and sequence_by is 'n'"),
        ({"forget_deletes_after": -1}, "it may not be negative"),
        ({"sequence_by": "day", "forget_deletes_after": 7}, "Write a timedelta, as in timedelta"),
        ({"sequence_by": "day", "forget_deletes_after": timedelta(days=-1)}, "it may not be negative"),
        ({"sequence_by": "text", "forget_deletes_after": 7}, "Only whole numbers, dates and moments"),
    ],
)
def test_a_distance_that_does_not_fit_the_order_is_refused(given, says):
    _, rows = sent_changes()
    rows = rows.with_column("day", "current_date()", DateType()).with_column("text", "'x'", StringType())
    with pytest.raises(InvalidPipelineError, match=says):
        applied(rows, **given)


def test_changes_of_a_database_have_no_distance():
    """The state forgets the deleted keys of a database anyway."""
    with pytest.raises(InvalidPipelineError, match="come in order, so the state forgets a deleted key anyway"):
        apply_changes(database_changes(), "applied", keys=["id"], forget_deletes_after=3)


# ------------------------------------------------------------------
# A pipeline that applies changes with other options is refused: it cannot continue from the old state (D6).


def meanings(kind=1, **options):
    """Return the meanings that a checkpoint records for the state of the applied changes."""
    pipeline = Pipeline("applied", parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3))
    apply_changes(numbers, "newest", keys=["key"], sequence_by="n", type=kind, columns=["value", "split"], **options)
    (vertex,) = [each for each in plan(pipeline).graph.vertices if each.id == "newest"]
    return vertex.meanings


PLAIN, NULLS = {}, {"ignore_null_updates": True}
SOME_NULLS = {"ignore_null_updates_columns": ["value"]}
OTHER_NULLS = {"ignore_null_updates_columns": ["split"]}
HISTORIES, TRACKED = {"kind": 2}, {"kind": 2, "track_history_columns": ["value"]}
TRACKED_OTHER = {"kind": 2, "track_history_columns": ["split"]}
ALL = (PLAIN, NULLS, SOME_NULLS, OTHER_NULLS, HISTORIES, TRACKED, TRACKED_OTHER)


@pytest.mark.parametrize("was", ALL)
@pytest.mark.parametrize("now", ALL)
def test_state_of_changes_that_were_applied_otherwise_is_refused(was, now):
    """With other options, the state would hold other changes, or the table would have other versions of its rows."""
    found = meaning_changes("state of operator 'newest'", meanings(**was), meanings(**now), {HISTORY})
    refused = [change.refused for change in found if change.refused]
    assert (was == now) is not bool(refused)
