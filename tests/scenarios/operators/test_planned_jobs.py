"""Tests on real Spark that a plan is used again only if its steps cannot change from one micro-batch to the next."""

import datetime as dt
import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import ArrayType, DayTimeIntervalType, LongType, MapType, StringType, StructType

from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators.execute import MicroBatchError
from jobs.operators.keyed_vertices import aggregate_spec
from jobs.operators.scan import planned_jobs
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.spec import InputPlan, StagedTable, StatelessSpec, VertexPlan, arrow_schema
from jobs.pipeline.aggregates import named_aggregates, sum_of
from jobs.pipeline.streams import in_turn, selected, with_column
from tests.scenarios.operators.conftest import Bench
from tests.scenarios.operators.test_key_groups_on_spark import KEYS

pytestmark = pytest.mark.spark

ROWS = StructType().add("k", LongType()).add("n", LongType())
SHOWN = StructType().add("k", LongType()).add("n", LongType()).add("x", StringType())


def summed(*steps, name="sums"):
    """Return the plan of a sum by key, after these steps."""
    spec = aggregate_spec(
        vertex=vertex_id(name),
        rows=ROWS,
        keys=("k",),
        aggregates=named_aggregates(f"vertex {name}", ["k"], ROWS, {"total": sum_of("n")}),
        parallelism=2,
        max_parallelism=8,
    )
    return VertexPlan(spec, (InputPlan(ROWS, chain=in_turn(steps)),))


def written(expression):
    """Return the plan of a table whose column `x` has this expression's value."""
    table = StagedTable(table_name("bronze/rows"), TableMode.APPEND, SHOWN)
    spec = StatelessSpec(vertex=vertex_id("rows"), schema=SHOWN, table=table)
    return VertexPlan(spec, (InputPlan(ROWS, chain=in_turn([with_column("x", expression, StringType())])),))


def rows(*numbers):
    """Return rows of one key with these numbers."""
    return pa.table({"k": pa.array([5] * len(numbers), pa.int64()), "n": pa.array(numbers, pa.int64())})


def emitted(bench, table):
    """Run a micro-batch, and return the rows that it emits."""
    return bench.read([file for output in bench.run(table).outputs for file in output.emitted])


def plans(bench):
    """Return how many plans wait to be used again."""
    return len(bench.jobs._plans)


@pytest.mark.parametrize("characters", [planned_jobs._CHARACTERS_MAX, 0], ids=["handed over", "in the plan"])
def test_each_micro_batch_has_its_own_rows_and_state(bench, monkeypatch, characters):
    """With steps and without, and also if its work is too large to be handed over."""
    monkeypatch.setattr(planned_jobs, "_CHARACTERS_MAX", characters)
    for steps in ([], [selected(["n", "k"])], [with_column("n", "n * 10", LongType()), selected(["k", "n"])]):
        vertex = bench(summed(*steps))
        times = 10 if len(steps) > 1 else 1
        assert [times * total for total in (3, 6, 11)] == [
            emitted(vertex, rows(*numbers))["total"].item() for numbers in ([1, 2], [3], [4, 1])
        ]
        assert plans(vertex) == (1 if characters else 0)


def test_texts_that_say_the_same_are_planned_once(bench):
    """Also in a step that writes rows without state."""
    vertex = bench(written("concat(cast(n as string), '!')"))
    assert [["1!"], ["2!", "3!"]] == [emitted(vertex, rows(*each))["x"].to_list() for each in ([1], [2, 3])]
    assert 1 == plans(vertex)


OTHERS = {
    "map": (MapType(StringType(), LongType()), [{"a": 1}, {}]),
    "map in array": (ArrayType(MapType(StringType(), StringType())), [[{"a": None}], []]),
    "days": (DayTimeIntervalType(0, 3), [dt.timedelta(days=2, microseconds=7)]),
}


