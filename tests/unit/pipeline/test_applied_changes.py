"""A table of changes is planned with its keys, and what cannot be one is refused by name when the pipeline is built."""

from datetime import timedelta

import pytest
from pyspark.sql.types import BooleanType, DateType, LongType, StringType, StructField, StructType

from checkpointing.graph import TableMode
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from jobs.sources.change_rows import HEAD
from jobs.sources.port import POSITION_COLUMN
from tidemark import Pipeline, SequenceSource, apply_changes, count, join


def changes():
    """Return a pipeline and an append-only stream of changes (key, n, value)."""
    pipeline = Pipeline("example")
    return pipeline, pipeline.source("numbers", SequenceSource({"a": 10})).select("key", "n", "value")


def applied(stream, **given):
    """Apply the changes of a stream, with other settings where they are given."""
    return apply_changes(stream, "applied", **{"keys": ["key"], "sequence_by": "n"} | given)


@pytest.mark.parametrize(("kind", "keys"), [(1, ("key",)), (2, ("key", "valid_from"))])
def test_the_rows_of_the_table_are_told_apart_by_its_keys(kind, keys):
    """With versions, `valid_from` is one of them."""
    pipeline, rows = changes()
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
    _, rows = changes()
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
    pipeline, rows = changes()
    applied(rows, type=2, **given).upsert("silver/applied")
    function = plan(pipeline).vertices["applied"].spec.function
    assert (ignored, tracked) == (function.ignored, function.tracked)


def test_other_columns_in_which_nulls_are_ignored_give_the_state_another_meaning():
    """So a restore refuses them. The table that was written shows the earlier ones."""

    def meaning(**given):
        pipeline, rows = changes()
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
    _, rows = changes()
    told = rows.with_column("pair", "struct(n, value)", StructType([StructField("n", LongType())]))
    with pytest.raises(
        InvalidPipelineError, match=r"column 'pair' is a struct.*name 'pair' in ignore_null_updates_exc"
    ):
        applied(told, ignore_null_updates=True)
    with pytest.raises(InvalidPipelineError, match=r"is the row's value\. Leave ignore_null_updates out"):
        apply_changes(of_database(), "applied", keys=["id"], ignore_null_updates=True)


def test_a_sequence_without_an_order_is_refused():
    """Of two maps none is the newer."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10}))
    told = rows.with_column("flag", "n > 1", BooleanType())
    with pytest.raises(InvalidPipelineError, match="sequence_by is 'flag', a boolean, of which none is the latest"):
        applied(told, sequence_by="flag")


def test_a_column_with_a_name_of_ours_is_refused():
    """The table adds `current`, so no column of the changes may be called so."""
    _, rows = changes()
    with pytest.raises(InvalidPipelineError, match="current"):
        applied(rows.with_column("current", "1", LongType()), type=2)


def test_updates_of_an_aggregate_are_no_changes_of_a_source():
    """They say themselves what they replace, and upsert writes them."""
    _, rows = changes()
    counted = rows.key_by("key").aggregate("counted", n=count())
    with pytest.raises(InvalidPipelineError, match=r"its rows are updates of 'counted'.*with upsert"):
        applied(counted)


def test_an_append_table_cannot_hold_rows_that_go():
    """The message says what can."""
    _, rows = changes()
    with pytest.raises(InvalidPipelineError, match=r"apply_changes 'applied' takes changes and so .*upsert"):
        applied(rows).table("silver/applied")


def test_a_step_that_cannot_take_a_row_back_is_refused():
    """An aggregate and a join can."""
    pipeline, rows = changes()
    table = applied(rows)
    table.key_by("value").aggregate("sizes", rows=count()).upsert("gold/sizes")
    other = rows.select("key").key_by("key")
    join(table.key_by("key"), other, "joined").key_by("value").aggregate("n", of=count()).upsert("gold/n")
    graph = plan(pipeline).graph
    assert graph.vertex("sizes").changes_of == graph.vertex("joined").changes_of == ("applied",)
    with pytest.raises(InvalidPipelineError, match="its rows are those of apply_changes 'applied'"):
        table.table("silver/kept", id="kept")


def of_database(*without):
    """Return the changes of a database's table, without some of their columns."""
    told = StructType([*HEAD.fields, StructField(POSITION_COLUMN, LongType()), StructField("id", LongType())])
    told = told.add("name", "string")
    rows = Pipeline("example").source("numbers", SequenceSource({"a": 10}))
    names = [name for name in told.names if name not in without]
    return rows.transform(lambda frame: frame, told).select(*names)


def test_changes_of_a_database_need_no_order_and_no_condition():
    """Their table has the columns of the server's table alone."""
    table = apply_changes(of_database(), "applied", keys=["id"], type=2)
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
        apply_changes(of_database(*without), "applied", **{"keys": ["id"]} | given)


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
    """The message says what fits."""
    _, rows = changes()
    rows = rows.with_column("day", "current_date()", DateType()).with_column("text", "'x'", StringType())
    with pytest.raises(InvalidPipelineError, match=says):
        applied(rows, **given)


def test_changes_of_a_database_have_no_distance():
    """Their state forgets deleted keys anyway."""
    with pytest.raises(InvalidPipelineError, match="come in order, so the state forgets a deleted key anyway"):
        apply_changes(of_database(), "applied", keys=["id"], forget_deletes_after=3)
