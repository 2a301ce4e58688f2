"""A job that has read files alone goes on with them as its first part, on Spark: killed, each row once."""

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from tidemark import CheckpointConfig, FileSource, Pipeline, count
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.usefixtures("spark")]

EVERY_ROWS = 25
SCHEMA = StructType().add("customer", StringType()).add("amount", LongType())


def build(data: Path) -> Pipeline:
    alone, live = data / "orders", data / "live"
    source = (
        FileSource(alone, SCHEMA, bounded=True).then(FileSource(live, SCHEMA))
        if live.exists()
        else FileSource(alone, SCHEMA)
    )
    config = CheckpointConfig(unaligned=(data / "unaligned").exists(), every_rows=EVERY_ROWS, slice_rows_max=10)
    pipeline = Pipeline("alone", config=config)
    orders = pipeline.source("orders", source).table("bronze/orders", id="bronze")
    orders.key_by("customer").aggregate("per_customer", orders=count()).upsert("gold/customers")
    return pipeline


def orders(numbers: range) -> pl.DataFrame:
    return pl.DataFrame({"customer": [f"c{number % 3}" for number in numbers], "amount": list(numbers)})


@pytest.mark.parametrize("unaligned", [False, True])
def test_files_read_alone_become_the_first_part(tmp_path, unaligned):
    """A tick of each of the two pipelines is killed. In unaligned mode, a cut may hold slices in flight."""
    trial = Trial("tests.scenarios.test_read_alone_first:build", tmp_path)
    trial.deliver("orders/berlin", orders(range(40)))
    if unaligned:
        (trial.data / "unaligned").touch()
    trial.kill("after:AppendRow#1", spark_cores=1)
    trial.deliver("orders/berlin", orders(range(40, 60)))
    trial.deliver("live/all", orders(range(60, 100)))
    trial.kill("before:AppendRow#2", spark_cores=1)
    cut = trial.run(spark_cores=1)
    bronze = cut.polars("bronze/orders").collect()
    assert list(range(100)) == sorted(bronze["amount"])
    by_split = dict(bronze["_split"].value_counts().iter_rows())
    alone = by_split["berlin"]
    assert {"berlin": alone, "1.berlin": 60 - alone, "2.all": 40} == by_split
    assert 0 < alone <= EVERY_ROWS if unaligned else alone == EVERY_ROWS
    assert 100 == cut.polars("gold/customers").collect()["orders"].sum()
