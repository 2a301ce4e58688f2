"""Tests a stateless micro-batch on real Spark."""

import datetime as dt
import gc
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from checkpointing.channel_items import StagedSegment
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import table_name, vertex_id
from checkpointing.messages import SubtaskOutput
from jobs.operators import ways_to_read
from jobs.operators.execute import MicroBatchError
from jobs.operators.inputs import scanned_input
from jobs.operators.keyed_vertices import aggregate_spec
from jobs.operators.python_workers import reported
from jobs.operators.scan import planned_jobs, scanned
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.spec import (
    InputPlan,
    RowRule,
    StagedTable,
    StatelessSpec,
    TaskSteps,
    VertexPlan,
    arrow_schema,
    quarantine_schema,
)
from jobs.operators.stateless_job import failed_rules
from jobs.operators.ways_to_read import may_scan
from jobs.pipeline.aggregates import named_aggregates, sum_of
from jobs.pipeline.steps import dropped, filtered, in_turn, selected, with_column
from jobs.pipeline.streams import good_rows, row_rules
from jobs.quality.expectation import Expectation
from jobs.quality.rules import compile_row_rule
from tests.scenarios.operators.conftest import Bench
from tests.scenarios.operators.test_keyed_vertex import KEYS

pytestmark = pytest.mark.spark

SCHEMA = StructType(
    [
        StructField("origin", StringType()),
        StructField("hour", TimestampType()),
        StructField("delay", IntegerType()),
        StructField("temp", DoubleType()),
    ]
)
HOUR = datetime(2013, 3, 10, 7, 0, 0, 123456, tzinfo=UTC)
ROWS = pa.table(
    {
        "origin": ["EWR", "JFK", None],
        "hour": pa.array([HOUR, None, HOUR], pa.timestamp("us", "UTC")),
        "delay": pa.array([5, None, -3], pa.int32()),
        "temp": [float("nan"), 1.0, None],
    }
)
BRONZE = StagedTable(table_name("bronze/flights"), TableMode.APPEND, SCHEMA)
QUARANTINE = StagedTable(table_name("quarantine/flights"), TableMode.APPEND, quarantine_schema(SCHEMA))
RULES = (RowRule("has a delay", "delay is not null"), RowRule("is late", lambda: F.col("delay") > 0))


def bronze(**changes):
    fields = {
        "vertex": vertex_id("bronze"),
        "schema": SCHEMA,
        "table": BRONZE,
        "rules": RULES,
        "quarantine": QUARANTINE,
    }
    return VertexPlan(StatelessSpec(**fields | changes), (InputPlan(SCHEMA),))


def test_all_rows_go_to_the_table_and_failing_ones_also_to_quarantine(bench):
    """The next vertex gets the table's own files. `_failed` names each failed rule.

    A rule that is null counts as passed.
    """
    vertex = bench(bronze())
    (output,) = vertex.run(ROWS).outputs
    assert output.emitted == tuple(file for table, file in output.staged if table == BRONZE.name)
    assert ROWS.to_pylist()[1:] == vertex.read(output.emitted).to_arrow().to_pylist()[1:]
    (rejected,) = (file for table, file in output.staged if table == QUARANTINE.name)
    expected = [(None, "has a delay"), (-3, "is late")]
    assert expected == vertex.read([rejected]).select("delay", "_failed").sort("delay", nulls_last=False).rows()


@pytest.mark.parametrize("rows", [pytest.param(None, id="no segment"), pytest.param(ROWS.slice(0, 0), id="no row")])
def test_an_empty_micro_batch_writes_nothing(bench, rows):
    assert (SubtaskOutput(),) == bench(bronze()).run(rows).outputs


