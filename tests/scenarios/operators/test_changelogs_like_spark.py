"""Compares cuts of pipelines over changelogs with Spark SQL: aggregates of aggregates, joins, first rows, unions."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from checkpointing.channel_items import StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.job.restoring import CutDoesNotFitError
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.expressions import evaluated
from jobs.operators.inputs import read_input, scanned_input
from jobs.operators.spec import InputPlan, arrow_schema, schema_with_kind
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.pipeline.plain_expressions import plain_column
from jobs.pipeline.steps import dropped, filtered, in_turn, with_column
from jobs.state.files import arrow_of, empty_frame
from tests.unit.operators.test_rows_in_time import EPOCHS, in_epochs, spec_of
from tests.unit.operators.test_rows_in_time import ROWS as TIMED
from tests.unit.operators.test_rows_in_time import at as moment
from tidemark import (
    Expectation,
    Pipeline,
    SequenceSource,
    avg_of,
    collect_list,
    count,
    count_distinct,
    deduplicate,
    join,
    max_by,
    max_of,
    min_of,
    over,
    stddev_of,
    sum_of,
    top,
)
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


OVER = {
    "c_rows": (count(), "count(*)"),
    "c_sum": (sum_of("m"), "sum(m)"),
    "c_min": (min_of("m"), "min(m)"),
    "c_max": (max_of("a_max"), "max(a_max)"),
    "c_avg": (avg_of("m"), "avg(m)"),
    "c_dev": (stddev_of("m", population=True), "stddev_pop(m)"),
    "c_by": (max_by("m", "a_max"), "max_by(m, struct(a_max, m))"),
    "c_list": (collect_list("m"), "sort_array(collect_list(m))"),
    "c_distinct": (count_distinct("m"), "count(distinct m)"),
}


FIRST = {"a_rows": (count(), "count(*)"), "a_max": (max_of("n"), "max(n)"), "a_sum": (sum_of("value"), "sum(value)")}


def changes_steps(seed):
    """Draw a random pipeline: its keys, a filter on the first aggregate, and the functions of the second aggregate."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "rows": 120,
        "keys": chance.choice([5, 13, 40]),
        "m": chance.choice(["a_rows % 4", "a_sum % 7", "a_max % 3"]),
        "b": chance.choice(["a_rows % 3", "a_max % 5", "key % 2", "a_sum % 4"]),
        "filter": chance.choice(["a_rows % 3 <> 1", "a_sum % 2 = 0", "true", "a_max > 20"]),
        "over": ["c_rows", *chance.sample([name for name in OVER if name != "c_rows"], 4)],
        "again": chance.choice(["c_rows", "c_rows % 2"]),
    }


def changes_of(steps):
    def build(data):
        pipeline = Pipeline("changes", parallelism=2)
        source = SequenceSource(dict.fromkeys("ab", steps["rows"]), keys=steps["keys"], step=3)
        rows = pipeline.source("rows", source).table("bronze/rows", id="bronze")
        first = rows.key_by("key").aggregate("first", **{name: ours for name, (ours, _) in FIRST.items()})
        filtered = first.table("silver/first").transform(lambda each: each.filter(steps["filter"]))
        named = filtered.with_column("m", steps["m"], LongType()).with_column("b", steps["b"], LongType())
        over = named.key_by("b").aggregate("over", **{name: OVER[name][0] for name in steps["over"]})
        over.upsert("gold/over")
        again = over.with_column("c", steps["again"], LongType()).select("c", "b").key_by("c")
        again.aggregate("again", rows=count(), most=max_of("b")).upsert("gold/again")
        return pipeline

    return build


def changes_sql(steps):
    first = ", ".join(f"{query} as {name}" for name, (_, query) in FIRST.items())
    inner = f"select *, {steps['m']} as m, {steps['b']} as b from (select key, {first} from rows group by key)"
    columns = ", ".join(f"{OVER[name][1]} as {name}" for name in steps["over"])
    over = f"select b, {columns} from ({inner} where {steps['filter']}) group by b"
    again = (
        f"select c, count(*) as rows, max(b) as most from (select b, {steps['again']} as c from ({over})) group by c"
    )
    return {"gold/over": over, "gold/again": again}


COUNTED = {"rows": count(), "n_null": sum_of("least"), "most": max_of("total"), "all": collect_list("total")}


SQL_COUNTED = "count(*) as rows, sum(least) as n_null, max(total) as most, sort_array(collect_list(total)) as all"


