"""The component: found by dg in an installed package, scaffolded by its command, loaded from YAML."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from jobs.settings import InvalidSettingsError
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.runtime.sequence_job import BRONZE, JOB
from tidemark.dagster import CheckpointedPipelineComponent

ROOT = Path(__file__).resolve().parents[2]
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
    """Return the definitions that such a YAML file stands for."""
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
    """Pipeline, schedule, settings, names and limits come from the file."""
    definitions = loaded(ATTRIBUTES)
    graph = definitions.resolve_asset_graph()
    bronze = graph.get(dg.AssetKey(["lake", *BRONZE.split("/")]))
    assert ("bronze", ["team:data"]) == (bronze.group_name, list(bronze.owners))
    assert "*/15 * * * *" == definitions.resolve_schedule_def(f"lake_{JOB}_schedule").cron_schedule
    fresh = graph.get_check_spec(dg.AssetCheckKey(bronze.key, "fresh"))
    assert "2 h" in fresh.description


def test_a_setting_that_may_not_be_is_named():
    """The error names the setting and the rule, as it does elsewhere."""
    with pytest.raises(InvalidSettingsError, match="interval_ms"):
        CheckpointedPipelineComponent(pipeline=NUMBERS, settings={"interval_ms": "soon"}).build_defs(None)
    with pytest.raises(InvalidSettingsError, match=r"fresh_within \(set in defs.yaml\): write a duration like"):
        CheckpointedPipelineComponent(pipeline=NUMBERS, fresh_within="soon").build_defs(None)


@pytest.mark.dear
def test_dg_finds_scaffolds_and_loads_the_component(tmp_path):
    """As a user types it in a project of his own: `dg list components`, `dg scaffold defs`, `dg check defs`."""
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
