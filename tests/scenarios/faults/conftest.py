"""What the fault tests share: what an undisturbed run leaves, and a warm Connect server for those on real Spark."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.runtime.connect_server import connect_server
from jobs.runtime.session import SparkConfig
from tests.scenarios.faults.orders_job import Rows
from tests.scenarios.faults.processes import Order, tick
from tests.scenarios.faults.reader import Reader, final_tables


@dataclass(frozen=True)
class Undisturbed:
    """The tables that a run leaves which nothing disturbed, and how often it crossed each boundary."""

    tables: dict[str, Rows]
    crossed: Counter[str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Run one tick that nothing disturbs."""
    root = tmp_path_factory.mktemp("undisturbed")
    with Reader(root) as reader:
        assert "caught_up" == tick(Order(root=root, notes=root / "crossed")).said["outcome"]
        reader.look()
    assert [] == reader.problems
    return Undisturbed(final_tables(root), Counter((root / "crossed").read_text().split()))


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a Connect server that all clients of a test run share."""
    log_file: Path = tmp_path_factory.mktemp("connect") / "server.log"
    with connect_server(SparkConfig(cores=2, memory="1g"), log_file) as server:
        yield server.url
