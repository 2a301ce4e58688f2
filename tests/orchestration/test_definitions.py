"""What Dagster loads: assets with the job graph's lineage, launchpad settings, jobs, a schedule and sensors."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from pyspark.sql.types import LongType, StructType

from checkpointing.graph import TableMode, VertexKind
from checkpointing.identifiers import JobName, TableName, VertexId
from checkpointing.metadata.record import BarrierRecord, VertexStatistics
from jobs.launch import launch
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.broadcasting import broadcast
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.settings import InvalidSettingsError, Layer, TickSettings
from jobs.sources.hybrid import SequenceSource
from jobs.sources.postgres.changes import PostgresChanges
from jobs.tick.tick import run_tick
from orchestration.code_versions import code_version
from orchestration.definitions import PIPELINES, defs
from orchestration.health import WAITING
from orchestration.launchpad import OF_CANCEL, REPORT_EVERY, launchpad_schema
from orchestration.lineage import InvalidOwnerError
from orchestration.naming import InvalidNamingError, Naming
from orchestration.pictures import alignment_picture
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.numbers import enriching
from tests.scenarios.runtime.sequence_job import BRONZE, JOB, LocalEngine, read_cut
from tidemark.dagster import CheckpointedPipelineComponent

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
    """The code location loads without a JVM and without Great Expectations, and reads and writes no warehouse."""
    program = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ("None False", 0) == (program.stdout.strip(), program.returncode), program.stderr
    assert [] == list(tmp_path.iterdir())


def test_lineage_equals_the_job_graph():
    """If the assets of each vertex are put together, the edges between them are exactly the job graph's."""
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
    """The days of such a table are materialized when they close, not by the job.

    So this table's asset is external, too.
    """
    graph = defs.resolve_asset_graph()
    sources = {dg.AssetKey(["sources", "flights", name]) for name in ("flights", "weather")}
    assert sources | {dg.AssetKey(["gold", "delays_by_day"])} == graph.external_asset_keys
    assert CUTS in graph.materializable_asset_keys
    for key in graph.materializable_asset_keys - {CUTS}:
        node = graph.get(key)
        assert {"spark", "delta"} == node.kinds
        assert ("flights", {"team:tidemark"}) == (node.tags["tidemark/job"], set(node.owners))
        assert node.metadata["dagster/column_schema"].columns
    by_wind = graph.get(dg.AssetKey(["gold", "delays_by_wind"])).metadata["dagster/column_lineage"].deps_by_column
    silver = dg.AssetKey(["silver", "flights"])
    assert by_wind["wind_band"] == [dg.TableColumnDep(silver, "wind_speed")]
    assert by_wind["arr_delay_sum"] == [dg.TableColumnDep(silver, "arr_delay")]
    flights = graph.get(dg.AssetKey(["sources", "flights", "flights"]))
    assert {"parquet"} == flights.kinds
    assert Path("data/flights").absolute() == Path(flights.metadata["folder"].path)


def test_an_asset_shows_what_the_pipeline_says_of_its_table():
    """The pipeline's description comes first, as a sentence. A table without one has only Tidemark's text."""
    graph = defs.resolve_asset_graph()
    said = graph.get(dg.AssetKey(["gold", "delays_by_route"])).description
    assert said.startswith("how late flights from New York arrive, for each carrier and airport. One row for each")
    assert graph.get(dg.AssetKey(["gold", "delays_by_wind"])).description.startswith("One row for each")


def test_the_graph_has_a_group_for_each_layer():
    """The sources, the operators' states and each schema form groups, which are named after the pipeline."""
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
    """An owner is an e-mail address or a team. The error names an owner that is neither, and how to write a team."""
    with pytest.raises(InvalidOwnerError, match=re.escape(repr(owner)) + ".*team:NAME"):
        build_definitions("flights", owners=("data@example.org", owner))


