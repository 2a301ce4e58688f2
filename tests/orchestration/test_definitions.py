"""What Dagster loads: assets in the lineage of the job graph, settings in the launchpad, jobs, a schedule, sensors."""

import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.graph import TableMode, VertexKind
from checkpointing.identifiers import JobName, TableName
from jobs.launch import launch
from jobs.pipeline import Pipeline, count
from jobs.pipeline.broadcasting import broadcast
from jobs.settings import Layer, TickSettings
from jobs.sources.hybrid import SequenceSource
from jobs.sources.postgres.changes import PostgresChanges
from orchestration.definitions import PIPELINES, defs
from orchestration.launchpad import REPORT_EVERY, launchpad_schema
from orchestration.lineage import InvalidOwnerError
from orchestration.naming import Naming
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.runtime.sequence_job import JOB

CUTS = dg.AssetKey(["_tidemark", "flights", "cuts"])
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
    naming = Naming(plan.job)
    vertex_of = {naming.table_key(table.name): vertex.id for vertex in plan.graph.vertices for table in vertex.tables}
    vertex_of |= {naming.source_key(source.id): source.id for source in plan.graph.sources()}
    graph = defs.resolve_asset_graph()
    cuts = naming.cuts_key()
    assert set(vertex_of) | {cuts} == set(graph.get_all_asset_keys())
    outputs = (table for table in plan.graph.tables() if table.mode is not TableMode.STATE)
    assert {naming.table_key(table.name) for table in outputs} == set(graph.get(cuts).parent_keys)
    edges = {(vertex_of[parent], vertex_of[key]) for key in vertex_of for parent in graph.get(key).parent_keys}
    within = {(vertex.id, vertex.id) for vertex in plan.graph.vertices if vertex.kind is VertexKind.KEYED}
    assert {(edge.upstream, edge.downstream) for edge in plan.graph.edges} == edges - within
    assert within == edges & within


def test_sources_are_external_and_tables_are_not():
    """Only tables are materialized; each shows its columns, kinds and owners, and is tagged with its pipeline."""
    graph = defs.resolve_asset_graph()
    sources = {dg.AssetKey(["sources", "flights", name]) for name in ("flights", "weather")}
    assert sources == graph.external_asset_keys
    assert CUTS in graph.materializable_asset_keys
    for key in graph.materializable_asset_keys - {CUTS}:
        node = graph.get(key)
        assert {"spark", "delta"} == node.kinds
        assert ("flights", {"team:tidemark"}) == (node.tags["tidemark/job"], set(node.owners))
        assert node.metadata["dagster/column_schema"].columns
    flights = graph.get(dg.AssetKey(["sources", "flights", "flights"]))
    assert {"parquet"} == flights.kinds
    assert Path("data/flights").absolute() == Path(flights.metadata["folder"].path)


def test_an_asset_shows_what_the_pipeline_says_of_its_table():
    """The comment comes first, as a sentence. A table without one has Tidemark's words only."""
    graph = defs.resolve_asset_graph()
    said = graph.get(dg.AssetKey(["gold", "delays_by_route"])).description
    assert said.startswith("how late flights from New York arrive, for each carrier and airport. One row for each")
    assert graph.get(dg.AssetKey(["gold", "delays_by_wind"])).description.startswith("One row for each")


def test_the_graph_has_a_group_for_each_layer():
    """Sources, operators' states and each schema of tables are a group of their own, named after the pipeline."""
    graph = defs.resolve_asset_graph()
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert {
        "sources/flights/flights": "flights_sources",
        "bronze/flights": "flights_bronze",
        "quarantine/flights": "flights_quarantine",
        "_tidemark/flights/state/silver_flights": "flights_state",
        "silver/flights": "flights_silver",
        "gold/delays_by_wind": "flights_gold",
    }.items() <= groups.items()


@pytest.mark.parametrize("owner", ["tidemark", "team:", "team:a b", "somebody@", ""])
def test_an_owner_that_dagster_cannot_show_is_refused_by_name(owner):
    """Owners are e-mail addresses or teams; the error names the one that is neither, and how to write it."""
    with pytest.raises(InvalidOwnerError, match=re.escape(repr(owner)) + ".*team:NAME"):
        build_definitions("flights", owners=("data@example.org", owner))


