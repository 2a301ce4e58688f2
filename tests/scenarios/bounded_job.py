"""A pipeline of two sources that end: orders wait for the city of their customer, and some customers never come."""

from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructType

from tidemark import FileSource, Pipeline

ORDERS = StructType().add("id", LongType()).add("customer", StringType())
CUSTOMERS = StructType().add("customer", StringType()).add("city", StringType())


def build(data: Path) -> Pipeline:
    pipeline = Pipeline("orders")
    orders = pipeline.source("orders", FileSource(data / "orders", ORDERS, bounded=True)).table("bronze/orders", id="o")
    customers = pipeline.source("customers", FileSource(data / "customers", CUSTOMERS, bounded=True))
    known = customers.table("bronze/customers", id="c").drop("_split", "_position")
    joined = orders.key_by("customer").connect(known.key_by("customer")).enrich("with_city", "city")
    joined.table("silver/orders", id="silver")
    return pipeline