@pytest.mark.parametrize("name", [*KEYS, *OTHERS])
def test_values_of_every_type_pass_through_a_plan(bench, name):
    """A task reads them, Spark takes them, and a task writes them."""
    kind, values = (KEYS | OTHERS)[name]
    schema = StructType().add("v", kind)
    shown = StructType().add("v", kind).add("x", LongType())
    table = StagedTable(table_name("bronze/rows"), TableMode.APPEND, shown)
    chain = in_turn([with_column("x", "1", LongType())])
    spec = StatelessSpec(vertex=vertex_id("rows"), schema=shown, table=table)
    vertex = bench(VertexPlan(spec, (InputPlan(schema, chain=chain),)))
    given = pa.table([pa.array([*values, None], arrow_schema(schema).field("v").type)], arrow_schema(schema))
    for _ in range(2):
        (file,) = vertex.run(given).outputs[0].emitted
        assert given.column("v").to_pylist() == pq.read_table(vertex.warehouse / file.path).column("v").to_pylist()
    assert 1 == plans(vertex)


@pytest.mark.parametrize(
    "expression",
    ["current_timestamp()", "now()", "rand()", "uuid()", "input_file_name()", "(select count(*) from seen)"],
)
def test_what_may_change_is_planned_each_time(bench, spark, expression):
    """Times, random numbers, names of files and other tables have their values of this micro-batch."""
    spark.range(1).createOrReplaceTempView("seen")
    vertex = bench(written(expression))
    first = emitted(vertex, rows(1))["x"].item()
    spark.range(2).createOrReplaceTempView("seen")
    second = emitted(vertex, rows(1))["x"].item()
    assert (0, True) == (plans(vertex), first != second)
    assert all((first, second))


def test_a_step_in_python_is_planned_each_time(bench, spark):
    """Nobody knows what it reads. Neither does Spark's planner know what a registered function reads."""
    number = iter(range(1, 9))
    vertex = bench(summed(with_column("n", lambda: F.lit(next(number)), LongType())))
    assert [1, 3] == [emitted(vertex, rows(7))["total"].item() for _ in range(2)]
    spark.udf.register("twice", lambda n: 2 * n, LongType())
    vertex = bench(summed(with_column("n", "twice(n)", LongType())))
    assert [14, 28] == [emitted(vertex, rows(7))["total"].item() for _ in range(2)]
    assert 0 == plans(vertex)


def test_a_plan_goes_when_its_job_fails(bench):
    """Spark may keep an error in a plan. The next micro-batch gets a new one."""
    vertex = bench(summed(with_column("n", "if(n = 13, raise_error('a bad row'), n)", LongType())))
    assert 1 == emitted(vertex, rows(1))["total"].item()
    with pytest.raises(MicroBatchError, match=r"micro-batch 2 of vertex sums failed: .*a bad row"):
        vertex.run(rows(13))
    assert 0 == plans(vertex)
    assert 3 == emitted(vertex, rows(2))["total"].item()


def test_vertices_use_one_plan_at_the_same_time(spark, tmp_path):
    """Each job has its own work."""
    jobs = PlannedJobs(spark)
    names = [f"v{number}" for number in range(8)]
    for name in names:
        (tmp_path / name).mkdir()
    vertices = {name: Bench(jobs, tmp_path / name, summed(name=name)) for name in names}
    with ThreadPoolExecutor(8) as pool:
        for turn in range(1, 4):
            made = pool.map(lambda name: emitted(vertices[name], rows(int(name[1:]))), names)
            assert [number * turn for number in range(8)] == [frame["total"].item() for frame in made]
    assert [1] == list(jobs._plans)


def test_threads_that_share_the_jvms_threads_get_no_plan(bench, monkeypatch):
    """A job could get the work of another one. With PYSPARK_PIN_THREAD=false the gateway is of another class."""
    monkeypatch.setattr(planned_jobs, "ClientServer", type("NoGateway", (), {}))
    vertex = bench(summed(with_column("n", "n * 10", LongType())))
    assert [10, 30] == [emitted(vertex, rows(number))["total"].item() for number in (1, 2)]
    assert 0 == plans(vertex)


def test_sparks_event_log_hides_the_work(spark):
    """A user's function may contain a password."""
    settings = getattr(spark.sparkContext._jvm.org.apache.spark.internal.config, "package$").__getattr__("MODULE$")
    assert re.search(settings.SECRET_REDACTION_PATTERN().defaultValueString(), planned_jobs._WORK)
