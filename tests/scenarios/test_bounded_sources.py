"""A job whose sources end, on Spark and from the command line: waiting rows are put out, and then it says so."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.dear]


def said(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidemark", *words],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr
    return " ".join(done.stdout.split())


def test_rows_that_wait_are_put_out_when_all_sources_have_ended(tmp_path: Path):
    """Order 2 waits for a customer who never comes. A later tick, the lists, the cut and doctor say that it is over."""
    trial = Trial("tests.scenarios.bounded_job:build", tmp_path)
    trial.deliver("orders/shop", pl.DataFrame({"id": [1, 2], "customer": ["ann", "bob"]}))
    trial.deliver("customers/all", pl.DataFrame({"customer": ["ann"], "city": ["Oslo"]}))
    cut = trial.run(spark_cores=1)
    assert cut.finished
    assert [(1, "Oslo"), (2, None)] == sorted(cut.polars("silver/orders").select("id", "city").collect().rows())
    trial.deliver("orders/shop", pl.DataFrame({"id": [3], "customer": ["ann"]}))
    name, folders = "tests.scenarios.bounded_job:build", ("--warehouse", str(trial.warehouse))
    again = said("run", name, "--data", str(trial.data), *folders)
    assert again == (
        f"orders is finished: its sources have ended, and checkpoint {cut.checkpoint} holds all their rows. "
        "To read one again, type 'tidemark reset tests.scenarios.bounded_job:build SOURCE --to start'"
    )
    assert "finished" in said("checkpoints", "list", "orders", *folders)
    assert "every source had ended" in said("cut", "orders", *folders)
    assert "the job is finished" in said("doctor", name, "--data", str(trial.data), *folders)
