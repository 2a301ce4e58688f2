"""A user's project: it counts numbers by key, with a keyed function that Spark's workers import by name."""

from pathlib import PurePath

import polars as pl

from jobs.reading import Cuts

SCHEMAS = """
from pyspark.sql.types import LongType, StructField, StructType

TOTAL = StructType([StructField("total", LongType())])
KEY_AND_TOTAL = StructType([StructField("key", LongType()), *TOTAL])
"""
FUNCTION = """
import polars as pl

from {schemas} import KEY_AND_TOTAL
from tidemark import KeyedFunction, Processed


class Totals:
    def process(self, inputs, state):
        changed = inputs[0].group_by("key").agg(total=pl.len().cast(pl.Int64))
        both = pl.concat([state, changed]).group_by("key").agg(pl.col("total").sum())
        assert both.columns == KEY_AND_TOTAL.names
        return Processed(both, both)
"""
PIPELINE = """
from tidemark import Pipeline, SequenceSource

from {function} import Totals
from {schemas} import KEY_AND_TOTAL, TOTAL


def build(data):
    pipeline = Pipeline("stock", parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({{"all": 700}}, keys=7)).table("bronze/numbers", id="bronze")
    numbers.key_by("key").process("totals", Totals(), state=TOTAL, output=KEY_AND_TOTAL).upsert("gold/totals")
    return pipeline
"""


def write_project(folder, *, pipeline="stock", function="totals", schemas="schemas"):
    (folder / "pyproject.toml").write_text(f'[tool.tidemark.pipelines]\nstock = "{pipeline}:build"\n')
    for module, text in ((pipeline, PIPELINE), (function, FUNCTION), (schemas, SCHEMAS)):
        path = PurePath(*module.split("."))
        (folder / path.parent).mkdir(exist_ok=True)
        if path.parent.name:
            (folder / path.parent / "__init__.py").touch()
        (folder / path.with_suffix(".py")).write_text(text.format(function=function, schemas=schemas))


def counted_once(warehouse):
    totals = Cuts(warehouse, "stock").latest().polars("gold/totals").collect()
    return totals.sort("key").equals(pl.DataFrame({"key": range(7), "total": [100] * 7}))
