"""Compares every cut of pipelines that unite changelogs with Spark SQL over the source rows before the barrier."""

import random

import polars as pl
import pytest
from pyspark.sql.types import LongType

from jobs.reading import Cuts
from tidemark import Expectation, Pipeline, SequenceSource, collect_list, count, join, max_of, sum_of, top
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

QUERIES = {
    "gold/united": (
        "select j, count(*) as rows, sum(n) as sum, max(n) as most, sort_array(collect_list(n)) as every "
        "from ({united}) group by j"
    ),
    "gold/again": (
        "select j, count(*) as rows, sum(n) as sum from ({united} union all select 0 as j, n from rows) group by j"
    ),
}


def steps_of(seed):
    """Return how the streams are filtered, and the type of the join that is one of them."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "keys": chance.choice([7, 15]),
        "counted": chance.choice(["n % 3 <> 1", "true", "n % 2 = 0"]),
        "rows": chance.choice(["n % 5 = 0", "n % 4 <> 0"]),
        "how": chance.choice(["left", "full"]),
    }


def building(steps):
    """Return what builds the pipeline: two aggregates, a join and the rows themselves are united.

    An aggregate, first rows and another union take the changes.
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
        again = united.union(rows.with_column("j", "0", LongType()).select("j", "n"), id="more")
        again.key_by("j").aggregate("late", rows=count(), sum=sum_of("n")).upsert("gold/again")
        return pipeline

    return build


def sql_of(steps):
    """Return the queries of the upsert tables over the view `rows`."""
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
    }


def judge(spark, warehouse, steps, aligned_from=0):
    """Compare the upsert tables of every aligned cut with Spark SQL over its bronze rows."""
    cuts = Cuts(warehouse, "unions").all()
    assert len(cuts) > max(1, aligned_from)
    for cut in cuts[aligned_from:]:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in sql_of(steps).items():
            expected = spark.sql(query)
            found = cut.polars(table).select(expected.columns).collect()
            if "every" in found.columns:
                found = found.with_columns(pl.col("every").list.sort())
            assert sorted(map(repr, map(tuple, expected.collect()))) == sorted(map(repr, found.rows())), (cut, table)


FIXED = {"keys": 7, "counted": "n % 3 <> 1", "rows": "n % 5 = 0", "how": "full"}


def fixed(data):
    """Build that pipeline, in another process too."""
    return building(FIXED)(data)


def test_a_union_of_changelogs_is_sparks_at_each_cut(tmp_path, spark):
    """Rows of all streams enter and leave, and one stream is append-only."""
    trial = Trial(fixed, tmp_path)
    trial.run(every_rows=60, slice_rows_max=20, retained=9)
    judge(spark, trial.warehouse, FIXED)


@pytest.mark.dear
@pytest.mark.parametrize("moment", ["after:RunMicroBatch#9", "before:AppendRow#2", "after:AppendRow#2"])
def test_a_union_of_changelogs_is_sparks_after_a_kill(tmp_path, spark, moment):
    """No change is passed on twice, whether or not the checkpoint was committed."""
    trial = Trial(fixed, tmp_path)
    trial.kill(moment, spark_cores=1, every_rows=60, slice_rows_max=20, retained=9)
    trial.run(every_rows=60, slice_rows_max=20, retained=9)
    judge(spark, trial.warehouse, FIXED)


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(4))
def test_random_unions_are_sparks_at_each_cut(tmp_path, spark, seed):
    """The second half runs in another tick, with another parallelism. Of two seeds, it begins with rows in flight."""
    steps, chance = steps_of(seed), random.Random(seed)  # noqa: S311 - test data
    trial = Trial(building(steps), tmp_path)
    unaligned = {"unaligned": True} if seed % 2 else {}
    trial.run(
        every_rows=chance.choice([40, 50]),
        slice_rows_max=chance.choice([7, 20]),
        checkpoints=2,
        retained=9,
        **unaligned,
    )
    trial.run(every_rows=chance.choice([40, 90]), slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    judge(spark, trial.warehouse, steps, aligned_from=2 if unaligned else 0)


def updates_kept(data):
    """Build a union of which one reader takes changes, while its table and its quarantine show rows that came."""
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
    """An update whose new row fails a rule is quarantined, and its old row is taken back."""
    cut = Trial(updates_kept, tmp_path).run(every_rows=20, slice_rows_max=10)
    both = cut.polars("bronze/both").select("key", "n").collect()
    assert both.columns == ["key", "n"]
    assert both.filter(pl.col("n") == 1).height >= 60
    assert both.filter(pl.col("n") == 12).height == 5
    many = cut.polars("bronze/many").select("n", "_failed").collect()
    assert many.height == both.filter(pl.col("n") > 6).height
    assert cut.polars("gold/sums").select("rows", "sum").collect().rows() == [(12, 12)] * 5
