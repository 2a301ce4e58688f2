"""Measures a tick that reads changes of a PostgreSQL server into bronze, a history of all versions and an aggregate.

`python -m bench.ours.bank_history --changes N` starts a server from a wheel, reads the accounts, and makes N changes.
Then a tick reads the changes. The program prints the seconds and CPU seconds from one published checkpoint of 50,000
changes to the next. All three tables are in the same cut.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

import polars as pl
import psycopg

from bench.history_workload import EPOCH, arguments, lay_out_bank, require_history
from bench.measures import Laps, caught_up, print_result
from bench.process_tree import peak_memory_bytes
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick
from tests.postgres_server import PostgresServer
from tidemark import CheckpointConfig, Pipeline, PostgresChanges, apply_changes, count, sum_of

_URL: Final = "BENCH_POSTGRES_URL"
_HISTORY: Final = "silver/history"
_TOTALS: Final = "gold/totals"


def build(data: Path) -> Pipeline:
    """Return the pipeline."""
    source = PostgresChanges(f"env:{_URL}", "bench", "bench", staged=data / "bench")
    config = CheckpointConfig(every_rows=EPOCH, slice_rows_max=EPOCH)
    pipeline = Pipeline("bank_history", config=config, parallelism=2)
    bronze = pipeline.source("bank", source).table("bronze/bank", id="bronze")
    history = apply_changes(bronze.transform(*source.of("public.accounts")), "history", keys=["aid"], type=2)
    history.upsert(_HISTORY)
    history.key_by("bid").aggregate("totals", versions=count(), balances=sum_of("balance")).upsert(_TOTALS)
    return pipeline


def main() -> None:
    """Measure one tick."""
    asked = arguments(__doc__)
    server = PostgresServer()
    os.environ[_URL] = server.url()
    try:
        with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, psycopg.connect(server.url()) as connection:
            connection.autocommit = True
            lay_out_bank(connection)
            _tick(Path(scratch))  # the accounts
            connection.execute("CALL load(%s)", [asked.changes])
            laps = _tick(Path(scratch))
            memory = peak_memory_bytes(os.getpid())
            history, totals = (pl.read_delta(str(Path(scratch, "warehouse", name))) for name in (_HISTORY, _TOTALS))
            require_history(history, totals, asked.changes)
    finally:
        server.close()
    print_result(
        {
            "program": "tidemark-bank-history",
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "peak_memory_bytes": memory,
        }
    )


def _tick(scratch: Path) -> Laps:
    given = flags_layer({"data": scratch, "warehouse": scratch / "warehouse"})
    launched, laps = launch("bench.ours.bank_history:build", given), Laps()
    caught_up(run_tick(launched.plan, launched.runtime(), laps))
    return laps


if __name__ == "__main__":
    main()