def test_a_check_for_each_expectation_and_a_cut_for_each_table():
    """Silver shows its suite's expectations, every table whether it is at the cut, every output its freshness."""
    graph = defs.resolve_asset_graph()
    checks = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    suites = {name for table, name in checks if table == "silver/flights" and name not in ("one_cut", "fresh")}
    assert {
        "distance_between",
        "arr_delay_not_null",
        "origin_in_set",
    } == suites
    assert {key.to_user_string() for key in graph.materializable_asset_keys - {CUTS}} == {
        table for table, name in checks if name == "one_cut"
    }
    outputs = {table for table, name in checks if name == "fresh"}
    assert outputs == {table for table, _ in checks if not table.startswith("_tidemark/")}
    assert {"_tidemark/flights/state/silver_flights"} == {
        table for table, name in checks if name == "nothing_waiting_too_long"
    }


def test_a_job_a_schedule_and_sensors_for_each_pipeline():
    """Ticks bear a tag by which they wait for each other, other jobs do not; what starts ticks is off at first."""
    for name in PIPELINES:
        assert {"tidemark/job": name} == dict(defs.resolve_job_def(f"{name}_tick").tags)
        for verb in ("savepoint", "stop"):
            assert {"tidemark/about": name} == dict(defs.resolve_job_def(f"{name}_{verb}").tags)
        schedule = defs.resolve_schedule_def(f"{name}_schedule")
        assert (f"{name}_tick", dg.DefaultScheduleStatus.STOPPED) == (schedule.job_name, schedule.default_status)
        for sensor in (f"{name}_new_data", f"{name}_recovery"):
            assert dg.DefaultSensorStatus.STOPPED is defs.resolve_sensor_def(sensor).default_status


def test_the_launchpad_has_every_setting_and_says_what_each_is():
    """The fields are those of the one settings model, none required, each described."""
    schema = launchpad_schema()
    assert {*TickSettings.model_fields, REPORT_EVERY} == set(schema)
    assert [] == [name for name, field in schema.items() if field.is_required]
    assert [] == [name for name, field in schema.items() if len(field.description) < 20]


def test_states_can_be_kept_out_of_the_catalogue():
    """Without states the tables depend on what their vertex reads, and the states' checks go to the table of cuts."""
    shown, hidden = (build_definitions("flights", show_state=show).resolve_asset_graph() for show in (True, False))
    states = {key for key in shown.get_all_asset_keys() if "state" in key.path}
    assert states
    assert shown.get_all_asset_keys() - states == hidden.get_all_asset_keys()
    silver = dg.AssetKey(["silver", "flights"])
    assert {("bronze", "flights"), ("bronze", "weather")} == {tuple(key.path) for key in hidden.get(silver).parent_keys}
    moved = {key.name for key in hidden.asset_check_keys if key.asset_key == CUTS}
    assert {"checkpoint_lag", "one_cut_silver_flights", "nothing_waiting_too_long_silver_flights"} <= moved
    assert len(shown.asset_check_keys) == len(hidden.asset_check_keys)


def delivering(data):
    """Return a pipeline with an overwrite table."""
    del data
    pipeline = Pipeline("delivering")
    rows = pipeline.source("rows", SequenceSource({"a": 9}))
    rows.overwrite("silver/newest", version="n", partition_by=["key"], id="newest")
    return pipeline


def test_an_asset_of_an_overwrite_table_says_which_rows_it_shows():
    """It names the version column and the columns of the partitions."""
    node = build_definitions(delivering).resolve_asset_graph().get(dg.AssetKey(["silver", "newest"]))
    assert node.description.startswith("The rows with the greatest `n` of its `key`, written by vertex newest.")
    assert "overwrite" == node.metadata["mode"]


def sorting(data):
    """Return a pipeline with a function that has a table, and whose output `late` goes to a table of its own."""
    pipeline = Pipeline("sorted")
    row = StructType().add("key", LongType()).add("n", LongType())
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1)).table("bronze/rows", id="bronze").key_by("key")
    done = rows.process("sort", object(), state=StructType().add("m", LongType()), output=row, outputs={"late": row})
    done.table("silver/own").key_by("key").aggregate("count", rows=count()).upsert("gold/counts")
    done.output("late").table("silver/late", id="late")
    return pipeline


