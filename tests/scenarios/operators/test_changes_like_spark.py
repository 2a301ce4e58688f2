"""Compares every cut of pipelines that aggregate aggregates with Spark SQL over the source rows before the barrier."""

import math
import random

import pytest
from pyspark.sql.types import LongType

from checkpointing.job.restoring import CutDoesNotFitError
from jobs.reading import Cuts
from tidemark import (
    Pipeline,
    SequenceSource,
    avg_of,
    collect_list,
    count,
    count_distinct,
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
