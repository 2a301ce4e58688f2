"""A warehouse that a released version wrote is read, continued and rolled back as if this version had written it.

The folder `releases` has such warehouses. Its `shop.py` says how a release adds its own.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb
import polars as pl
import pytest

from tests.scenarios.stores.releases.shop import PROJECT, build, deliver
from tidemark import Cuts
from tidemark.testing import Trial

HERE = Path(__file__).parent / "releases"
CUTS = {1: 40, 2: 80, 3: 120, 4: 127, 6: 167}
"""The checkpoints of each warehouse, and the number of rows read up to each: orders, and seven customers."""
ANSWERS = {
    "silver/orders": "SELECT id, customer, amount, city FROM good JOIN customers USING (customer)",
    "quarantine/orders": "SELECT id, customer, amount FROM orders WHERE amount IS NULL",
    "gold/customers": "SELECT customer, city, count(*) n, sum(amount) spent FROM silver GROUP BY ALL",
    "gold/cities": "SELECT city, count(DISTINCT customer) customers, sum(amount) spent FROM silver GROUP BY ALL",
    "gold/largest": "SELECT city, id, place FROM (SELECT *, row_number() OVER (PARTITION BY city ORDER BY amount DESC, "
    "id) place FROM silver) WHERE place <= 2",
}


def require_answer(cut, orders, customers):
    """Assert that each table has the rows of a batch query over these orders."""
    with duckdb.connect() as db:
        db.register("orders", orders.to_arrow())
        db.register("customers", customers.to_arrow())
        db.execute("CREATE VIEW good AS FROM orders WHERE amount IS NOT NULL")
        db.execute(f"CREATE VIEW silver AS {ANSWERS['silver/orders']}")
        for table, query in ANSWERS.items():
            wanted = db.sql(query).pl()
            found = cut.polars(table).select(wanted.columns).collect()
            assert wanted.sort(wanted.columns).rows() == found.sort(wanted.columns).rows(), table


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("version", sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz")))
def test_a_released_warehouse_is_read_and_goes_on(tmp_path, version):
    with tarfile.open(HERE / f"{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    released = [*tmp_path.rglob("traces/*.ndjson")]
    assert released
    (tmp_path / "shop.py").write_bytes((HERE / "shop.py").read_bytes())
    assert PROJECT == (tmp_path / "pyproject.toml").read_text()
    customers = pl.read_parquet(tmp_path / "data/customers/all")
    cuts = Cuts(tmp_path / "warehouse", "shop")
    for number, rows in CUTS.items():
        cut = cuts.at(number)
        orders = cut.polars("bronze/orders").collect()
        assert rows in (len(orders), len(orders) + 7)
        require_answer(cut, orders, customers)
    deliver(tmp_path / "data", "b", 300, 33)
    trial = Trial(build, tmp_path)
    latest = trial.run()
    everything = pl.concat(pl.read_parquet(path) for path in (tmp_path / "data/orders").rglob("*.parquet"))
    require_answer(latest, everything, customers)
    subprocess.run([sys.executable, "-m", "tidemark", "rollback", "shop", "3"], cwd=tmp_path, check=True)
    require_answer(trial.run(), everything, customers)
    for trace in released:  # only the release's core can replay it, so it is not judged with this test's traces
        trace.unlink(missing_ok=True)