def test_steps_before_the_vertex_run_in_its_spark_job(bench):
    """One Spark job reads, applies the steps and writes the files. Without a table, the rows go to a channel."""
    shape = StructType([StructField("origin", StringType()), StructField("double", IntegerType())])
    spec = StatelessSpec(vertex=vertex_id("shape"), schema=shape)
    doubled = InputPlan(SCHEMA, chain=lambda rows: rows.where("delay > 0").withColumn("double", F.col("delay") * 2))
    vertex = bench(VertexPlan(spec, (doubled,)))
    (output,) = vertex.run(ROWS).outputs
    assert () == output.staged
    assert output.emitted[0].path.startswith("_tidemark/demo/channels/shape/_data/1/shape-1-")
    assert [("EWR", 10)] == vertex.read(output.emitted).rows()


def test_a_file_that_a_task_cannot_write_is_named(bench):
    """The message has the file's name and the way out instead of a stack trace."""
    vertex = bench(bronze())
    (vertex.warehouse / "bronze").write_text("in the way")
    with pytest.raises(
        MicroBatchError, match=r"micro-batch 1 of vertex bronze could not be written: StagedFileError: .*bronze/flights"
    ):
        vertex.run(ROWS)


def test_a_step_that_loses_a_column_is_named(bench):
    """A missing column is an error. It is not filled with nulls."""
    with pytest.raises(
        MicroBatchError, match=r"vertex bronze failed: InvalidSpecError: rows should have .* but lack \['delay'\]"
    ):
        bench(VertexPlan(bronze().spec, (InputPlan(SCHEMA, chain=lambda rows: rows.drop("delay")),))).run(ROWS)


def test_a_worker_keeps_its_imports_from_the_garbage_collector(bench):
    """Spark's daemon collects garbage after each task. This collection does not visit what the worker has imported."""
    vertex = bench(bronze())
    vertex.run(ROWS)
    (counted,) = reported(vertex.jobs.session.range(0, 1, 1, 1), _counts).collect()
    assert int(counted.report) > int(counted.worker)


def _counts(_batches):
    frozen, alive = str(gc.get_freeze_count()), str(len(gc.get_objects()))
    yield pa.RecordBatch.from_pydict({"report": [frozen], "worker": [alive]})


def test_a_value_that_a_rule_cannot_compare_does_not_pass(spark):
    """Without ANSI mode, `'x' >= 5` is null in Spark. The value was not judged, so the row goes to quarantine."""
    rule = Expectation("expect_column_values_to_be_between", {"column": "a", "min_value": 5})
    rules = (RowRule("at least 5", compile_row_rule(rule)),)
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        rows = spark.createDataFrame([("x",), ("7",), ("3",), (None,)], "a string")
        failed = [row.failed for row in rows.select(failed_rules(rules).alias("failed")).collect()]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi)
    assert ["at least 5", None, "at least 5", None] == failed


# ------------------------------------------------------------------
# Tests on real Spark that a plan is used again only if its steps cannot change from one micro-batch to the next.


ROWS_OF_PLANNED_JOBS = StructType().add("k", LongType()).add("n", LongType())
SHOWN = StructType().add("k", LongType()).add("n", LongType()).add("x", StringType())


def summed(*steps, name="sums"):
    spec = aggregate_spec(
        vertex=vertex_id(name),
        rows=ROWS_OF_PLANNED_JOBS,
        keys=("k",),
        aggregates=named_aggregates(f"vertex {name}", ["k"], ROWS_OF_PLANNED_JOBS, {"total": sum_of("n")}),
        parallelism=2,
        max_parallelism=8,
    )
    return VertexPlan(spec, (InputPlan(ROWS_OF_PLANNED_JOBS, chain=in_turn(steps)),))


def written(expression):
    table = StagedTable(table_name("bronze/rows"), TableMode.APPEND, SHOWN)
    spec = StatelessSpec(vertex=vertex_id("rows"), schema=SHOWN, table=table)
    return VertexPlan(
        spec,
        (
            InputPlan(
                ROWS_OF_PLANNED_JOBS, chain=in_turn([with_column("x", expression, StringType(), ROWS_OF_PLANNED_JOBS)])
            ),
        ),
    )


