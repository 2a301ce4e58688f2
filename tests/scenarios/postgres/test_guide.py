"""Tests the guide on PostgreSQL on a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.scenarios.guides.blocks import blocks, write
from tidemark import Cuts

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/postgres.md"
TRANSFER = """
UPDATE giro SET balance = balance - 30 WHERE id = 1;
UPDATE savings SET balance = balance + 30 WHERE id = 2;
"""


@pytest.mark.dear
@pytest.mark.spark
def test_the_guide_works(bank, tmp_path):
    """Its SQL, its pipelines and its reader work, before and after a transfer and an update of a key."""
    bank.sql("DROP PUBLICATION bank; DROP TABLE giro, savings")
    bank.sql(re.search(r"^```\n(CREATE TABLE.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1])
    for block in blocks(GUIDE):
        write(block, tmp_path)
    environment = os.environ | {"BANK_URL": bank.server.url(bank.name), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}

    def done(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    done("-m", "tidemark", "run", "bank.pipeline:build")
    assert "1000.00" == done("bank/balance.py").strip()
    bank.sql(TRANSFER)
    done("-m", "tidemark", "run", "bank.pipeline:build")
    assert "1000.00" == done("bank/balance.py").strip()
    assert "is caught up" in done("-m", "tidemark", "run", "bank.pipeline:build")
    done("-m", "tidemark", "run", "bank.history:build")
    bank.sql("UPDATE giro SET id = 6 WHERE id = 5")
    done("-m", "tidemark", "run", "bank.history:build")
    cut = Cuts(tmp_path / "warehouse", "history").latest()
    assert {*bank.sql("SELECT id, balance FROM giro")} == {*cut.polars("silver/accounts").collect().rows()}
    ended = cut.polars("silver/account_versions").filter(~pl.col("current")).collect()
    assert [5] == ended["id"].to_list()
    assert 6 == cut.polars("gold/balances").select(pl.col("versions").sum()).collect().item()
