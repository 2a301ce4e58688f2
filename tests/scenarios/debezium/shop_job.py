"""Defines a pipeline over the changes of two tables: all changes in bronze, and both tables as on the server."""

from pathlib import Path

from tidemark import CheckpointConfig, DebeziumSource, Pipeline, apply_changes

BRONZE, GIRO, SAVINGS = "bronze/shop", "silver/giro", "silver/savings"


def build(data: Path) -> Pipeline:
    shop = DebeziumSource("env:SHOP_URL", ["giro", "savings"], staged=data / "shop")
    config = CheckpointConfig(every_rows=60, slice_rows_max=20, retained=30)
    pipeline = Pipeline("shop", config=config, parallelism=1)
    changes = pipeline.source("shop", shop).table(BRONZE, id="bronze")
    for name, table in (("giro", GIRO), ("savings", SAVINGS)):
        apply_changes(changes.transform(*shop.of(f"own.{name}")), name, keys=["id"]).upsert(table)
    return pipeline
