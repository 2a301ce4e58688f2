"""Writes the changes of orders and of customers (P22), and computes the joined sums after all changes.

Each change is the whole new row of a key, as in a compacted Kafka topic. `seq` is its place in the order, and
`gone` says whether the key is deleted. An order belongs to a customer, and a customer to a region. Both may change.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

ORDERS: Final = 1_000_000
CUSTOMERS: Final = 100_000
REGIONS: Final = 50
EPOCH: Final = 500_000
"""The changes of a checkpoint, of both tables together."""
OF_CUSTOMERS: Final = EPOCH // 8
ORDER_COLUMNS: Final = ("seq", "order_id", "customer", "amount", "gone")
CUSTOMER_COLUMNS: Final = ("seq", "customer", "region", "gone")
_SEED: Final = 1
_AMOUNTS: Final = 1_000
_GONE: Final = 0.05
_FEW: Final = 1_000


class WrongSumsError(RuntimeError):
    """A program's sums differ from the sums of its input, so none of its figures counts."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of both tables in one epoch."""

    orders: pl.DataFrame
    customers: pl.DataFrame


def lay_out_changelog(changes: int, root: Path, *, csv: bool = False) -> Path:
    """Return a folder with two folders: `few` for a start, and `whole` with all changes.

    Each of the two has `orders/all` and `customers/all` with a file for each epoch, and `sums.parquet`.
    """
    folder = root / f"changelog-{changes}{'-csv' if csv else ''}"
    if not (folder / "whole" / "sums.parquet").exists():
        shutil.rmtree(folder, ignore_errors=True)
        epochs = [_epoch(place) for place in range(changes // EPOCH)]
        few = Changes(epochs[0].orders.head(_FEW), epochs[0].customers.head(_FEW))
        _write([few], folder / "few", csv=csv)
        _write(epochs, folder / "whole", csv=csv)
    return folder


def require_sums(folder: Path, found: pl.DataFrame) -> None:
    """Raise WrongSumsError unless `found` (region, orders, amounts) are the sums of the changes in the folder."""
    expected = sorted(pl.read_parquet(folder / "sums.parquet").rows())
    if sorted(found.select("region", "orders", "amounts").rows()) != expected:
        raise WrongSumsError(f"the sums of {folder} are not those of its changes")


def _write(epochs: Sequence[Changes], folder: Path, *, csv: bool) -> None:
    for place, epoch in enumerate(epochs):
        for name, rows in (("orders", epoch.orders), ("customers", epoch.customers)):
            (folder / name / "all").mkdir(parents=True, exist_ok=True)
            file = folder / name / "all" / f"{place:05d}"
            if csv:
                rows.write_csv(file.with_suffix(".csv"), include_header=False)
            else:
                rows.write_parquet(file.with_suffix(".parquet"))
    _sums(epochs).write_parquet(folder / "sums.parquet")


def _epoch(place: int) -> Changes:
    chance = np.random.default_rng([_SEED, place])
    of_orders = EPOCH - OF_CUSTOMERS
    orders = {
        "seq": np.arange(place * EPOCH, place * EPOCH + of_orders),
        "order_id": chance.integers(0, ORDERS, of_orders),
        "customer": chance.integers(0, CUSTOMERS, of_orders),
        "amount": chance.integers(0, _AMOUNTS, of_orders),
        "gone": chance.random(of_orders) < _GONE,
    }
    customers = {
        "seq": np.arange(place * EPOCH, place * EPOCH + OF_CUSTOMERS),
        "customer": chance.integers(0, CUSTOMERS, OF_CUSTOMERS),
        "region": chance.integers(0, REGIONS, OF_CUSTOMERS),
        "gone": chance.random(OF_CUSTOMERS) < _GONE,
    }
    return Changes(pl.DataFrame(orders).select(ORDER_COLUMNS), pl.DataFrame(customers).select(CUSTOMER_COLUMNS))


def _sums(epochs: Sequence[Changes]) -> pl.DataFrame:
    orders = _newest(pl.concat([epoch.orders for epoch in epochs]), "order_id")
    customers = _newest(pl.concat([epoch.customers for epoch in epochs]), "customer")
    joined = orders.join(customers, on="customer")
    return joined.group_by("region").agg(pl.len().alias("orders"), pl.col("amount").sum().alias("amounts"))


def _newest(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    return rows.sort("seq").unique(key, keep="last").filter(~pl.col("gone"))
