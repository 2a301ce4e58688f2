"""Column lineage says from which columns of which source each column of a table comes, and how."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from jobs.pipeline.column_lineage import column_lineage
from jobs.pipeline.planning import plan
from tidemark import (
    Expectation,
    Pipeline,
    Processed,
    SequenceSource,
    as_of,
    count,
    deduplicate,
    join,
    max_of,
    sum_of,
    top,
    tumbling,
)


class Passes:
    def process(self, inputs, state):
        return Processed(state=state, output=inputs[0])


def numbers(pipeline, name, **renamed):
    """Return rows of a source, with `key`, `value` and the event time `at`."""
    rows = pipeline.source(name, SequenceSource({"a": 10})).select("key", "value")
    rows = rows.with_column("at", "timestamp_millis(value)", TimestampType())
    return rows.event_time("at", delay="1m").rename(renamed)


def found(declare, *, to_sources=True, table="gold/t"):
    """Return where the columns of a table come from (`source.column` or `table.column`, and how), and its rows."""
    pipeline = Pipeline("shop")
    declare(pipeline)
    lineage = column_lineage(plan(pipeline).declared, to_sources=to_sources)[table]

    def said(reads):
        return {f"{each.table or each.vertex}.{each.column} {each.how.name}" for each in reads}

    return {name: said(reads) for name, reads in lineage.columns.items()}, said(lineage.rows)


def derived(pipeline):
    rows = numbers(pipeline, "a").with_column("twice", "key * 2 + length(cast(VALUE as string))", LongType())
    rows = rows.where("twice > 3").rename({"key": "id"}).drop("at")
    rows.with_column("same", "id", LongType()).table("gold/t", id="t")


def aggregated(pipeline):
    rows = numbers(pipeline, "a").with_column("half", "value / 2", LongType())
    sums = rows.key_by("key").aggregate("sums", spent=sum_of("half"), some=count(where="value > 3"))
    sums.key_by("spent").aggregate("by_sum", keys=count(), most=max_of("some")).upsert("gold/t")


def windowed(pipeline):
    windows = numbers(pipeline, "a").key_by("key").window(tumbling("1h"))
    windows.aggregate("hours", n=count("value"), late="gold/late").table("gold/t")


def joined(pipeline):
    left, right = numbers(pipeline, "a"), numbers(pipeline, "b", key="id", value="price", at="since").drop("since")
    sides = left.key_by("key"), right.key_by("id")
    join(*sides, "j", how="full").key_by("key").aggregate("s", n=sum_of("price")).upsert("gold/t")


def priced(pipeline):
    left, right = numbers(pipeline, "a"), numbers(pipeline, "b", key="id", value="price", at="since")
    as_of(left.key_by("key"), right.key_by("id"), "p", late="gold/late").table("gold/t")


def first(pipeline):
    top(numbers(pipeline, "a").key_by("key"), "first", n=2, order_by="value desc", row_number="nth").upsert("gold/t")


def newest(pipeline):
    deduplicate(numbers(pipeline, "a").key_by("key"), "newest", order_by="at", keep="last").upsert("gold/t")


def united(pipeline):
    one, other = numbers(pipeline, "a"), numbers(pipeline, "b").select("at", "value", "key")
    one.union(other, id="both").table("gold/t")


def checked(pipeline):
    rule = Expectation("expect_column_values_to_be_between", {"column": "value", "min_value": 3})
    rows = numbers(pipeline, "a").table("bronze/t", id="bronze").check_rows(rule, quarantine="gold/bad")
    rows.select("key").table("gold/t", id="t")


OPAQUE = {"a.key TRANSFORMATION", "a.value TRANSFORMATION"}


def opaque(pipeline):
    rows = numbers(pipeline, "a").drop("at").with_column("made", lambda: F.col("key"), LongType())
    rows.transform(lambda rows: rows.select("made"), StructType([StructField("made", LongType())])).table(
        "gold/t", id="t"
    )


def processed(pipeline):
    rows = numbers(pipeline, "a").drop("at").key_by("key")
    of = StructType([StructField("n", LongType())])
    rows.process("f", Passes(), state=of, output=StructType([StructField("x", StringType())])).table("gold/t")


BY_TIME = "a.value TRANSFORMATION"


@pytest.mark.parametrize(
    ("declare", "columns", "rows"),
    [
        (
            derived,
            {"id": {"a.key IDENTITY"}, "value": {"a.value IDENTITY"}, "twice": OPAQUE, "same": {"a.key IDENTITY"}},
            {"a.key FILTER", "a.value FILTER"},
        ),
        (
            aggregated,
            {"spent": {"a.value AGGREGATION"}, "keys": set(), "most": {"a.value AGGREGATION"}},
            {"a.key GROUP_BY", "a.value GROUP_BY"},
        ),
        (
            windowed,
            {
                "key": {"a.key IDENTITY"},
                "window_start": {BY_TIME},
                "window_end": {BY_TIME},
                "n": {"a.value AGGREGATION"},
            },
            {"a.key GROUP_BY", "a.value WINDOW"},
        ),
        (
            joined,
            {"key": {"a.key IDENTITY", "b.key IDENTITY"}, "n": {"b.value AGGREGATION"}},
            {"a.key JOIN", "b.key JOIN", "a.key GROUP_BY", "b.key GROUP_BY"},
        ),
        (
            priced,
            {
                "key": {"a.key IDENTITY"},
                "value": {"a.value IDENTITY"},
                "at": {BY_TIME},
                "price": {"b.value IDENTITY"},
                "since": {"b.value TRANSFORMATION"},
            },
            {"a.key JOIN", "a.value JOIN", "b.key JOIN", "b.value JOIN"},
        ),
        (
            first,
            {"key": {"a.key IDENTITY"}, "value": {"a.value IDENTITY"}, "at": {BY_TIME}, "nth": {BY_TIME}},
            {"a.key WINDOW", "a.value WINDOW"},
        ),
        (
            newest,
            {"key": {"a.key IDENTITY"}, "value": {"a.value IDENTITY"}, "at": {BY_TIME}},
            {"a.key WINDOW", "a.value WINDOW"},
        ),
        (
            united,
            {
                "key": {"a.key IDENTITY", "b.key IDENTITY"},
                "value": {"a.value IDENTITY", "b.value IDENTITY"},
                "at": {BY_TIME, "b.value TRANSFORMATION"},
            },
            set(),
        ),
        (checked, {"key": {"a.key IDENTITY"}}, {"a.value FILTER"}),
        (opaque, {"made": OPAQUE}, set()),
        (processed, {"x": OPAQUE}, set()),
    ],
)
def test_each_column_comes_from_columns_of_the_sources(declare, columns, rows):
    assert found(declare) == (columns, rows)


def test_lineage_may_end_at_the_nearest_table():
    """So each table of a catalog names its neighbours. Without a table on the way, lineage goes on to the source."""
    assert found(checked, to_sources=False) == ({"key": {"bronze/t.key IDENTITY"}}, {"bronze/t.value FILTER"})
    bad, rows = found(checked, to_sources=False, table="gold/bad")
    assert bad["_failed"] == {BY_TIME}
    assert rows == {"a.value FILTER"}


@pytest.mark.parametrize("declare", [windowed, priced])
def test_late_rows_keep_their_columns(declare):
    columns, rows = found(declare, table="gold/late")
    assert columns["value"] == {"a.value IDENTITY"}
    assert "a.value FILTER" in rows


EXPRESSIONS = (
    "key + value",
    "if(key > 3, value, null)",
    "case when `odd name` is null then key else 0 end",
    "struct(key, VALUE).key",
    "nested.inner.leaf + 1",
    "transform(items, x -> x + key)",
    "exists(items, key -> key > 1)",
    "filter(items, (x, i) -> i < value)",
    "named_struct('value', key)",
    "items[key]",
    "map(key, value)[1]",
    "try_cast(text as int) + date_diff(day, at, timestamp'2024-01-01 00:00:00')",
    "at + interval 5 minutes",
    "extract(year from at)",
    "text like '%value%' and text rlike 'key'",
    "trim(both 'x' from text) || substring(text from 2 for 3)",
    "key between 1 and value",
    "key in (1, value)",
    "count_if(key > 1)",
    "cast(key as decimal(10, 2)) div 2",
    "xxhash64(key, *)",
    "from_json(text, 'key int, value string').value",
    "date'2024-01-01' + `odd name`",
    "nullif(key, value) <=> 3",
    "current_timestamp()",
)


@pytest.mark.spark
def test_expressions_read_the_columns_that_spark_says(spark):
    """Spark's own analyzer gives the expected columns."""
    types = (
        "key bigint, value bigint, `odd name` int, text string, at timestamp, items array<bigint>, "
        "nested struct<inner struct<leaf int>>"
    )
    frame = spark.createDataFrame([], types)
    for expression in EXPRESSIONS:
        analyzed = frame.selectExpr(expression)._jdf.queryExecution().analyzed()
        references = analyzed.references()
        truth = {references.toSeq().apply(i).name().lower() for i in range(references.size())}
        pipeline = Pipeline("x")
        rows = pipeline.source("s", SequenceSource({"a": 1})).transform(lambda rows: rows, frame.schema)
        rows.table("bronze/b", id="b").with_column("made", expression, StringType()).table("gold/t", id="t")
        lineage = column_lineage(plan(pipeline).declared, to_sources=False)["gold/t"]
        ours = {each.column for each in lineage.columns["made"]}
        assert truth == ours, expression