@pytest.mark.parametrize(("show_state", "above"), [(True, "_tidemark/sorted/state/sort"), (False, "bronze/rows")])
def test_a_table_of_a_named_output_names_it_and_does_not_come_from_the_own_output(show_state, above):
    """The function's table has none of its rows. So it depends on the state, or on what the function reads."""
    graph = build_definitions(sorting, show_state=show_state).resolve_asset_graph()
    late, counts = graph.get(dg.AssetKey(["silver", "late"])), graph.get(dg.AssetKey(["gold", "counts"]))
    assert "Vertex late reads output `late` of vertex sort." in late.description
    assert {dg.AssetKey(above.split("/"))} == set(late.parent_keys)
    assert "reads output" not in counts.description
    assert dg.AssetKey(["silver", "own"]) in counts.parent_keys


def seeing_rules(data):
    """Return a pipeline with an operator that sees a broadcast."""
    pipeline = Pipeline("bank")
    row = StructType().add("key", LongType()).add("n", LongType())
    rules = broadcast(pipeline.source("rules", SequenceSource({"a": 1}, keys=1)), "key", latest_by="n")
    payments = pipeline.source("payments", SequenceSource({"a": 1}, keys=1)).key_by("key")
    done = rules.connect(payments).process("judge", object(), state=StructType().add("m", LongType()), output=row)
    done.table("silver/judged")
    return pipeline


def test_broadcast_state_is_an_asset_with_a_check_of_its_own():
    """If states are kept out of the catalogue, the check goes to the table of cuts, under the state's name."""
    shown, hidden = (build_definitions(seeing_rules, show_state=show).resolve_asset_graph() for show in (True, False))
    asset = dg.AssetKey(["_tidemark", "bank", "state", "judge_broadcast"])
    assert {("bank", "payments"), ("bank", "rules")} == {tuple(key.path[-2:]) for key in shown.get(asset).parent_keys}
    assert "one_cut" in {key.name for key in shown.asset_check_keys if key.asset_key == asset}
    assert {"one_cut_judge", "one_cut_judge_broadcast"} <= {key.name for key in hidden.asset_check_keys}
    assert len(shown.asset_check_keys) == len(hidden.asset_check_keys)


def test_the_health_of_a_pipeline_is_looked_at_from_the_start():
    """A lag is seen though no tick runs: the schedule of the health job is on, that of the ticks is off."""
    for name in PIPELINES:
        schedule = defs.resolve_schedule_def(f"{name}_health_schedule")
        assert (f"{name}_health", dg.DefaultScheduleStatus.RUNNING) == (schedule.job_name, schedule.default_status)


def test_a_pipeline_whose_server_is_down_says_so_and_the_others_load(tmp_path, instance):
    """Its table of cuts and the job of its tick name the server and what to do. The code location is valid."""

    def build(_data: Path) -> Pipeline:
        bank = PostgresChanges("postgresql://nobody@127.0.0.1:1/bank", "bank", "bank", staged=tmp_path)
        pipeline = Pipeline("bank")
        pipeline.source("bank", bank).table("bronze/bank", id="bronze")
        return pipeline

    defs = dg.Definitions.merge(build_definitions(build, key_prefix="eu"), build_definitions(NUMBERS))
    dg.Definitions.validate_loadable(defs)
    assert defs.resolve_job_def(f"{JOB}_tick")
    key = dg.AssetKey(["eu", "_tidemark", "test_definitions", "cuts"])
    said = defs.resolve_asset_graph().get(key).description
    assert "PostgreSQL at 127.0.0.1:1/bank cannot be reached" in said
    assert "With schema= the pipeline is built without it" in said
    run = defs.resolve_job_def("eu_test_definitions_tick").execute_in_process(instance=instance, raise_on_error=False)
    (event,) = [event for event in run.all_events if event.is_step_failure]
    assert "PostgreSQL at 127.0.0.1:1/bank cannot be reached" in event.step_failure_data.user_failure_data.description


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ((), "sales"),
        (("eu",), "eu_sales"),
        (("sales",), "sales"),
        (("eu", "sales"), "eu_sales"),
        (("presales",), "presales_sales"),
    ],
)
def test_a_prefix_that_ends_with_the_pipelines_name_does_not_repeat_it(prefix, name):
    """Jobs are `sales_tick`, never `sales_sales_tick`; asset keys have the prefix as it is given."""
    naming = Naming(JobName("sales"), prefix)
    assert name == naming.name
    assert [*prefix, "bronze", "sales"] == naming.table_key(TableName("bronze/sales")).path
