"""Shares the input of the year's first days, and the expected tables, among the tests of the modes."""

from pathlib import Path

import pytest

from jobs.pipelines import flights_data
from tests.scenarios.modes.modes import Rows, exact, lay_out


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    flights_data.prepare(folder / "year")
    lay_out(folder / "year", folder / "data")
    return folder / "data"


@pytest.fixture(scope="session")
def expected(days: Path) -> dict[str, Rows]:
    return exact(days)