def rows(*numbers):
    return pa.table({"k": pa.array([5] * len(numbers), pa.int64()), "n": pa.array(numbers, pa.int64())})


def emitted(bench, table):
    return bench.read([file for output in bench.run(table).outputs for file in output.emitted])


def plans(bench):
    return len(bench.jobs._plans)


@pytest.mark.parametrize("characters", [planned_jobs._CHARACTERS_MAX, 0], ids=["handed over", "in the plan"])
def test_each_micro_batch_has_its_own_rows_and_state(bench, monkeypatch, characters):
    """This holds with and without steps, and also if the work is too large to be handed over and lies in the plan."""
    monkeypatch.setattr(planned_jobs, "_CHARACTERS_MAX", characters)
    for steps in (
        [],
        [selected(["n", "k"])],
        [with_column("n", "n * 10", LongType(), ROWS_OF_PLANNED_JOBS), selected(["k", "n"])],
    ):
        vertex = bench(summed(*steps))
        times = 10 if len(steps) > 1 else 1
        assert [times * total for total in (3, 6, 11)] == [
            emitted(vertex, rows(*numbers))["total"].item() for numbers in ([1, 2], [3], [4, 1])
        ]
        assert plans(vertex) == (1 if characters else 0)


def test_texts_that_say_the_same_are_planned_once(bench):
    """This also holds for a vertex that writes rows without state."""
    vertex = bench(written("concat(upper(cast(n as string)), '!')"))
    assert [["1!"], ["2!", "3!"]] == [emitted(vertex, rows(*each))["x"].to_list() for each in ([1], [2, 3])]
    assert 1 == plans(vertex)


OTHERS = {
    "map": (MapType(StringType(), LongType()), [{"a": 1}, {}]),
    "map in array": (ArrayType(MapType(StringType(), StringType())), [[{"a": None}], []]),
    "days": (DayTimeIntervalType(0, 3), [dt.timedelta(days=2, microseconds=7)]),
}


@pytest.mark.parametrize("name", [*KEYS, *OTHERS])
def test_values_of_every_type_pass_through_a_plan(bench, name):
    """A task reads the values, Spark's plan passes them on, and a task writes them."""
    kind, values = (KEYS | OTHERS)[name]
    schema = StructType().add("v", kind)
    shown = StructType().add("v", kind).add("x", LongType())
    table = StagedTable(table_name("bronze/rows"), TableMode.APPEND, shown)
    chain = in_turn([with_column("x", "abs(1)", LongType(), schema)])
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
    """The current time, random numbers, file names and other tables are evaluated anew in each micro-batch."""
    spark.range(1).createOrReplaceTempView("seen")
    vertex = bench(written(expression))
    first = emitted(vertex, rows(1))["x"].item()
    spark.range(2).createOrReplaceTempView("seen")
    second = emitted(vertex, rows(1))["x"].item()
    assert (0, True) == (plans(vertex), first != second)
    assert all((first, second))


def test_a_step_in_python_is_planned_each_time(bench, spark):
    """Nobody knows what a step in Python reads. Nor does Spark's planner know what a registered function reads."""
    number = iter(range(1, 9))
    vertex = bench(summed(with_column("n", lambda: F.lit(next(number)), LongType(), ROWS_OF_PLANNED_JOBS)))
    assert [1, 3] == [emitted(vertex, rows(7))["total"].item() for _ in range(2)]
    spark.udf.register("twice", lambda n: 2 * n, LongType())
    vertex = bench(summed(with_column("n", "twice(n)", LongType(), ROWS_OF_PLANNED_JOBS)))
    assert [14, 28] == [emitted(vertex, rows(7))["total"].item() for _ in range(2)]
    assert 0 == plans(vertex)


