"""Defines a pipeline over Debezium's events of a bank: the accounts as in the database, and their versions."""

import json
from pathlib import Path

from tidemark import DECODED, CheckpointConfig, KafkaSource, Pipeline, SchemaRegistry, apply_changes


def build(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    if "registry" in told:
        told["registry"] = SchemaRegistry(told["registry"], kept=data / "schemas")
    pipeline = Pipeline("bank", config=CheckpointConfig(every_rows=told.pop("every_rows", 1_000)), parallelism=2)
    changes = pipeline.source("giro", KafkaSource(**told)).table("bronze/giro", id="bronze")
    good = changes.check_rows(DECODED, quarantine="quarantine/giro", id="good").drop("_undecoded")
    apply_changes(good, "accounts", keys=["id"], columns=["balance"]).upsert("silver/accounts")
    apply_changes(good, "versions", keys=["id"], columns=["balance"], type=2).upsert("silver/versions")
    return pipeline
