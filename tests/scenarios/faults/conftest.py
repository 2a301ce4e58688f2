"""What the fault tests share: what an undisturbed run leaves."""

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.scenarios.faults.orders_job import Rows
from tests.scenarios.faults.reader import Reader, final_tables
from tests.scenarios.faults.strikes import Order


@dataclass(frozen=True)
class Undisturbed:
    """The tables that a run leaves which nothing disturbed, and how often it crossed each boundary."""

    tables: dict[str, Rows]
    crossed: Counter[str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    root = tmp_path_factory.mktemp("undisturbed")
    with Reader(root) as reader:
        assert "caught_up" == Order(root=root, notes=root / "crossed").run().said["outcome"]
        reader.look()
    assert [] == reader.problems
    return Undisturbed(final_tables(root), Counter((root / "crossed").read_text().split()))