def test_a_check_for_each_expectation_and_a_cut_for_each_table():
    graph = defs.resolve_asset_graph()
    checks = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    suites = {name for table, name in checks if table == "silver/flights"} - {"one_cut", "fresh", "complete"}
    assert {"distance_between", "arr_delay_not_null", "origin_in_set"} == suites
    days = dg.AssetKey(["gold", "delays_by_day"])
    assert {key.to_user_string() for key in graph.materializable_asset_keys - {CUTS} | {days}} == {
        table for table, name in checks if name == "one_cut"
    }
    outputs = {table for table, name in checks if name == "fresh"}
    assert outputs == {table for table, _ in checks if not table.startswith("_tidemark/")}
    assert [] == [table for table, name in checks if name == "nothing_waiting_too_long"]
    enriched = build_definitions(enriching).resolve_asset_graph().asset_check_keys
    waiting = [key.asset_key.to_user_string() for key in enriched if key.name == WAITING]
    assert ["_tidemark/enriching/state/joined"] == waiting


def test_a_job_a_schedule_and_sensors_for_each_pipeline():
    """Ticks have a tag by which they wait for each other, and other jobs do not.

    Everything that starts ticks is off at first.
    """
    for name in PIPELINES:
        assert {"tidemark/job": name} == dict(defs.resolve_job_def(f"{name}_tick").tags)
        for verb in ("savepoint", "stop", "cancel"):
            assert {"tidemark/about": name} == dict(defs.resolve_job_def(f"{name}_{verb}").tags)
        schedule = defs.resolve_schedule_def(f"{name}_schedule")
        assert (f"{name}_tick", dg.DefaultScheduleStatus.STOPPED) == (schedule.job_name, schedule.default_status)
        for sensor in (f"{name}_new_data", f"{name}_recovery"):
            assert dg.DefaultSensorStatus.STOPPED is defs.resolve_sensor_def(sensor).default_status


def test_the_launchpad_has_every_setting_and_says_what_each_is():
    schema = launchpad_schema()
    assert {*TickSettings.model_fields, REPORT_EVERY} - {OF_CANCEL} == set(schema)
    assert [] == [name for name, field in schema.items() if field.is_required]
    assert [] == [name for name, field in schema.items() if len(field.description) < 20]


def test_states_can_be_kept_out_of_the_catalogue():
    """Without states, tables depend on what their vertex reads, and the states' checks are at the table of cuts."""
    shown, hidden = (build_definitions(enriching, show_state=show).resolve_asset_graph() for show in (True, False))
    states = {key for key in shown.get_all_asset_keys() if "state" in key.path}
    assert states
    assert shown.get_all_asset_keys() - states == hidden.get_all_asset_keys()
    silver = dg.AssetKey(["silver", "joined"])
    assert {("bronze", "left"), ("bronze", "right")} == {tuple(key.path) for key in hidden.get(silver).parent_keys}
    cuts = dg.AssetKey(["_tidemark", "enriching", "cuts"])
    moved = {key.name for key in hidden.asset_check_keys if key.asset_key == cuts}
    assert {"checkpoint_lag", "one_cut_joined", "nothing_waiting_too_long_joined"} <= moved
    assert len(shown.asset_check_keys) == len(hidden.asset_check_keys)


def delivering(data):
    del data
    pipeline = Pipeline("delivering")
    rows = pipeline.source("rows", SequenceSource({"a": 9}))
    rows.overwrite("silver/newest", version="n", partition_by=["key"], id="newest")
    return pipeline


def test_an_asset_of_an_overwrite_table_says_which_rows_it_shows():
    """The description names the version column and the partition columns."""
    node = build_definitions(delivering).resolve_asset_graph().get(dg.AssetKey(["silver", "newest"]))
    assert node.description.startswith("The rows with the greatest `n` of its `key`, written by vertex newest.")
    assert "overwrite" == node.metadata["mode"]


def sorting(data):
    pipeline = Pipeline("sorted")
    row = StructType().add("key", LongType()).add("n", LongType())
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1)).table("bronze/rows", id="bronze").key_by("key")
    done = rows.process("sort", object(), state=StructType().add("m", LongType()), output=row, outputs={"late": row})
    done.table("silver/own").key_by("key").aggregate("count", rows=count()).upsert("gold/counts")
    done.output("late").table("silver/late", id="late")
    return pipeline