def joins_steps(seed):
    """Draw a random pipeline: the keys and filters of both sides, and the kinds of its three joins."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "rows": 90,
        "keys": chance.choice([7, 15]),
        "how": ("inner", "left", "right", "full")[seed % 4],
        "j": chance.choice(["n_l % 4", "total % 5", "nullif(total % 4, 0)"]),
        "left": chance.choice(["n_l % 3 <> 1", "true", "total % 2 = 0"]),
        "right": chance.choice(["least % 3 <> 0", "n_r % 4 < 2"]),
        "again": chance.choice(["inner", "left", "full"]),
        "alone": ("semi", "anti")[seed % 2],
    }


def joins_of(steps):
    """Return the function that builds the pipeline: two filtered aggregates, two joins of them, and later aggregates.

    A third join has the first one on its left side, and the source's rows, which are append-only, on its right side.
    """

    def build(data):
        pipeline = Pipeline("joins", parallelism=2)
        source = SequenceSource(dict.fromkeys("ab", steps["rows"]), keys=steps["keys"], step=3)
        rows = pipeline.source("rows", source).table("bronze/rows", id="bronze")
        left = rows.key_by("key").aggregate("left", n_l=count(), total=sum_of("value"))
        left = left.with_column("j", steps["j"], LongType()).transform(lambda each: each.filter(steps["left"]))
        right = (
            rows.with_column("m", "n % 11", LongType()).key_by("m").aggregate("right", n_r=count(), least=min_of("n"))
        )
        right = right.with_column("i", "n_r % 5", LongType()).transform(lambda each: each.filter(steps["right"]))
        both = join(left.key_by("j"), right.key_by("i"), "both", how=steps["how"])
        both.key_by("j").aggregate("gold", **COUNTED).upsert("gold/both")
        own = rows.select("key", "n").with_column("c", "n % 6", LongType()).drop("key").key_by("c")
        again = join(both.select("j", "total", "n_r").key_by("n_r"), own, "again", how=steps["again"])
        again.key_by("j").aggregate("late", rows=count(), sum=sum_of("n")).upsert("gold/again")
        alone = join(left.key_by("j"), right.key_by("i"), "alone", how=steps["alone"])
        alone.key_by("j").aggregate("lone", rows=count(), sum=sum_of("total")).upsert("gold/alone")
        return pipeline

    return build


def joins_sql(steps):
    """Return the SQL of the three upsert tables. Each query reads the view `rows`."""
    left = f"select *, {steps['j']} as j from (select key, count(*) as n_l, sum(value) as total from rows group by key)"
    right = "select *, n_r % 5 as j from (select n % 11 as m, count(*) as n_r, min(n) as least from rows group by 1)"
    both = (
        f"select * from (select * from ({left}) where {steps['left']}) {steps['how']} join "
        f"(select * from ({right}) where {steps['right']}) using (j)"
    )
    alone = (
        f"select * from (select * from ({left}) where {steps['left']}) left {steps['alone']} join "
        f"(select * from ({right}) where {steps['right']}) using (j)"
    )
    own = "select n, n % 6 as n_r from rows"
    again = f"select * from (select j, total, n_r from ({both})) {steps['again']} join ({own}) using (n_r)"
    return {
        "gold/both": f"select j, {SQL_COUNTED} from ({both}) group by j",
        "gold/again": f"select j, count(*) as rows, sum(n) as sum from ({again}) group by j",
        "gold/alone": f"select j, count(*) as rows, sum(total) as sum from ({alone}) group by j",
    }


def tops_steps(seed):
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "rows": 90,
        "keys": chance.choice([7, 15, 40]),
        "j": chance.choice(["n_of % 3", "total % 4", "nullif(total % 4, 0)"]),
        "filter": chance.choice(["true", "n_of % 3 <> 1", "total % 2 = 0"]),
        "order": chance.choice([["total desc"], ["n_of"], ["n_of desc", "least"], ["nullif(least, 2)", "total desc"]]),
        "n": 1 + seed % 3,
    }


def tops_of(steps):
    def build(data):
        pipeline = Pipeline("tops", parallelism=2)
        source = SequenceSource(dict.fromkeys("ab", steps["rows"]), keys=steps["keys"], step=3)
        rows = pipeline.source("rows", source).table("bronze/rows", id="bronze")
        own = rows.select("key", "n", "value").with_column("c", "nullif(n % 6, 0)", LongType())
        deduplicate(own.key_by("c"), "latest", order_by="n", keep="last").upsert("gold/latest")
        first = top(own.key_by("c"), "first", n=steps["n"], order_by="value desc")
        counted = rows.key_by("key").aggregate("counted", n_of=count(), total=sum_of("value"), least=max_of("n"))
        counted = counted.with_column("j", steps["j"], LongType()).transform(lambda each: each.filter(steps["filter"]))
        deduplicate(counted.key_by("key"), "having", order_by="n_of").upsert("gold/having")
        order = [f"o{place}" + " desc" * by.endswith(" desc") for place, by in enumerate(steps["order"])]
        for place, by in enumerate(steps["order"]):
            counted = counted.with_column(f"o{place}", by.removesuffix(" desc"), LongType())
        ranked = top(counted.key_by("j"), "ranked", n=steps["n"], order_by=order, row_number="nth").upsert(
            "gold/ranked"
        )
        ranked.key_by("nth").aggregate("sizes", rows=count(), sum=sum_of("total")).upsert("gold/sizes")
        both = join(ranked.select("j", "nth", "total").key_by("j"), first.key_by("c"), "both")
        top(both.key_by("nth"), "best", n=1, order_by=["total desc", "n"]).upsert("gold/best")
        return pipeline

    return build


def numbered(rows, keys, order, columns):
    by = ", ".join([*order, *(name for name in columns if name not in order)])
    return f"select *, row_number() over (partition by {keys} order by {by}) as nth from ({rows})"


def tops_sql(steps):
    own = "select nullif(n % 6, 0) as c, key, n, value from rows"
    latest = numbered(own, "c", ["n desc"], ["key", "value"])
    first = numbered(own, "c", ["value desc"], ["key", "n"])
    counted = "select key, count(*) as n_of, sum(value) as total, max(n) as least from rows group by key"
    exprs = [by.removesuffix(" desc") for by in steps["order"]]
    names = [f"o{place}" for place in range(len(exprs))]
    keyed = ", ".join([f"{steps['j']} as j", *(f"{by} as {name}" for by, name in zip(exprs, names, strict=True))])
    # As in the pipeline, the filter comes before the columns of the order are added, and reads none of these columns.
    counted = f"select *, {keyed} from ({counted}) where {steps['filter']}"
    order = [name + " desc" * by.endswith(" desc") for name, by in zip(names, steps["order"], strict=True)]
    every = ["key", "n_of", "total", "least", *names]
    ranked = (
        f"select j, {', '.join(every)}, nth from ({numbered(counted, 'j', order, every)}) where nth <= {steps['n']}"
    )
    both = (
        f"select l.j, l.nth, l.total, r.key, r.n, r.value from ({ranked}) l "
        f"join (select * from ({first}) where nth <= {steps['n']}) r on l.j = r.c"
    )
    best = (
        f"select *, row_number() over (partition by nth order by total desc, n, j, key, value) as place from ({both})"
    )
    return {
        "gold/having": f"select key, n_of, total, least from ({counted})",
        "gold/latest": f"select c, key, n, value from ({latest}) where nth = 1",
        "gold/ranked": ranked,
        "gold/sizes": f"select nth, count(*) as rows, sum(total) as sum from ({ranked}) group by nth",
        "gold/best": f"select nth, j, total, key, n, value from ({best}) where place = 1",
    }


QUERIES = {
    "gold/united": (
        "select j, count(*) as rows, sum(n) as sum, max(n) as most, sort_array(collect_list(n)) as every "
        "from ({united}) group by j"
    ),
    "gold/again": (
        "select j, count(*) as rows, sum(n) as sum from ({united} union all select 0 as j, n from rows) group by j"
    ),
}


def unions_steps(seed):
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "keys": chance.choice([7, 15]),
        "counted": chance.choice(["n % 3 <> 1", "true", "n % 2 = 0"]),
        "rows": chance.choice(["n % 5 = 0", "n % 4 <> 0"]),
        "how": chance.choice(["left", "full"]),
    }


def unions_of(steps):
    """Return the function that builds the pipeline: a union of an aggregate, the source's rows, and a join.

    Two aggregates, first rows and another union take the changes of this union.
    """

    def build(data):
        pipeline = Pipeline("unions", parallelism=2)
        source = SequenceSource(dict.fromkeys("ab", 90), keys=steps["keys"], step=3)
        rows = pipeline.source("rows", source).table("bronze/rows", id="bronze")
        per_key = rows.key_by("key").aggregate("per_key", n=count(), total=sum_of("value"))
        counted = per_key.transform(lambda each: each.filter(steps["counted"]))
        counted = counted.with_column("j", "n % 4", LongType()).select("j", "n")
        own = rows.transform(lambda each: each.filter(steps["rows"])).with_column("j", "n % 6", LongType())
        sizes = counted.key_by("j").aggregate("sizes", of=count())
        right = rows.with_column("j", "n % 3", LongType()).key_by("j").aggregate("thirds", most=max_of("n"))
        joined = join(sizes.key_by("j"), right.key_by("j"), "joined", how=steps["how"])
        joined = joined.with_column("n", "coalesce(of, 0) + coalesce(most, 0)", LongType()).select("n", "j")
        united = counted.union(own.select("n", "j"), joined, id="united")
        gold = united.key_by("j").aggregate(
            "gold", rows=count(), sum=sum_of("n"), most=max_of("n"), every=collect_list("n")
        )
        gold.upsert("gold/united")
        top(united.key_by("j"), "first", n=2, order_by="n desc", row_number="nth").upsert("gold/first")
        united.aggregate("all", rows=count(), mean=avg_of("n")).upsert("gold/all")
        again = united.union(rows.with_column("j", "0", LongType()).select("j", "n"), id="more")
        again.key_by("j").aggregate("late", rows=count(), sum=sum_of("n")).upsert("gold/again")
        return pipeline

    return build


def unions_sql(steps):
    counted = f"select n % 4 as j, n from (select key, count(*) as n from rows group by key) where {steps['counted']}"
    sizes = f"select j, count(*) as of from ({counted}) group by j"
    thirds = "select n % 3 as j, max(n) as most from rows group by 1"
    joined = (
        f"select j, coalesce(of, 0) + coalesce(most, 0) as n from ({sizes}) {steps['how']} join ({thirds}) using (j)"
    )
    own = f"select n % 6 as j, n from rows where {steps['rows']}"
    united = f"select j, n from ({counted}) union all select j, n from ({own}) union all select j, n from ({joined})"
    ranked = f"select j, n, row_number() over (partition by j order by n desc) as nth from ({united})"
    return {
        **{name: query.format(united=united) for name, query in QUERIES.items()},
        "gold/first": f"select j, n, nth from ({ranked}) where nth <= 2",
        "gold/all": f"select true as _all, count(*) as rows, avg(n) as mean from ({united})",
    }


CHANGES_FIXED = {
    "rows": 40,
    "keys": 5,
    "m": "a_sum % 7",
    "b": "a_rows",
    "filter": "a_sum % 2 = 0",
    "over": ["c_rows", "c_sum", "c_min", "c_list"],
    "again": "c_rows",
}


@dataclass(frozen=True)
class Kind:
    """A kind of pipeline: how its steps are drawn, how it is built, and the SQL of its upsert tables over `rows`."""

    steps_of: Callable[[int], dict]
    building: Callable[[dict], Callable]
    sql_of: Callable[[dict], dict[str, str]]
    seeds: int
    fixed: dict


KINDS = {
    "changes": Kind(changes_steps, changes_of, changes_sql, 6, CHANGES_FIXED),
    "joins": Kind(joins_steps, joins_of, joins_sql, 8, joins_steps(3) | {"left": "total % 2 = 0"}),
    "tops": Kind(
        tops_steps,
        tops_of,
        tops_sql,
        9,
        tops_steps(1) | {"keys": 15, "j": "nullif(total % 4, 0)", "filter": "total % 2 = 0", "order": ["total desc"]},
    ),
    "unions": Kind(
        unions_steps, unions_of, unions_sql, 4, {"keys": 7, "counted": "n % 3 <> 1", "rows": "n % 5 = 0", "how": "full"}
    ),
}


def build(data):
    """Return the fixed pipeline of the kind after which the trial's folder is named.

    So another process builds the same pipeline.
    """
    kind = KINDS[data.parent.name]
    return kind.building(kind.fixed)(data)


def alike(one, other):
    """Compare two values. Floats may differ by rounding errors that rows leave when they are taken back."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-5)
    return one == other


