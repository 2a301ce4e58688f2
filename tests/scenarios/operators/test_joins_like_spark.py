"""Compares every cut of pipelines that join changelogs with Spark SQL over the source rows before the barrier."""

import random

import pytest
from pyspark.sql.types import LongType

from jobs.reading import Cuts
from tidemark import Pipeline, SequenceSource, collect_list, count, join, max_of, min_of, sum_of
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

COUNTED = {"rows": count(), "n_null": sum_of("least"), "most": max_of("total"), "all": collect_list("total")}
SQL_COUNTED = "count(*) as rows, sum(least) as n_null, max(total) as most, sort_array(collect_list(total)) as all"


def steps_of(seed):
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


def building(steps):
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


def sql_of(steps):
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


def judge(spark, warehouse, steps):
    """Compare both tables of every cut with Spark SQL over its bronze rows. Return how many rows they had together."""
    seen, cuts = 0, Cuts(warehouse, "joins").all()
    assert len(cuts) > 1
    for cut in cuts:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in sql_of(steps).items():
            expected = sorted(map(repr, map(tuple, spark.sql(query).collect())))
            found = sorted(map(repr, cut.polars(table).collect().rows()))
            assert expected == found, (cut, table)
            seen += len(found)
    return seen


FIXED = {**steps_of(3), "left": "total % 2 = 0"}


def fixed(data):
    """Build that pipeline, in another process too."""
    return building(FIXED)(data)


def test_a_full_join_of_aggregates_is_sparks_at_each_cut(tmp_path, spark):
    """Rows of both sides enter and leave; first matches come and last ones go."""
    trial = Trial(fixed, tmp_path)
    trial.run(every_rows=60, slice_rows_max=20, retained=9)
    assert judge(spark, trial.warehouse, FIXED)


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(8))
def test_random_pipelines_with_joins_are_sparks_at_each_cut(tmp_path, spark, seed):
    """Two joins over random micro-batches; the second half runs in another tick, with another parallelism."""
    steps = steps_of(seed)
    chance = random.Random(seed)  # noqa: S311 - test data
    trial = Trial(building(steps), tmp_path)
    trial.run(every_rows=chance.choice([40, 50]), slice_rows_max=chance.choice([7, 20]), checkpoints=2, retained=9)
    trial.run(every_rows=chance.choice([40, 90]), slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    assert judge(spark, trial.warehouse, steps)


@pytest.mark.dear
def test_a_kill_between_joins_changes_nothing(tmp_path, spark):
    """The tick dies after it committed its second checkpoint. The next one joins and takes back each row once."""
    trial = Trial(fixed, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, every_rows=40, slice_rows_max=20, retained=9)
    trial.run(every_rows=40, slice_rows_max=20, retained=9)
    assert judge(spark, trial.warehouse, FIXED)
