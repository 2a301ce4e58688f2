"""Tests the Dagster UI in a real browser, as a user sees it: `pytest -m browser` (needs Chromium and Spark)."""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
from deltalake import DeltaTable

from tests.local_server import free_port
from tests.orchestration.browser.chromium import Page, waited
from tests.orchestration.test_tick import FLIGHTS, lay_out

ROOT = Path(__file__).resolve().parents[3]
UI_S = 120
TICK_S = 400


@pytest.fixture
def address(tmp_path):
    lay_out(tmp_path / "data")
    home = tmp_path / "home"
    (home / ".dagster").mkdir(parents=True)
    shutil.copy(ROOT / "dagster.yaml", home)
    port = free_port()
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "TIDEMARK_DATA": str(tmp_path / "data"),
        "TIDEMARK_WAREHOUSE": str(tmp_path / "warehouse"),
        "TIDEMARK_SPARK_CORES": "1",
    }
    dagster = Path(sys.executable).with_name("dagster")
    command = [dagster, "dev", "-m", "orchestration.definitions", "-h", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "dev.log").open("wb") as log:
        program = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        waited(lambda: answers(url), UI_S, (tmp_path / "dev.log").read_text)
        yield url
    finally:
        program.terminate()
        program.wait()


@pytest.fixture
def page(tmp_path):
    opened = Page(tmp_path / "chromium")
    yield opened
    opened.close()


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5) as answer:  # noqa: S310 - our own server
            return answer.status == 200
    except (URLError, OSError):
        return False


@pytest.mark.browser
@pytest.mark.timeout(900)
def test_a_tick_started_from_the_launchpad_succeeds(address, page, tmp_path):
    page.open(f"{address}/locations/orchestration.definitions/jobs/flights_tick/playground")
    page.click("Launch Run", UI_S)
    waited(lambda: "/runs/" in str(page.evaluate("location.href")), UI_S, page.text)
    page.until("Success", TICK_S)
    assert FLIGHTS == DeltaTable(str(tmp_path / "warehouse" / "bronze" / "flights")).to_pyarrow_table().num_rows
    page.open(f"{address}/assets/silver/flights?view=checks")
    page.until("one_cut", UI_S)
    page.until("arr_delay_not_null", UI_S)