def in_order(rows):
    plain = [tuple(sorted(each) if isinstance(each, list) else each for each in row) for row in rows]
    return sorted(plain, key=lambda row: repr([each for each in row if not isinstance(each, float)]))


def judge(spark, trial, queries, aligned_from=0):
    cuts = trial.cuts.all()
    assert len(cuts) > max(1, aligned_from)
    had, lost, before = set(), set(), {}
    for cut in cuts[aligned_from:]:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in queries.items():
            wanted = spark.sql(query)
            expected = in_order(map(tuple, wanted.collect()))
            found = in_order(cut.polars(table).select(wanted.columns).collect().rows())
            assert len(expected) == len(found), (cut, table)
            for one, other in zip(expected, found, strict=True):
                assert all(map(alike, one, other)), (cut, table, one, other)
            had |= {table} if found else set()
            keys = {row[0] for row in found}
            lost |= {table} if before.get(table, set()) - keys else set()
            before[table] = keys
    return had, lost


@pytest.mark.parametrize("name", KINDS)
def test_changelogs_are_sparks_at_each_cut_over_a_restart_and_a_rescale(tmp_path, spark, name):
    """Rows enter and leave filters, groups become empty, matches come and go, first rows change places."""
    queries, trial = KINDS[name].sql_of(KINDS[name].fixed), Trial(build, tmp_path / name)
    trial.run(every_rows=40, slice_rows_max=20, checkpoints=2, retained=9)
    trial.run(every_rows=60, slice_rows_max=20, parallelism=3, retained=9)
    had, lost = judge(spark, trial, queries)
    assert queries.keys() == had
    assert lost or name != "changes"


