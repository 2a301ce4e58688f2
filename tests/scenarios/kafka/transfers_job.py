"""Defines a pipeline over Debezium's topics of two tables: at each cut, both tables are as in the database."""

import json
from pathlib import Path

from tidemark import CheckpointConfig, DebeziumTransactions, KafkaSource, Pipeline, apply_changes

TABLES = {"giro": "id int, balance int, note string", "savings": "id int, balance int"}


def build(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    shop = DebeziumTransactions(told["transactions"])
    pipeline = Pipeline("shop", config=CheckpointConfig(slice_rows_max=told["rows"], retained=40), parallelism=1)
    for name, columns in TABLES.items():
        topic = f"{told['prefix']}.own.{name}"
        kafka = KafkaSource(told["servers"], topic, columns, format="debezium-json", transactions=shop)
        changes = pipeline.source(name, kafka).table(f"bronze/{name}", id=f"bronze_{name}")
        apply_changes(changes.drop("_undecoded"), f"silver_{name}", keys=["id"]).upsert(f"silver/{name}")
    return pipeline
