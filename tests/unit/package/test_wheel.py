"""The content and the metadata of the wheel. tests/scenarios/package tests what it can do alone."""

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from hatch_build import MOVED, NotMovableError, lay_out

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"checkpointing", "jobs", "orchestration", "spec", "tidemark"}
TEMPLATES = "tidemark/jobs/init/template"
BUG = "the last table is not published"
COMMAND = "tidemark.__main__:main"
IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
import tidemark
assert tidemark.__file__.startswith(sys.argv[1]), tidemark.__file__
for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
    if not module.name.endswith(".__main__"):
        import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"checkpointing", "jobs", "orchestration", "spec"}))
"""


@pytest.fixture(scope="module")
def wheel(wheel_file):
    with zipfile.ZipFile(wheel_file) as opened:
        yield opened


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


def on_the_wheel(folder, program, *arguments, cwd):
    """Run a Python with the wheel and this environment's libraries, and without the checkout."""
    path = f"import sys; sys.path[1:1] = [{str(folder)!r}, {sysconfig.get_path('purelib')!r}]\n"
    command = [sys.executable, "-S", "-c", path + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inside(wheel, ending):
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name).decode()


def test_its_name_is_tidemark_spark_and_it_has_its_licence(wheel):
    """The package index has a stranger's `tidemark`, so the wheel must have another name."""
    said = message_from_string(inside(wheel, ".dist-info/METADATA"))
    assert ("tidemark-spark", "Apache-2.0", "Tidemark maintainers") == (
        said["Name"],
        said["License-Expression"],
        said["Author"],
    )
    assert "Apache License" in inside(wheel, ".dist-info/licenses/LICENSE")
    commands = f"[console_scripts]\ntidemark = {COMMAND}\n"
    components = "[dagster_dg_cli.registry_modules]\ntidemark = tidemark.dagster\n"
    assert f"{commands}\n{components}" == inside(wheel, ".dist-info/entry_points.txt")


def test_one_package_has_everything_except_the_tests(wheel):
    """It has every file of the five packages that Python or `init` reads. Tests, benchmarks and caches are left out."""
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {str(path) if path.parts[0] == "tidemark" else f"tidemark/{path}" for path in files} == found
    assert "tidemark/py.typed" in found


def test_it_has_the_templates_of_a_new_project(wheel):
    """`init` works without a checkout, the hidden .gitignore included."""
    found = {name.removeprefix(f"{TEMPLATES}/") for name in wheel.namelist() if name.startswith(TEMPLATES)}
    assert {".gitignore.template", "Makefile.template", "PACKAGE/pipeline.py.template"} <= found


def test_no_module_of_it_imports_a_package_of_the_checkout(installed, tmp_path):
    """A project may have packages `jobs`, `spec` and so on. If all of the wheel is imported, none of these is."""
    for name in MOVED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('a stranger of this name was imported')\n")
    assert "" == on_the_wheel(installed, IMPORT_ALL, str(installed), cwd=tmp_path)


def test_texts_that_name_a_module_are_moved_too(installed, tmp_path):
    """The demo is found by name, a planted bug finds its modules, and a message names an existing command."""
    found = "from tidemark.jobs.pipelines.registry import find_pipeline; from pathlib import Path; "
    assert "flights" == on_the_wheel(installed, f"{found}print(find_pipeline('flights', Path()).name)", cwd=tmp_path)
    jars = "import os; os.environ['TIDEMARK_JARS'] = 'none'; from tidemark.jobs.spark.jars import delta_jars as d\n"
    said = on_the_wheel(installed, f"{jars}try: d()\nexcept Exception as error: print(error)", cwd=tmp_path)
    assert "-m tidemark.jobs.spark.jars" in said
    planted = f"from tidemark.spec.bugs.__main__ import main; main(['--only', {BUG!r}, '--processes', '1'])"
    assert "1 found, 0 lost" in on_the_wheel(installed, planted, cwd=tmp_path)


def test_a_wheel_built_from_the_sdist_is_the_same(wheel, tmp_path):
    """The sdist has the hook that lays the wheel out."""
    build = [Path(sys.executable).with_name("uv"), "build", "--no-build-isolation", "--offline", "--quiet"]
    told = [*build, "--python", sys.executable, "--out-dir", tmp_path, ROOT]
    built = subprocess.run(told, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as again:
        assert {each.filename: each.CRC for each in wheel.infolist()} == {e.filename: e.CRC for e in again.infolist()}


def test_an_import_that_cannot_be_moved_stops_the_build(tmp_path):
    """`import jobs.stores` binds `jobs`, which the wheel does not have. The build names the place."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "wrong.py").write_text('"""Wrong."""\n\nimport jobs.stores\n')
    with pytest.raises(NotMovableError, match=r"wrong\.py, line 3: write the import as 'from package\.module"):
        lay_out(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("written", "moved"),
    [
        ("from jobs.stores import x", "from tidemark.jobs.stores import x"),
        ("if a:\n    from jobs import stores", "if a:\n    from tidemark.jobs import stores"),
        ("import jobs", "from tidemark import jobs"),
        ("raise Wrong from jobs", "raise Wrong from jobs"),
        ("jobs = find()\njobs.stores", "jobs = find()\njobs.stores"),
        ('name = "jobs.stores:build"', 'name = "tidemark.jobs.stores:build"'),
        ('f"{sys.executable} -m jobs.stores"', 'f"{sys.executable} -m tidemark.jobs.stores"'),
        ('"all jobs.\\nother.jobs.stores jobs.nothing"', '"all jobs.\\nother.jobs.stores jobs.nothing"'),
        ('"""One.\n\nTwo: `jobs.stores`, ä\n"""; x = "jobs.stores"  # jobs.stores', None),
    ],
)
def test_only_names_of_modules_are_moved(written, moved, tmp_path):
    """These are imports, and texts that name an existing module. A variable of the same name stays."""
    (tmp_path / "jobs" / "stores").mkdir(parents=True)
    (tmp_path / "jobs" / "a.py").write_text(f"{written}\n")
    lay_out(tmp_path, tmp_path / "out")
    wanted = written.replace("jobs.stores", "tidemark.jobs.stores") if moved is None else moved
    assert f"{wanted}\n" == (tmp_path / "out" / "jobs" / "a.py").read_text()


def test_the_command_of_this_environment_belongs_to_this_distribution():
    """After a change of the command, type `make env`."""
    (command,) = entry_points(group="console_scripts", name="tidemark")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tidemark"]
    assert ("tidemark-spark", COMMAND, COMMAND) == (command.dist.name, command.value, declared)
