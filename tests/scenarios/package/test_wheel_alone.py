"""A wheel alone, installed into an empty environment, makes a project that runs and that Dagster loads."""

import subprocess
import time
import urllib.request
from pathlib import Path

import polars as pl
import pytest

from tests.local_server import free_port
from tests.stock_project import counted_once, write_project
from tests.wheel_environment import install, run, without_this_checkout

pytestmark = [pytest.mark.dear, pytest.mark.spark, pytest.mark.timeout(900)]

UP_S = 120
OTHERS = ("orchestration.py", "checkpointing/__init__.py")
"""Modules of the user's project with names that a checkout has too. Nothing imports them."""


@pytest.fixture(scope="module")
def base(tmp_path_factory, wheel_file):
    folder = tmp_path_factory.mktemp("base")
    install(folder, wheel_file)
    return folder / "env"


@pytest.fixture(scope="module")
def shop(tmp_path_factory, wheel_file):
    folder = tmp_path_factory.mktemp("alone")
    install(folder, wheel_file)
    said = run(folder / "env/bin/tidemark", "init", "shop", cwd=folder, environment=without_this_checkout())
    assert f"it depends on tidemark-spark[dagster]=={wheel_file.name.split('-')[1]}" in said
    assert f"make run ENV={(folder / 'env').resolve()}" not in said  # this environment has no Dagster yet
    assert wheel_file.name == next((folder / "shop" / "wheels").iterdir()).name
    project = folder / "shop"
    install(folder, "--editable", f"{project}[test]")
    (project / ".venv").symlink_to(folder / "env")
    (project / ".venv" / ".complete").touch()
    return project


def test_the_project_runs_and_knows_nothing_of_a_checkout(shop):
    """`make run` fills every table, and every module comes from the environment."""
    said = run("make", "run", cwd=shop, environment=without_this_checkout())
    assert "shop is caught up: 2,000 rows in 4 checkpoints" in said
    assert 20 == pl.read_delta(str(shop / "warehouse/gold/customers")).height
    where = "import tidemark, tidemark.jobs as jobs; print(jobs.__file__, tidemark.__file__)"
    files = run(shop / ".venv/bin/python", "-c", where, cwd=shop, environment=without_this_checkout())
    environment = (shop.parent / "env").resolve()
    assert [] == [file for file in files.split() if not Path(file).resolve().is_relative_to(environment)]
    said = run(shop / ".venv/bin/tidemark", "doctor", "shop", cwd=shop, environment=without_this_checkout())
    assert "is healthy" in said


def test_a_project_may_have_packages_of_any_name_but_one(base, tmp_path):
    """The command and Spark's workers run a project with its own `jobs`, `spec`, `orchestration` and `checkpointing`.

    The wheel is installed without extras, since a pipeline needs none.
    """
    write_project(tmp_path, pipeline="jobs.stock", function="jobs.totals", schemas="spec.schemas")
    for name in OTHERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    words = [base / "bin/tidemark", "run", "--spark-cores", "1"]
    assert "stock is caught up: 700 rows" in run(*words, cwd=tmp_path, environment=without_this_checkout())
    assert counted_once(tmp_path / "warehouse")


def test_its_own_tests_pass(shop):
    assert "3 passed" in run("make", "test", cwd=shop, environment=without_this_checkout())


def test_dagster_serves_it(shop):
    """`dg dev` comes up with the project's code location loaded, and ends when it is interrupted."""
    port = free_port()
    environment = without_this_checkout() | {"DAGSTER_HOME": str(shop)}
    (shop / ".dagster").mkdir(exist_ok=True)
    log = (shop.parent / "dg.log").open("w+")
    dev = subprocess.Popen(
        [shop / ".venv/bin/dg", "dev", "--port", str(port)], cwd=shop, env=environment, stdout=log, stderr=log
    )
    try:
        assert "gold" in _assets(port, dev), (shop.parent / "dg.log").read_text()
    finally:
        dev.send_signal(2)
        dev.wait(60)
        log.close()


def _assets(port, dev):
    """Return Dagster's answer with the assets' keys, or an empty text if Dagster never gives it."""
    question = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        data=b'{"query": "{assetNodes{assetKey{path}}}"}',
        headers={"Content-Type": "application/json"},
    )
    until = time.monotonic() + UP_S
    while time.monotonic() < until and dev.poll() is None:
        try:
            with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310 - our own server
                if "gold" in (said := answer.read().decode()):
                    return said
        except OSError:
            pass
        time.sleep(1)
    return ""
