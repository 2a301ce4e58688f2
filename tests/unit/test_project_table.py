"""A project's own settings: the content of `[tool.tidemark]` in its pyproject.toml, and the base of its paths."""

import os
import sys
from pathlib import Path

import pytest

from jobs import project
from jobs.launch import launch
from jobs.pipelines.registry import UnknownPipelineError, project_of
from jobs.project import InvalidProjectError, Project, here, known_pipelines, project_above
from jobs.settings import Layer, flags_layer, folder, resolve

ROOT = Path(__file__).resolve().parents[2]
NOTHING = Layer("", {})
SHOP = """
[tool.tidemark]
warehouse = "lake"
data = "in"

[tool.tidemark.pipelines]
shop = "shop_of_a_test:build"
"""
MODULE = """
from tidemark import Pipeline, SequenceSource

def build(data):
    pipeline = Pipeline("shop")
    pipeline.source("numbers", SequenceSource({"all": 10})).table("bronze/numbers", id="bronze")
    return pipeline

named_otherwise = Pipeline("web_shop")
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one registered pipeline. Afterwards its modules are forgotten."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "shop_of_a_test", raising=False)
    for name in ("WAREHOUSE", "DATA"):
        monkeypatch.delenv(f"TIDEMARK_{name}", raising=False)
    folder = tmp_path / "shop"
    (folder / "deep" / "inside").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(SHOP)
    (folder / "shop_of_a_test.py").write_text(MODULE)
    return folder


def test_the_nearest_pyproject_above_is_the_project(shop):
    """From any folder inside; outside there is none."""
    found = project_above(shop / "deep" / "inside")
    assert (shop, {"shop": "shop_of_a_test:build"}, "shop") == (found.root, found.pipelines, found.default)
    assert {"warehouse": "lake", "data": "in"} == found.folders
    assert project_above(shop.parent) is None


def test_of_several_pipelines_none_is_the_default_without_a_setting(tmp_path):
    """A guess would run the wrong one."""
    two = '[tool.tidemark.pipelines]\na = "m:a"\nb = "m:b"\n'
    (tmp_path / "pyproject.toml").write_text(two)
    assert project_above(tmp_path).default is None
    (tmp_path / "pyproject.toml").write_text(f'[tool.tidemark]\ndefault = "b"\n{two}')
    assert "b" == project_above(tmp_path).default


def test_a_pyproject_without_the_table_is_a_project_without_pipelines(tmp_path):
    """Only its folder counts. The pipelines that come with Tidemark are known by name."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "else"\n')
    assert Project(tmp_path) == project_above(tmp_path)
    assert known_pipelines(None) == known_pipelines(Project(tmp_path)) == tuple(project.OWN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.tidemark", "cannot be read"),
        ("[tool]\ntidemark = 3", "tool.tidemark must be a table"),
        ('[tool.tidemark]\nwarehous = "x"', "has no key 'warehous': did you mean 'warehouse'?"),
        ('[tool.tidemark]\nwarehouse = ""', "warehouse must be a text that is not empty"),
        ("[tool.tidemark]\ndata = 3", "data must be a text that is not empty, not 3"),
        ('[tool.tidemark]\npipelines = "x"', "as a table, like shop ="),
        ('[tool.tidemark.pipelines]\nShop = "m:a"', "pipelines.Shop: "),
        ('[tool.tidemark.pipelines]\nshop = "m"', 'write it as module:attribute, like "shop.pipeline:build"'),
        ('[tool.tidemark.pipelines]\nshop = ":a"', "write it as module:attribute"),
        ('[tool.tidemark]\ndefault = "shp"\n[tool.tidemark.pipelines]\nshop = "m:a"', "did you mean 'shop'?"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused_by_file_and_key(tmp_path, text, said):
    """One sentence names the file, the key and what to write."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidProjectError) as refused:
        project_above(tmp_path)
    assert str(tmp_path / "pyproject.toml") in str(refused.value)
    assert said in str(refused.value)


def test_paths_are_relative_to_the_project(shop, monkeypatch):
    """A daemon in another folder and a shell in a subfolder use the same warehouse."""
    monkeypatch.chdir(shop)
    assert Path("lake") == folder("warehouse", NOTHING)
    monkeypatch.chdir(shop / "deep")
    assert shop / "lake" == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "other")
    assert shop / "other" == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "/mnt/lake")
    assert Path("/mnt/lake") == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.chdir(shop.parent)
    given = Layer("set in the launchpad", {"warehouse": "mine"})
    assert shop / "mine" == resolve({}, given, project=project_above(shop)).warehouse
    assert shop / "in" == resolve({}, given, project=project_above(shop)).data


def test_a_path_typed_in_a_shell_is_relative_to_the_shells_folder(shop, monkeypatch):
    """The shell's own completion works in the same way."""
    monkeypatch.chdir(shop / "deep")
    assert Path("x") == folder("warehouse", flags_layer({"warehouse": Path("x")}))
    assert Path("x") == resolve({}, flags_layer({"warehouse": Path("x")})).warehouse


def test_a_pipeline_given_as_a_function_belongs_to_the_project_of_its_module(shop, monkeypatch):
    """Dagster's daemon may run anywhere, even inside another project."""
    monkeypatch.chdir(shop)
    found = launch("shop", NOTHING)
    assert (Path("lake"), "shop") == (found.settings.warehouse, found.plan.job)
    build = sys.modules["shop_of_a_test"].build
    monkeypatch.chdir(ROOT)
    assert shop / "lake" == launch(build, NOTHING).settings.warehouse
    assert shop == project_of("shop_of_a_test:build").root
    assert ROOT == project_of("flights").root


def test_a_module_of_an_installed_package_belongs_to_no_project_above_it(tmp_path, monkeypatch):
    """An environment is often inside the folder of some project. Its packages do not belong to that project."""
    (tmp_path / "pyproject.toml").write_text("")
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(ROOT)
    assert ROOT == project_of("installed_by_a_test:build").root


def test_the_projects_modules_can_be_imported_here_and_by_sparks_workers(shop, monkeypatch):
    """The project's folder and the working directory come last on both paths, so they hide no package."""
    monkeypatch.chdir(shop / "deep")
    assert "shop" == launch("shop_of_a_test:build", NOTHING).plan.job
    assert [str(shop), str(shop / "deep")] == sys.path[-2:]
    assert [str(shop), str(shop / "deep")] == os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_pipeline_is_registered_under_its_own_name(shop, monkeypatch):
    """Its name is its folder in the warehouse. Under two names, commands would use two folders."""
    (shop / "pyproject.toml").write_text('[tool.tidemark.pipelines]\nshop = "shop_of_a_test:named_otherwise"\n')
    monkeypatch.chdir(shop)
    with pytest.raises(UnknownPipelineError, match="pipeline 'shop' calls itself 'web_shop': register it in"):
        launch("shop", NOTHING)


def test_a_deleted_working_directory_is_no_project(tmp_path, monkeypatch):
    """A command still works there with absolute paths."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert here() is None
    assert Path("/w") == folder("warehouse", Layer("", {"warehouse": "/w"}))
