"""Compares every cut of pipelines of top rows with Spark SQL's `row_number` over the rows before the barrier."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.job.restoring import CutDoesNotFitError
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.reading import Cuts
from jobs.state.files import arrow_of, empty_frame
from tidemark import Pipeline, SequenceSource, count, deduplicate, join, max_of, sum_of, top
from tidemark.testing import Trial

pytestmark = pytest.mark.spark


def steps_of(seed):
    """Return a random pipeline: the key of the changelog, its filter, its order, and how many rows are first."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return {
        "rows": 90,
        "keys": chance.choice([7, 15, 40]),
        "j": chance.choice(["n_of % 3", "total % 4", "nullif(total % 4, 0)"]),
        "filter": chance.choice(["true", "n_of % 3 <> 1", "total % 2 = 0"]),
        "order": chance.choice([["total desc"], ["n_of"], ["n_of desc", "least"], ["nullif(least, 2)", "total desc"]]),
        "n": 1 + seed % 3,
    }


def building(steps):
    """Return what builds the pipeline: rows, their aggregates, and the first rows of both, aggregated and joined."""

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
    """Return SQL that numbers the rows: by the order, then by the other columns."""
    by = ", ".join([*order, *(name for name in columns if name not in order)])
    return f"select *, row_number() over (partition by {keys} order by {by}) as nth from ({rows})"


def sql_of(steps):
    """Return the queries of the upsert tables over the view `rows`."""
    own = "select nullif(n % 6, 0) as c, key, n, value from rows"
    latest = numbered(own, "c", ["n desc"], ["key", "value"])
    first = numbered(own, "c", ["value desc"], ["key", "n"])
    counted = "select key, count(*) as n_of, sum(value) as total, max(n) as least from rows group by key"
    exprs = [by.removesuffix(" desc") for by in steps["order"]]
    names = [f"o{place}" for place in range(len(exprs))]
    keyed = ", ".join([f"{steps['j']} as j", *(f"{by} as {name}" for by, name in zip(exprs, names, strict=True))])
    # As in the pipeline, the filter sees the rows before the columns of the order, and reads none of them.
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


def judge(spark, warehouse, steps):
    """Compare the tables of every cut with Spark SQL over its bronze rows. Return how many rows each had together."""
    cuts = Cuts(warehouse, "tops").all()
    assert len(cuts) > 1
    seen = dict.fromkeys(sql_of(steps), 0)
    for cut in cuts:
        spark.createDataFrame(cut.polars("bronze/rows").collect().to_pandas()).createOrReplaceTempView("rows")
        for table, query in sql_of(steps).items():
            wanted = spark.sql(query)
            expected = sorted(map(repr, map(tuple, wanted.collect())))
            found = sorted(map(repr, cut.polars(table).select(wanted.columns).collect().rows()))
            assert expected == found, (cut, table)
            seen[table] += len(found)
    return seen


FIXED = {**steps_of(1), "keys": 15, "j": "nullif(total % 4, 0)", "filter": "total % 2 = 0", "order": ["total desc"]}


def fixed(data):
    """Build that pipeline, in another process too."""
    return building(FIXED)(data)


def test_first_rows_are_sparks_at_each_cut_over_a_restart_and_a_rescale(tmp_path, spark):
    """First rows come, change places and go. The second tick begins from a cut, with another parallelism."""
    trial = Trial(fixed, tmp_path)
    trial.run(every_rows=60, slice_rows_max=20, checkpoints=2, retained=9)
    trial.run(every_rows=60, slice_rows_max=20, parallelism=3, retained=9)
    assert all(judge(spark, trial.warehouse, FIXED).values())


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(9))
def test_random_pipelines_with_top_rows_are_sparks_at_each_cut(tmp_path, spark, seed):
    """Top rows over random micro-batches; the second half runs in another tick, with another parallelism."""
    steps = steps_of(seed)
    chance = random.Random(seed)  # noqa: S311 - test data
    trial = Trial(building(steps), tmp_path)
    trial.run(every_rows=chance.choice([40, 50]), slice_rows_max=chance.choice([7, 20]), checkpoints=2, retained=9)
    trial.run(every_rows=chance.choice([40, 90]), slice_rows_max=chance.choice([11, 30]), parallelism=3, retained=9)
    assert judge(spark, trial.warehouse, steps)["gold/ranked"]


@pytest.mark.dear
def test_a_kill_between_first_rows_changes_nothing(tmp_path, spark):
    """The tick dies after it committed its second checkpoint. The next one takes each first row back once."""
    trial = Trial(fixed, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, every_rows=40, slice_rows_max=20, retained=9)
    trial.run(every_rows=40, slice_rows_max=20, retained=9)
    assert all(judge(spark, trial.warehouse, FIXED).values())


def deduplicating(order_by, *, counted=False):
    """Return what builds one vertex of first rows, over rows or over their counts."""

    def build(data):
        pipeline = Pipeline("tops", parallelism=2)
        rows = pipeline.source("rows", SequenceSource({"a": 90}, keys=7)).select("key", "n").key_by("key")
        rows = rows.aggregate("counts", n=count()).key_by("key") if counted else rows
        top(rows, "first", n=1, order_by=order_by).upsert("gold/first")
        return pipeline

    return build


def test_first_rows_in_another_order_do_not_go_on_from_the_kept_ones(tmp_path):
    """The rows that would be first now were not kept. The tick is refused by name, and the old pipeline goes on."""
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


# ------------------------------------------------------------------
# Compares the order of first rows with Spark SQL's `row_number`, for each type that an order may have.


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
    """Null, NaN, infinities and texts beyond ASCII too. The other columns, of any type, tell equal ones apart."""
    chance = random.Random(f"{column}{descending}")  # noqa: S311 - test data
    rows = [(chance.choice([None, 1, 2]), *map(chance.choice, VALUES.values())) for _ in range(120)]
    given = pl.DataFrame(rows, schema=empty_frame(arrow_schema(SCHEMA)).schema, orient="row")
    others = tuple(name for name in SCHEMA.names if name != "k")
    function = TopRows(("k",), others, (Order(column, descending),), 25, "nth", changelog=False)
    done = function.process([given], empty_frame(arrow_schema(top_state(SCHEMA, ("k",)))))
    spark.createDataFrame(arrow_of(given, arrow_schema(SCHEMA))).createOrReplaceTempView("given")
    by = ", ".join([column + " desc" * descending, *(name for name in others if name != column)])
    query = f"select *, row_number() over (partition by k order by {by}) as nth from given"
    wanted = spark.sql(f"select * from ({query}) where nth <= 25").toArrow()
    expected = pl.from_arrow(wanted).select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    found = done.output.select(*SCHEMA.names, "nth").select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    assert sorted(map(repr, expected.rows())) == sorted(map(repr, found.rows()))
    assert found.height == 75