@pytest.mark.parametrize(("show_state", "above"), [(True, "_tidemark/sorted/state/sort"), (False, "bronze/rows")])
def test_a_table_of_a_named_output_names_it_and_does_not_come_from_the_own_output(show_state, above):
    """The function's own table has none of these rows.

    So the table depends on the state, or on what the function reads.
    """
    graph = build_definitions(sorting, show_state=show_state).resolve_asset_graph()
    late, counts = graph.get(dg.AssetKey(["silver", "late"])), graph.get(dg.AssetKey(["gold", "counts"]))
    assert "Vertex late reads output `late` of vertex sort." in late.description
    assert {dg.AssetKey(above.split("/"))} == set(late.parent_keys)
    assert "reads output" not in counts.description
    assert dg.AssetKey(["silver", "own"]) in counts.parent_keys


def seeing_rules(data):
    pipeline = Pipeline("bank")
    row = StructType().add("key", LongType()).add("n", LongType())
    rules = broadcast(pipeline.source("rules", SequenceSource({"a": 1}, keys=1)), "key", latest_by="n")
    payments = pipeline.source("payments", SequenceSource({"a": 1}, keys=1)).key_by("key")
    done = rules.connect(payments).process("judge", object(), state=StructType().add("m", LongType()), output=row)
    done.table("silver/judged")
    return pipeline


def test_broadcast_state_is_an_asset_with_a_check_of_its_own():
    """If states are kept out of the catalogue, the check is at the table of cuts, with the state's name."""
    shown, hidden = (build_definitions(seeing_rules, show_state=show).resolve_asset_graph() for show in (True, False))
    asset = dg.AssetKey(["_tidemark", "bank", "state", "judge_broadcast"])
    assert {("bank", "payments"), ("bank", "rules")} == {tuple(key.path[-2:]) for key in shown.get(asset).parent_keys}
    assert "one_cut" in {key.name for key in shown.asset_check_keys if key.asset_key == asset}
    assert {"one_cut_judge", "one_cut_judge_broadcast"} <= {key.name for key in hidden.asset_check_keys}
    assert len(shown.asset_check_keys) == len(hidden.asset_check_keys)


def test_the_health_of_a_pipeline_is_looked_at_from_the_start():
    """A lag is found even if no tick runs: the health job's schedule is on, and the ticks' schedule is off."""
    for name in PIPELINES:
        schedule = defs.resolve_schedule_def(f"{name}_health_schedule")
        assert (f"{name}_health", dg.DefaultScheduleStatus.RUNNING) == (schedule.job_name, schedule.default_status)


def test_a_pipeline_whose_server_is_down_says_so_and_the_others_load(tmp_path, instance):
    """The table of cuts and the tick job of that pipeline name the server and what to do.

    The code location is valid.
    """

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
    """The job is `sales_tick`, never `sales_sales_tick`. Asset keys have the prefix as it is given."""
    naming = Naming(JobName("sales"), prefix)
    assert name == naming.name
    assert [*prefix, "bronze", "sales"] == naming.table_key(TableName("bronze/sales")).path


# ------------------------------------------------------------------
# The component: dg finds it in an installed package, scaffolds it by a command, and loads it from YAML.


TYPE = "tidemark.dagster.CheckpointedPipelineComponent"
ATTRIBUTES = {
    "pipeline": NUMBERS,
    "schedule": "*/15 * * * *",
    "settings": {"retained": 5, "interval_ms": "30s"},
    "warehouse": "/data/warehouse",
    "key_prefix": ["lake"],
    "group_name": "{layer}",
    "owners": ["team:data"],
    "fresh_within": "2h",
}


def loaded(attributes):
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=CheckpointedPipelineComponent,
            scaffold_params={"pipeline": NUMBERS},
            defs_yaml_contents={"type": TYPE, "attributes": attributes},
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
            assert isinstance(component, CheckpointedPipelineComponent)
            return definitions


