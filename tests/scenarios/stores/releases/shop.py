"""The pipeline whose warehouses, written by released versions, lie here as archives. Every version can build it.

Each release adds an archive of its own. In an environment of that version, `python shop.py` writes the project into the
current folder, which must be empty. Then `tar czf 0.3.0.tar.gz pyproject.toml data warehouse` packs it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
from pyspark.sql.types import LongType, StringType, StructType

from tidemark import CheckpointConfig, Expectation, FileSource, Pipeline, count, sum_of, top

ORDERS = StructType().add("id", LongType()).add("customer", StringType()).add("amount", LongType())
CUSTOMERS = StructType().add("customer", StringType()).add("city", StringType())
PROJECT = '[tool.tidemark]\nwarehouse = "warehouse"\ndata = "data"\n\n[tool.tidemark.pipelines]\nshop = "shop:build"\n'


def build(data: Path) -> Pipeline:
    """Return bronze with a quarantine, silver with cities, sums by customer and by city, and the largest orders."""
    pipeline = Pipeline("shop", config=CheckpointConfig(every_rows=40, slice_rows_max=20, retained=5), parallelism=2)
    has_amount = Expectation("expect_column_values_to_not_be_null", {"column": "amount"})
    orders = pipeline.source("orders", FileSource(data / "orders", ORDERS)).table("bronze/orders", id="bronze")
    orders = orders.check_rows(has_amount, quarantine="quarantine/orders")
    customers = pipeline.source("customers", FileSource(data / "customers", CUSTOMERS))
    silver = orders.key_by("customer").connect(customers.key_by("customer")).enrich("silver", "city")
    silver.table("silver/orders")
    sums = silver.key_by("customer", "city").aggregate("sums", n=count(), spent=sum_of("amount"))
    sums.upsert("gold/customers")
    sums.key_by("city").aggregate("cities", customers=count(), spent=sum_of("spent")).upsert("gold/cities")
    best = ["amount desc", "id"]
    top(silver.key_by("city"), "largest", n=2, order_by=best, row_number="place").upsert("gold/largest")
    return pipeline


def deliver(data: Path, split: str, first: int, number: int) -> None:
    """Write this number of orders as the next file of a split."""
    ids = range(first, first + number)
    amounts = [None if each % 10 == 0 else each * 10 for each in ids]
    columns = {"id": ids, "customer": [f"c{each % 7}" for each in ids], "amount": amounts}
    _write(data / "orders" / split, pl.DataFrame(columns, schema={"id": pl.Int64, "customer": str, "amount": pl.Int64}))


def _write(folder: Path, rows: pl.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / f"{len(list(folder.glob('*.parquet'))):03}.parquet")


def main() -> None:
    """Write the project: four checkpoints, a savepoint, and a last checkpoint."""
    Path("pyproject.toml").write_text(PROJECT)
    shutil.copy(__file__, "shop.py")
    cities = ("Köln", "Lyon", "Oslo")
    customers = {"customer": [f"c{each}" for each in range(7)], "city": [cities[each % 3] for each in range(7)]}
    _write(Path("data/customers/all"), pl.DataFrame(customers))
    deliver(Path("data"), "a", 0, 60)
    deliver(Path("data"), "b", 100, 60)
    for words in (("run",), ("savepoint",), ("run",)):
        subprocess.run([sys.executable, "-m", "tidemark", *words], check=True)
        if words == ("savepoint",):
            deliver(Path("data"), "a", 200, 40)


if __name__ == "__main__":
    main()
