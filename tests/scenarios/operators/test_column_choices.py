"""Tests that steps which only choose columns leave the scan to the tasks, with the rows that Spark would have made."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.channel_items import StagedSegment
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators import execute
from jobs.operators.inputs import scanned_input
from jobs.operators.spec import InputPlan, StagedTable, StatelessSpec, VertexPlan
from jobs.pipeline.steps import dropped, in_turn, selected, with_column

WIDE = StructType(
    [StructField("route", StringType()), StructField("delay", LongType()), StructField("note", StringType())]
)
CHOSEN = StructType([StructField("delay", LongType()), StructField("route", StringType())])
ROWS = pa.table({"route": ["EWR-SFO", None], "delay": [5, None], "note": ["a", "b"]})
CHOICE = (dropped(["note"]), selected(["delay", "route"]))


def plan_of(*steps):
    """Return the plan of a vertex that writes a table of the chosen columns."""
    spec = StatelessSpec(
        vertex=vertex_id("bronze"),
        schema=CHOSEN,
        table=StagedTable(table_name("bronze/routes"), TableMode.APPEND, CHOSEN),
    )
    return VertexPlan(spec, (InputPlan(WIDE, chain=in_turn(steps)),))


def segments(warehouse):
    """Write the rows into a file of the warehouse and return the segment that names it."""
    path = warehouse / "rows.parquet"
    pq.write_table(ROWS, path)
    return (StagedSegment((FileHandle(path.name, ROWS.num_rows, path.stat().st_size, 0),)),)


@pytest.mark.parametrize(
    ("steps", "by_tasks"),
    [
        ((), True),
        (CHOICE, True),
        ((with_column("delay", "delay + 1", LongType()),), False),
        ((*CHOICE, with_column("delay", "delay + 1", LongType())), False),
        ((with_column("delay", "delay + 1", LongType()), *CHOICE), False),
    ],
)
def test_tasks_scan_files_unless_a_step_makes_values(tmp_path, steps, by_tasks):
    """One step with an expression is enough to leave the scan to Spark."""
    (reads,) = plan_of(*steps).inputs
    assert by_tasks == (scanned_input(reads, segments(tmp_path), tmp_path) is not None)


@pytest.mark.spark
def test_the_rows_of_a_choice_are_those_of_spark(bench, monkeypatch):
    """They have the chosen columns in their order, and all their values."""
    found = []
    for reads in (scanned_input, lambda *_: None):
        monkeypatch.setattr(execute, "scanned_input", reads)
        vertex = bench(plan_of(*CHOICE))
        (output,) = vertex.run(ROWS).outputs
        found.append(vertex.read(output.emitted))
    assert found[0].rows() == [(5, "EWR-SFO"), (None, None)]
    assert found[0].columns == ["delay", "route"]
    assert found[0].equals(found[1])
