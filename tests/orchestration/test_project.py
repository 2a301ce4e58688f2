"""A pipeline in a Dagster project that has definitions of its own, other pipelines, or the same pipeline twice."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from jobs.settings import InvalidSettingsError
from jobs.tick.tick import run_tick
from orchestration.naming import InvalidNamingError
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.runtime.sequence_job import BRONZE, JOB, LocalEngine, read_cut


def built(**arguments):
    """Return the definitions of the tiny pipeline, which runs without Spark."""
    return build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()), **arguments)


def test_a_project_keeps_its_own_executor():
    """The pipeline merges into a project that names an executor, and that executor stays the project's."""

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
    """Dagster's own command takes the guide's module, and refuses one in which both Definitions are module members."""
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
    """With a key prefix each, tables, jobs and sensors of the two live side by side; each writes its own warehouse."""
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
    """Each part of the prefix becomes a part of the asset keys, and names join them by underscores."""
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
    """A group may be named after the layer, the pipeline, both or neither."""
    graph = built(group_name=given).resolve_asset_graph()
    assert groups == {graph.get(key).group_name for key in graph.get_all_asset_keys()}


@pytest.mark.parametrize("given", ["{table}", "{", "a b", "", "{}", "{layer!r}", "lake/{layer}"])
def test_a_group_name_that_cannot_be_is_refused_by_name(given):
    """The error names the argument and its value, and shows one that can be."""
    with pytest.raises(InvalidNamingError, match=re.escape(f"group_name: {given!r}") + ".*{pipeline}_{layer}"):
        built(group_name=given)


@pytest.mark.parametrize("given", ["a/b", "a b", "ä", ["a", ""]])
def test_a_key_prefix_that_cannot_be_is_refused_by_name(given):
    """The error names the part that cannot be in a name, and says how several parts are written."""
    with pytest.raises(InvalidNamingError, match=r"key_prefix: .*as a list"):
        built(key_prefix=given)


def test_an_argument_wins_over_the_environment_and_the_launchpad_wins_over_both(tmp_path, instance, monkeypatch):
    """One variable of the environment cannot send two pipelines of a project into the same warehouse."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "environment"))
    tick = built(warehouse=tmp_path / "argument").resolve_job_def(f"{JOB}_tick")
    assert tick.execute_in_process(instance=instance).success
    assert ["argument"] == [path.name for path in tmp_path.iterdir()]
    config = {"ops": {JOB: {"config": {"warehouse": str(tmp_path / "launchpad")}}}}
    assert tick.execute_in_process(run_config=config, instance=instance).success
    assert ["argument", "launchpad"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_setting_of_the_project_is_checked_when_it_loads():
    """A setting that does not exist, or a value that may not be, is named with the place that gave it."""
    with pytest.raises(InvalidSettingsError, match=r"retaind.*did you mean retained"):
        built(settings={"retaind": 3})
    with pytest.raises(InvalidSettingsError, match=r"interval_ms \(given to build_definitions\)"):
        built(settings={"interval_ms": "soon"})
