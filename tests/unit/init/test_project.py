"""Tests what `tidemark init` writes, in folders of any name."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from string import Template

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.init import project
from jobs.init.project import ProjectRefusedError, create_project
from tests.odd_names import ALL_IN_ONE

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SERVED = "tidemark-spark==0.1.0"
"""A requirement that an index can serve. So `init` builds no wheel."""
LOADS = """
from {name}.definitions import defs
print(sorted(key.to_user_string() for key in defs.resolve_asset_graph().materializable_asset_keys))
"""


def test_a_new_project_is_complete(tmp_path):
    """A project has a package of its name, tests, and files for Dagster, pip and make. There are no other files."""
    made = create_project(tmp_path / "shop", tidemark=SERVED)
    found = sorted(str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file())
    assert list(made.files) == found
    assert {"shop/pipeline.py", "shop/definitions.py", "tests/test_pipeline.py", "Makefile", "dagster.yaml"} <= set(
        found
    )
    assert ["shop"] == [path.name for path in tmp_path.iterdir()]
    texts = [name for name in found if not name.endswith(".whl")]
    assert [] == [name for name in texts if "$project" in (made.folder / name).read_text()]


def test_an_empty_folder_and_another_name_are_accepted(tmp_path):
    folder = tmp_path / "my-shop"
    folder.mkdir()
    made = create_project(folder, "web_shop", SERVED)
    assert "web_shop" == made.name
    declared = tomllib.loads((folder / "pyproject.toml").read_text())
    assert ("web-shop", "web_shop") == (declared["project"]["name"], declared["tool"]["dg"]["project"]["root_module"])


def test_the_project_loads_and_is_in_good_style(tmp_path):
    """Dagster loads the project's definitions, and the linter finds no error."""
    made = create_project(tmp_path / "shop", tidemark=SERVED)
    command = [sys.executable, "-c", LOADS.format(name="shop")]
    loaded = subprocess.run(command, cwd=made.folder, capture_output=True, text=True, check=False)
    assert 0 == loaded.returncode, loaded.stderr
    states = ["_tidemark/shop/cuts", "_tidemark/shop/state/by_customer"]
    assert f"{[*states, 'bronze/orders', 'gold/customers', 'quarantine/orders']}\n" == loaded.stdout
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,D1"]
    linted = subprocess.run([*ruff, "."], cwd=made.folder, capture_output=True, text=True, check=False)
    assert 0 == linted.returncode, linted.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Shop", "--name my_shop"),
        ("9lives", "--name my_9lives"),
        ("Class", "--name my_class"),
        ("class", "is a Python keyword"),
        ("json", "is taken by a module"),
        ("dagster", "is taken by a module"),
        ("tests", "is taken by a module"),
        ("a" * 64, "at most 63"),
        ("../shop", "--name shop"),
    ],
)
def test_an_invalid_name_is_refused_with_a_valid_one(tmp_path, name, said):
    """The error says what is wrong with the name, and what to type. Nothing is written."""
    with pytest.raises(ProjectRefusedError) as refused:
        create_project(tmp_path / "new", name, SERVED)
    assert said in str(refused.value)
    assert [] == list(tmp_path.iterdir())


