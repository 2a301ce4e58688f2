"""Defines a pipeline over the changes of two tables: bronze of all changes, the newest row of each key, and its sum."""

import os
from pathlib import Path

from tidemark import CheckpointConfig, Pipeline, PostgresChanges, newest_rows

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
