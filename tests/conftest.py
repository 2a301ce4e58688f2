"""What all tests share: Hypothesis profiles, the shares of kills, matrices and long tests, and the Spark session."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from spec.machines import judging
from tests.long_tests import NotesLong, long_tests
from tests.shares import Rotating, share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.object_store import Server

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("kill", "matrix", "long")
"""With `--share rotating`, a test with one of these marks runs once in six days, or less often if it takes long (see
`shares.LONGER`)."""
ON_SPARK = ("spark", "kill")
"""`make test` runs the tests with one of these marks in a second step. Each step has a share of its own, so that each
takes about equally long every day."""
SECONDS_PER_DAY = 86_400

# Sessions of tests are short: the JVM's first compiler is enough, and leaves the processor to the work itself.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC")
judging.register()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare how many of the kills, matrices and long tests run, on which day, and whether to note the long ones."""
    parser.addoption("--share", choices=["all", "rotating"], default="all", help="all of them, or a share a day")
    parser.addoption(
        "--share-day",
        type=int,
        default=int(time.time()) // SECONDS_PER_DAY,
        help="whose day's share: by default today's; give the printed number to repeat a run",
    )
    parser.addoption("--note-long", action="store_true", help="measure the tests, and note the long ones")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests if the user asks for it. Worker processes do not measure."""
    if config.getoption("--note-long") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotesLong())


def pytest_report_header() -> str:
    """Say how hard Hypothesis searches."""
    return f"hypothesis profile: {os.environ.get('HYPOTHESIS_PROFILE', 'dev')}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what it takes to repeat this run; at its end, where `-q` leaves it."""
    if config.getoption("--share") == "rotating":
        day = config.getoption("--share-day")
        terminalreporter.write_line(f"a share of the kills, matrices and long tests: --share-day {day} repeats it")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the long tests. Keep the day's share of kills, matrices and long tests, which only their names decide."""
    seconds = long_tests()
    for item in items:
        if item.nodeid in seconds:
            item.add_marker("long")
    if config.getoption("--share") == "all":
        return
    day = config.getoption("--share-day")
    left_out = _not_today([item for item in items if _has_one_of(item, ON_SPARK)], seconds, day)
    left_out |= _not_today([item for item in items if not _has_one_of(item, ON_SPARK)], seconds, day)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _not_today(items: list[pytest.Item], seconds: Mapping[str, int], day: int) -> set[pytest.Item]:
    """Return the rotating tests that do not run on this day. One that is not listed as long counts as one second."""
    rotating = {item.nodeid: item for item in items if _has_one_of(item, SHARED)}
    todays = share((Rotating(name, seconds.get(name, 1)) for name in rotating), day)
    return {item for name, item in rotating.items() if name not in todays}


def _has_one_of(item: pytest.Item, marks: tuple[str, ...]) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """Return the one Spark session of this process of a test run, with every set of jars that is here.

    The sets that marks name are fetched first, since a session takes no jars once it runs. A test that needs another
    set which is missing fails, and says so.
    """
    # Imported late: the pure tests must not pay for Spark.
    from jobs.spark.jars import JAR_SETS, fetch, jar_set, jars_folder, not_fetched
    from jobs.spark.session import SparkConfig, open_session

    for name in {name for item in request.session.items for mark in item.iter_markers("jars") for name in mark.args}:
        fetch(jars_folder(), jar_set(name))
    missing = [jars.name for jars in not_fetched(JAR_SETS)]
    session = open_session(SparkConfig(jar_sets=tuple(name for name in JAR_SETS if name not in missing)))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout, built with what is installed here: nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [Path(sys.executable).with_name("uv"), "build", "--wheel", "--no-build-isolation", "--offline", "--quiet"]
    told = [*build, "--python", sys.executable, "--out-dir", folder, ROOT]
    built = subprocess.run(told, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def store_server() -> Iterator["Server"]:
    """Return the one S3 server of this process of a test run, with a bucket `lake`."""
    from tests.object_store import serving

    with serving() as server:
        server.make_bucket("lake")
        yield server