def test_a_plan_goes_when_its_job_fails(bench):
    """Spark may keep an error in a plan, so the next micro-batch gets a new plan."""
    fails = "if(n = 13, raise_error('a bad row'), n)"
    vertex = bench(summed(with_column("n", fails, LongType(), ROWS_OF_PLANNED_JOBS)))
    assert 1 == emitted(vertex, rows(1))["total"].item()
    with pytest.raises(MicroBatchError, match=r"micro-batch 2 of vertex sums failed: .*a bad row"):
        vertex.run(rows(13))
    assert 0 == plans(vertex)
    assert 3 == emitted(vertex, rows(2))["total"].item()


def test_vertices_use_one_plan_at_the_same_time(spark, tmp_path):
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
    """With PYSPARK_PIN_THREAD=false, a job could get another job's work. The gateway's class shows that setting."""
    monkeypatch.setattr(planned_jobs, "ClientServer", type("NoGateway", (), {}))
    vertex = bench(summed(with_column("n", "n * 10", LongType(), ROWS_OF_PLANNED_JOBS)))
    assert [10, 30] == [emitted(vertex, rows(number))["total"].item() for number in (1, 2)]
    assert 0 == plans(vertex)


def test_sparks_event_log_hides_the_work(spark):
    """The work contains a user's function, which may contain a password."""
    settings = getattr(spark.sparkContext._jvm.org.apache.spark.internal.config, "package$").__getattr__("MODULE$")
    assert re.search(settings.SECRET_REDACTION_PATTERN().defaultValueString(), planned_jobs._WORK)


# ------------------------------------------------------------------
# Functions that hold state run in Python workers of their own.


def name_worker(batches):
    for batch in batches:
        yield pa.record_batch({"before": [str(os.getpid())] * batch.num_rows})


def report_both(batches):
    for batch in batches:
        yield pa.record_batch({"report": batch.column(0), "worker": [str(os.getpid())] * batch.num_rows})


def test_the_last_function_of_a_task_has_workers_of_its_own(spark):
    """A task with two functions uses two workers. No worker of a task's last function runs an earlier one."""
    before = dict(spark.sparkContext.environment)
    last, first = set(), set()
    for _ in range(4):
        named = spark.range(0, 8, 1, 4).mapInArrow(name_worker, "before string")
        for row in reported(named, report_both).collect():
            first.add(row.report)
            last.add(row.worker)
    assert not first & last
    assert last
    assert before == spark.sparkContext.environment


# ------------------------------------------------------------------
# Tasks that scan files choose columns and judge plain rules themselves. Their rows are those that Spark would make.


WIDE = StructType(
    [
        StructField("route", StringType()),
        StructField("delay", LongType()),
        StructField("note", StringType()),
        StructField("temp", DoubleType()),
    ]
)
CHOSEN = StructType([StructField("delay", LongType()), StructField("route", StringType())])
NAN = float("nan")
STEPPED = pa.table(
    {
        "route": ["EWR-SFO", None, "JFK-LAX", "LGA-BOS", None],
        "delay": [5, None, None, 7, 8],
        "note": ["a", None, None, None, ""],
        "temp": [NAN, None, 1.0, None, NAN],
    }
)
CHOICE = (dropped(["note"]), selected(["delay", "route"]))
PLUS_ONE = with_column("delay", "delay + 1", LongType(), WIDE)


def rules(*kinds):
    expectations = [
        Expectation(f"expect_column_values_to_{kind}be_null", {"column": column}) if isinstance(column, str) else column
        for kind, column in kinds
    ]
    return row_rules("here", WIDE, expectations)


NULLS = rules(("not_", "delay"), ("not_", "route"), ("", "note"), ("not_", "temp"))
SMALL = rules(("", Expectation("expect_column_values_to_be_between", {"column": "delay", "max_value": 7})))
NAMED = rules(("", Expectation("expect_column_values_to_match_regex", {"column": "route", "regex": "^[A-Z]{3}-"})))


