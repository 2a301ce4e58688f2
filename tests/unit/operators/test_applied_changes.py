"""The table of changes is the same in any order and any micro-batches, and equals a plain computation."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
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
from jobs.operators.changes import ADDING, changes_of
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

values = st.none() | st.integers(0, 2)
changes = st.tuples(
    st.none() | st.integers(1, 3), values, st.sampled_from(["x", None]), st.integers(0, 9), st.booleans()
)


def function(*, history, ignored=(), tracked=None):
    return AppliedChanges(("k",), ("a", "b"), "at", history, ignored=ignored, tracked=tracked)


def batch(rows):
    return pl.DataFrame(rows, schema=ROWS, orient="row")


def _order(row):
    _, a, b, at, deletes = row
    return at, deletes, (a is not None, a or 0), (b is not None, b or "")


def one_by_one(rows, *, history, ignored=(), tracked=("a", "b")):
    """Return the table's rows, computed key by key in plain Python."""
    table = []
    for key in {row[0] for row in rows}:
        after, held = {}, None
        for _, a, b, at, deletes in sorted((row for row in rows if row[0] == key), key=_order):
            new = {"a": a, "b": b}
            for name in ignored:
                if new[name] is None and held is not None:
                    new[name] = held[name]
            held = after[at] = None if deletes else new
        versions = []
        for at, row in after.items():
            open_one = versions[-1] if versions and versions[-1][2] is None else None
            if open_one and row and all(open_one[0][name] == row[name] for name in tracked):
                open_one[0] = row
                continue
            if open_one:
                open_one[2] = at
            if row:
                versions.append([row, at, None])
        shown = [(key, *row.values(), began, end, end is None) for row, began, end in versions]
        table += shown if history else [row[:3] for row in shown if row[-1]]
    return Counter(table)


column_choices = st.sampled_from([(), ("a",), ("b",), ("a", "b")])


@pytest.mark.parametrize("history", [False, True])
@given(
    st.lists(changes, max_size=25), st.lists(st.integers(0, 25), max_size=4), column_choices, st.none() | column_choices
)
def test_order_and_micro_batches_do_not_matter(history, rows, cuts, ignored, tracked):
    """After each micro-batch, the state and the changes put out up to then make the same table as the plain way."""
    apply = function(history=history, ignored=ignored, tracked=tracked)
    said = {"ignored": ignored, "tracked": ("a", "b") if tracked is None else tracked}
    state, folded, before = pl.DataFrame(schema=STATE), Counter(), {}
    for first, end in pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]):
        touched = batch(rows[first:end]).select("k").unique()
        own = state.join(touched, on="k", how="semi", nulls_equal=True)
        done = apply.process([batch(rows[first:end])], own)
        was = apply.results(own.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        for *row, kind in changes_of(was, done.output, apply.table_keys).rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        state = pl.concat([state.join(touched, on="k", how="anti", nulls_equal=True), done.state])
        before = one_by_one(rows[:end], history=history, **said)
        shown = apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        assert before == Counter(shown.rows())
        assert before == Counter({row: times for row, times in folded.items() if times})


def table(*rows, history=True, **columns):
    apply, state = function(history=history, **columns), pl.DataFrame(schema=STATE)
    for row in rows:
        state = apply.process([batch([row])], state).state
    return sorted(apply.results(state.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP).rows(), key=repr)


def test_a_late_change_splits_the_version_that_held_then():
    """The version from 1 ends at 3 instead of 5. The late one holds from 3 to 5."""
    first, last, late = (1, 1, "x", 1, False), (1, 2, "x", 5, False), (1, 9, "x", 3, False)
    assert [(1, 1, "x", 1, 3, False), (1, 2, "x", 5, None, True), (1, 9, "x", 3, 5, False)] == table(first, last, late)


def test_a_late_change_does_not_bring_a_deleted_key_back():
    """The deletion at 5 stays known. With history the late version ends there."""
    deleted, late = (1, None, None, 5, True), (1, 7, "x", 3, False)
    assert table(deleted, late, history=False) == []
    assert [(1, 7, "x", 3, 5, False)] == table(deleted, late)


def test_a_change_that_changes_nothing_begins_no_version_and_is_remembered():
    """Only a change between the two shows that the second one began a version of its own."""
    one, alike, between = (1, 1, "x", 1, False), (1, 1, "x", 3, False), (1, 2, "x", 2, False)
    assert [(1, 1, "x", 1, None, True)] == table(one, alike)
    assert [(1, 1, "x", 1, 2, False), (1, 1, "x", 3, None, True), (1, 2, "x", 2, 3, False)] == table(
        one, alike, between
    )


def test_a_null_that_is_ignored_keeps_the_value_before_whenever_that_comes():
    """The late change at 2 is older than the null at 3, so the null keeps its value. A null elsewhere is a value."""
    first, null, late = (1, 1, "x", 1, False), (1, None, None, 3, False), (1, 7, None, 2, False)
    assert [(1, 1, None)] == table(first, null, history=False, ignored=("a",))
    assert [(1, 7, None)] == table(first, null, late, history=False, ignored=("a",))
    assert [(1, 1, "x", 1, 2, False), (1, 7, "x", 2, None, True)] == table(first, null, late, ignored=("a", "b"))


def test_a_null_keeps_no_value_from_before_a_deletion():
    """The deletion comes last, and lies between the value and the null."""
    value, null, deleted = (1, 1, "x", 1, False), (1, None, "y", 5, False), (1, None, None, 3, True)
    assert [(1, None, "y")] == table(value, null, deleted, history=False, ignored=("a", "b"))
    assert [(1, None, "y", 5, None, True), (1, 1, "x", 1, 3, False)] == table(value, null, deleted, ignored=("a", "b"))[
        ::-1
    ]


def test_a_column_without_history_shows_its_newest_value_in_the_version_that_holds():
    """A late change of the other column splits the version. Each part then shows its own newest value."""
    first, second, late = (1, 1, "x", 1, False), (1, 1, "y", 5, False), (1, 2, "z", 3, False)
    assert [(1, 1, "y", 1, None, True)] == table(first, second, tracked=("a",))
    assert [(1, 1, "x", 1, 3, False), (1, 1, "y", 5, None, True), (1, 2, "z", 3, 5, False)] == table(
        first, second, late, tracked=("a",)
    )


def test_state_without_history_holds_few_changes_of_a_key_however_many_come():
    """They are the newest one, the newest deletion, and the newest one with a value for each column."""
    apply, state = function(history=False, ignored=("a", "b")), pl.DataFrame(schema=STATE)
    for n in range(40):
        rows = [(1, None if n % 3 else n, None if n % 5 else "x", n, n == 7)]
        state = apply.process([batch(rows)], state).state
    assert [{7, 35, 39}] == [{change[SEQUENCE] for change in held} for held in state[HISTORY]]


def test_a_change_without_a_place_is_refused_by_name():
    """AUTO CDC does not take a null in the sequence either."""
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


CHANGED = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from(["set", "leave", "leave", "delete"]), values, values), max_size=12
)