def test_a_yaml_file_is_a_call_of_build_definitions():
    """The file gives pipeline, schedule, settings, names and limits."""
    definitions = loaded(ATTRIBUTES)
    graph = definitions.resolve_asset_graph()
    bronze = graph.get(dg.AssetKey(["lake", *BRONZE.split("/")]))
    assert ("bronze", ["team:data"]) == (bronze.group_name, list(bronze.owners))
    assert "*/15 * * * *" == definitions.resolve_schedule_def(f"lake_{JOB}_schedule").cron_schedule
    fresh = graph.get_check_spec(dg.AssetCheckKey(bronze.key, "fresh"))
    assert "2 h" in fresh.description


def test_a_setting_that_may_not_be_is_named():
    with pytest.raises(InvalidSettingsError, match="interval_ms"):
        CheckpointedPipelineComponent(pipeline=NUMBERS, settings={"interval_ms": "soon"}).build_defs(None)
    with pytest.raises(InvalidSettingsError, match=r"fresh_within \(set in defs.yaml\): write a duration like"):
        CheckpointedPipelineComponent(pipeline=NUMBERS, fresh_within="soon").build_defs(None)


@pytest.mark.dear
def test_dg_finds_scaffolds_and_loads_the_component(tmp_path):
    """In a user's project, `dg list components`, `dg scaffold defs` and `dg check defs` work."""
    package = tmp_path / "shop"
    (package / "defs").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "defs" / "__init__.py").write_text("")
    (package / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n"
        "defs = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "shop"\nversion = "0.1.0"\n\n[tool.dg]\ndirectory_type = "project"\n\n'
        '[tool.dg.project]\nroot_module = "shop"\n'
    )

    def dg_says(*words):
        program = Path(sys.executable).with_name("dg")
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "DAGSTER_HOME": ""}
        environment.pop("DAGSTER_HOME")
        done = subprocess.run(
            [program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    assert TYPE in {each["key"] for each in json.loads(dg_says("list", "components", "--json"))["items"]}
    dg_says("scaffold", "defs", TYPE, "numbers", "--pipeline", NUMBERS)
    written = (package / "defs" / "numbers" / "defs.yaml").read_text()
    assert f"type: {TYPE}" in written
    assert NUMBERS in written
    dg_says("check", "yaml")
    assert BRONZE in dg_says("list", "defs", "--json")


# ------------------------------------------------------------------
# Pictures that Dagster's pages show. They are right, and short enough to be shown at once.


INLINE = 1_000
"""From this number of characters on, Dagster's page hides Markdown behind a link."""


def vertex(**came_ms: int) -> VertexStatistics:
    barriers = (BarrierRecord(channel=f"{name}->joined:0[0]", at_ms=5_000 + ms) for name, ms in came_ms.items())
    return VertexStatistics(vertex=VertexId("joined"), barriers=tuple(barriers), bytes_held=2048)


def test_an_alignment_is_drawn_by_channel():
    picture = alignment_picture(7, vertex(orders=0, payments=1500, refunds=3000))
    drawn = unquote(picture)
    assert "3.00 s from the first channel to the last, 2.0 KiB held back" in drawn
    assert ["orders[0]", "waits 3.00 s", "payments[0]", "waits 1.50 s", "refunds[0]", "last"] == re.findall(
        r"<text[^>]*>([^<]*)<", drawn
    )
    assert len(picture) < INLINE


def test_barriers_that_came_at_once_need_no_drawing():
    assert "svg" not in alignment_picture(7, vertex(orders=0, payments=0))
    assert "no channel that was recorded" in alignment_picture(7, vertex())


# ------------------------------------------------------------------
# A pipeline in a Dagster project that also has other definitions, other pipelines, or the same pipeline twice.


def built(**arguments):
    return build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()), **arguments)


def test_a_project_keeps_its_own_executor():
    @dg.asset
    def mine() -> None:
        """Return nothing."""

    own = dg.Definitions(assets=[mine], executor=dg.multiprocess_executor.configured({"max_concurrent": 2}))
    merged = dg.Definitions.merge(own, built())
    assert own.executor is merged.executor
    assert "in_process" == merged.resolve_job_def(f"{JOB}_tick").executor_def.name
    assert {f"{JOB}_tick", f"{JOB}_health"} <= {job.name for job in merged.resolve_all_job_defs()}


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "DAGSTER.md"
PROJECT = {
    "assets.py": "import dagster as dg\n\n\n@dg.asset\ndef mine(): ...\n\n\nyours = dg.Definitions(assets=[mine])\n",
    "pipeline.py": """
from tidemark import Pipeline, SequenceSource


def build(data):
    pipeline = Pipeline("shop")
    pipeline.source("numbers", SequenceSource({"all": 7}, keys=7)).table("bronze/numbers", id="bronze")
    return pipeline
""",
}