def plan_of(*steps, schema=CHOSEN, checks=()):
    spec = StatelessSpec(
        vertex=vertex_id("bronze"),
        schema=schema,
        table=StagedTable(table_name("bronze/routes"), TableMode.APPEND, schema),
        rules=checks,
        quarantine=StagedTable(table_name("quarantine/routes"), TableMode.APPEND, quarantine_schema(schema))
        if checks
        else None,
    )
    return VertexPlan(spec, (InputPlan(WIDE, chain=in_turn(steps)),))


def segments(warehouse):
    path = warehouse / "rows.parquet"
    pq.write_table(STEPPED, path)
    return (StagedSegment((FileHandle(path.name, STEPPED.num_rows, path.stat().st_size, 0),)),)


@pytest.mark.parametrize(
    ("steps", "by_tasks"),
    [
        ((), True),
        (CHOICE, True),
        ((good_rows(NULLS), *CHOICE), True),
        ((good_rows((*NULLS, *SMALL)),), True),
        ((good_rows(NAMED), *CHOICE), False),
        ((good_rows((*NULLS, *NAMED)),), False),
        ((PLUS_ONE,), False),
        ((*CHOICE, PLUS_ONE), False),
        ((PLUS_ONE, *CHOICE), False),
    ],
)
def test_tasks_scan_files_unless_a_step_is_sparks(tmp_path, steps, by_tasks):
    (reads,) = plan_of(*steps).inputs
    assert by_tasks == (scanned_input(reads, segments(tmp_path), tmp_path) is not None)


@pytest.mark.parametrize(
    ("checks", "by_tasks"), [((), True), (NULLS, True), ((*NULLS, *SMALL), True), ((*NULLS, *NAMED), False)]
)
def test_a_vertex_with_row_rules_scans_files_if_its_tasks_can_judge_all(checks, by_tasks):
    assert by_tasks == may_scan(plan_of(schema=WIDE, checks=checks).spec, 0)


def both_ways(bench, monkeypatch, plan):
    """Run a micro-batch by scanning tasks and by Spark. Return, for each run, a dict from tables to their rows."""
    found = []
    for reads in (scanned_input, lambda *_: None):
        monkeypatch.setattr(ways_to_read, "scanned_input", reads)
        vertex = bench(plan)
        (output,) = vertex.run(STEPPED).outputs
        found.append({str(table): vertex.read([file]) for table, file in output.staged})
    return found


@pytest.mark.spark
def test_the_rows_of_a_choice_are_those_of_spark(bench, monkeypatch):
    ours, theirs = both_ways(bench, monkeypatch, plan_of(*CHOICE))
    assert ours["bronze/routes"].columns == ["delay", "route"]
    assert ours["bronze/routes"].rows() == [(5, "EWR-SFO"), (None, None), (None, "JFK-LAX"), (7, "LGA-BOS"), (8, None)]
    assert ours["bronze/routes"].equals(theirs["bronze/routes"])


@pytest.mark.spark
@pytest.mark.parametrize("kept", [("note",), ("note", "delay"), ()])
def test_the_good_rows_are_those_of_spark(bench, monkeypatch, kept):
    """The columns of the rules may be among the chosen ones or not. NaN is not null."""
    checked = {"note": ("", "note"), "delay": ("not_", "delay"), "temp": ("not_", "temp")}
    good = good_rows(rules(*(checked[name] for name in kept or ("temp",))))
    ours, theirs = both_ways(bench, monkeypatch, plan_of(good, *CHOICE))
    expected = {("note",): 3, ("note", "delay"): 1, (): 3}[kept]
    assert ours["bronze/routes"].height == expected
    assert ours["bronze/routes"].equals(theirs["bronze/routes"])


@pytest.mark.spark
@pytest.mark.parametrize(
    ("checks", "failing"),
    [(NULLS, 5), (NULLS[:2], 3), (NULLS[2:3], 2), (NULLS[3:], 2), (SMALL, 1), (NULLS[:2] + SMALL, 3)],
)
def test_failing_rows_are_those_of_spark_with_the_names_of_their_rules(bench, monkeypatch, checks, failing):
    ours, theirs = both_ways(bench, monkeypatch, plan_of(schema=WIDE, checks=checks))
    assert set(ours) == {"bronze/routes", "quarantine/routes"}
    assert ours["bronze/routes"].height == STEPPED.num_rows
    assert ours["quarantine/routes"].height == failing
    for table, rows in ours.items():
        assert rows.to_dicts().__repr__() == theirs[table].to_dicts().__repr__()


