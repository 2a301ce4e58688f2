"""Beside a checkout, a user's package with the name of one of Tidemark's is refused, with the way out.

Beside an installed wheel, such a package works: tests/scenarios/package runs a pipeline of such a project.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = '[tool.tidemark.pipelines]\nshop = "jobs.shop:build"\n'
WAY_OUT = f"pip install {ROOT}, without --editable"


@pytest.fixture(params=["checkpointing", "jobs", "orchestration", "spec"])
def project(request, tmp_path):
    """Return a project with one such package. The project has the same name."""
    folder = tmp_path / request.param
    (folder / request.param).mkdir(parents=True)
    (folder / request.param / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def python(*words, cwd):
    """Run this environment's Python in a folder. Return its exit code and stderr."""
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    "program",
    ["from tidemark import Cuts", "import tidemark.dagster", "import tidemark.prepare", "import tidemark.testing"],
)
def test_an_import_names_the_folder_that_hides_tidemarks(project, program):
    """Python looks in the current folder first, so it would import the user's package."""
    code, said = python("-c", program, cwd=project)
    last = said.splitlines()[-1]
    assert (1, True) == (code, last.startswith("tidemark._packages.HiddenPackageError: "))
    assert f"{project / project.name} is what Python finds as {project.name!r}" in last
    assert last.endswith(f"({WAY_OUT})")


def test_the_command_names_the_folder_in_one_sentence(project):
    """`python -m tidemark` puts the current folder first too."""
    code, said = python("-m", "tidemark", "explain", "flights", cwd=project)
    assert (2, 1) == (code, len(said.splitlines()))
    assert said.startswith(f"tidemark: {project / project.name} is what Python finds")


def test_a_run_is_refused_before_a_worker_finds_the_wrong_package(project):
    """The installed command finds its own packages. Spark's workers would find the project's."""
    done = subprocess.run(
        [Path(sys.executable).with_name("tidemark"), "run", "shop", "--warehouse", "warehouse"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    hiding = project / project.name / "__init__.py"
    assert f"tidemark: {hiding}: Tidemark has a package {project.name!r} of its own, which" in done.stderr
    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert WAY_OUT in done.stderr
    assert not (project / "warehouse").exists()


def test_a_folder_without_modules_hides_nothing(tmp_path):
    """Only a package or a module is found before Tidemark's. A plain folder is not."""
    (tmp_path / "spec").mkdir()
    assert (0, "") == python("-c", "from tidemark import Cuts; import spec; assert spec.__file__", cwd=tmp_path)


def test_a_package_called_tidemark_is_refused_too(tmp_path):
    """A wheel has this name too."""
    (tmp_path / "tidemark.py").touch()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    command = [Path(sys.executable).with_name("tidemark"), "explain", "shop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr.strip().endswith("rename yours")
    assert 2 == done.returncode
