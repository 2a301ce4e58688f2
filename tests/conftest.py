"""What all tests share: Hypothesis profiles, the choice of the long tests that run, and the Spark session."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from spec.machines import judging
from tests.binlog_servers import without_mysql
from tests.cloud_stores import STORES, without_azurite
from tests.long_tests import NotesLong, in_every_run, long_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.object_store import Server

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = ("kill", "matrix", "long")
"""With `--share small`, only some of the tests with one of these marks run (see `long_tests.in_every_run`)."""

# Sessions of tests are short. So the JVM's first compiler is enough, and it leaves more processor time to the tests.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC")
judging.register()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", choices=["all", "small"], default="all", help="all tests, or what `make test` runs")
    parser.addoption("--note-long", action="store_true", help="measure the tests, and note the long ones")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests if the user asks for it. Worker processes do not measure."""
    if config.getoption("--note-long") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotesLong())


def pytest_report_header() -> list[str]:
    found = {"Azure": without_azurite(), "MySQL": without_mysql()}
    left_out = [f"tests on {what} are left out: {missing}" for what, missing in found.items() if missing]
    return [f"hypothesis profile: {os.environ.get('HYPOTHESIS_PROFILE', 'dev')}", *left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need missing jars or a missing server, and mark the long tests.

    With `--share small`, leave out most of the kills, matrices and long tests. A test's name decides whether it is left
    out.
    """
    from jobs.spark.jars import JAR_SETS

    items[:] = _chosen(config, items, lambda item: all(name in JAR_SETS for name in _jar_sets(item)))
    for mark, missing in (("azurite", without_azurite()), ("mysql", without_mysql())):
        if missing:
            items[:] = _chosen(config, items, lambda item, mark=mark: item.get_closest_marker(mark) is None)
    seconds = long_tests()
    for item in items:
        if item.nodeid in seconds:
            item.add_marker("long")
    if config.getoption("--share") == "all":
        return
    candidates = {item.nodeid: item for item in items if any(item.get_closest_marker(mark) for mark in CHOSEN)}
    chosen = in_every_run({name: seconds.get(name, 1) for name in candidates})
    left_out = {item for name, item in candidates.items() if name not in chosen}
    items[:] = _chosen(config, items, lambda item: item not in left_out)


def _jar_sets(item: pytest.Item) -> Iterator[str]:
    """Yield the sets of jars that a test's marks need.

    The mark `neighbour` needs Delta's, to alter tables by Delta's SQL.
    """
    yield from (name for mark in item.iter_markers("jars") for name in mark.args)
    if "neighbour" in getattr(item, "fixturenames", ()):
        yield "delta"


def _chosen(
    config: pytest.Config, items: list[pytest.Item], is_chosen: Callable[[pytest.Item], bool]
) -> list[pytest.Item]:
    left_out = [item for item in items if not is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    return [item for item in items if is_chosen(item)]


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """Return the one Spark session of this process of a test run, with every set of jars that is here.

    The sets that marks need are fetched first, since a running session takes no more jars. A test that needs another,
    missing set fails with a message.
    """
    # Imported late, so that tests without Spark need not load it.
    from jobs.spark.jars import JAR_SETS, fetch, jar_set, jars_folder, not_fetched
    from jobs.spark.session import SparkConfig, open_session

    for name in {name for item in request.session.items for name in _jar_sets(item)}:
        fetch(jars_folder(), jar_set(name))
    missing = [jars.name for jars in not_fetched(JAR_SETS)]
    session = open_session(SparkConfig(jar_sets=tuple(name for name in JAR_SETS if name not in missing)))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout, built with the installed packages. Nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [Path(sys.executable).with_name("uv"), "build", "--wheel", "--no-build-isolation", "--offline", "--quiet"]
    told = [*build, "--python", sys.executable, "--out-dir", folder, ROOT]
    built = subprocess.run(told, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def store_server() -> Iterator["Server"]:
    from tests.object_store import serving

    with serving() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator["Server"]:
    from tests.cloud_stores import azurite

    with azurite() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator["Server"]:
    from tests.cloud_stores import fake_gcs

    with fake_gcs() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture(scope="session", params=STORES)
def each_store(request: pytest.FixtureRequest) -> "Server":
    """Return an object store of each kind."""
    return request.getfixturevalue(request.param)