UPPER = with_column("loud", "upper(route)", StringType(), WIDE)
RENAMED = TaskSteps(lambda rows: rows.withColumnsRenamed({"note": "n"}))
HALF = with_column("half", "temp / 2", DoubleType(), WIDE)
LENGTH = with_column("n", "length(loud)", LongType(), StructType([*WIDE, StructField("loud", StringType())]))
DIVIDED = {
    "one computed column beside copies": ((UPPER,), ["route"], ["loud"]),
    "a column that is replaced, and computed again": ((PLUS_ONE, PLUS_ONE), ["delay"], ["delay"]),
    "rows that are left out": ((filtered("abs(delay) > 5 OR route IS NULL", WIDE),), ["route", "delay"], []),
    "no row is left": ((UPPER, filtered("length(loud) > 99", WIDE)), ["route"], ["loud"]),
    "no row of one file is left": ((filtered("coalesce(delay, 0) < 6", WIDE), HALF), ["delay", "temp"], ["half"]),
    "chosen, renamed and computed": ((UPPER, selected(["loud", "note"]), RENAMED), ["route"], ["loud"]),
    "a constant": ((with_column("one", "abs(1)", LongType(), WIDE),), [], ["one"]),
    "computed from what is computed": ((UPPER, LENGTH), ["route"], ["loud", "n"]),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_a_task_puts_what_spark_computes_beside_what_it_reads_itself(bench, spark, monkeypatch, case):
    """Two tasks read one file each. Their rows are the same as those of a plan in which Spark sees all columns."""
    steps, reads, computed = DIVIDED[case]
    schema = in_turn(steps)(spark.createDataFrame([], WIDE)).schema
    plan = plan_of(*steps, schema=StructType([StructField(each.name, each.dataType) for each in schema]))
    monkeypatch.setattr(scanned, "_TASK_ROWS", 1)
    monkeypatch.setattr(ways_to_read, "is_small", lambda *_: False)
    found, divisions = [], []
    for divides in (True, False):
        vertex = bench(plan)
        monkeypatch.setattr(vertex, "stage", partial(in_two_files, vertex.stage))
        if divides:
            divisions.append(vertex.jobs.division(plan.spec.vertex, 0, plan.inputs[0]))
        else:
            monkeypatch.setattr(ways_to_read, "divided_input", lambda *_: None)
        (output,) = vertex.run(STEPPED).outputs
        rows = [row for _, file in output.staged for row in vertex.read([file]).rows()]
        found.append(sorted(map(repr, rows)))
    assert [(reads, computed)] == [([*each.read], [*each.computed]) for each in divisions]
    assert found[0] == found[1]
    assert bool(found[0]) == (case != "no row is left")


@pytest.mark.parametrize(
    "sql", ["input_file_name()", "cast(rand() AS string)", "(SELECT max(route) FROM VALUES ('a') AS t(route))"]
)
def test_spark_sees_all_columns_where_a_step_reads_more_than_columns(bench, sql):
    """Spark knows the name of a file only where it reads the file itself."""
    steps = (UPPER, with_column("more", sql, StringType(), WIDE))
    plan = plan_of(
        *steps, schema=StructType([*WIDE, StructField("loud", StringType()), StructField("more", StringType())])
    )
    assert bench(plan).jobs.division(plan.spec.vertex, 0, plan.inputs[0]) is None


def in_two_files(stage, rows):
    parts = (stage(part) for part in (rows.slice(0, 3), rows.slice(3)))
    return StagedSegment(tuple(file for part in parts for file in part.files))
