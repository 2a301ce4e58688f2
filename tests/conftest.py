"""What all tests share: Hypothesis profiles, the share of kills and matrices to run, and the Spark session."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from spec import profiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
THIRDS = 3
SECONDS_PER_DAY = 86_400

# Sessions of tests are short: the JVM's first compiler is enough, and leaves the processor to the work itself.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC")
profiles.register()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare how many of the tests marked kill or matrix run, and which third."""
    parser.addoption("--kill-share", choices=["all", "third"], default="all", help="run all of them, or one third")
    parser.addoption(
        "--kill-third",
        type=int,
        default=int(time.time()) // SECONDS_PER_DAY % THIRDS,
        help="which third (0, 1, 2): by default another one each day; give the printed number to repeat a run",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what it takes to repeat this run."""
    header = [f"hypothesis profile: {os.environ.get('HYPOTHESIS_PROFILE', 'dev')}"]
    if config.getoption("--kill-share") == "third":
        header.append(f"kills and matrices: every third, --kill-third {config.getoption('--kill-third')}")
    return header


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every third test of the kills and the matrices in order of their names, whatever the shuffling."""
    if config.getoption("--kill-share") == "all":
        return
    shared = sorted((item for item in items if _is_shared(item)), key=lambda item: item.nodeid)
    kept = set(shared[config.getoption("--kill-third") % THIRDS :: THIRDS])
    left_out = [item for item in shared if item not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_shared(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("kill", "matrix"))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Return the one Spark session of this process of a test run, with Delta."""
    # Imported late: the pure tests must not pay for Spark.
    from jobs.runtime.jars import delta_jars
    from jobs.runtime.session import SparkConfig, open_session

    session = open_session(SparkConfig(jars=delta_jars()))
    yield session
    session.stop()