def test_a_folder_with_content_is_refused(tmp_path):
    """`init` overwrites neither a file nor a folder that holds a file. The error names what was found."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "notes.txt").write_text("mine")
    (tmp_path / "book").write_text("mine too")
    with pytest.raises(ProjectRefusedError, match=r"is not empty, it holds notes\.txt"):
        create_project(tmp_path / "shop", tidemark=SERVED)
    with pytest.raises(ProjectRefusedError, match="is a file"):
        create_project(tmp_path / "book", tidemark=SERVED)
    assert ["notes.txt"] == [path.name for path in (tmp_path / "shop").iterdir()]


def test_its_dagster_instance_is_configured_like_this_projects():
    """The two files dagster.yaml have the same settings."""
    template = (project.TEMPLATES / "dagster.yaml.template").read_text()
    assert (ROOT / "dagster.yaml").read_text() == Template(template).substitute()


def test_a_project_is_portable(tmp_path):
    """A project depends on a name and version, and holds the wheel.

    None of its files names a folder of this machine.
    """
    made = create_project(tmp_path / "shop")
    declared = tomllib.loads((made.folder / "pyproject.toml").read_text())
    assert [f"tidemark-spark[dagster]=={VERSION}"] == declared["project"]["dependencies"] == [made.tidemark]
    (wheel,) = [file for file in made.files if file.endswith(".whl")]
    assert {"tidemark-spark": {"path": wheel}} == declared["tool"]["uv"]["sources"]
    texts = [path for path in made.folder.rglob("*") if path.is_file() and path.suffix != ".whl"]
    assert [] == [path for path in texts if str(ROOT) in (text := path.read_text()) or str(tmp_path) in text]
    pinned = (made.folder / "constraints.txt").read_text().splitlines()
    assert "pyspark==4.2.0" in pinned
    assert [] == [line for line in pinned if line.startswith("tidemark-spark==")]


def test_make_uses_the_environment_that_is_there(tmp_path):
    """`make` uses a named environment, or the active one if Tidemark is installed there. Otherwise it makes .venv."""
    made = create_project(tmp_path / "shop", tidemark=SERVED)
    own = Path(sys.prefix)
    for words, active, uses in [
        ([], {"VIRTUAL_ENV": str(own)}, True),
        ([f"ENV={own}"], {}, True),
        ([], {"VIRTUAL_ENV": str(tmp_path)}, False),
        ([], {}, False),
        (["ENV=.venv"], {"VIRTUAL_ENV": str(own)}, False),
    ]:
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | active
        said = subprocess.run(
            ["make", "-n", "run", *words], cwd=made.folder, env=environment, capture_output=True, text=True, check=True
        )
        assert uses == (f'"{own}/bin/tidemark" run' in said.stdout), (words, active)
        assert uses == ("-m venv .venv" not in said.stdout), (words, active)


def test_a_new_project_imports_only_the_public_package(tmp_path):
    """A project shows the user the public interface, and not the packages behind it."""
    made = create_project(tmp_path / "shop", tidemark=SERVED)
    inner = re.compile(r"^\s*(?:from|import) (?:jobs|checkpointing|spec)\b", re.MULTILINE)
    assert [] == [str(path) for path in made.folder.rglob("*.py") if inner.search(path.read_text())]


# ------------------------------------------------------------------
# A project in a folder with an odd name. The commands that `init` tells the user to type work there.


@pytest.mark.parametrize("name", ["a b", ALL_IN_ONE])
def test_a_new_project_may_lie_in_a_folder_of_any_name(tmp_path, capsys, name):
    """`cd` is quoted, and `make dev` names the Dagster home of that folder."""
    folder = tmp_path / name
    assert ExitCode.DONE is execute(["init", str(folder), "--name", "shop", "--tidemark", "tidemark-spark==0.1.0"])
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("go on with: "))
    assert ["cd", str(folder), "&&", "make", "run"] == shlex.split(told.removeprefix("go on with: "))[:5]
    recipe = subprocess.run(
        ["make", "--dry-run", "--old-file", ".venv/.complete", "dev"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line for line in recipe.splitlines() if "DAGSTER_HOME" in line)
    home = line.partition("DAGSTER_HOME=")[2].partition(' ".venv')[0]
    said = subprocess.run(["sh", "-c", f"printf %s {home}"], cwd=folder, capture_output=True, text=True, check=True)
    assert str(folder / ".dagster") == said.stdout


def test_a_name_that_no_project_may_have_gets_a_line_to_paste(tmp_path, capsys):
    """The line quotes the folder's name for the shell."""
    assert ExitCode.USAGE is execute(["init", str(tmp_path / "a b")])
    words = capsys.readouterr().err.partition("as in 'tidemark ")[2].strip()
    assert ["init", str(tmp_path / "a b"), "--name", "a_b"] == shlex.split(words.removesuffix("'"))