@pytest.mark.parametrize("history", [False, True])
@given(CHANGED, st.lists(st.integers(0, 12), max_size=3))
def test_values_that_were_not_sent_are_those_of_the_change_before(history, drawn, cuts):
    """The table is that of changes of which all values were sent, however they are cut into micro-batches."""
    rows, sent, unsent, known = [], [], {}, {}
    for at, (key, wanted, one, other) in enumerate(drawn):
        text = None if other is None else "xyz"[other]
        what = "set" if wanted == "leave" and key not in known else wanted
        values_now = {"set": (one, text), "leave": (known.get(key, (None,))[0], text), "delete": (None, None)}[what]
        rows.append((key, None if what == "leave" else values_now[0], values_now[1], at, what == "delete"))
        sent.append((key, *values_now, at, what == "delete"))
        unsent |= {at: ["a"]} if what == "leave" else {}
        known = known | {key: values_now} if what != "delete" else {k: v for k, v in known.items() if k != key}
    apply = AppliedChanges(("k",), ("a", "b"), "_position", history, of_database=True)
    shown = []
    for given_rows, lacking in ((rows, unsent), (sent, {})):
        state = pl.DataFrame(schema=STATE)
        for first, last in pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})):
            some = of_database(given_rows[first:last], lacking)
            own = state.join(some.select("k").unique(), on="k", how="semi")
            rest = state.join(some.select("k").unique(), on="k", how="anti")
            state = apply.remembered(pl.concat([rest, apply.process([some], own).state]))
        shown.append(sorted(state.rows()))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("before", [[], [(1, 1, "x", 1, False), (1, None, None, 2, True)]], ids=["none", "deleted"])
