"""Compares every cut of pipelines that aggregate aggregates with Spark SQL over the source rows before the barrier."""

import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BooleanType, LongType, StructType

from checkpointing.channel_items import StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.job.restoring import CutDoesNotFitError
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.derived_scans import CopiedColumn, NullRule
from jobs.operators.inputs import read_input, scanned_input
from jobs.operators.spec import InputPlan, TaskSteps, arrow_schema, schema_with_kind
from jobs.pipeline.streams import copied, dropped, in_turn
from jobs.reading import Cuts
from tidemark import (
    Pipeline,
    SequenceSource,
    avg_of,
    collect_list,
    count,
    count_distinct,
    join,
    max_by,
    max_of,
    min_of,
    stddev_of,
    sum_of,
)
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

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
FIRST = {
    "a_rows": (count(), "count(*)"),
    "a_max": (max_of("n"), "max(n)"),
    "a_sum": (sum_of("value"), "sum(value)"),
}


def steps_of(seed):
    """Return a random pipeline: moduli of keys, a filter of the first result, and aggregates of the second."""
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


def building(steps):
    """Return what builds the pipeline: rows, aggregate, filter, aggregate with a table, aggregate of that one."""

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


def sql_of(steps):
    """Return the queries of the two upsert tables over the view `rows`."""
    first = ", ".join(f"{query} as {name}" for name, (_, query) in FIRST.items())
    inner = f"select *, {steps['m']} as m, {steps['b']} as b from (select key, {first} from rows group by key)"
    columns = ", ".join(f"{OVER[name][1]} as {name}" for name in steps["over"])
    over = f"select b, {columns} from ({inner} where {steps['filter']}) group by b"
    again = (
        f"select c, count(*) as rows, max(b) as most from (select b, {steps['again']} as c from ({over})) group by c"
    )
    return {"gold/over": over, "gold/again": again}


def alike(one, other):
    """Compare values; a deviation keeps a rounding error of rows that left."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-5)
    return one == other


def judge(spark, warehouse, steps):
    """Compare both tables of every cut with Spark SQL over its bronze rows. Return how many rows were deleted."""
    deleted, before, cuts = 0, {}, Cuts(warehouse, "changes").all()
    assert len(cuts) > 1
    for cut in cuts:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in sql_of(steps).items():
            expected = {row[0]: tuple(row) for row in spark.sql(query).collect()}
            found = {row[0]: row for row in cut.polars(table).collect().iter_rows()}
            assert expected.keys() == found.keys(), (cut, table)
            for key, row in expected.items():
                assert all(map(alike, row, found[key])), (cut, table, row, found[key])
            deleted += len(before.get(table, set()) - found.keys())
            before[table] = found.keys()
    return deleted


FIXED = {
    "rows": 40,
    "keys": 5,
    "m": "a_sum % 7",
    "b": "a_rows",
    "filter": "a_sum % 2 = 0",
    "over": ["c_rows", "c_sum", "c_min", "c_list"],
    "again": "c_rows",
}


def fixed(data):
    """Build that pipeline, in another process too."""
    return building(FIXED)(data)


def test_aggregates_of_aggregates_are_sparks_at_each_cut(tmp_path, spark):
    """Rows enter and leave the filter, groups become empty, and their rows are deleted."""
    trial = Trial(fixed, tmp_path)
    trial.run(every_rows=40, slice_rows_max=20, retained=9)
    assert judge(spark, trial.warehouse, FIXED)


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(6))
def test_random_pipelines_are_sparks_at_each_cut(tmp_path, spark, seed):
    """Three aggregates and a filter, over random micro-batches; the second half runs in another tick."""
    steps = steps_of(seed)
    chance = random.Random(seed)  # noqa: S311 - test data
    trial = Trial(building(steps), tmp_path)
    trial.run(every_rows=chance.choice([30, 50]), slice_rows_max=chance.choice([7, 20]), checkpoints=2, retained=9)
    trial.run(every_rows=chance.choice([40, 90]), slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    judge(spark, trial.warehouse, steps)


@pytest.mark.dear
def test_a_kill_changes_nothing(tmp_path, spark):
    """The tick dies after it committed its second checkpoint. The next one takes back each row once."""
    trial = Trial(fixed, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, every_rows=20, slice_rows_max=10, retained=9)
    trial.run(every_rows=20, slice_rows_max=10, retained=9)
    judge(spark, trial.warehouse, FIXED)


@pytest.mark.dear
def test_an_aggregate_may_not_begin_after_the_one_that_it_reads(tmp_path, spark):
    """The job has counted rows already. An aggregate over it, added later, is refused before the claim.

    Another vertex that reads the updates gets the new rows only, with and without that aggregate.
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
    """Return the rows of an append table of updates, sorted."""
    return sorted(cut.polars(table).collect().rows())


