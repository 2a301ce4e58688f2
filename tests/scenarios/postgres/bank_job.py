"""Defines a pipeline over the changes of two tables: all changes in bronze, and the newest row of each key."""

import os
from pathlib import Path

from tidemark import CheckpointConfig, Pipeline, PostgresChanges, apply_changes, count, newest_rows, sum_of

BRONZE, GIRO, SAVINGS = "bronze/bank", "silver/giro", "silver/savings"


def build(data: Path) -> Pipeline:
    bank = PostgresChanges("env:BANK_URL", "bank", os.environ["BANK_SLOT"], staged=data / "bank", new_columns="evolve")
    config = CheckpointConfig(every_rows=40, slice_rows_max=20, retained=20, state_backend="incremental")
    pipeline = Pipeline("bank", config=config, parallelism=1)
    changes = pipeline.source("bank", bank).table(BRONZE, id="bronze")
    for name, table in (("giro", GIRO), ("savings", SAVINGS)):
        rows = changes.transform(*bank.of(f"public.{name}"))
        newest_rows(rows.key_by("id"), name).upsert(table)
    return pipeline


# ------------------------------------------------------------------
# Defines a pipeline that applies the changes of a table: its rows, its history, and an aggregate of the history.


ROWS, HISTORY, TOTALS = "silver/giro", "silver/giro_history", "gold/by_balance"


def build_applied(data: Path) -> Pipeline:
    bank = PostgresChanges("env:BANK_URL", "bank", os.environ["BANK_SLOT"], staged=data / "bank")
    config = CheckpointConfig(every_rows=40, slice_rows_max=20, retained=50)
    pipeline = Pipeline("applied", config=config, parallelism=1)
    giro = pipeline.source("bank", bank).table(BRONZE, id="bronze").transform(*bank.of("public.giro"))
    apply_changes(giro, "giro", keys=["id"]).upsert(ROWS)
    history = apply_changes(giro, "giro_history", keys=["id"], type=2)
    history.upsert(HISTORY)
    history.key_by("balance").aggregate("by_balance", versions=count(), ids=sum_of("id")).upsert(TOTALS)
    return pipeline
