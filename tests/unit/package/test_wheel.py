"""The wheel: what is in it, and what it says of itself. What it can do alone is in tests/scenarios/package."""

import zipfile
from email import message_from_string
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"checkpointing", "jobs", "orchestration", "spec", "tidemark"}
TEMPLATES = "jobs/init/template"


@pytest.fixture(scope="module")
def wheel(wheel_file):
    """Return the opened wheel."""
    with zipfile.ZipFile(wheel_file) as opened:
        yield opened


def inside(wheel, ending):
    """Return the text of the one file of the wheel whose name ends so."""
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name).decode()


def test_it_is_tidemark_spark_and_brings_its_licence(wheel):
    """The package index has a `tidemark` of strangers, so the wheel must not be called that."""
    said = message_from_string(inside(wheel, ".dist-info/METADATA"))
    assert ("tidemark-spark", "Apache-2.0", "Tidemark maintainers") == (
        said["Name"],
        said["License-Expression"],
        said["Author"],
    )
    assert "Apache License" in inside(wheel, ".dist-info/licenses/LICENSE")
    commands = "[console_scripts]\ntidemark = jobs.cli.main:main\n"
    components = "[dagster_dg_cli.registry_modules]\ntidemark = tidemark.dagster\n"
    assert f"{commands}\n{components}" == inside(wheel, ".dist-info/entry_points.txt")


def test_it_holds_the_packages_with_their_types_and_no_tests(wheel):
    """Every file of the five packages that Python or `init` reads, and nothing of tests, benchmarks or caches."""
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted == found
    assert {f"{package}/py.typed" for package in PACKAGES} <= found


def test_it_holds_the_templates_of_a_new_project(wheel):
    """`init` works without a checkout, the hidden .gitignore included."""
    found = {name.removeprefix(f"{TEMPLATES}/") for name in wheel.namelist() if name.startswith(TEMPLATES)}
    assert {".gitignore.template", "Makefile.template", "PACKAGE/pipeline.py.template"} <= found


def test_the_command_of_this_environment_is_ours():
    """The installed command `tidemark` belongs to this distribution."""
    (command,) = entry_points(group="console_scripts", name="tidemark")
    assert ("tidemark-spark", "jobs.cli.main:main") == (command.dist.name, command.value)