def test_a_project_with_definitions_of_its_own_merges_as_the_guide_says(tmp_path):
    """Dagster's own command accepts the guide's module. It refuses a module that has both Definitions as members."""
    package = tmp_path / "my_project"
    package.mkdir()
    imports, merged = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[:2]
    imports = "\n".join(line for line in imports.splitlines() if "import" in line)
    for name, text in PROJECT.items():
        (package / name).write_text(text)
    (package / "guide.py").write_text(f"{imports}\n{merged}")
    (package / "twice.py").write_text(
        f"{imports}\n{merged.partition('@dg.definitions')[0]}\ndefs = build_definitions(build)"
    )
    command = [Path(sys.executable).parent / "dagster", "definitions", "validate", "-d", tmp_path, "-m"]
    for module, said in (("guide", "Validation successful"), ("twice", "more than one Definitions object")):
        program = subprocess.run(
            [*command, f"my_project.{module}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert said in program.stdout + program.stderr, program.stderr


def test_one_pipeline_in_two_warehouses_of_one_project(tmp_path, instance):
    """With different key prefixes, tables, jobs and sensors of both exist side by side.

    Each job writes its own warehouse.
    """
    merged = dg.Definitions.merge(*(built(key_prefix=place, warehouse=tmp_path / place) for place in ("eu", "us")))
    keys = {key.to_user_string() for key in merged.resolve_asset_graph().get_all_asset_keys()}
    assert {f"eu/{BRONZE}", f"us/{BRONZE}", f"eu/sources/{JOB}/numbers", f"us/sources/{JOB}/numbers"} <= keys
    assert merged.resolve_job_def(f"eu_{JOB}_tick").execute_in_process(instance=instance).success
    assert 300 == len(read_cut(tmp_path / "eu")[BRONZE])
    assert not (tmp_path / "us").exists()
    written = instance.get_latest_materialization_event(dg.AssetKey(["eu", *BRONZE.split("/")]))
    assert written is not None
    for verb in ("savepoint", "stop", "rollback", "cleanup"):
        assert {"tidemark/about": f"us_{JOB}"} == dict(merged.resolve_job_def(f"us_{JOB}_{verb}").tags)
    assert merged.resolve_job_def(f"eu_{JOB}_cleanup").execute_in_process(instance=instance).success
    assert not (tmp_path / "us").exists()


def test_a_prefix_may_have_several_parts():
    definitions = built(key_prefix=["lake", "eu"])
    assert dg.AssetKey(["lake", "eu", *BRONZE.split("/")]) in definitions.resolve_asset_graph().get_all_asset_keys()
    assert definitions.resolve_sensor_def(f"lake_eu_{JOB}_new_data").job_name == f"lake_eu_{JOB}_tick"


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        ("{layer}", {"sources", "bronze", "state", "gold", "cuts"}),
        ("shop", {"shop"}),
        ("lake_{pipeline}", {"lake_numbers"}),
    ],
)
def test_the_user_names_the_groups(given, groups):
    graph = built(group_name=given).resolve_asset_graph()
    assert groups == {graph.get(key).group_name for key in graph.get_all_asset_keys()}


@pytest.mark.parametrize("given", ["{table}", "{", "a b", "", "{}", "{layer!r}", "lake/{layer}"])
def test_a_group_name_that_cannot_be_is_refused_by_name(given):
    with pytest.raises(InvalidNamingError, match=re.escape(f"group_name: {given!r}") + ".*{pipeline}_{layer}"):
        built(group_name=given)


