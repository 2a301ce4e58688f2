"""Tests pipelines over MariaDB changes on real Spark and Delta: no cut shows a part of a transaction."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dying_server import dying
from tests.scenarios.debezium.shop import TOTAL
from tests.scenarios.debezium.shop_job import BRONZE, GIRO, SAVINGS
from tests.scenarios.debezium.test_debezium import Transfers
from tests.scenarios.guides.test_guides import blocks, write
from tidemark import Cuts
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(590)]

CANARY = "s3cret-canary"
MOMENTS = (
    "after:PollSource#2",
    "after:RunMicroBatch#2",
    "before:AppendRow",
    "after:AppendRow",
    "before:PublishTable#2",
)


@pytest.fixture
def trial(own_shop, tmp_path, monkeypatch, spark):
    own_shop.sql(f"CREATE USER reader@127.0.0.1 IDENTIFIED BY '{CANARY}'", "GRANT ALL ON *.* TO reader@127.0.0.1")
    monkeypatch.setenv("SHOP_URL", own_shop.server.url("own", f"reader:{CANARY}"))
    trial = Trial("tests.scenarios.debezium.shop_job:build", tmp_path / "trial")
    trial.data.mkdir(parents=True)
    return trial


def has_canary(path):
    return path.is_file() and CANARY.encode() in path.read_bytes()


def test_no_cut_shows_a_part_of_a_transfer(trial, own_shop):
    """Transfers run while ticks die at each boundary, and the server dies in a tick."""
    with Transfers(own_shop) as transfers:
        trial.run(checkpoints=2)
        for boundary in MOMENTS:
            trial.kill(boundary, spark_cores=1)
        with dying(own_shop.server, trial.warehouse):
            trial.kill("after:AppendRow#2", spark_cores=1)
        assert transfers.done
    own_shop.reconnect()
    trial.run(every_rows=2_000, slice_rows_max=2_000)
    cuts = trial.cuts.all()
    sums = [sum(cut.polars(name).collect()["balance"].sum() for name in (GIRO, SAVINGS)) for cut in cuts]
    assert [TOTAL] * len(cuts) == sums
    assert len(cuts) > len(MOMENTS)
    newest = trial.cuts.latest()
    bronze = newest.polars(BRONZE).collect()
    assert [*range(bronze.height)] == sorted(bronze["_position"])
    for name, table in (("giro", GIRO), ("savings", SAVINGS)):
        rows = newest.polars(table).collect()
        assert own_shop.table(name) == dict(rows.select("id", "balance").iter_rows())
    assert [] == [path for folder in (trial.warehouse, trial.data) for path in folder.rglob("*") if has_canary(path)]


GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/databases.md"


def test_the_guide_works(own_server, tmp_path):
    """A user who has only the guide's rights runs the guide's pipeline, gets a first cut, and later a changed one."""
    text = GUIDE.read_text()
    with own_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("USE shop")
        for statement in re.search(r"^```\n(CREATE USER.*?)^```", text, re.MULTILINE | re.DOTALL)[1].split(";\n"):
            if statement.strip():
                cursor.execute(statement)
        for block in blocks(GUIDE):
            if block.path is not None:
                write(block, tmp_path)
        assert len((tmp_path / "shop/pipeline.py").read_text().splitlines()) <= 30
        url = own_server.url("shop", "reader:secret")
        environment = os.environ | {"SHOP_URL": url, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}

        def run():
            words = [sys.executable, "-m", "tidemark", "run", "shop.pipeline:build"]
            subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
            cut = Cuts(tmp_path / "warehouse", "shop").latest()
            return {row["customer"]: float(row["amount"]) for row in cut.polars("gold/totals").collect().to_dicts()}

        assert {1: 25.5, 2: 7.0} == run()
        cursor.execute("UPDATE orders SET id = 9, amount = 8.00 WHERE id = 3")
        connection.commit()
        assert {1: 25.5, 2: 8.0} == run()
