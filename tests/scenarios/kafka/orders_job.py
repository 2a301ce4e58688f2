"""Defines a pipeline over the topics that `DATA/kafka.json` names: bronze, a quarantine and sums by customer."""

import json
from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructType

from tidemark import DECODED, CheckpointConfig, FileSource, KafkaSource, Pipeline, count, sum_of

SCHEMA = StructType().add("customer", StringType()).add("amount", LongType())


def build(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    pipeline = Pipeline("shop", config=CheckpointConfig(every_rows=told.pop("every_rows", 1_000)), parallelism=2)
    orders = pipeline.source("orders", KafkaSource(**{"schema": SCHEMA} | told))
    good = orders.table("bronze/orders", id="bronze").check_rows(DECODED, quarantine="quarantine/orders")
    good.key_by("customer").aggregate("per_customer", orders=count(), spent=sum_of("amount")).upsert("gold/customers")
    return pipeline


def files_first(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    pipeline = Pipeline("hybrid")
    source = FileSource(data / "orders", SCHEMA, bounded=True).then(KafkaSource(**told, schema=SCHEMA))
    orders = pipeline.source("orders", source).table("bronze/orders", id="bronze")
    good = orders.check_rows(DECODED, quarantine="quarantine/orders", id="good")
    good.key_by("customer").aggregate("per_customer", orders=count()).upsert("gold/customers")
    return pipeline