@pytest.mark.parametrize("given", ["a/b", "a b", "ä", ["a", ""]])
def test_a_key_prefix_that_cannot_be_is_refused_by_name(given):
    """The error names the part that is not allowed in a name, and says how to write several parts."""
    with pytest.raises(InvalidNamingError, match=r"key_prefix: .*as a list"):
        built(key_prefix=given)


def test_an_argument_wins_over_the_environment_and_the_launchpad_wins_over_both(tmp_path, instance, monkeypatch):
    """So one environment variable cannot send two pipelines of a project into the same warehouse."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "environment"))
    tick = built(warehouse=tmp_path / "argument").resolve_job_def(f"{JOB}_tick")
    assert tick.execute_in_process(instance=instance).success
    assert ["argument"] == [path.name for path in tmp_path.iterdir()]
    config = {"ops": {JOB: {"config": {"warehouse": str(tmp_path / "launchpad")}}}}
    assert tick.execute_in_process(run_config=config, instance=instance).success
    assert ["argument", "launchpad"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_setting_of_the_project_is_checked_when_it_loads():
    """The error names an unknown setting or an invalid value, and the place where it was given."""
    with pytest.raises(InvalidSettingsError, match=r"retaind.*did you mean retained"):
        built(settings={"retaind": 3})
    with pytest.raises(InvalidSettingsError, match=r"interval_ms \(given to build_definitions\)"):
        built(settings={"interval_ms": "soon"})


# ------------------------------------------------------------------
# The code version of a table: it changes with the code, and is the same in every process and with every setting.


ADDED = 1
PROGRAM = """
from tests.orchestration.test_definitions import versioned, versions
print(versions(versioned()))
"""


def doubled(rows):
    return rows.filter(f"value > {ADDED}") if helped(2) else rows


def helped(value):
    return value * 2


def halved(value):
    return value / 2


def versioned(
    expression="value * 2", *, total="value", bounds=(0, 9), parallelism=2, step: Callable = doubled
) -> Pipeline:
    made = Pipeline("versions", parallelism=parallelism)
    rows = made.source("numbers", SequenceSource({"a": 3}, keys=2)).transform(step)
    rows = rows.with_column("more", expression, LongType())
    low, high = bounds
    bounded = Expectation("expect_column_values_to_be_between", {"column": "n", "min_value": low, "max_value": high})
    rows = rows.table("bronze/numbers", id="bronze").check_rows(bounded, quarantine="quarantine/numbers")
    rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of(total)).upsert("gold/by_key")
    return made


def versions(made: Pipeline) -> dict[str, str]:
    planned = plan(made, parallelism=made.parallelism)
    return {str(vertex.id): code_version(planned, vertex) for vertex in planned.graph.operators()}


def changed(**other) -> set[str]:
    before, after = versions(versioned()), versions(versioned(**other))
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("other", "vertices"),
    [
        ({}, set()),
        ({"parallelism": 5}, set()),
        ({"expression": "value * 3"}, {"bronze"}),
        ({"step": lambda rows: rows.filter("value > 7")}, {"bronze"}),
        ({"total": "n"}, {"by_key"}),
    ],
)
def test_the_version_changes_with_what_the_vertex_computes(other, vertices):
    """Another expression, function or aggregate changes the version of its vertex. Parallelism does not."""
    assert vertices == changed(**other)


def test_a_row_rule_is_code_of_all_that_meet_its_rows():
    """A vertex that reads the good rows computes something else with another rule."""
    assert {"bronze", "by_key"} == changed(bounds=(0, 8))


def test_a_constant_and_a_helper_of_the_users_module_are_code(monkeypatch):
    """What a step refers to in its own package counts as a part of the step."""
    before = versions(versioned())
    monkeypatch.setattr(sys.modules[__name__], "ADDED", 2)
    assert before["bronze"] != versions(versioned())["bronze"]
    monkeypatch.undo()
    assert before == versions(versioned())
    monkeypatch.setattr(sys.modules[__name__], "helped", halved)
    assert before["bronze"] != versions(versioned())["bronze"]


def test_every_process_finds_the_same_version():
    """A version depends neither on the seed of hashes nor on addresses of objects."""
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert 1 == len(seen)