# ------------------------------------------------------------------
# Compares every cut of pipelines that join changelogs with Spark SQL over the source rows before the barrier.


COUNTED = {"rows": count(), "n_null": sum_of("least"), "most": max_of("total"), "all": collect_list("total")}
SQL_COUNTED = "count(*) as rows, sum(least) as n_null, max(total) as most, sort_array(collect_list(total)) as all"


def steps_of_of_joins_like_spark(seed):
    """Return a random pipeline: keys of both sides, filters, and how they are joined, the second time too."""
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


def building_of_joins_like_spark(steps):
    """Return what builds the pipeline: two filtered aggregates, their join, and aggregates of it.

    The join meets the rows themselves too, which are append-only.
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


def sql_of_of_joins_like_spark(steps):
    """Return the queries of the two upsert tables over the view `rows`."""
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


def judge_of_joins_like_spark(spark, warehouse, steps):
    """Compare both tables of every cut with Spark SQL over its bronze rows. Return how many rows they had together."""
    seen, cuts = 0, Cuts(warehouse, "joins").all()
    assert len(cuts) > 1
    for cut in cuts:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in sql_of_of_joins_like_spark(steps).items():
            expected = sorted(map(repr, map(tuple, spark.sql(query).collect())))
            found = sorted(map(repr, cut.polars(table).collect().rows()))
            assert expected == found, (cut, table)
            seen += len(found)
    return seen


FIXED_OF_JOINS_LIKE_SPARK = {**steps_of_of_joins_like_spark(3), "left": "total % 2 = 0"}


def fixed_of_joins_like_spark(data):
    """Build that pipeline, in another process too."""
    return building_of_joins_like_spark(FIXED_OF_JOINS_LIKE_SPARK)(data)


def test_a_full_join_of_aggregates_is_sparks_at_each_cut(tmp_path, spark):
    """Rows of both sides enter and leave; first matches come and last ones go."""
    trial = Trial(fixed_of_joins_like_spark, tmp_path)
    trial.run(every_rows=60, slice_rows_max=20, retained=9)
    assert judge_of_joins_like_spark(spark, trial.warehouse, FIXED_OF_JOINS_LIKE_SPARK)


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(8))
def test_random_pipelines_with_joins_are_sparks_at_each_cut(tmp_path, spark, seed):
    """Two joins over random micro-batches; the second half runs in another tick, with another parallelism."""
    steps = steps_of_of_joins_like_spark(seed)
    chance = random.Random(seed)  # noqa: S311 - test data
    trial = Trial(building_of_joins_like_spark(steps), tmp_path)
    trial.run(every_rows=chance.choice([40, 50]), slice_rows_max=chance.choice([7, 20]), checkpoints=2, retained=9)
    trial.run(every_rows=chance.choice([40, 90]), slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    assert judge_of_joins_like_spark(spark, trial.warehouse, steps)


@pytest.mark.dear
def test_a_kill_between_joins_changes_nothing(tmp_path, spark):
    """The tick dies after it committed its second checkpoint. The next one joins and takes back each row once."""
    trial = Trial(fixed_of_joins_like_spark, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, every_rows=40, slice_rows_max=20, retained=9)
    trial.run(every_rows=40, slice_rows_max=20, retained=9)
    assert judge_of_joins_like_spark(spark, trial.warehouse, FIXED_OF_JOINS_LIKE_SPARK)


# ------------------------------------------------------------------
# What tasks derive from files are the rows that Spark derives from them.


ROWS = StructType().add("k", LongType()).add("v", LongType()).add("gone", BooleanType())


@pytest.mark.parametrize(("of_changes", "takes_changes"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("steps", ["none", "copies", "rule and copies"])
def test_a_task_derives_what_spark_derives(tmp_path, spark, of_changes, takes_changes, steps):
    """By files with and without kinds, of changelogs and of append-only streams, with rules and with copies."""
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
    rule = TaskSteps(lambda rows: rows.filter("v IS NOT NULL"), (NullRule("v", null=False),))
    copies = [
        copied(CopiedColumn("d", "gone", instead=False), BooleanType()),
        copied(CopiedColumn("s", "v"), LongType()),
        copied(CopiedColumn("no", None, instead=False), BooleanType()),
        dropped(["gone"]),
    ]
    chain = in_turn({"none": [], "copies": copies, "rule and copies": [rule, *copies]}[steps])
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