@pytest.mark.dear
@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, kind in KINDS.items() for seed in range(kind.seeds)])
def test_random_pipelines_are_sparks_at_each_cut(tmp_path, spark, name, seed):
    """A second tick reads the rest with another parallelism. For some unions, this tick begins with rows in flight."""
    kind, chance = KINDS[name], random.Random(seed)  # noqa: S311 - test data
    steps = kind.steps_of(seed)
    trial = Trial(kind.building(steps), tmp_path)
    unaligned = {"unaligned": True} if name == "unions" and seed % 2 else {}
    first, later = chance.choice([30, 40, 50]), chance.choice([40, 90])
    trial.run(every_rows=first, slice_rows_max=chance.choice([7, 20]), checkpoints=2, retained=9, **unaligned)
    trial.run(every_rows=later, slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    judge(spark, trial, kind.sql_of(steps), aligned_from=2 if unaligned else 0)


@pytest.mark.dear
def test_an_aggregate_may_not_begin_after_the_one_that_it_reads(tmp_path, spark):
    """If the first aggregate has counted rows, a second one that reads its updates is refused before the claim.

    Another vertex that reads the updates gets only the new row of each, with and without the second aggregate.
    """

    def begin(data):
        pipeline = Pipeline("changes")
        rows = pipeline.source("rows", SequenceSource({"a": 30}, keys=3))
        return pipeline, rows.key_by("key").aggregate("first", n=count())

    def alone(data):
        pipeline, first = begin(data)
        first.table("silver/first").table("silver/kept", id="kept")
        return pipeline

    def followed(data):
        pipeline, first = begin(data)
        first.table("silver/first").table("silver/kept", id="kept")
        first.key_by("n").aggregate("sizes", keys=count()).upsert("gold/sizes")
        return pipeline

    cut = Trial(alone, tmp_path).run(every_rows=10, checkpoints=1)
    assert new_rows(cut, "silver/kept") == new_rows(cut, "silver/first")
    with pytest.raises(CutDoesNotFitError, match=r"holds state of 'first' and none of 'sizes'.* new ids"):
        Trial(followed, tmp_path).run()
    cut = Trial(followed, tmp_path / "anew").run(every_rows=10)
    assert new_rows(cut, "silver/kept") == new_rows(cut, "silver/first")
    assert cut.polars("gold/sizes").collect().rows() == [(10, 3)]


def new_rows(cut, table):
    return sorted(cut.polars(table).collect().rows())


def deduplicating(order_by, *, counted=False):
    def build(data):
        pipeline = Pipeline("tops", parallelism=2)
        rows = pipeline.source("rows", SequenceSource({"a": 90}, keys=7)).select("key", "n").key_by("key")
        rows = rows.aggregate("counts", n=count()).key_by("key") if counted else rows
        top(rows, "first", n=1, order_by=order_by).upsert("gold/first")
        return pipeline

    return build


def test_first_rows_in_another_order_do_not_go_on_from_the_kept_ones(tmp_path):
    """The state lacks the rows that come first in the new order, so the tick is refused.

    The error names the column or the vertices. The old pipeline goes on.
    """
    trial = Trial(deduplicating("n"), tmp_path)
    trial.run(every_rows=30, slice_rows_max=10, checkpoints=1)
    meant = r"column _top_rows was first_1_of_new_rows\(n bigint\) and is now first_1_of_new_rows\(n desc bigint\)"
    for other, says in (
        (deduplicating("n desc"), meant),
        (deduplicating("n", counted=True), "'first' takes the changes of 'counts', and would take back rows that"),
    ):
        with pytest.raises(CutDoesNotFitError, match=says):
            Trial(other, tmp_path).run()
    assert trial.run().polars("gold/first").collect().sort("key")["n"].to_list() == [0, 1, 2, 3, 4, 5, 6]


def updates_kept(data):
    """Build a union. An aggregate takes its changes. Its table and quarantine show only the rows that it adds."""
    pipeline = Pipeline("kept", parallelism=2)
    rows = pipeline.source("rows", SequenceSource({"a": 60}, keys=5))
    counted = rows.key_by("key").aggregate("per_key", n=count())
    ones = rows.with_column("n", "1", LongType()).select("key", "n")
    both = counted.union(ones, id="both").table("bronze/both")
    at_most = Expectation("expect_column_values_to_be_between", {"column": "n", "max_value": 6})
    good = both.check_rows(at_most, quarantine="bronze/many")
    good.key_by("key").aggregate("sums", rows=count(), sum=sum_of("n")).upsert("gold/sums")
    return pipeline


def test_the_table_of_a_union_has_rows_that_were_added(tmp_path, spark):
    """If the new row of an update fails a rule, the new row is quarantined, and the old row is taken back."""
    cut = Trial(updates_kept, tmp_path).run(every_rows=20, slice_rows_max=10)
    both = cut.polars("bronze/both").select("key", "n").collect()
    assert both.columns == ["key", "n"]
    assert both.filter(pl.col("n") == 1).height >= 60
    assert both.filter(pl.col("n") == 12).height == 5
    many = cut.polars("bronze/many").select("n", "_failed").collect()
    assert many.height == both.filter(pl.col("n") > 6).height
    assert cut.polars("gold/sums").select("rows", "sum").collect().rows() == [(12, 12)] * 5


VALUES = {
    "d": [None, float("nan"), float("inf"), float("-inf"), 0.5, -3.0],
    "f": [None, float("nan"), 1.5, -2.0],
    "s": [None, "", "a", "B", "ä", "Z", "\U0001f600", "\uffee"],
    "m": [None, Decimal("1.10"), Decimal("-7.00"), Decimal("99999.99")],
    "t": [None, date(1969, 12, 31), date(2024, 2, 29)],
    "at": [None, datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
    "i": [None, -128, 0, 127],
    "b": [None, True, False],
    "raw": [None, b"", b"\x80", b"a"],
}


TYPES = {
    "k": "long",
    "d": "double",
    "f": "float",
    "s": "string",
    "m": "decimal(9,2)",
    "t": "date",
    "at": "timestamp",
    "i": "byte",
    "b": "boolean",
    "raw": "binary",
}


SCHEMA = StructType()
for _name, _type in TYPES.items():
    SCHEMA.add(_name, _type)


@pytest.mark.parametrize("column", ["d", "f", "s", "m", "t", "at", "i"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_each_type_are_in_sparks_order(spark, column, descending):
    """There are null, NaN, infinities and texts beyond ASCII. Other columns, of any type, put equal values in order."""
    chance = random.Random(f"{column}{descending}")  # noqa: S311 - test data
    rows = [(chance.choice([None, 1, 2]), *map(chance.choice, VALUES.values())) for _ in range(120)]
    frame = pl.DataFrame(rows, schema=empty_frame(arrow_schema(SCHEMA)).schema, orient="row")
    others = tuple(name for name in SCHEMA.names if name != "k")
    function = TopRows(("k",), others, (Order(column, descending),), 25, "nth", changelog=False)
    done = function.process([frame], empty_frame(arrow_schema(top_state(SCHEMA, ("k",)))))
    spark.createDataFrame(arrow_of(frame, arrow_schema(SCHEMA))).createOrReplaceTempView("given")
    by = ", ".join([column + " desc" * descending, *(name for name in others if name != column)])
    query = f"select *, row_number() over (partition by k order by {by}) as nth from given"
    wanted = spark.sql(f"select * from ({query}) where nth <= 25").toArrow()
    expected = pl.from_arrow(wanted).select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    found = done.output.select(*SCHEMA.names, "nth").select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    assert sorted(map(repr, expected.rows())) == sorted(map(repr, found.rows()))
    assert found.height == 75


ROWS = StructType().add("k", LongType()).add("v", LongType()).add("gone", BooleanType())


@pytest.mark.parametrize(("of_changes", "takes_changes"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("steps", ["none", "added", "rule and added"])
def test_a_task_derives_what_spark_derives(tmp_path, spark, of_changes, takes_changes, steps):
    values = {"k": [1, 2, 3, 4, 5, None], "v": [1, None, 3, None, 5, 6], "gone": [True, False, None, True, None, False]}
    kinds = [INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER, None, UPDATE_BEFORE]
    tables = [pa.table(values, arrow_schema(ROWS)), pa.table(values, arrow_schema(ROWS))]
    if of_changes:
        tables[1] = tables[1].append_column(KIND, pa.array(kinds))
    files = []
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        files.append(FileHandle(path.name, table.num_rows, path.stat().st_size, 1))
    rule = filtered("v IS NOT NULL", ROWS)
    added = [
        with_column("d", "coalesce(gone, false)", BooleanType(), ROWS),
        with_column("s", "v", LongType(), ROWS),
        with_column("no", "false", BooleanType(), ROWS),
        dropped(["gone"]),
    ]
    chain = in_turn({"none": [], "added": added, "rule and added": [rule, *added]}[steps])
    wanted = ROWS if steps == "none" else StructType([ROWS["k"], ROWS["v"]]).add("d", BooleanType())
    wanted = wanted if steps == "none" else wanted.add("s", LongType()).add("no", BooleanType())
    wanted = schema_with_kind(wanted) if takes_changes else wanted
    plan = InputPlan(ROWS, chain=chain, of_changes=of_changes, takes_changes=takes_changes)
    segments = [StagedSegment(tuple(files))]
    by_spark = [tuple(row) for row in read_input(spark, plan, segments, str(tmp_path)).select(wanted.names).collect()]
    scanned = scanned_input(plan, segments, str(tmp_path)).scans
    by_task = [
        tuple(row.values())
        for scan in scanned
        for batch in scan.batches(arrow_schema(wanted))
        for row in batch.to_pylist()
    ]
    assert sorted(by_spark, key=repr) == sorted(by_task, key=repr)
    assert by_task


PLAIN = (
    StructType()
    .add("b", ByteType())
    .add("i", IntegerType())
    .add("l", LongType())
    .add("s", StringType())
    .add("a b", StringType())
    .add("day", DateType())
    .add("due", DateType())
    .add("at", TimestampType())
    .add("until", TimestampType())
    .add("m", DecimalType(20, 3))
    .add("d", DoubleType())
    .add("e", DoubleType())
    .add("yes", BooleanType())
)
TEXTS = [
    None,
    "",
    "a",
    "B",
    "a ",
    "x/a//b",
    "/",
    "aab",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "e\u0301",
    "\U0001f600",
    "\uffff",
    "\N{KELVIN SIGN}",
    "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}",
    "Apple",
    *(
        b"\xffa/b",
        b"a\xed\xa0\x80b",
        b"b\xe2\x84",
        b"\xf0\x9f\x98a/\xf4\x90\x80\x80b",
        b"\xc3",
        b"\xed\xa0b",
        b"/\xe0\x80b",
    ),
]
"""The last texts are not valid UTF-8."""
DAYS = [None, date(1, 1, 1), date(2026, 2, 28), date(9999, 12, 31)]
DOUBLES = [None, 0.0, -0.0, 1.5, 1e308, 5e-324, math.inf, -math.inf, math.nan]
PLAIN_VALUES = {
    "b": [None, -128, -7, 0, 7, 127],
    "i": [None, -(2**31), -1, 0, 9, 2**31 - 1],
    "l": [None, -(2**63), -10, 0, 10, 2**63 - 1],
    "s": TEXTS,
    "a b": TEXTS,
    "day": DAYS,
    "due": DAYS,
    "at": [
        *(None, 0, -1, 1_774_751_400_000_000, -62_135_596_800_000_000, -62_135_596_800_000_001),
        *(253_402_300_799_999_999, 253_402_300_800_000_000, -(10**17), 10**17, -2_208_988_800_000_001),
    ],
    "until": [None, 0, 1_774_751_400_000_000],
    "m": [None, Decimal("0.000"), Decimal("-0.001"), Decimal("9.000"), Decimal("99999999999999999.999")],
    "d": DOUBLES,
    "e": DOUBLES,
    "yes": [None, True, False],
}
"""Times are in microseconds. Some lie right before or at the beginning of the years 1, 1900 and 10000."""


class Drawn:
    """Draws plain expressions of each type over the columns of PLAIN. Some expressions contain others."""

    def __init__(self, chance):
        self.one = chance.choice
        self.some = chance.choices

    def condition(self, depth=2):
        if depth and self.one([True, False]):
            more = f"{self.condition(depth - 1)} {self.one(['AND', 'or', 'OR'])} {self.condition(depth - 1)}"
            return self.one([more, f"({more})", f"NOT ({more})", f"NOT {self.condition(0)}"])
        sign = self.one(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
        number, text, numbers = self.number(), self.text(), ["0", "-7", "9", "300", "123456789012345678"]
        words = ["''", "'a'", "'e\u0301'", "'B'", "'aab'"]
        listed = f"({', '.join(self.some(numbers, k=3))})", f"({', '.join(self.some(words, k=2))})"
        return self.one(
            [
                f"{number} {sign} {self.one([*numbers, 'i', 'l', 'i%3'])}",
                f"{text}{sign}{self.one([*words, '`a b`'])}",
                self.one([f"day {sign} due", f"until {sign} at", f"m {sign} {self.one(['0', '-1', '9'])}"]),
                f"{number} {self.one(['in', 'NOT IN'])} {listed[0]}",
                f"{text} {self.one(['in', 'NOT IN'])} {listed[1]}",
                f"{self.one(['l', 's', 'at', 'd'])} is {self.one(['', 'NOT '])}null",
                f"{number} {self.one(['', 'not '])}BETWEEN {self.one(numbers)} and {self.one(numbers)}",
                f"{text} {self.one(['', 'not '])}like '{self.one(['%a', 'a%', '%a%', 'aab', '%/%'])}'",
                f"yes = {self.one(['true', 'FALSE'])}",
                f"coalesce({number} > 0, false)",
                f"not({number}) = 1",
                f"lower(s) {self.one(['=', '<>', 'in', 'not in'])} ({self.one(['k', 'aab', 'i', 'apple'])!r})",
            ]
        )

    def number(self):
        return self.one(
            [
                *("b", "i", "l", "i % 3", "l%7", "l % 100 + 1", "b % 5 * 3 - i % 2", "length(s)", "hour(at)"),
                *("length(s) - length(replace(s, 'a', ''))", "cast(b as bigint) * cast(i as bigint)", "coalesce(i, 0)"),
                *("CASE WHEN i > 0 THEN b WHEN yes = true THEN -1 ELSE l END", "case i when 9 then 1 end"),
                f"if({self.one(['l > 0', 's is null', 'not i = 9'])}, {self.one(['i, null', 'null, b', '3, 4'])})",
            ]
        )

    def text(self):
        pattern = self.one(["yyyy-MM-dd", "HH:mm", "yyyyMMdd", "yyyy-MM-dd HH:mm:ss", "dd.MM.yyyy HH", "mm/ss"])
        return self.one(
            [
                *(
                    "s",
                    "`a b`",
                    "concat(s, '-', `a b`)",
                    "s || 'a'",
                    "replace(s, 'a', 'bb')",
                    "coalesce(s, `a b`, 'x')",
                ),
                *(f"split_part(s, '{self.one('/a')}', {self.one([1, 2, 3])})", f"date_format(at, '{pattern}')"),
                f"case lower(s) when 'k' then 'kelvin' else {self.extracted()} end",
                self.extracted(),
                *("CAST(l AS STRING)", "CASE WHEN s = 'a' OR i < 0 THEN 'one' WHEN b > 0 THEN s ELSE `a b` END"),
            ]
        )

    def extracted(self):
        found = [("(^|a)([^b]*)(b)", 3), ("([a-z]+)/([^/]*)", 2), ("(&|^)a=([^&]*)|(b+)", 3), ("^a?([^a]+)", 1)]
        pattern, groups = self.one(found)
        return f"regexp_extract(s, '{pattern}'{self.one(['', ', 0', f', {groups}'])})"

    def column(self):
        return self.one(
            [
                (self.condition(), BooleanType()),
                (self.number(), LongType()),
                (self.text(), StringType()),
                (self.one(["0.908 * l", "m * 2", "i", "l", "1.50*b", "m * 0.001", "b"]), DecimalType(30, 6)),
                (
                    self.one(["if(yes = true, d, null)", "d * e", "d + e", "d - 1", "2 * d", "d*0.1 - e", "d + 1.5"]),
                    DoubleType(),
                ),
                (self.one(["to_date(at)", "date(until)", "cast(at AS date)", "day"]), DateType()),
            ]
        )


def _as_known(kind):
    """Return the type in which to compare values.

    Python cannot hold days of some years, nor texts that are not UTF-8.
    """
    return pa.int32() if pa.types.is_date32(kind) else pa.binary() if pa.types.is_string(kind) else kind


def _plain_values(values, kind):
    if pa.types.is_string(kind):
        raw = [value.encode() if isinstance(value, str) else value for value in values]
        return pa.array(raw, pa.binary()).view(pa.string())
    return pa.array(values, pa.int64() if pa.types.is_timestamp(kind) else kind).cast(kind)


def test_a_task_computes_plain_expressions_as_spark_does(spark):
    """There are nulls, least and greatest numbers, years beyond four digits, and texts beyond ASCII and UTF-8."""
    chance = random.Random(7)  # noqa: S311 - test data
    drawn = Drawn(chance)
    rows = [tuple(chance.choice(PLAIN_VALUES[name]) for name in PLAIN.names) for _ in range(400)]
    found = pa.table(
        [
            _plain_values(values, field.type)
            for values, field in zip(zip(*rows, strict=True), arrow_schema(PLAIN), strict=True)
        ],
        arrow_schema(PLAIN),
    )
    (batch,) = found.combine_chunks().to_batches()
    columns = list({drawn.column(): None for _ in range(500)})
    frame = spark.createDataFrame(found)
    asked = [F.expr(text).cast(kind).alias(f"c{place}") for place, (text, kind) in enumerate(columns)]
    wanted = frame.select(*asked).toArrow()
    kept = 0
    for (text, kind), by_spark in zip(columns, wanted.columns, strict=True):
        plain = plain_column(text, kind, PLAIN)
        assert plain is not None, (text, kind)
        by_task = evaluated(plain, batch, by_spark.type, {})
        ours, theirs = (each.cast(_as_known(each.type)).to_pylist() for each in (by_task, by_spark))
        differ = [found for found in zip(rows, ours, theirs, strict=True) if repr(found[1]) != repr(found[2])]
        assert not differ, (text, differ[:3])
        kept += len(set(map(repr, ours))) > 1
    assert kept > len(columns) // 2


@settings(
    deadline=None,
    max_examples=6,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(epochs=EPOCHS, back=st.sampled_from([1, 3, "1ms", "3ms", "20ms"]))
def test_aggregates_over_rows_before_are_those_of_sparks_over(spark, epochs, back):
    """Null and NaN are keys as others are, and rows of equal times are in the order of their other columns."""
    bound = {"last": back} if isinstance(back, int) else {"within": back}
    sums = {"n": count(), "total": sum_of("value"), "most": max_of("value"), "mean": avg_of("value")}
    found, counted = in_epochs(spec_of(lambda rows: over(rows, "op", late="late/rows", **bound, **sums)), epochs)
    rows = pl.DataFrame(
        [(*row[:3], moment(row[3])) for row in counted], schema=empty_frame(arrow_schema(TIMED)).schema, orient="row"
    )
    spark.createDataFrame(arrow_of(rows, arrow_schema(TIMED))).createOrReplaceTempView("counted")
    before = f"at, value, name ROWS BETWEEN {back - 1 if 'last' in bound else 0} PRECEDING"
    if "within" in bound:
        before = f"at RANGE BETWEEN INTERVAL '0.{int(back[:-2]):03}' SECOND PRECEDING"
    query = "count(*) OVER w, sum(value) OVER w, max(value) OVER w, avg(value) OVER w"
    window = f"WINDOW w AS (PARTITION BY key ORDER BY {before} AND CURRENT ROW)"
    wanted = pl.from_arrow(spark.sql(f"SELECT key, value, name, at, {query} FROM counted {window}").toArrow())
    plain = pl.DataFrame(found, schema=wanted.schema, orient="row")
    assert sorted(map(repr, plain.rows())) == sorted(map(repr, wanted.rows()))
