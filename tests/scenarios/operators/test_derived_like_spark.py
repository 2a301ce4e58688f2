"""What tasks derive from files are the rows that Spark derives from them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BooleanType, LongType, StructType

from checkpointing.channel_items import StagedSegment
from checkpointing.handles import FileHandle
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.derived_scans import CopiedColumn, NullRule
from jobs.operators.inputs import read_input, scanned_input
from jobs.operators.spec import InputPlan, TaskSteps, arrow_schema, schema_with_kind
from jobs.pipeline.streams import copied, dropped, in_turn

pytestmark = pytest.mark.spark

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
