"""Airflow runs the guide's DAGs: ticks, a task that waits for a complete day, and a task that reads this day.

Airflow has an environment of its own, `.bench/airflow`, which the test makes.
"""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from tests.scenarios.guides.test_guides import ROOT, blocks, write
from tests.wheel_environment import INSTALLING, UV, run, without_this_checkout

AIRFLOW = "apache-airflow==3.3.2"
HOME = ROOT / ".bench" / "airflow"
DAY = "2026-01-01T23:00:00+00:00"
"""The end of 1 January in Berlin."""


@pytest.fixture(scope="module")
def environment():
    """Make Airflow's environment unless it is there. It takes a minute."""
    if not (HOME / "complete").exists():
        run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, HOME, cwd=ROOT)
        settings = INSTALLING["uv_environment"]() | {"VIRTUAL_ENV": str(HOME)}
        run(UV, "pip", "install", "--quiet", AIRFLOW, cwd=ROOT, environment=settings)
        (HOME / "complete").touch()
    return HOME / "bin" / "airflow"


class Shop:
    """The project of the guide to event time, with this checkout's environment, and Airflow with the guide's DAGs."""

    def __init__(self, folder: Path, airflow: Path) -> None:
        self.folder, self.airflow = folder / "shop", airflow
        for guide in ("time.md", "schedule.md"):
            for block in blocks(ROOT / "docs" / "guides" / guide):
                if block.path in ("pyproject.toml", "shop/pipeline.py", "day.py", "dags/shop.py"):
                    write(block, self.folder)
        (self.folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        self.settings = without_this_checkout() | {
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "SHOP": str(self.folder),
        }
        self.says("db", "migrate")

    def says(self, *words: str) -> str:
        done = subprocess.run(
            [self.airflow, *words], env=self.settings, capture_output=True, text=True, check=False, timeout=500
        )
        assert 0 == done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def deliver(self, *clicks: tuple[int, datetime]) -> None:
        folder = self.folder / "data/clicks/web"
        folder.mkdir(parents=True, exist_ok=True)
        rows = pl.DataFrame([{"customer": "ada", "amount": amount, "at": at} for amount, at in clicks])
        rows.write_parquet(folder / f"{len(list(folder.iterdir())):03}.parquet")


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(1400)
def test_airflow_runs_ticks_and_waits_for_a_day(tmp_path, environment):
    shop = Shop(tmp_path, environment)
    shop.deliver((10, datetime(2026, 1, 1, 8, tzinfo=UTC)), (5, datetime(2026, 1, 1, 20, tzinfo=UTC)))
    assert "state=success" in shop.says("dags", "test", "shop_ticks", DAY)
    assert "new_state=up_for_reschedule" in shop.says("tasks", "test", "shop_days", "complete", DAY)
    shop.deliver((7, datetime(2026, 1, 2, 6, tzinfo=UTC)))
    assert "state=success" in shop.says("dags", "test", "shop_ticks", DAY)
    said = shop.says("dags", "test", "shop_days", DAY)
    assert "state=success" in said
    assert "15 spent" in said
