"""Files first and then a Kafka topic, as one source: a real broker, Spark, and a tick that is killed at the switch."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.scenarios.kafka.orders_job import SCHEMA
from tidemark import DECODED, FileSource, KafkaSource, Pipeline, count
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.dear]


def build(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    pipeline = Pipeline("hybrid")
    source = FileSource(data / "orders", SCHEMA, bounded=True).then(KafkaSource(**told, schema=SCHEMA))
    orders = pipeline.source("orders", source).table("bronze/orders", id="bronze")
    good = orders.check_rows(DECODED, quarantine="quarantine/orders", id="good")
    good.key_by("customer").aggregate("per_customer", orders=count()).upsert("gold/customers")
    return pipeline


def orders(numbers: range) -> pl.DataFrame:
    return pl.DataFrame({"customer": [f"c{number % 3}" for number in numbers], "amount": list(numbers)})


def test_files_are_read_first_and_then_a_topic(make_topic, tmp_path):
    """A tick that dies at its first checkpoint behind the switch loses nothing and doubles nothing."""
    topic = make_topic(2)
    trial = Trial("tests.scenarios.kafka.test_kafka_after_files:build", tmp_path)
    trial.deliver("orders/berlin", orders(range(40)))
    trial.deliver("orders/paris", orders(range(40, 70)))
    (trial.data / "kafka.json").write_text(json.dumps({"servers": topic.servers, "topics": topic.name}))
    topic.write([json.dumps(row) for row in orders(range(70, 90)).to_dicts()], 0)
    topic.write([*(json.dumps(row) for row in orders(range(90, 100)).to_dicts()), "no order"], 1)
    settings = {"every_rows": 25, "slice_rows_max": 10, "spark_cores": 1}
    trial.kill("after:AppendRow#3", **settings)
    cut = trial.run(**settings)
    bronze = cut.polars("bronze/orders").collect()
    assert list(range(100)) == sorted(bronze["amount"].drop_nulls())
    assert {"1.berlin": 40, "1.paris": 30, f"2.{topic.name}-0": 20, f"2.{topic.name}-1": 11} == dict(
        bronze["_split"].value_counts().iter_rows()
    )
    assert [b"no order"] == cut.polars("quarantine/orders").collect()["_undecoded"].to_list()
    assert 100 == cut.polars("gold/customers").collect()["orders"].sum()
    assert {0: 20, 1: 11} == topic.committed("tidemark-hybrid-orders", 2)
    topic.write([json.dumps({"customer": "c9", "amount": 100})], 0)
    assert 102 == trial.run(**settings).polars("bronze/orders").collect().height