@pytest.mark.parametrize("history", [False, True])
def test_a_value_that_no_earlier_change_has_is_refused(history, before):
    """It names the column and the key."""
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
    """Of any type. A key whose newest change deletes nothing stays, however old, and so does a younger deletion."""
    first, second, newest = places
    state = state_of({1: (first, True), 2: (first, False), 3: (second, True), 4: (newest, True)}, kind)
    apply = AppliedChanges(("k",), ("a", "b"), "at", history, forget_deletes_after=distance)
    assert [2, 3, 4] == apply.remembered(state)["k"].to_list()
    assert apply.remembered(state.clear()).is_empty()
    assert state.equals(function(history=history).remembered(state))


def test_nothing_is_forgotten_before_the_first_date():
    """The horizon would be before the year 1."""
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
    """Truncates are at 5 and 7. Another key beside it, with a row that stays, makes no difference."""
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
    """After each micro-batch the table has Spark's rows. In any order of the changes, it has the last ones."""
    assert auto_cdc_cases.run_case(LEGEND, case) == []


def test_each_case_has_a_name_of_its_own_and_a_form():
    """The suites of Spark have as many cases as the documentation says."""
    assert SUITES == Counter(case["name"].split("#")[0] for case in CASES)
    assert len(CASES) == len({case["name"] for case in CASES})
    assert [] == [problem for case in CASES for problem in problems_of_form(LEGEND, case)]


@pytest.mark.parametrize("kind", ["scd1", "scd2"])
def test_a_wrong_expectation_is_reported(kind):
    """The message has both tables, of the micro-batch and of another order."""
    case = next(case for case in CASES if case["kind"] == kind and len(case["events"]) > 1)
    wrong = [1, "nobody"] if kind == "scd1" else [1, "nobody", 7, None]
    last = len(case["events"]) - 1
    found = auto_cdc_cases.run_case(LEGEND, {**case, "expect": [{"after": last, "table": [wrong]}]})
    assert [f"after {last}: expected [{wrong}], got ", "in the order ["] == [
        found[0][: len(f"after {last}: expected [{wrong}], got ")],
        found[1][: len("in the order [")],
    ]


# ------------------------------------------------------------------
# A table of changes is planned with its keys, and what cannot be one is refused by name when the pipeline is built.


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
    """Keys are never among them. With all others excepted, only a deletion ends a version."""
    pipeline, rows = sent_changes()
    applied(rows, type=2, **given).upsert("silver/applied")
    function = plan(pipeline).vertices["applied"].spec.function
    assert (ignored, tracked) == (function.ignored, function.tracked)


def test_other_columns_in_which_nulls_are_ignored_give_the_state_another_meaning():
    """So a restore refuses them. The table that was written shows the earlier ones."""

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
    """The fields of a struct may be null one by one. A database's change has the whole row."""
    _, rows = sent_changes()
    told = rows.with_column("pair", "struct(n, value)", StructType([StructField("n", LongType())]))
    with pytest.raises(
        InvalidPipelineError, match=r"column 'pair' is a struct.*name 'pair' in ignore_null_updates_exc"
    ):
        applied(told, ignore_null_updates=True)
    with pytest.raises(InvalidPipelineError, match=r"is the row's value\. Leave ignore_null_updates out"):
        apply_changes(database_changes(), "applied", keys=["id"], ignore_null_updates=True)


def test_a_sequence_without_an_order_is_refused():
    """Of two maps none is the newer."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10}))
    told = rows.with_column("flag", "n > 1", BooleanType())
    with pytest.raises(InvalidPipelineError, match="sequence_by is 'flag', a boolean, of which none is the latest"):
        applied(told, sequence_by="flag")


def test_a_column_with_a_name_of_ours_is_refused():
    """The table adds `current`, so no column of the changes may be called so."""
    _, rows = sent_changes()
    with pytest.raises(InvalidPipelineError, match="current"):
        applied(rows.with_column("current", "1", LongType()), type=2)


def test_updates_of_an_aggregate_are_no_changes_of_a_source():
    """They say themselves what they replace, and upsert writes them."""
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
    """Their table has the columns of the server's table alone."""
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
    """Their state forgets deleted keys anyway."""
    with pytest.raises(InvalidPipelineError, match="come in order, so the state forgets a deleted key anyway"):
        apply_changes(database_changes(), "applied", keys=["id"], forget_deletes_after=3)


# ------------------------------------------------------------------
# A pipeline that applies changes otherwise is refused: it cannot go on from the state of the old options (D6).


def meanings(kind=1, **options):
    """Return what a checkpoint says of the state of the applied changes."""
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
    """The state holds other changes, or the table already has other versions of its rows."""
    found = meaning_changes("state of operator 'newest'", meanings(**was), meanings(**now), {HISTORY})
    refused = [change.refused for change in found if change.refused]
    assert (was == now) is not bool(refused)
