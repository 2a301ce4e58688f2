"""Tasks that scan files choose columns and judge rules about null themselves, with the rows that Spark would make."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from checkpointing.channel_items import StagedSegment
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators import execute
from jobs.operators.inputs import scanned_input
from jobs.operators.scan.scanned import may_scan
from jobs.operators.spec import InputPlan, StagedTable, StatelessSpec, VertexPlan, quarantine_schema
from jobs.pipeline.streams import dropped, good_rows, in_turn, row_rules, selected, with_column
from jobs.quality.expectation import Expectation

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
ROWS = pa.table(
    {
        "route": ["EWR-SFO", None, "JFK-LAX", "LGA-BOS", None],
        "delay": [5, None, None, 7, 8],
        "note": ["a", None, None, None, ""],
        "temp": [NAN, None, 1.0, None, NAN],
    }
)
CHOICE = (dropped(["note"]), selected(["delay", "route"]))
PLUS_ONE = with_column("delay", "delay + 1", LongType())


def rules(*kinds):
    expectations = [
        Expectation(f"expect_column_values_to_{kind}be_null", {"column": column}) if isinstance(column, str) else column
        for kind, column in kinds
    ]
    return row_rules("here", WIDE, expectations)


NULLS = rules(("not_", "delay"), ("not_", "route"), ("", "note"), ("not_", "temp"))
POSITIVE = rules(("", Expectation("expect_column_values_to_be_between", {"column": "delay", "min_value": 0})))


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
    pq.write_table(ROWS, path)
    return (StagedSegment((FileHandle(path.name, ROWS.num_rows, path.stat().st_size, 0),)),)


@pytest.mark.parametrize(
    ("steps", "by_tasks"),
    [
        ((), True),
        (CHOICE, True),
        ((good_rows(NULLS), *CHOICE), True),
        ((good_rows(POSITIVE), *CHOICE), False),
        ((good_rows((*NULLS, *POSITIVE)),), False),
        ((PLUS_ONE,), False),
        ((*CHOICE, PLUS_ONE), False),
        ((PLUS_ONE, *CHOICE), False),
    ],
)
def test_tasks_scan_files_unless_a_step_is_sparks(tmp_path, steps, by_tasks):
    (reads,) = plan_of(*steps).inputs
    assert by_tasks == (scanned_input(reads, segments(tmp_path), tmp_path) is not None)


@pytest.mark.parametrize(("checks", "by_tasks"), [((), True), (NULLS, True), ((*NULLS, *POSITIVE), False)])
def test_a_vertex_with_row_rules_scans_files_if_its_tasks_can_judge_all(checks, by_tasks):
    assert by_tasks == may_scan(plan_of(schema=WIDE, checks=checks).spec, 0)


def both_ways(bench, monkeypatch, plan):
    """Run a micro-batch by scanning tasks and by Spark. Return the rows of each file that came out, by table."""
    found = []
    for reads in (scanned_input, lambda *_: None):
        monkeypatch.setattr(execute, "scanned_input", reads)
        vertex = bench(plan)
        (output,) = vertex.run(ROWS).outputs
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
    """The columns of the rules may be among the chosen ones or not. NaN is a number."""
    checked = {"note": ("", "note"), "delay": ("not_", "delay"), "temp": ("not_", "temp")}
    good = good_rows(rules(*(checked[name] for name in kept or ("temp",))))
    ours, theirs = both_ways(bench, monkeypatch, plan_of(good, *CHOICE))
    expected = {("note",): 3, ("note", "delay"): 1, (): 3}[kept]
    assert ours["bronze/routes"].height == expected
    assert ours["bronze/routes"].equals(theirs["bronze/routes"])


@pytest.mark.spark
@pytest.mark.parametrize(("checks", "failing"), [(NULLS, 5), (NULLS[:2], 3), (NULLS[2:3], 2), (NULLS[3:], 2)])
def test_failing_rows_are_those_of_spark_with_the_names_of_their_rules(bench, monkeypatch, checks, failing):
    ours, theirs = both_ways(bench, monkeypatch, plan_of(schema=WIDE, checks=checks))
    assert set(ours) == {"bronze/routes", "quarantine/routes"}
    assert ours["bronze/routes"].height == ROWS.num_rows
    assert ours["quarantine/routes"].height == failing
    for table, rows in ours.items():
        assert rows.to_dicts().__repr__() == theirs[table].to_dicts().__repr__()
