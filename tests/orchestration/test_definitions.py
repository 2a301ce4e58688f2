"""What Dagster loads: assets in the lineage of the job graph, settings in the launchpad, a job and a schedule."""

import subprocess
import sys
from pathlib import Path

import dagster as dg

from checkpointing.graph import VertexKind
from jobs.launch import launch
from jobs.settings import Layer, TickSettings
from orchestration.definitions import PIPELINES, defs
from orchestration.launchpad import REPORT_EVERY, launchpad_schema
from orchestration.lineage import source_key, table_key

ROOT = Path(__file__).resolve().parents[2]
LOADS = """
import sys
from orchestration.definitions import defs
defs.get_repository_def().load_all_definitions()
from pyspark.sql import SparkSession
print(SparkSession.getActiveSession(), "great_expectations" in sys.modules)
"""


def test_loading_starts_no_spark_and_imports_no_great_expectations(tmp_path):
    """The code location loads without a JVM, without Great Expectations, and touches no warehouse."""
    program = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ("None False", 0) == (program.stdout.strip(), program.returncode), program.stderr
    assert [] == list(tmp_path.iterdir())


def test_lineage_equals_the_job_graph():
    """Assets put together by vertex, the edges between them are exactly the job graph's."""
    plan = launch("flights", Layer("", {})).plan
    vertex_of = {table_key(table.name): vertex.id for vertex in plan.graph.vertices for table in vertex.tables}
    vertex_of |= {source_key(plan.job, source.id): source.id for source in plan.graph.sources()}
    graph = defs.resolve_asset_graph()
    assert set(vertex_of) == set(graph.get_all_asset_keys())
    edges = {(vertex_of[parent], vertex_of[key]) for key in vertex_of for parent in graph.get(key).parent_keys}
    within = {(vertex.id, vertex.id) for vertex in plan.graph.vertices if vertex.kind is VertexKind.KEYED}
    assert {(edge.upstream, edge.downstream) for edge in plan.graph.edges} == edges - within
    assert within == edges & within


def test_sources_are_external_and_tables_are_not():
    """Only tables are materialized; every table shows its columns, its kinds and the pipeline that it belongs to."""
    graph = defs.resolve_asset_graph()
    sources = {dg.AssetKey(["sources", "flights", name]) for name in ("flights", "weather")}
    assert sources == graph.external_asset_keys
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        assert {"spark", "delta"} == node.kinds
        assert "flights" == node.group_name
        assert node.metadata["dagster/column_schema"].columns


def test_a_check_for_each_expectation_and_a_cut_for_each_table():
    """Silver shows its suite's three expectations, and every table whether it shows the newest cut."""
    graph = defs.resolve_asset_graph()
    checks = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    suites = {name for table, name in checks if table == "silver/flights" and name != "one_cut"}
    assert {
        "expect_column_values_to_be_between_distance",
        "expect_column_values_to_not_be_null_arr_delay",
        "expect_column_values_to_be_in_set_origin",
    } == suites
    assert {key.to_user_string() for key in graph.materializable_asset_keys} == {
        table for table, name in checks if name == "one_cut"
    }


def test_a_job_and_a_schedule_for_each_pipeline():
    """Each pipeline has a job whose Dagster runs bear its tag, and a schedule that has to be switched on."""
    for name in PIPELINES:
        assert {"tidemark/job": name} == dict(defs.resolve_job_def(name).tags)
        schedule = defs.resolve_schedule_def(f"{name}_schedule")
        assert (name, dg.DefaultScheduleStatus.STOPPED) == (schedule.job_name, schedule.default_status)


def test_the_launchpad_has_every_setting_and_says_what_each_is():
    """The fields are those of the one settings model, none required, each described."""
    schema = launchpad_schema()
    assert {*TickSettings.model_fields, REPORT_EVERY} == set(schema)
    assert [] == [name for name, field in schema.items() if field.is_required]
    assert [] == [name for name, field in schema.items() if len(field.description) < 20]
